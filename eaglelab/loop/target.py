"""The whole target in memory with a KV cache: a pass over new tokens gives logits, and the boundaries that the drafter is fed.

The model is that of `eaglelab.target`: transformers' own modules and code, weights dequantised. There it runs one layer at a time; here all
of them are loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelab.drafter.checkpoint import choose_dtype
from eaglelab.drafter.device import choose_device
from eaglelab.target.forward import Target
from eaglelab.target.skeleton import cache_argument
from eaglelab.timing.bench.clock import free_bytes
from eaglelab.timing.errors import TimingError
from eaglelab.wiring import FINAL, Boundary, boundary_phrase


class CachedTarget:
    """A target that runs, one request at a time. Its cache is empty at first and after `reset`."""

    @torch.no_grad()
    def __init__(self, path: str | Path, *, dtype: str | torch.dtype = "auto", device: str = "auto") -> None:
        """path: its checkpoint folder. dtype: auto is float32 on the CPU and bfloat16 on CUDA.

        Raises CheckpointError and ForwardError as `visit_boundaries` does, and TimingError for a target that does not fit into memory or
        whose cache cannot be taken back (linear attention: rejected tokens stay in its state).
        """
        self.path, self.device = Path(path), choose_device(device)
        self.dtype = choose_dtype(dtype, self.device)
        built = Target(path, self.dtype, str(self.device))
        self.checkpoint, self._skeleton = built.checkpoint, built.skeleton
        self.num_layers, self.vocab_size = len(built.skeleton.layers), built.checkpoint.vocab_size
        self._cache_argument = cache_argument(built.skeleton.base)
        self.reset()
        built.check_weights(self.num_layers, to_end=True)
        names = built.plan.parameters(built.skeleton.base_prefix)
        _check_room(self.path.name, (built.plan.expected[n].numel() for n in names), self.dtype, self.device)
        built.plan.load(names, self.device)
        built.skeleton.base.to(self.device)  # its buffers
        self._head, self._head_bias = self._load_head()
        self._wanted: tuple[Boundary, ...] = ()
        self._captured: dict[Boundary, Tensor] = {}
        for number, layer in enumerate(built.skeleton.layers):
            layer.register_forward_pre_hook(self._entering(number), with_kwargs=True)
        built.skeleton.layers[-1].register_forward_hook(self._leaving)

    def _load_head(self) -> tuple[Tensor, Tensor | None]:
        """lm_head [V, H] and its bias [V], which few have."""
        name, held = self.checkpoint.head_name, self.checkpoint
        if held.tied:
            return self.table, None
        bias = name.removesuffix("weight") + "bias"
        return (held.tensor(n).to(self.device, self.dtype) if n in held else None for n in (name, bias))

    # -- what it says of itself -------------------------------------------------------------------------------------------

    @property
    def table(self) -> Tensor:
        """[V, H], the embedding table as stored: what a drafter without one of its own is given, unscaled."""
        return self._skeleton.embedding.weight

    @property
    def longest(self) -> int | None:
        """Positions that it has, by its config."""
        return getattr(self._skeleton.base.config, "max_position_embeddings", None)

    @property
    def stop_tokens(self) -> frozenset[int]:
        """Ends of an answer: `eos_token_id` of generation_config.json, else of config.json."""
        with suppress(OSError, ValueError, AttributeError):
            said = json.loads((self.path / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
            if ids := _ids(said):
                return ids
        return _ids(self.checkpoint.text_config.get("eos_token_id", self.checkpoint.config.get("eos_token_id")))

    def check_wiring(self, wiring: Sequence[Boundary]) -> None:
        """Raises TimingError for a place that is fed nothing that this target has."""
        for place, boundary in enumerate(wiring):
            if boundary is None or not (boundary == FINAL or 0 <= boundary <= self.num_layers):
                raise TimingError(
                    f"place {place} of the drafter's fc is fed {boundary_phrase(boundary)}, expected a boundary 0..{self.num_layers} of "
                    f"{self.path.name} or {FINAL!r}: give the wiring to run with"
                )

    # -- running ------------------------------------------------------------------------------------------------------------

    def reset(self) -> None:
        """Forget everything."""
        self._cache = self._empty_cache()
        self.filled = 0

    @torch.no_grad()
    def forward(self, token_ids: Tensor, wiring: Sequence[Boundary] = (), *, last: bool = False) -> tuple[Tensor, list[Tensor]]:
        """The next R tokens. token_ids: [R] int64 on its device. wiring: the boundaries to have the states of, see `check_wiring`.

        Returns logits [R, V], [1, V] of the last token alone with `last`, before what the model does to them that changes no argmax
        (scales, soft caps); and one [R, H] a place of the wiring.
        """
        self._wanted = tuple(wiring)
        cache = {self._cache_argument: self._cache}
        states = self._skeleton.base(input_ids=token_ids[None], use_cache=True, **cache).last_hidden_state[0]  # [R, H]
        self.filled += len(token_ids)
        if self._cache.get_seq_length() != self.filled:
            raise TimingError(
                f"{self.path.name}: its cache holds {self._cache.get_seq_length()} tokens after {self.filled} were run, so this model keeps its "
                "past otherwise than transformers' decoders do. This loop does not run such a target; measure with an engine"
            )
        logits = F.linear(states[-1:] if last else states, self._head, self._head_bias)
        captured, self._captured = self._captured | {FINAL: states}, {}
        return logits, [captured[b] for b in wiring]

    def forget(self, tokens: int) -> None:
        """Take the last `tokens` out of the cache."""
        if tokens:  # transformers 4 empties the cache at 0
            self._cache.crop(-tokens)
            self.filled -= tokens

    def _entering(self, boundary: int) -> Any:
        def note(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            if boundary in self._wanted:
                self._captured[boundary] = (args[0] if args else kwargs["hidden_states"])[0]

        return note

    def _leaving(self, module: nn.Module, args: tuple, output: Any) -> None:
        if self.num_layers in self._wanted:
            self._captured[self.num_layers] = (output if isinstance(output, Tensor) else output[0])[0]

    def _empty_cache(self) -> Any:
        """A cache from which tokens can be taken back. Sliding layers keep all keys here and are masked: a window that has moved on cannot
        be moved back in every version of transformers."""
        from transformers import DynamicCache
        from transformers.cache_utils import DynamicLayer

        cache = DynamicCache(config=self._skeleton.base.config)
        odd = [type(x).__name__ for x in cache.layers if not isinstance(x, DynamicLayer)]
        if odd:
            raise TimingError(
                f"{self.path.name}: {len(odd)} of its {self.num_layers} layers keep a {odd[0]}, expected keys and values of every token: what a "
                "rejected draft leaves there cannot be taken back. This loop does not run such a target; measure with an engine"
            )
        return DynamicCache() if any(getattr(x, "is_sliding", False) for x in cache.layers) else cache


def _ids(said: Any) -> frozenset[int]:
    """Token ids of an `eos_token_id`, which is one, a list, or nothing."""
    return frozenset(i for i in (said if isinstance(said, list) else [said]) if type(i) is int)


def _check_room(name: str, sizes: Iterable[int], dtype: torch.dtype, device: torch.device) -> None:
    """Raise TimingError for weights that do not fit into the memory that is free now."""
    needed, free = sum(sizes) * dtype.itemsize, free_bytes(device)
    if free is not None and needed > free:
        raise TimingError(
            f"{name}: its weights take {needed / 1e9:.1f} GB in {str(dtype).removeprefix('torch.')}, {free / 1e9:.1f} GB of {device} are free; "
            "this loop holds the whole target in memory. Give a smaller dtype or another device, or measure with an engine"
        )
