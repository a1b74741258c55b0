"""A target to run passes of: all of its layers, or a few of each kind when all do not fit into memory.

Weights are the checkpoint's (dequantised where it is quantised), or random ones of the config's shapes: what a pass takes does not hang on
their values, but for the routing of experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eaglelab.target.checkpoint import Checkpoint, open_checkpoint, read_json
from eaglelab.target.skeleton import Skeleton, build_skeleton, cache_argument
from eaglelab.target.weights import WeightPlan
from eaglelab.timing.bench.attention import use_folded_attention
from eaglelab.timing.bench.clock import free_bytes
from eaglelab.timing.bench.fixed_cache import windows_of
from eaglelab.timing.errors import TimingError
from eaglelab.weight_files import weight_files

SHARE_OF_FREE = 0.9
"""Of the free memory, what weights or keys and values may take."""
STD = 0.02
"""Of random weights: transformers' usual initialisation."""


@dataclass
class TargetModel:
    """A target with the weights of some layers in memory; the others are names and shapes."""

    name: str
    skeleton: Skeleton
    device: torch.device
    dtype: torch.dtype
    kinds: tuple[tuple[int, ...], ...]
    """The N layers by kind: equal shapes, equal attention window."""
    held: tuple[tuple[int, ...], ...]
    """Of each kind the layers that are in memory."""
    windows: list[int | None]
    """Each layer's sliding window."""
    random_weights: bool
    notes: tuple[str, ...] = ()
    kv_shapes: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Layer in memory -> key heads, channels of a key, channels of a value, as transformers caches them."""

    @property
    def whole(self) -> bool:
        return self.kinds == self.held

    @property
    def in_memory(self) -> list[int]:
        return sorted(layer for kind in self.held for layer in kind)

    @property
    def num_layers(self) -> int:
        return len(self.skeleton.layers)

    @contextmanager
    def only(self, layers: Sequence[int]) -> Iterator[None]:
        """Within it the model consists of these layers, in order, and of what stands before and after them."""
        path, _, attribute = self.skeleton.layer_prefixes[0].removesuffix(".0.").rpartition(".")
        parent, config = self.skeleton.root.get_submodule(path), self.skeleton.base.config
        everything, types = getattr(parent, attribute), getattr(config, "layer_types", None)
        setattr(parent, attribute, nn.ModuleList([self.skeleton.layers[i] for i in layers]))
        try:
            if types:  # the loop looks masks up by place
                object.__setattr__(config, "layer_types", [types[i] for i in layers])
            yield
        finally:
            setattr(parent, attribute, everything)
            if types:
                object.__setattr__(config, "layer_types", types)

    def forward(self, ids: Tensor, positions: Tensor, cache: Any) -> Tensor:
        """ids, positions: [B, n] -> logits [B, n, V]; the states [B, n, H] where transformers has no head for this model."""
        root = self.skeleton.root
        out = root(input_ids=ids, position_ids=positions, use_cache=True, **{cache_argument(root): cache})
        return out[0]


def load_target(path: str | Path, device: torch.device, dtype: torch.dtype, *, layers: int | None = None) -> TargetModel:
    """The target in a checkpoint folder, or of a config.json (or a folder that holds nothing else): then with random weights.

    layers: of each kind of layer this many are in memory at most; None for all. Raises TimingError: a target that does not fit into memory,
    no layers, a path that is no target; CheckpointError and ForwardError as `eaglelab.target` does.
    """
    if layers is not None and layers < 1:
        raise TimingError(f"layers is {layers}, expected 1 or more of each kind of layer, or none given for all")
    checkpoint, random_weights = _open(Path(path))
    skeleton = build_skeleton(checkpoint, dtype)
    windows = windows_of(skeleton.base.config)
    kinds = _kinds(skeleton, windows)
    held = tuple(kind[:layers] for kind in kinds)
    target = TargetModel(checkpoint.path.name, skeleton, device, dtype, kinds, held, windows, random_weights)
    _fits(target)
    plan = WeightPlan(checkpoint, skeleton)
    (_fill if random_weights else _load)(target, checkpoint, plan)
    notes = []
    if random_weights:
        notes.append("Random weights of the config's shapes: no checkpoint was given.")
    elif "quantization_config" in checkpoint.config or "compression_config" in checkpoint.config:
        kept = str(dtype).removeprefix("torch.")
        notes.append(f"The checkpoint is quantised and was measured in {kept}: an engine that keeps it quantised reads fewer bytes.")
    if not use_folded_attention(skeleton.root):
        chosen = getattr(skeleton.root.config, "_attn_implementation", None)
        notes.append(f"The target attends by transformers' `{chosen}`, which may copy keys and values for n > 1 tokens and not for one.")
    target.notes = tuple(notes)
    target.kv_shapes = _probe(target)
    return target


def _open(path: Path) -> tuple[Checkpoint, bool]:
    """The checkpoint, and whether it has no weights."""
    if path.is_file():
        return Checkpoint(path, read_json(path), {}), True
    if path.is_dir() and (path / "config.json").is_file() and not weight_files(path).files:
        return Checkpoint(path, read_json(path / "config.json"), {}), True
    return open_checkpoint(path), False


def _kinds(skeleton: Skeleton, windows: list[int | None]) -> tuple[tuple[int, ...], ...]:
    types = getattr(skeleton.base.config, "layer_types", None) or [""] * len(skeleton.layers)
    kinds: dict[Any, list[int]] = {}
    for i, layer in enumerate(skeleton.layers):
        shapes = tuple(sorted((name, tuple(p.shape)) for name, p in layer.named_parameters()))
        kinds.setdefault((shapes, windows[i], types[i]), []).append(i)
    return tuple(tuple(kind) for kind in kinds.values())


def _fits(target: TargetModel) -> None:
    needed = sum(p.numel() * p.element_size() for _, p in held_parameters(target))
    free = free_bytes(target.device)
    if free is not None and needed > SHARE_OF_FREE * free:
        layers = f"{len(target.in_memory)} of N={target.num_layers} layers"
        raise TimingError(
            f"{target.name}: {layers} and the rest take {needed / 1e9:.1f} GB in {str(target.dtype).removeprefix('torch.')}, {free / 1e9:.1f} GB are "
            f"free on {target.device}; measure some layers of each kind for all: --layers 2"
        )


def held_parameters(target: TargetModel) -> list[tuple[str, Tensor]]:
    """Names of the root's parameters that are in memory, a tied head left out, and what they are (on the meta device before loading)."""
    skeleton = target.skeleton
    absent = tuple(skeleton.layer_prefixes[i] for i in range(target.num_layers) if i not in set(target.in_memory))
    head = head_of(skeleton)
    tied = head.weight if head is not None and skeleton.root.config.tie_word_embeddings else skeleton.embedding.weight
    spare = None if tied is skeleton.embedding.weight else tied
    return [(n, p) for n, p in skeleton.root.named_parameters() if not n.startswith(absent or ("\0",)) and p is not spare]


def head_of(skeleton: Skeleton) -> nn.Module | None:
    return skeleton.root.get_output_embeddings()


def _load(target: TargetModel, checkpoint: Checkpoint, plan: WeightPlan) -> None:
    skeleton, head = target.skeleton, head_of(target.skeleton)
    if head is not None and checkpoint.tied:
        skeleton.root.config.tie_word_embeddings = True
    table = skeleton.embedding.weight
    loaded = [name for name, p in held_parameters(target) if head is None or p is table or p is not head.weight]
    absent = tuple(skeleton.layer_prefixes[i] for i in range(target.num_layers) if i not in set(target.in_memory))
    buffers = [n for n, b in plan.expected.items() if not isinstance(b, nn.Parameter) and not n.startswith(absent or ("\0",))]
    names = [*loaded, *buffers]
    missing = plan.missing(names)
    if missing:
        raise TimingError(
            f"{target.name}: {len(missing)} of {len(names)} tensors are missing ({missing[0]} first); is config.json another model's?"
        )
    plan.load(names, target.device)
    if head is not None:
        own = skeleton.root.config.tie_word_embeddings
        weight = skeleton.embedding.weight if own else checkpoint.tensor(checkpoint.head_name).to(target.device, target.dtype)
        head.weight = nn.Parameter(weight.data if own else weight, requires_grad=False)
        if isinstance(getattr(head, "bias", None), Tensor) and head.bias.is_meta:
            head.bias = nn.Parameter(torch.zeros(len(head.weight), dtype=target.dtype, device=target.device), requires_grad=False)
    _place_buffers(target)


def _fill(target: TargetModel, checkpoint: Checkpoint, plan: WeightPlan) -> None:
    """Random weights in place of all that is on the meta device and in memory from here on; norms' gains are one."""
    skeleton, head = target.skeleton, head_of(target.skeleton)
    for name, p in held_parameters(target):
        value = torch.empty(p.shape, dtype=plan.dtype(name), device=target.device)
        value = value.fill_(1.0) if p.ndim == 1 and "norm" in name else value.normal_(0, STD)
        path, _, leaf = name.rpartition(".")
        setattr(skeleton.root.get_submodule(path), leaf, nn.Parameter(value, requires_grad=False))
    if head is not None and skeleton.root.config.tie_word_embeddings:
        head.weight = skeleton.embedding.weight
    _place_buffers(target)


def _place_buffers(target: TargetModel) -> None:
    """All buffers to the device. One that nothing gives a value (a router's correction) is zero."""
    skeleton = target.skeleton
    absent = {m for i in range(target.num_layers) if i not in set(target.in_memory) for m in skeleton.layers[i].modules()}
    for module in skeleton.root.modules():
        if module in absent:
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.zeros_like(buffer, device=target.device) if buffer.is_meta else buffer.to(target.device)


@torch.no_grad()
def _probe(target: TargetModel) -> dict[int, tuple[int, int, int]]:
    """Run one token and see what each layer caches."""
    from transformers.cache_utils import DynamicCache

    cache = DynamicCache(config=target.skeleton.base.config)
    one = torch.zeros(1, 1, dtype=torch.int64, device=target.device)
    with target.only(target.in_memory):
        try:
            target.forward(one, one, cache)
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError, KeyError) as error:
            raise TimingError(f"{target.name}: transformers cannot run it ({type(error).__name__}: {error})") from error
    shapes = {}
    for i in target.in_memory:
        keys, values = cache.layers[i].keys, cache.layers[i].values
        if keys is None or keys.ndim != 4:
            raise TimingError(
                f"{target.name}: layer {i} caches no keys of its own; bench runs layers that do. Measure this target in its engine"
            )
        shapes[i] = (keys.shape[1], keys.shape[3], values.shape[3])
    return shapes
