"""What a target class of an engine captures: its setter, then its forward, both run on stand-ins; the parts that SGLang and vLLM share.

The setter is followed strictly: what it sets is known or CannotTell says why not. The forward is walked with stub layers that only count
themselves; what is unknown in it counts as false. A capture is one of three: `aux.append(hidden_states + residual)` in the loop, a collector
handed to the layer (`captured_last_layer_outputs=`, `capture_output=`: taken on entry, which the layer's forward must show), or a
collector handed to something after the loop (the last layer's output).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from eaglelab.engines.source.classes import Class, Package
from eaglelab.engines.source.interpreter import UNKNOWN, CannotTell, Interpreter, Method, StandIn, Stopped

IDS_KEY = "eagle_aux_hidden_state_layer_ids"
WRAPPED_CONFIGS = ("text_config", "llm_config", "language_config", "thinker_config", "hf_text_config")


@dataclass(frozen=True)
class Captured:
    """What one run of setter and forward gave for a list of ids."""

    numbers: tuple[int, ...]
    """What the setter made of the ids, in its order: the layers before which a state is taken."""
    boundaries: tuple[int, ...]
    """Boundaries in the order in which they are concatenated."""
    error: str = ""
    """The exception with which the start-up or the forward ends; empty where it does not."""
    no_residual: bool = False
    """A state was taken without the residual that the layer hands on beside it."""
    assumptions: tuple[str, ...] = ()


class Config(StandIn):
    """The target's config: the number of layers is all that is known of it."""


class Layer(StandIn):
    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class Part:
    """A layer's output, or one of its parts, `depth` layers deep."""

    def __init__(self, depth: int, what: str) -> None:
        self.depth, self.what = depth, what  # "all" that a layer returns, "hidden", "residual", or their "sum"


class Collector:
    """`[]`, AuxHiddenStateList or AuxHiddenStatePacker(K): what the forward collects its captures in."""

    def __init__(self, expected: int | None = None) -> None:
        self.expected, self.taken = expected, []


class Taking:
    """`collector.capture`, or `.append`, handed on as a function."""

    def __init__(self, collector: Collector, name: str) -> None:
        self.collector, self.name = collector, name


class Run(Interpreter):
    """Members of SGLang's model classes, from what their `__init__` assigns."""

    def __init__(self, num_layers: int, strict: bool) -> None:
        super().__init__(strict)
        self.num_layers = num_layers

    def attribute(self, owner: Any, name: str) -> Any:
        if name in ("is_last_rank", "is_first_rank"):
            return True  # no pipeline: one rank is both
        return super().attribute(owner, name)

    def member(self, owner: StandIn, name: str) -> Any:
        if isinstance(owner, Config):
            return self.num_layers if name in ("num_hidden_layers", "n_layer") else owner if name in WRAPPED_CONFIGS else UNKNOWN
        if isinstance(owner, Layer) or owner.cls is None:
            return UNKNOWN
        if name in ("config", "text_config"):
            return Config()
        if (found := self.class_member(owner, name)) is not UNKNOWN:
            return found
        made = assigned(owner.cls, name)
        if name == "layers" and (made is not None or assigned(owner.cls, "start_layer") is not None):
            owner.set["layers"] = [Layer(i) for i in range(self.num_layers)]
            return owner.set["layers"]
        if name.lstrip("_") in ("start_layer", "end_layer") and made is not None:
            return 0 if name.lstrip("_") == "start_layer" else self.num_layers
        if name == "layers_to_capture" and made is not None:
            return []
        if isinstance(made, Class):
            owner.set[name] = StandIn(made)
            return owner.set[name]
        return UNKNOWN


@lru_cache(maxsize=4096)
def assigned(cls: Class, name: str) -> Class | str | None:
    """What `__init__` assigns to an attribute: the class that is made, "something", or None where nothing is assigned."""
    something = None
    for place, owner in enumerate(cls.order):
        init = owner.own("__init__")
        for value in assignments(init, name) if isinstance(init, ast.FunctionDef) else ():
            something = "something"
            if made := _made(cls, place, init, value):
                return made
        if something or (isinstance(init, ast.FunctionDef) and "super" not in {n.id for n in ast.walk(init) if isinstance(n, ast.Name)}):
            return something
    return something


def assignments(init: ast.FunctionDef, name: str) -> list[ast.expr]:
    found = []
    for node in ast.walk(init):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        flat = [t for target in targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])]
        if any(isinstance(t, ast.Attribute) and t.attr == name and isinstance(t.value, ast.Name) and t.value.id == "self" for t in flat):
            found += [node.value] if node.value is not None else []
    return found


def _made(cls: Class, place: int, init: ast.FunctionDef, value: ast.expr) -> Class | None:
    """The class of which `value`, in the `__init__` of the place-th class of the order, makes an object."""
    owner = cls.order[place]
    if isinstance(value, ast.IfExp):
        return _made(cls, place, init, value.body) or _made(cls, place, init, value.orelse)
    if not isinstance(value, ast.Call):
        return None
    if isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Name) and value.func.value.id == "self":
        found = cls.find(value.func.attr)
        if found and isinstance(found[1], ast.FunctionDef):  # def _init_model(self, …): return LlamaModel(…)
            returned = (n.value for n in ast.walk(found[1]) if isinstance(n, ast.Return) and isinstance(n.value, ast.Call))
            return next((m for r in returned if isinstance(m := owner.package.named(found[0].path, r.func, found[1]), Class)), None)
        made = owner.package.named(found[0].path, found[1]) if found else None  # body_cls = qwen3_5.Qwen3_5ForCausalLM
    else:
        made = _class_named(cls, place, init, value.func)
    return made if isinstance(made, Class) else None


def _class_named(cls: Class, place: int, init: ast.FunctionDef, node: ast.expr) -> Any:
    """A name in an `__init__`: of the module, or a parameter, as the class below hands it to `super().__init__`, else its default."""
    owner, package = cls.order[place], cls.package
    parameters = [a.arg for a in (*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs)]
    if not isinstance(node, ast.Name) or node.id not in parameters:
        return package.named(owner.path, node, init)
    below = next((i for i in range(place - 1, -1, -1) if isinstance(cls.order[i].own("__init__"), ast.FunctionDef)), None)
    inner = cls.order[below].own("__init__") if below is not None else ast.Pass()
    for call in ast.walk(inner):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__":
            at = parameters.index(node.id) - 1
            handed = next((k.value for k in call.keywords if k.arg == node.id), call.args[at] if at < len(call.args) else None)
            if handed is not None:
                return _class_named(cls, below, inner, handed)
    defaults = dict(zip(reversed([a.arg for a in init.args.args]), reversed(init.args.defaults), strict=False))
    defaults |= {a.arg: d for a, d in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)}
    return package.named(owner.path, defaults.get(node.id))


class Forward(Run):
    """The forward: layers count themselves, collectors note what is put into them."""

    def __init__(self, num_layers: int, inner: StandIn, when_short: str) -> None:
        super().__init__(num_layers, strict=False)
        self.inner, self.depth_reached, self.when_short = inner, 0, when_short
        self.collectors: list[Collector] = []
        self.assumptions: list[str] = []
        self.no_residual = False

    def get_List(self, node, names) -> Any:
        if not node.elts:
            self.collectors.append(Collector())
            return self.collectors[-1]
        return super().get_List(node, names)

    def length(self, value: Any) -> Any:
        return len(value.taken) if isinstance(value, Collector) else super().length(value)

    def attribute(self, owner: Any, name: str) -> Any:
        if isinstance(owner, Collector):
            return Taking(owner, name)
        if isinstance(owner, Class) and owner.name.startswith("AuxHiddenState"):
            return owner  # AuxHiddenStatePacker.for_batch
        if isinstance(owner, Layer) and name == "forward":
            return owner
        if isinstance(owner, StandIn) and name == "training":
            return False
        return super().attribute(owner, name)

    def add(self, left: Any, right: Any) -> Any:
        if left is None or right is None:
            raise Stopped("TypeError", "unsupported operand type(s) for +: 'Tensor' and 'NoneType'")
        parts = {p.what for p in (left, right) if isinstance(p, Part)}
        if parts == {"hidden", "residual"}:
            return Part(left.depth, "sum")
        return next((p for p in (left, right) if isinstance(p, Part)), UNKNOWN)

    def unpack(self, value: Any, targets: list[ast.expr]) -> list | None:
        if not isinstance(value, Part) or value.what != "all":
            return None
        names = [ast.unparse(t) for t in targets]
        return [Part(value.depth, "residual" if "residual" in n else "hidden" if i == 0 else "other") for i, n in enumerate(names)]

    def subscript(self, value: Any, index: Any) -> Any:
        if isinstance(value, Part) and value.what == "all":
            return Part(value.depth, {0: "hidden", 1: "residual"}.get(index, "other"))
        return value if isinstance(value, Part) else UNKNOWN

    def do_FunctionDef(self, node, names) -> None:
        """A function made in the loop that ends by putting its argument into a collector stands for that collector's own."""
        calls = [n.func for n in ast.walk(node) if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        into = [
            names[c.value.id] for c in calls if c.attr in ("append", "capture") and isinstance(c.value, ast.Name) and c.value.id in names
        ]
        names[node.name] = next((Taking(c, "capture") for c in into if isinstance(c, Collector)), UNKNOWN)

    def call_other(self, function: Any, args: list, keywords: Mapping[str, Any], node: ast.Call) -> Any:
        if isinstance(function, Class) and function.name.startswith("AuxHiddenState"):
            counts = [a for a in args if isinstance(a, int)]
            packs = function.name == "AuxHiddenStatePacker"
            self.collectors.append(Collector(counts[-1] if packs and counts else None))
            return self.collectors[-1]
        if isinstance(function, Taking):
            return self._take(function, args, node)
        if isinstance(function, Layer):
            return self._layer(function, args, keywords, node)
        handed = {k: v.collector if isinstance(v, Taking) else v for k, v in keywords.items() if isinstance(v, (Collector, Taking))}
        for name, collector in handed.items():
            if name.startswith("capture") and self.depth_reached == self.num_layers:
                collector.taken.append(self.depth_reached)  # final_norm(…, capture=…): the state that the norm reads
            else:
                self.assumptions.append(f"line {node.lineno}: what becomes of the collector handed on as {name} cannot be told")
        if any(isinstance(a, (Collector, Taking)) for a in args):
            self.assumptions.append(f"line {node.lineno}: what becomes of the collector that is handed on cannot be told")
        # snapshot(hidden_states, forward_batch), all_gather(hidden_states + residual, dim=0): still that state
        part = next((a for a in args if isinstance(a, Part)), UNKNOWN)
        whole = "snapshot" in ast.unparse(node.func)
        return Part(part.depth, "sum") if isinstance(part, Part) and whole else part

    def _take(self, taking: Taking, args: list, node: ast.Call) -> Any:
        if taking.name == "finalize":
            if self.when_short and taking.collector.expected not in (None, len(taking.collector.taken)):
                raise Stopped(self.when_short, f"captured {len(taking.collector.taken)} of {taking.collector.expected} aux hidden states")
            return taking.collector
        if taking.name not in ("append", "capture") or not args:
            self.assumptions.append(f"line {node.lineno}: `.{taking.name}` of the collector is not followed")
            return UNKNOWN
        value = args[0]
        if isinstance(value, Part) and value.what == "hidden" and hands_on_a_residual(self.inner.cls):
            self.no_residual = True
        if isinstance(value, Part) and value.what in ("residual", "other"):
            self.assumptions.append(f"line {node.lineno}: it is assumed that what is captured is the whole state")
        if not isinstance(value, Part) and self.depth_reached:
            self.assumptions.append(f"line {node.lineno}: it is assumed that what is captured is the state there")
        taking.collector.taken.append(self.depth_reached)
        return None

    def _layer(self, layer: Layer, args: list, keywords: Mapping[str, Any], node: ast.Call) -> Part:
        if layer.index != self.depth_reached:
            raise CannotTell(f"line {node.lineno}: layer {layer.index} runs after {self.depth_reached} layers")
        for name, value in keywords.items():
            if isinstance(value, (Collector, Taking)):
                on_entry = taken_on_entry(self.inner.cls, name)
                if on_entry is None:
                    continue
                (value.collector if isinstance(value, Taking) else value).taken.append(self.depth_reached)
                if not on_entry:
                    self.assumptions.append(f"line {node.lineno}: it is assumed that {name} takes the state on the layer's entry")
        self.depth_reached += 1
        return Part(self.depth_reached, "all")


@lru_cache(maxsize=4096)
def layer_classes(cls: Class) -> list[Class]:
    """Decoder layer classes that a model names, in its `__init__` or its body: those with a forward whose name says DecoderLayer or Block."""
    for owner in cls.order:
        init = owner.own("__init__")
        body = [n.value for n in owner.node.body if isinstance(n, (ast.Assign, ast.AnnAssign))]
        nodes = [n for part in (init, *body) if part is not None for n in ast.walk(part) if isinstance(n, (ast.Name, ast.Attribute))]
        values = [owner.package.named(owner.path, node) for node in nodes]
        for value in [v for v in values if isinstance(v, ast.Dict)]:  # ALL_DECODER_LAYER_TYPES
            values += [owner.package.named(owner.path, v) for v in value.values]
        found = [
            v for v in values if isinstance(v, Class) and ("DecoderLayer" in v.name or v.name.endswith("Block")) and _function(v, "forward")
        ]
        if found:
            return list(dict.fromkeys(found))
    return []


def _function(cls: Class, name: str) -> ast.FunctionDef | None:
    found = cls.find(name)
    return found[1] if found and isinstance(found[1], ast.FunctionDef) else None


@lru_cache(maxsize=4096)
def hands_on_a_residual(cls: Class) -> bool:
    """Whether a decoder layer returns a residual beside its first output, so that the first alone is only a branch."""
    for layer in layer_classes(cls):
        forward = _function(layer, "forward")
        named = {t.id: n.value for n in ast.walk(forward) if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)}
        for node in ast.walk(forward):
            value = named.get(node.value.id, node.value) if isinstance(node, ast.Return) and isinstance(node.value, ast.Name) else None
            value = node.value if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple) else value
            if isinstance(value, ast.Tuple) and any("residual" in ast.unparse(e) for e in value.elts[1:]):
                return not _adds_residual(named.get(value.elts[0].id) if isinstance(value.elts[0], ast.Name) else value.elts[0])
    return False


def _adds_residual(value: ast.expr | None) -> bool:
    """`residual + …`: then the first output is the whole state, whatever stands beside it."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
        return _adds_residual(value.left) or _adds_residual(value.right)
    return isinstance(value, ast.Name) and value.id == "residual"


@lru_cache(maxsize=4096)
def taken_on_entry(cls: Class, parameter: str) -> bool | None:
    """Whether the decoder layers hand this parameter to a `prepare…` call; None where none of them uses it: then nothing is captured."""
    layers = layer_classes(cls)
    calls = [[n for n in ast.walk(_function(c, "forward")) if isinstance(n, ast.Call)] for c in layers]
    used = [[call for call in found if parameter in ast.unparse(call)] for found in calls]
    if layers and not any(used):
        return None
    return bool(layers) and all(any("prepare" in ast.unparse(call.func) for call in found) for found in used)


class Target:
    """A target class with a setter. Raises CannotTell where it has none."""

    SETTER = HELD = ""
    """The setter's name, and the attribute that it sets on the model that captures."""
    RUN: type[Run] = Run
    FORWARD: type[Forward] = Forward

    def __init__(self, package: Package, cls: Class) -> None:
        self.package, self.cls = package, cls
        found = cls.find(self.SETTER)
        if found is None and cls.find("__getattr__") is not None:
            raise CannotTell(f"{cls.name} ({cls.path}) hands names on to another class by __getattr__")
        if found is None or not isinstance(found[1], ast.FunctionDef):
            raise CannotTell(f"{cls.name} ({cls.path}) has no {self.SETTER}")
        self.setter = found

    @property
    def read(self) -> str:
        """`srt/models/llama.py:929`."""
        return f"{self.setter[0].path}:{self.setter[1].lineno}"

    @property
    def when_short(self) -> str:
        """The exception with which the forward meets fewer captures than were asked for; empty where there is none."""
        return ""

    def default(self, run: Run, root: StandIn) -> Any:
        """What the setter is given where the config names no ids."""
        return None

    def setter_numbers(self, ids: Sequence[int] | None, num_layers: int) -> list[int]:
        """What the setter makes of the ids. Raises CannotTell; Stopped where the engine's own code raises."""
        return self._set(ids, num_layers)[1]

    def _set(self, ids: Sequence[int] | None, num_layers: int) -> tuple[StandIn, list[int]]:
        """The model object that captures, and the numbers set on it."""
        root, run = StandIn(self.cls), self.RUN(num_layers, strict=True)
        run.call(Method(root, *self.setter), [self.default(run, root) if ids is None else list(ids)])
        for owner in _reachable(root):
            numbers = owner.set.get(self.HELD)
            if isinstance(numbers, (list, tuple, set)) and all(isinstance(n, int) for n in numbers):
                return owner, list(numbers)
            if numbers is not None:
                raise CannotTell(f"{self.read}: what is set as {self.HELD} cannot be told")
        raise CannotTell(f"{self.read}: it sets no {self.HELD} on a model that is known")

    def run(self, ids: Sequence[int] | None, num_layers: int) -> Captured:
        """Setter and forward for these ids. Raises CannotTell."""
        try:
            inner, numbers = self._set(ids, num_layers)
        except Stopped as stop:
            return Captured((), (), f"start-up: {stop}")
        if inner.cls is None or (found := inner.cls.find("forward")) is None or not isinstance(found[1], ast.FunctionDef):
            raise CannotTell(f"{self.read}: the forward of the model that captures cannot be found")
        where = f"{found[0].path}:{found[1].lineno}"
        run, error = self.FORWARD(num_layers, inner, self.when_short), ""
        try:
            result = run.call(Method(inner, *found), [])
        except Stopped as stop:
            result, error = None, f"forward: {stop}"
        if not error and run.depth_reached != num_layers:
            raise CannotTell(f"{where}: {run.depth_reached} of {num_layers} layers could be followed")
        filled = [c for c in run.collectors if c.taken]
        if len(filled) > 1:
            raise CannotTell(f"{where}: captures go into {len(filled)} collections")
        taken = tuple(filled[0].taken) if filled else ()
        if not error and filled and not (isinstance(result, tuple) and filled[0] in result):
            raise CannotTell(f"{where}: the captures are not handed back by the forward")
        assumptions = tuple(dict.fromkeys(f"{where}, {a}." for a in run.assumptions))
        return Captured(tuple(numbers), taken, error, run.no_residual, assumptions)


def _reachable(root: StandIn) -> list[StandIn]:
    """The object and those hung onto it, the innermost first."""
    inner = [o for value in root.set.values() if isinstance(value, StandIn) and not isinstance(value, Config) for o in _reachable(value)]
    return [*inner, root]


def is_drafter(name: str) -> bool:
    """Registered classes of drafters inherit a target's setter; nobody calls it."""
    return re.search(r"(NextN|MTP(Model)?|Eagle3?|Assistant\w*|Draft\w*|DSparkModel)$|^P?[Ee]agle", name) is not None
