"""What vLLM's own code captures: `set_aux_hidden_state_layers` and the forward of a target class, and which keys of the config give the ids.

The era of EagleModelMixin (read in 0.32.0): ids are sorted, each once, and the forward takes `hidden + residual` after that many layers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from eaglelab.engines.source.archive import Source
from eaglelab.engines.source.classes import Class, Function, Package
from eaglelab.engines.source.interpreter import UNKNOWN, CannotTell, Interpreter, Method, StandIn
from eaglelab.engines.source.target import IDS_KEY, Collector, Forward, Run, Target, assignments, is_drafter

REGISTRY = "model_executor/models/registry.py"
OLDER = ("v1/worker/gpu_model_runner.py", "GPUModelRunner", "_get_eagle3_aux_layers_from_config")
NEWER = ("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", None, "get_eagle3_aux_layers_from_config")
"""The two model runners' readers of the drafter's config: file, class, function."""


class _Members(Run):
    def member(self, owner: StandIn, name: str) -> Any:
        if owner.cls is not None and name == "get_language_model" and owner.cls.find(name):
            return _Language(owner)
        found = super().member(owner, name)
        if found is UNKNOWN and owner.cls is not None and (inner := registered_inner(owner.cls, name)):
            found = owner.set[name] = StandIn(inner)
        return found

    def class_member(self, owner: StandIn, name: str, after: Class | None = None) -> Any:
        return None if name == "_cache_aux_pp_layout" else super().class_member(owner, name, after)

    def call_other(self, function: Any, args: list, keywords: Mapping[str, Any], node: ast.Call) -> Any:
        if isinstance(function, _Language):
            return self.attribute(function.owner, "language_model")
        if function is None:  # the layout over pipeline stages: there is one
            return None
        return super().call_other(function, args, keywords, node)


class _Language:
    """`get_language_model` of a multimodal class: what its `__init__` keeps as `language_model`."""

    def __init__(self, owner: StandIn) -> None:
        self.owner = owner


def registered_inner(cls: Class, name: str) -> Class | None:
    """The class that `__init__` names for an inner model: `architectures=[…]` of the registry, or `model_class=…`."""
    for owner in cls.order:
        init = owner.own("__init__")
        for value in assignments(init, name) if isinstance(init, ast.FunctionDef) else ():
            for keyword in value.keywords if isinstance(value, ast.Call) else ():
                names = keyword.value.elts if isinstance(keyword.value, ast.List) else []
                if keyword.arg == "model_class":
                    made = cls.package.named(owner.path, keyword.value, init)
                elif keyword.arg == "architectures" and len(names) == 1 and isinstance(names[0], ast.Constant):
                    made = registered(cls.package).get(names[0].value)
                else:
                    continue
                return made if isinstance(made, Class) else None
    return None


class _VLLMForward(_Members, Forward):
    def add(self, left: Any, right: Any) -> Any:
        if isinstance(left, Collector) and isinstance(right, Collector):  # remote_aux + aux: there is no other rank
            return right if not left.taken else left
        return Forward.add(self, left, right)

    def call_other(self, function: Any, args: list, keywords: Mapping[str, Any], node: ast.Call) -> Any:
        if ast.unparse(node.func) == "islice" and len(args) == 3 and isinstance(args[0], list):
            return args[0][args[1] : args[2]] if all(isinstance(a, int) for a in args[1:]) else UNKNOWN
        return super().call_other(function, args, keywords, node)


class VLLMTarget(Target):
    """A target class of vLLM with the EAGLE-3 interface."""

    SETTER, HELD = "set_aux_hidden_state_layers", "aux_hidden_state_layers"
    RUN, FORWARD = _Members, _VLLMForward

    def default(self, run: Run, root: StandIn) -> Any:
        ids = run.call(Method(root, *self.cls.find("get_eagle3_default_aux_hidden_state_layers")))
        if not isinstance(ids, (list, tuple)):
            raise CannotTell(f"{self.read}: the default layers cannot be told")
        return ids

    def _set(self, ids: Sequence[int] | None, num_layers: int) -> tuple[StandIn, list[int]]:
        return super()._set(ids or None, num_layers)  # an empty list counts as none

    def config_keys(self) -> tuple[tuple[str, ...], bool | None, str]:
        """As `sglang.config_keys`: both runners' readers are run on small configs. A key that one of them passes over is still a key."""
        keys = reads(self.package, OLDER), reads(self.package, NEWER)
        both = [*dict.fromkeys([*(keys[0] or ()), *(keys[1] or ())])]
        return tuple(both), True if both else None, " and ".join(r[0] for r, k in zip((OLDER, NEWER), keys, strict=True) if k)


class _Reader(Interpreter):
    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, StandIn) and owner.cls is None and name not in owner.set:
            return UNKNOWN
        return super().attribute(owner, name)


def reads(package: Package, reader: tuple[str, str | None, str]) -> tuple[str, ...] | None:
    """The dotted keys that a runner reads ids from, in its order; None where it cannot be run."""
    given = {IDS_KEY: {IDS_KEY: [1, 2]}, f"eagle_config.{IDS_KEY}": {"eagle_config": {IDS_KEY: [3, 4]}}}
    try:
        single = {key: run_reader(package, reader, config) for key, config in given.items()}
        both = run_reader(package, reader, {k: v for config in given.values() for k, v in config.items()})
    except CannotTell:
        return None
    wins = [key for key, ids in single.items() if ids is not None and ids == both]
    return (*wins, *(key for key, ids in single.items() if ids is not None and key not in wins))


def run_reader(package: Package, reader: tuple[str, str | None, str], config: Mapping[str, Any]) -> tuple[int, ...] | None:
    """The ids that a runner takes from a drafter's config, for the setter; None: it takes the target's default. Raises CannotTell."""
    path, cls_name, name = reader
    found = package.resolve(path, cls_name or name)
    draft = StandIn(hf_config=StandIn(**config))
    speculative = StandIn(draft_model_config=draft)
    run = _Reader(strict=False)
    if isinstance(found, Class) and (method := found.find(name)):
        ids = run.call(Method(StandIn(found, speculative_config=speculative), *method))
    elif isinstance(found, Function):
        anchor = Class(package, path, ast.ClassDef(name, [], [], [], []))
        ids = run.run(path, found.node, [speculative], {}, Method(StandIn(), anchor, found.node))
    else:
        raise CannotTell(f"{path} has no {name}")
    if ids is None or (isinstance(ids, (list, tuple)) and all(isinstance(i, int) for i in ids)):
        return None if ids is None else tuple(ids)
    raise CannotTell(f"{path}: what {name} returns cannot be told")


@lru_cache(maxsize=4)
def registered(package: Package) -> dict[str, Class | None]:
    """Classes of vLLM's registry by architecture; None where the file does not hold the class."""
    found: dict[str, Class | None] = {}
    for node in ast.walk(package.source.tree(REGISTRY) or ast.Module([], [])):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                words = [w.value for w in value.elts if isinstance(w, ast.Constant)] if isinstance(value, ast.Tuple) else []
                if isinstance(key, ast.Constant) and len(words) == 2 and all(isinstance(w, str) for w in words):
                    dotted = words[0].removeprefix("vllm.") if words[0].startswith("vllm.") else f"model_executor.models.{words[0]}"
                    stem = dotted.replace(".", "/")
                    path = next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if package.source.has(p)), None)
                    cls = package.resolve(path, words[1]) if path else None
                    found.setdefault(key.value, cls if isinstance(cls, Class) else None)
    return found


def targets(source: Source) -> dict[str, VLLMTarget]:
    """Every architecture of the registry with the interface, by name; drafters left out."""
    package = Package(source)
    classes = {name: cls for name, cls in registered(package).items() if cls and not is_drafter(name)}
    return {name: VLLMTarget(package, cls) for name, cls in classes.items() if cls.find(VLLMTarget.SETTER) is not None}


def target(source: Source, architecture: str) -> VLLMTarget:
    """One architecture. Raises CannotTell where the registry has none of this name, or it has no setter."""
    package = Package(source)
    if architecture not in registered(package):
        raise CannotTell(f"no model of {source.where} is registered as {architecture}")
    cls = registered(package)[architecture]
    if cls is None:
        raise CannotTell(f"the class that is registered as {architecture} cannot be found")
    return VLLMTarget(package, cls)
