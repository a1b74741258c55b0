"""The target's boundaries by its own forward, one decoder layer in memory at a time.

transformers' own code does all the computing. Its loop over the layers runs once per sample with the layers taken out, which yields
what each layer is given besides the residual stream (masks, rotary tables, …); then layer after layer is loaded, run on every sample
and released; at last the loop runs again with the last layer's true output, for what comes after it (the final norm). Samples are
never padded or batched, so that a state does not depend on its company.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eaglelab.findings import few
from eaglelab.progress import progress
from eaglelab.target.checkpoint import DTYPES, Checkpoint, open_checkpoint
from eaglelab.target.errors import CheckpointError, ForwardError
from eaglelab.target.names import NORMS
from eaglelab.target.skeleton import Skeleton, build_skeleton
from eaglelab.target.trace import final_states, trace_calls
from eaglelab.target.weights import WeightPlan
from eaglelab.wiring import FINAL

Visit = Callable[[int | str, list[Tensor]], Any]
Reached = tuple[int, list[Tensor]]
"""A boundary, and its states: one [T, H] per sample."""
FINAL_NORMS = tuple(name.split(".")[0] for name in NORMS)


class ForwardSource:
    """A target that can be run: what `identify` needs to know, and `visit`. Opening it reads config.json and names only."""

    def __init__(self, path: str | Path, dtype: str | torch.dtype = "auto", device: str = "cpu", up_to: int | None = None):
        self.path, self.dtype, self.device, self.up_to = Path(path), dtype, device, up_to
        checkpoint = open_checkpoint(path)
        self.num_layers: int = checkpoint.num_layers
        self.hidden_size: int = checkpoint.hidden_size
        self.vocab_size: int = checkpoint.vocab_size

    def visit(self, token_ids: list[Tensor], visit: Visit, after: Reached | None = None) -> None:
        """`visit_boundaries` of this target."""
        visit_boundaries(self.path, token_ids, visit, up_to=self.up_to, dtype=self.dtype, device=self.device, after=after)


@torch.no_grad()
def visit_boundaries(
    path: str | Path,
    token_ids: list[Tensor],
    visit: Visit,
    *,
    up_to: int | None = None,
    dtype: str | torch.dtype = "auto",
    device: str = "cpu",
    after: Reached | None = None,
) -> None:
    """Run the target over all samples and call `visit(boundary, states)` at each boundary, in order 0, 1, …, N, `FINAL`.

    path: a checkpoint folder. token_ids: one [T] integer tensor per sample. up_to: the last boundary wanted (its layers alone are
    read), None for all and `FINAL`. dtype: "auto" is the checkpoint's own; else float32, bfloat16 or float16.
    states: one [T, H] per sample, on `device` in that dtype, not to be changed. Boundary 0 is what enters layer 0.
    after: a boundary 0..N that an earlier run of the same samples reached, with its states: only later ones are computed and visited.
    In memory are the states twice, one layer (its experts fused one by one), and the embedding rows of these tokens.

    Raises CheckpointError (files; missing or unreadable tensors) and ForwardError (settings, token ids, an architecture that
    transformers does not have or that carries more than one residual stream from layer to layer).
    """
    target = Target(path, dtype, device)
    samples = checked_tokens(token_ids, target.checkpoint)
    last = target.last_boundary(up_to)
    target.check_weights(last, to_end=up_to is None)
    target.load_rest(samples, to_end=up_to is None)

    traces = [trace_calls(target.skeleton, ids.to(target.device), last) for ids in samples]
    begin, states = after or (0, [trace.embedded for trace in traces])  # per sample [T, H]
    if after is None:
        visit(0, states)
    for layer in progress(range(begin, last), "the target's forward", unit="layers"):
        with target.layer(layer) as module:
            states = [trace.calls[layer](module, h) for trace, h in zip(traces, states, strict=True)]  # per sample [T, H]
        visit(layer + 1, states)
    if up_to is None:
        visit(FINAL, [final_states(target.skeleton, trace, h) for trace, h in zip(traces, states, strict=True)])


class Target:
    """A checkpoint and its skeleton, with weights put in and taken out."""

    def __init__(self, path: str | Path, dtype: str | torch.dtype, device: str):
        self.checkpoint: Checkpoint = open_checkpoint(path)
        self.dtype = chosen_dtype(dtype, self.checkpoint)
        self.device = torch.device(device)
        self.skeleton: Skeleton = build_skeleton(self.checkpoint, self.dtype)
        self.plan = WeightPlan(self.checkpoint, self.skeleton)
        self.layer_names = [self.plan.parameters(prefix) for prefix in self.skeleton.layer_prefixes]

    def last_boundary(self, up_to: int | None) -> int:
        layers = len(self.skeleton.layers)
        if up_to is None:
            return layers
        if isinstance(up_to, bool) or not isinstance(up_to, int) or not 0 <= up_to <= layers:
            raise ForwardError(f"up_to is {up_to!r}, but {self.checkpoint.path.name} has N={layers} layers: give 0..{layers} or None")
        return up_to

    def rest_names(self, to_end: bool) -> list[str]:
        """Parameters of the base outside of its layers and its embedding table; the final norm only when the run goes `to_end`."""
        inside = {name for names in self.layer_names for name in names} | {self.skeleton.embedding_name}
        names = [name for name in self.plan.parameters(self.skeleton.base_prefix) if name not in inside]
        return names if to_end else [name for name in names if name.split(".")[-2] not in FINAL_NORMS]

    def check_weights(self, last: int, to_end: bool) -> None:
        names = [self.skeleton.embedding_name, *self.rest_names(to_end), *(n for names in self.layer_names[:last] for n in names)]
        missing = self.plan.missing(names)
        if missing:
            raise CheckpointError(
                f"{self.checkpoint.path.name}: {len(missing)} of {len(names)} tensors that boundary "
                f"{FINAL if to_end else last} needs are missing: {few(missing, 5)}. Is config.json that of another model?"
            )

    def load_rest(self, samples: list[Tensor], to_end: bool) -> None:
        """Everything outside of the layers; of the embedding table the rows of these samples' tokens only."""
        self.plan.load(self.rest_names(to_end), self.device)
        self._load_embedding(torch.cat(samples).unique())
        inside = {module for layer in self.skeleton.layers for module in layer.modules()}
        self._place_buffers(module for module in self.skeleton.base.modules() if module not in inside)

    def _load_embedding(self, ids: Tensor) -> None:
        name, table = self.skeleton.embedding_name, self.skeleton.embedding
        recipe = self.plan.recipes[name]
        if recipe.converter is not None:
            return self.plan.load([name], self.device)
        ((stored,),) = recipe.sources.values()
        rows = self.checkpoint.rows(stored, ids).to(self.device, self.plan.dtype(name))  # [U, H]
        known = ids.to(self.device)  # [U] sorted
        table.weight = nn.Parameter(rows, requires_grad=False)
        table.padding_idx = None
        table.register_forward_pre_hook(lambda module, args: (torch.searchsorted(known, args[0]), *args[1:]))
        return None

    @contextmanager
    def layer(self, index: int) -> Iterator[nn.Module]:
        """Decoder layer `index` with its weights, which are gone afterwards."""
        module, names = self.skeleton.layers[index], self.layer_names[index]
        self.plan.load(names, self.device)
        self._place_buffers(module.modules())
        try:
            yield module
        finally:
            self.plan.release(names)

    def _place_buffers(self, modules: Iterable[nn.Module]) -> None:
        for module in modules:
            for name, buffer in module._buffers.items():
                if buffer is not None and buffer.is_meta:
                    raise ForwardError(f"{type(module).__name__}: its buffer {name} is neither computed nor in the checkpoint")
                module._buffers[name] = buffer if buffer is None else buffer.to(self.device)


def chosen_dtype(dtype: str | torch.dtype, checkpoint: Checkpoint) -> torch.dtype:
    """The dtype to run in: "auto" is the checkpoint's own."""
    if dtype == "auto":
        return checkpoint.model_dtype
    found = DTYPES.get(str(dtype).removeprefix("torch."))
    if found is None:
        raise ForwardError(f"dtype {dtype!r} is not one to run a target in: give auto, {', '.join(DTYPES)}")
    return found


def checked_tokens(token_ids: list[Tensor], checkpoint: Checkpoint) -> list[Tensor]:
    """Samples as [T] int64 on the CPU. Raises ForwardError for empty ones and for ids outside of the vocabulary."""
    if not len(token_ids):
        raise ForwardError("no samples given: nothing to run the target on")
    samples = [torch.as_tensor(ids).to("cpu") for ids in token_ids]
    rows = checkpoint.vocab_size
    for number, ids in enumerate(samples):
        if ids.dim() != 1 or not len(ids) or ids.is_floating_point() or ids.dtype == torch.bool:
            raise ForwardError(f"sample {number} has token ids of shape {tuple(ids.shape)} and {ids.dtype}, expected [T] integers, T > 0")
        outside = ids[(ids < 0) | (ids >= rows)]
        if len(outside):
            raise ForwardError(
                f"sample {number} has the token id {int(outside[0])}, but {checkpoint.path.name} has ids 0..{rows - 1} "
                f"({len(outside)} of {len(ids)} are outside): these tokens are another tokenizer's, or this is another target"
            )
    return [ids.to(torch.int64) for ids in samples]
