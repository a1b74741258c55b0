"""What vLLM's own code captures: `set_aux_hidden_state_layers` and the forward of a target class, and which keys of the config give the ids.

The era of EagleModelMixin (read in 0.32.0): ids are sorted, each once, and the forward takes `hidden + residual` after that many layers.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from eaglelab.engines.source.archive import Source
from eaglelab.engines.source.classes import Class, Function, Package
from eaglelab.engines.source.interpreter import UNKNOWN, CannotTell, Interpreter, Method, StandIn, Stopped
from eaglelab.engines.source.sglang import IDS_KEY, Captured, Collector, _Forward, _reachable, _Run

REGISTRY = "model_executor/models/registry.py"
SETTER, DEFAULT, HELD = "set_aux_hidden_state_layers", "get_eagle3_default_aux_hidden_state_layers", "aux_hidden_state_layers"
OLDER = ("v1/worker/gpu_model_runner.py", "GPUModelRunner", "_get_eagle3_aux_layers_from_config")
NEWER = ("v1/worker/gpu/spec_decode/eagle/eagle3_utils.py", None, "get_eagle3_aux_layers_from_config")
"""The two model runners' readers of the drafter's config: file, class, function."""


class _Members(_Run):
    def member(self, owner: StandIn, name: str) -> Any:
        if owner.cls is not None and name == "get_language_model" and owner.cls.find(name):
            return _Language(owner)
        return super().member(owner, name)

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


class _VLLMForward(_Members, _Forward):
    def add(self, left: Any, right: Any) -> Any:
        if isinstance(left, Collector) and isinstance(right, Collector):  # remote_aux + aux: there is no other rank
            return right if not left.taken else left
        return _Forward.add(self, left, right)

    def call_other(self, function: Any, args: list, keywords: Mapping[str, Any], node: ast.Call) -> Any:
        if ast.unparse(node.func) == "islice" and len(args) == 3 and isinstance(args[0], list):
            return args[0][args[1] : args[2]] if all(isinstance(a, int) for a in args[1:]) else UNKNOWN
        return super().call_other(function, args, keywords, node)


class VLLMTarget:
    """A target class of vLLM with the EAGLE-3 interface. Raises CannotTell where it has none, or is not there."""

    def __init__(self, package: Package, cls: Class) -> None:
        self.package, self.cls = package, cls
        found = cls.find(SETTER)
        if found is None:
            raise CannotTell(f"{cls.name} ({cls.path}) has no {SETTER}")
        self.setter = found

    @property
    def read(self) -> str:
        return f"{self.setter[0].path}:{self.setter[1].lineno}"

    def setter_numbers(self, ids: Sequence[int] | None, num_layers: int) -> list[int]:
        """What the setter makes of the ids; of the target's default where none are given. Raises CannotTell and Stopped."""
        return self._set(ids, num_layers)[1]

    def _set(self, ids: Sequence[int] | None, num_layers: int) -> tuple[StandIn, list[int]]:
        root, run = StandIn(self.cls), _Members(num_layers, strict=True)
        if not ids:
            ids = run.call(Method(root, *self.cls.find(DEFAULT)))
            if not isinstance(ids, (list, tuple)):
                raise CannotTell(f"{self.read}: the default layers cannot be told")
        run.call(Method(root, *self.setter), [tuple(ids)])
        for owner in _reachable(root):
            numbers = owner.set.get(HELD)
            if isinstance(numbers, (list, tuple)) and all(isinstance(n, int) for n in numbers):
                return owner, list(numbers)
        raise CannotTell(f"{self.read}: it sets no {HELD} on a model that is known")

    def run(self, ids: Sequence[int] | None, num_layers: int) -> Captured:
        """Setter and forward for these ids. Raises CannotTell."""
        try:
            inner, numbers = self._set(ids, num_layers)
        except Stopped as stop:
            return Captured((), (), f"start-up: {stop}")
        found = inner.cls.find("forward") if inner.cls else None
        if found is None or not isinstance(found[1], ast.FunctionDef):
            raise CannotTell(f"{self.read}: the forward of the model that captures cannot be found")
        run, where, error, result = _VLLMForward(num_layers, inner, ""), f"{found[0].path}:{found[1].lineno}", "", None
        try:
            result = run.call(Method(inner, *found), [])
        except Stopped as stop:
            error = f"forward: {stop}"
        if not error and run.depth_reached != num_layers:
            raise CannotTell(f"{where}: {run.depth_reached} of {num_layers} layers could be followed")
        filled = [c for c in run.collectors if c.taken]
        if len(filled) > 1 or (filled and not error and not (isinstance(result, tuple) and filled[0] in result)):
            raise CannotTell(f"{where}: what becomes of the captures cannot be told")
        assumptions = tuple(dict.fromkeys(f"{where}, {a}." for a in run.assumptions))
        return Captured(tuple(numbers), tuple(filled[0].taken) if filled else (), error, run.no_residual, assumptions)

    def config_keys(self) -> tuple[tuple[str, ...], bool | None, str]:
        """As sglang.config_keys: both runners' readers are run on small configs. A key that one of them passes over is still a key."""
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


def registered(package: Package) -> dict[str, tuple[str, str]]:
    """Architectures of vLLM's registry by name: file and class."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(package.source.tree(REGISTRY) or ast.Module([], [])):
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                words = [w.value for w in value.elts if isinstance(w, ast.Constant)] if isinstance(value, ast.Tuple) else []
                if isinstance(key, ast.Constant) and len(words) == 2 and all(isinstance(w, str) for w in words):
                    dotted = words[0].removeprefix("vllm.") if words[0].startswith("vllm.") else f"model_executor.models.{words[0]}"
                    stem = dotted.replace(".", "/")
                    path = next((p for p in (f"{stem}.py", f"{stem}/__init__.py") if package.source.has(p)), None)
                    if path is not None:
                        found.setdefault(key.value, (path, words[1]))
    return found


def vllm_target(source: Source, architecture: str) -> VLLMTarget:
    """One architecture. Raises CannotTell where the registry has none of this name, or it has no setter."""
    package = Package(source)
    place = registered(package).get(architecture)
    if place is None:
        raise CannotTell(f"no model of {source.where} is registered as {architecture}")
    cls = package.resolve(*place)
    if not isinstance(cls, Class):
        raise CannotTell(f"{place[0]} holds no class {place[1]}")
    return VLLMTarget(package, cls)
