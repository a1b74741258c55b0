"""From a checkpoint's tensors to the parameters that transformers' modules have, one module at a time.

transformers 5 keeps the experts of a layer fused, and renames here and there, while checkpoints hold one tensor per expert under the
names of their authors. Its own table of conversions (`transformers.conversion_mapping`) says what becomes what; transformers 4 has
no such table and takes the names as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from eaglelab.target.checkpoint import Checkpoint
from eaglelab.target.errors import CheckpointError
from eaglelab.target.skeleton import Skeleton


@dataclass
class Recipe:
    """How one parameter (or a few, for a tensor that is split) comes out of the checkpoint."""

    targets: list[str]
    """Names of parameters or buffers of the root."""
    sources: dict[str, list[str]] = field(default_factory=dict)
    """{pattern: checkpoint names in order}; a plain parameter has one name."""
    converter: Any = None
    """transformers' WeightConverter, None where the tensor is taken as it is."""


class WeightPlan:
    """Which tensors of the checkpoint make which parameter of the skeleton. Reads names only."""

    def __init__(self, checkpoint: Checkpoint, skeleton: Skeleton):
        self.checkpoint, self.skeleton = checkpoint, skeleton
        state = skeleton.root.state_dict(keep_vars=True)  # persistent buffers alone
        self.expected = dict(skeleton.root.named_parameters()) | {n: b for n, b in skeleton.root.named_buffers() if n in state}
        self._fp32 = _kept_in_float32(skeleton)
        self.recipes: dict[str, Recipe] = {}  # parameter name -> recipe, shared by the targets of one
        self._plan()

    def _plan(self) -> None:
        renamings, converters = _conversions(self.skeleton.root)
        for name in sorted(self.checkpoint.names(), key=_natural):
            wanted = self._model_name(name)
            if wanted is None:
                continue
            for renaming in renamings:
                wanted, _ = renaming.rename_source_key(wanted)
            pattern, converter = None, None
            for candidate in converters:
                renamed, pattern = candidate.rename_source_key(wanted)
                if pattern is not None:
                    wanted, converter = renamed, candidate
                    break
            if wanted not in self.expected and self._model_name(name) in self.expected:
                wanted, pattern, converter = self._model_name(name), None, None
            if wanted in self.expected:
                self._add(wanted, pattern or name, name, converter)

    def _model_name(self, name: str) -> str | None:
        prefix = self.checkpoint.decoder_prefix
        own = self.skeleton.embedding_name.removeprefix(self.skeleton.base_prefix)
        if self.checkpoint.embedding_name.endswith(own):  # OPT: the table is model.decoder.embed_tokens under the base `model.`
            prefix = self.checkpoint.embedding_name.removesuffix(own)
        return self.skeleton.base_prefix + name[len(prefix) :] if name.startswith(prefix) else None

    def _add(self, wanted: str, pattern: str, name: str, converter: Any) -> None:
        recipe = self.recipes.get(wanted)
        if recipe is None:
            first, *others = converter.target_patterns if converter is not None else [wanted]
            recipe = Recipe([wanted, *(wanted.replace(first, other, 1) for other in others)], converter=converter)
            for target in recipe.targets:
                self.recipes[target] = recipe
        recipe.sources.setdefault(pattern, []).append(name)

    # -- what a module needs ----------------------------------------------------------------------------------------------

    def parameters(self, prefix: str) -> list[str]:
        return [name for name in self.expected if name.startswith(prefix)]

    def missing(self, names: list[str]) -> list[str]:
        """Those of `names` that nothing in the checkpoint makes."""
        return [name for name in names if name not in self.recipes]

    def dtype(self, name: str) -> torch.dtype:
        if any(pattern.search(name) for pattern in self._fp32):
            return torch.float32
        return self.expected[name].dtype

    # -- loading ----------------------------------------------------------------------------------------------------------

    def load(self, names: list[str], device: str | torch.device) -> None:
        """Put the checkpoint's values in place of these parameters."""
        waiting = dict.fromkeys(names)
        while waiting:
            name = next(iter(waiting))
            for target, value in self._make(self.recipes[name], device).items():
                waiting.pop(target, None)
                self._set(target, value.to(device, self.dtype(target)))
            waiting.pop(name, None)

    def release(self, names: list[str]) -> None:
        """Give the memory of these parameters back."""
        for name in names:
            if isinstance(self.expected[name], nn.Parameter):
                _assign(self.skeleton.root, name, self.expected[name])

    def _make(self, recipe: Recipe, device: str | torch.device) -> dict[str, Tensor]:
        target = recipe.targets[0]
        if recipe.converter is None:
            (names,) = recipe.sources.values()
            return {target: self.checkpoint.tensor(names[0])}
        if _fuses_experts(recipe.converter):
            return {target: self._fuse(recipe, device)}
        converter = recipe.converter.copy(
            list(recipe.converter._original_source_patterns),
            list(recipe.converter._original_target_patterns),
            operations=recipe.converter.operations,
        )
        for pattern, names in recipe.sources.items():
            for name in names:
                converter.add_tensor(target, name, pattern, lambda name=name: self.checkpoint.tensor(name))
        made = converter.convert(target, model=self.skeleton.root, config=self.skeleton.root.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}

    def _fuse(self, recipe: Recipe, device: str | torch.device) -> Tensor:
        """Experts one by one into the fused parameter: never a second copy of all of them."""
        target = recipe.targets[0]
        shape = self.expected[target].shape
        fused = torch.empty(shape, dtype=self.dtype(target), device=device)  # [experts, out, in]
        row = 0
        for pattern in recipe.converter.source_patterns:
            names = recipe.sources.get(pattern, [])
            if len(names) != shape[0]:
                raise CheckpointError(f"{self.checkpoint.path.name}: {target} needs {shape[0]} experts ({pattern}), got {len(names)}")
            for expert, name in enumerate(names):
                part = self.checkpoint.tensor(name)
                if row + part.shape[0] > shape[1] or part.shape[1:] != shape[2:]:
                    raise CheckpointError(_wrong_shape(self.checkpoint, name, part.shape, shape[1:]))
                fused[expert, row : row + part.shape[0]] = part.to(device)
            row += part.shape[0]
        return fused

    def _set(self, name: str, value: Tensor) -> None:
        if name not in self.expected:
            return
        if value.shape != self.expected[name].shape:
            raise CheckpointError(_wrong_shape(self.checkpoint, name, value.shape, self.expected[name].shape))
        is_parameter = isinstance(self.expected[name], nn.Parameter)
        _assign(self.skeleton.root, name, nn.Parameter(value, requires_grad=False) if is_parameter else value)


def _assign(root: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    module = root.get_submodule(path)
    (module._parameters if isinstance(value, nn.Parameter) else module._buffers)[leaf] = value


def _kept_in_float32(skeleton: Skeleton) -> list[re.Pattern]:
    """Names that transformers keeps in float32 whatever the model's dtype (routers)."""
    plan = getattr(skeleton.root, "_get_dtype_plan", None)
    names = plan(skeleton.root.dtype) if plan else {}
    return [re.compile(name.replace("*", ".*")) for name in names]


def _conversions(root: nn.Module) -> tuple[list[Any], list[Any]]:
    try:
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter
    except ImportError:  # transformers 4
        return [], []
    table = get_model_conversion_mapping(root)
    return [t for t in table if not isinstance(t, WeightConverter)], [t for t in table if isinstance(t, WeightConverter)]


def _fuses_experts(converter: Any) -> bool:
    """Stacked along a new first dimension, then at most joined along the next: the usual layout of fused experts."""
    steps = [(type(op).__name__, getattr(op, "dim", None)) for op in converter.operations]
    return steps in ([("MergeModulelist", 0)], [("MergeModulelist", 0), ("Concatenate", 1)]) and len(converter.target_patterns) == 1


def _natural(name: str) -> list[tuple[int, Any]]:
    return [(0, int(part)) if part.isdigit() else (1, part) for part in name.split(".")]


def _wrong_shape(checkpoint: Checkpoint, name: str, got: torch.Size, expected: torch.Size) -> str:
    return f"{checkpoint.path.name}: {name} has the shape {tuple(got)}, config.json asks for {tuple(expected)}; they do not belong together"
