"""A few statements of somebody else's Python, evaluated on stand-ins: nothing is handed to `exec`, nothing outside is reachable.

The syntax tree is walked node by node. What is not known (a tensor, a call into another library) is `UNKNOWN`, which stays unknown through
every operation. Two ways to go on: `strict` stops with CannotTell where an unknown decides anything, the other takes unknown tests as false
(no pipeline stage, no idle batch, no special kernel) and records nothing that it could not follow.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from typing import Any

from eaglelab.engines.source.classes import Class, Function

MAX_STEPS = 400_000
"""Nodes of the syntax tree evaluated in one run: a forward over 100 layers takes some 10,000."""
MAX_ITEMS, MAX_NUMBER, MAX_DEPTH = 10_000, 1 << 40, 20
IGNORED_CALLS = ("logger", "logging", "warnings", "print", "torch", "log_info_on_rank0", "rank0_log")
"""First names of calls that change nothing that matters here."""


class CannotTell(Exception):
    """What the code does cannot be established from its text, with the reason."""


class Stopped(Exception):
    """The engine's own code raises: `error` is the exception's name, `text` its message where it is a plain one."""

    def __init__(self, error: str, text: str = "") -> None:
        self.error, self.text = error, text
        super().__init__(f"{error}: {text}" if text else error)


class _Unknown:
    def __repr__(self) -> str:
        return "unknown"


UNKNOWN = _Unknown()


class StandIn:
    """An object of the engine, as far as it matters: the attributes that were set, and a class to look others up in."""

    def __init__(self, cls: Class | None = None, **attributes: Any) -> None:
        self.cls, self.set = cls, attributes


class Method:
    """A function of a class, bound to a stand-in."""

    def __init__(self, owner: StandIn, cls: Class, node: ast.FunctionDef) -> None:
        self.owner, self.cls, self.node = owner, cls, node


class _Return(Exception):
    def __init__(self, value: Any) -> None:
        self.value = value


class _Break(Exception):
    pass


class _Continue(Exception):
    pass


COMPARE = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
    ast.BitXor: operator.xor,
}
PLAIN = (int, str, bool, type(None), list, tuple, set, dict)


class Interpreter:
    """`call(Method, args)` runs a method. Subclasses say what a member of a stand-in is, and what a call of an unknown does."""

    def __init__(self, strict: bool) -> None:
        self.strict, self.steps, self.depth = strict, 0, 0

    # ------------------------------------------------------------------------------------------------ what a subclass may say
    def member(self, owner: StandIn, name: str) -> Any:
        """An attribute of a stand-in that was not set. UNKNOWN where it cannot be told."""
        return self.class_member(owner, name)

    def call_other(self, function: Any, args: list, keywords: Mapping[str, Any], node: ast.Call) -> Any:
        """A call of something that is not interpreted."""
        return UNKNOWN

    def add(self, left: Any, right: Any) -> Any:
        """The sum of two values of which one is no plain one."""
        return UNKNOWN

    def unpack(self, value: Any, targets: list[ast.expr]) -> list | None:
        """The parts of something that is no sequence; None where it cannot be taken apart."""
        return None

    def subscript(self, value: Any, index: Any) -> Any:
        return UNKNOWN

    # --------------------------------------------------------------------------------------------------------------- running
    def call(self, method: Method, args: list | tuple = (), keywords: Mapping[str, Any] | None = None) -> Any:
        static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in method.node.decorator_list)
        return self.run(method.cls.path, method.node, [*([] if static else [method.owner]), *args], keywords or {}, method)

    def run(self, path: str, node: ast.FunctionDef, args: list, keywords: Mapping[str, Any], method: Method | None = None) -> Any:
        if isinstance(node, ast.AsyncFunctionDef):
            raise CannotTell(f"{node.name} is a coroutine")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise CannotTell(f"{node.name}: calls are nested more than {MAX_DEPTH} deep")
        names = self.bind(path, node, args, keywords)
        names[""] = (path, method)
        try:
            self.block(node.body, names)
        except _Return as result:
            return result.value
        except RecursionError:
            raise CannotTell(f"{node.name}: its expressions are nested too deeply") from None
        finally:
            self.depth -= 1
        return None

    def bind(self, path: str, node: ast.FunctionDef, args: list, keywords: Mapping[str, Any]) -> dict[str, Any]:
        a, names = node.args, {}
        parameters = [*a.posonlyargs, *a.args]
        for parameter, default in zip(reversed(parameters), reversed(a.defaults), strict=False):
            names[parameter.arg] = self.constant(default)
        for parameter, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
            names[parameter.arg] = UNKNOWN if default is None else self.constant(default)
        names.update(zip((p.arg for p in parameters), args, strict=False))
        known = {p.arg for p in (*parameters, *a.kwonlyargs)}
        names.update({k: v for k, v in keywords.items() if k in known})
        for parameter in parameters:
            names.setdefault(parameter.arg, UNKNOWN)
        if a.vararg:
            names[a.vararg.arg] = tuple(args[len(parameters) :])
        if a.kwarg:
            names[a.kwarg.arg] = UNKNOWN
        return names

    @staticmethod
    def constant(node: ast.expr) -> Any:
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, PLAIN) else UNKNOWN

    def step(self, node: ast.AST) -> None:
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise CannotTell(f"line {getattr(node, 'lineno', '?')}: more than {MAX_STEPS:,} steps")

    def truth(self, value: Any, node: ast.AST) -> bool:
        if isinstance(value, PLAIN):
            return bool(value)
        if isinstance(value, (StandIn, Method, Class, Function)):
            return True
        size = self.length(value)
        if size is not UNKNOWN:
            return size > 0
        if self.strict:
            raise CannotTell(f"line {node.lineno}: `{_short(node)}` decides, and it cannot be told from the text")
        return False

    def length(self, value: Any) -> Any:
        return len(value) if isinstance(value, (list, tuple, set, dict, str)) else UNKNOWN

    # ------------------------------------------------------------------------------------------------------------- statements
    def block(self, body: list[ast.stmt], names: dict[str, Any]) -> None:
        for node in body:
            self.step(node)
            run = getattr(self, f"do_{type(node).__name__}", None)
            if run is None:
                raise CannotTell(f"line {node.lineno}: `{_short(node)}` is not a statement that is followed")
            run(node, names)

    def do_Pass(self, node, names) -> None:
        pass

    def do_Assert(self, node, names) -> None:
        pass

    def do_Expr(self, node, names) -> None:
        self.value(node.value, names)

    def do_Return(self, node, names) -> None:
        raise _Return(None if node.value is None else self.value(node.value, names))

    def do_Break(self, node, names) -> None:
        raise _Break

    def do_Continue(self, node, names) -> None:
        raise _Continue

    def do_Assign(self, node, names) -> None:
        value = self.value(node.value, names)
        for target in node.targets:
            self.store(target, value, names)

    def do_AnnAssign(self, node, names) -> None:
        if node.value is not None:
            self.store(node.target, self.value(node.value, names), names)

    def do_AugAssign(self, node, names) -> None:
        self.store(node.target, self.binary(node.op, self.value(node.target, names), self.value(node.value, names), node), names)

    def do_If(self, node, names) -> None:
        self.block(node.body if self.truth(self.value(node.test, names), node.test) else node.orelse, names)

    def do_With(self, node, names) -> None:
        for item in node.items:
            self.value(item.context_expr, names)
            if item.optional_vars is not None:
                self.store(item.optional_vars, UNKNOWN, names)
        self.block(node.body, names)

    def do_For(self, node, names) -> None:
        items = self.value(node.iter, names)
        if not isinstance(items, (list, tuple, set, range, dict)):
            if self.strict:
                raise CannotTell(f"line {node.lineno}: what `{_short(node.iter)}` runs over cannot be told")
            return
        for item in list(items):
            self.step(node)
            self.store(node.target, item, names)
            try:
                self.block(node.body, names)
            except _Break:
                return
            except _Continue:
                continue
        self.block(node.orelse, names)

    def do_FunctionDef(self, node, names) -> None:
        names[node.name] = UNKNOWN

    def do_ImportFrom(self, node, names) -> None:
        """Nothing is imported: inside a function the names stay unknown."""
        names.update({alias.asname or alias.name: UNKNOWN for alias in node.names})

    def do_Raise(self, node, names) -> None:
        call = node.exc if isinstance(node.exc, ast.Call) else None
        name = ast.unparse(call.func if call else node.exc) if node.exc is not None else "an exception"
        text = self.value(call.args[0], names) if call and call.args else ""
        raise Stopped(name[:80], text[:200] if isinstance(text, str) else "")

    def store(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            self.set_attribute(self.value(target.value, names), target.attr, value, target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            parts = list(value) if isinstance(value, (list, tuple)) else self.unpack(value, target.elts)
            if parts is None or len(parts) != len(target.elts):
                parts = [UNKNOWN] * len(target.elts)
            for part, inner in zip(parts, target.elts, strict=True):
                self.store(inner, part, names)
        elif isinstance(target, ast.Subscript) and not self.strict:
            self.value(target.value, names)
        else:
            raise CannotTell(f"line {target.lineno}: `{_short(target)}` is set, which is not followed")

    def set_attribute(self, owner: Any, name: str, value: Any, node: ast.AST) -> None:
        if isinstance(owner, StandIn) and not name.startswith("__"):
            owner.set[name] = value
        elif self.strict:
            raise CannotTell(f"line {node.lineno}: `{_short(node)}` is set on something whose class cannot be told")

    # ------------------------------------------------------------------------------------------------------------ expressions
    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        self.step(node)
        get = getattr(self, f"get_{type(node).__name__}", None)
        if get is None:
            if self.strict:
                raise CannotTell(f"line {node.lineno}: `{_short(node)}` is not an expression that is followed")
            return UNKNOWN
        return self.bounded(get(node, names), node)

    def bounded(self, value: Any, node: ast.AST) -> Any:
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise CannotTell(f"line {node.lineno}: `{_short(node)}` is a number beyond {MAX_NUMBER:.0e}")
        if isinstance(value, (list, tuple, set, dict, str, range)) and len(value) > MAX_ITEMS:
            raise CannotTell(f"line {node.lineno}: `{_short(node)}` has more than {MAX_ITEMS:,} entries")
        return value

    def get_Constant(self, node, names) -> Any:
        return self.constant(node)

    def get_Name(self, node, names) -> Any:
        if node.id in names:
            return names[node.id]
        path, method = names[""]
        if method is not None and (found := method.cls.package.resolve(path, node.id)) is not None:
            return found if isinstance(found, (Class, Function)) else UNKNOWN
        return _Builtin(node.id) if node.id in BUILTINS else UNKNOWN

    def get_Attribute(self, node, names) -> Any:
        return self.attribute(self.value(node.value, names), node.attr)

    def attribute(self, owner: Any, name: str) -> Any:
        if name.startswith("__"):
            return UNKNOWN
        if isinstance(owner, StandIn):
            return owner.set[name] if name in owner.set else self.member(owner, name)
        if isinstance(owner, _Super):
            return self.class_member(owner.owner, name, owner.after)
        if isinstance(owner, (list, set)) and name in ("append", "extend", "copy", "add"):
            return _Of(owner, name)
        if isinstance(owner, dict) and name == "get":
            return _Of(owner, name)
        return UNKNOWN

    def class_member(self, owner: StandIn, name: str, after: Class | None = None) -> Any:
        """A method or property of the class, by its order of bases; UNKNOWN where there is none."""
        order = owner.cls.order if owner.cls else []
        for cls in order[order.index(after) + 1 :] if after in order else order:
            found = cls.own(name)
            if isinstance(found, ast.FunctionDef):
                method = Method(owner, cls, found)
                is_property = any(isinstance(d, ast.Name) and d.id in ("property", "cached_property") for d in found.decorator_list)
                return self.call(method) if is_property else method
            if isinstance(found, ast.Constant):
                return self.constant(found)
            if isinstance(other := cls.package.named(cls.path, found), (Class, Function)):
                return other
            if found is not None:
                return UNKNOWN
        return UNKNOWN

    def get_Subscript(self, node, names) -> Any:
        value = self.value(node.value, names)
        if isinstance(node.slice, ast.Slice):
            ends = [None if e is None else self.value(e, names) for e in (node.slice.lower, node.slice.upper, node.slice.step)]
            known = all(e is None or isinstance(e, int) for e in ends) and ends[2] != 0
            return value[slice(*ends)] if isinstance(value, (list, tuple)) and known else UNKNOWN
        index = self.value(node.slice, names)
        if isinstance(value, (list, tuple)) and isinstance(index, int):
            if not -len(value) <= index < len(value):
                raise Stopped("IndexError", f"index {index} of {len(value)} in `{_short(node)}`")
            return value[index]
        return self.subscript(value, index)

    def get_List(self, node, names) -> Any:
        if any(isinstance(e, ast.Starred) for e in node.elts):
            return UNKNOWN
        return [self.value(e, names) for e in node.elts]

    def get_Tuple(self, node, names) -> Any:
        items = self.get_List(node, names)
        return tuple(items) if isinstance(items, list) else items

    def get_Set(self, node, names) -> Any:
        items = self.get_List(node, names)
        return set(items) if isinstance(items, list) and all(isinstance(i, (int, str)) for i in items) else UNKNOWN

    def get_Dict(self, node, names) -> Any:
        return UNKNOWN

    def get_ListComp(self, node, names) -> Any:
        if len(node.generators) != 1:
            return UNKNOWN
        generator = node.generators[0]
        items = self.value(generator.iter, names)
        if not isinstance(items, (list, tuple, set, range)):
            return UNKNOWN
        inner, made = dict(names), []
        for item in list(items):
            self.store(generator.target, item, inner)
            if all(self.truth(self.value(test, inner), test) for test in generator.ifs):
                made.append(self.value(node.elt, inner))
        return made

    get_GeneratorExp = get_ListComp

    def get_SetComp(self, node, names) -> Any:
        items = self.get_ListComp(node, names)
        return set(items) if isinstance(items, list) and all(isinstance(i, (int, str)) for i in items) else UNKNOWN

    def get_IfExp(self, node, names) -> Any:
        return self.value(node.body if self.truth(self.value(node.test, names), node.test) else node.orelse, names)

    def get_BoolOp(self, node, names) -> Any:
        stop_at = isinstance(node.op, ast.Or)
        for operand in node.values:
            value = self.value(operand, names)
            if not isinstance(value, PLAIN) and not self.strict and self.length(value) is UNKNOWN and not isinstance(value, StandIn):
                if not stop_at:
                    return UNKNOWN
                continue
            if self.truth(value, operand) is stop_at:
                return value
        return value

    def get_UnaryOp(self, node, names) -> Any:
        value = self.value(node.operand, names)
        if isinstance(node.op, ast.Not):
            unsure = not isinstance(value, (*PLAIN, StandIn)) and self.length(value) is UNKNOWN
            return UNKNOWN if unsure and not self.strict else not self.truth(value, node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value, int):
            return -value
        return UNKNOWN

    def get_Compare(self, node, names) -> Any:
        left = self.value(node.left, names)
        for op, right in zip(node.ops, (self.value(c, names) for c in node.comparators), strict=True):
            if left is UNKNOWN or right is UNKNOWN:
                return UNKNOWN
            if isinstance(op, (ast.In, ast.NotIn)) and not isinstance(right, (list, tuple, set, dict, range, str)):
                return UNKNOWN
            try:
                if not COMPARE[type(op)](left, right):
                    return False
            except TypeError as error:
                raise Stopped("TypeError", str(error)) from None
            left = right
        return True

    def get_BinOp(self, node, names) -> Any:
        return self.binary(node.op, self.value(node.left, names), self.value(node.right, names), node)

    def binary(self, op: ast.operator, left: Any, right: Any, node: ast.AST) -> Any:
        if isinstance(op, ast.Add) and not (isinstance(left, PLAIN) and isinstance(right, PLAIN)):
            return self.add(left, right)
        if type(op) not in BINARY or not isinstance(left, PLAIN) or not isinstance(right, PLAIN):
            return UNKNOWN
        if isinstance(op, ast.Mult) and not (isinstance(left, int) and isinstance(right, int)):
            return UNKNOWN
        try:
            return BINARY[type(op)](left, right)
        except (TypeError, ZeroDivisionError) as error:
            raise Stopped(type(error).__name__, str(error)) from None

    def get_JoinedStr(self, node, names) -> str:
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)

    def get_Starred(self, node, names) -> Any:
        return UNKNOWN

    def get_Call(self, node, names) -> Any:
        if isinstance(node.func, ast.Name) and node.func.id == "super" and not node.args:
            _, method = names[""]
            return _Super(method.owner, method.cls) if method else UNKNOWN
        function = self.value(node.func, names)
        args = [self.value(a, names) for a in node.args]
        keywords = {k.arg: self.value(k.value, names) for k in node.keywords if k.arg is not None}
        if isinstance(function, _Builtin):
            return self.builtin(function.name, args, keywords, node)
        if isinstance(function, _Of):
            return self.builtin_method(function, args)
        if isinstance(function, Method):
            return self.call(function, args, keywords)
        if isinstance(function, Function) and self.strict:
            _, method = names[""]
            return self.run(function.path, function.node, args, keywords, Method(StandIn(), _in(method.cls, function.path), function.node))
        made = self.call_other(function, args, keywords, node)
        handed = made is UNKNOWN and self.strict and any(_matters(v) for v in (*args, *keywords.values()))
        if handed and ast.unparse(node.func).split(".")[0] not in IGNORED_CALLS:
            raise CannotTell(f"line {node.lineno}: `{_short(node)}` is handed the layers, and what it does cannot be told")
        return made

    def builtin_method(self, function: _Of, args: list) -> Any:
        if function.name == "get":
            return function.owner.get(args[0], args[1] if len(args) > 1 else None) if args and isinstance(args[0], str) else UNKNOWN
        if function.name == "copy":
            return list(function.owner)
        if len(args) != 1:
            return UNKNOWN
        if function.name == "extend":
            if not isinstance(args[0], (list, tuple, set, range)):
                raise CannotTell(f"what is put into a list cannot be told: {args[0]!r}")
            function.owner.extend(args[0])
        elif function.name == "add" and isinstance(args[0], (int, str)):
            function.owner.add(args[0])
        elif function.name == "append":
            function.owner.append(args[0])
        return self.bounded(function.owner, ast.Constant(0, lineno=0)) and None

    def builtin(self, name: str, args: list, keywords: Mapping[str, Any], node: ast.Call) -> Any:
        if name in ("getattr", "hasattr", "setattr"):
            return self._attribute_call(name, args, node)
        if name == "isinstance":
            kinds = (
                [k.name for k in (args[1] if isinstance(args[1:2][0], tuple) else args[1:2]) if isinstance(k, _Builtin)] if args[1:] else []
            )
            return type(args[0]).__name__ in kinds if isinstance(args[0], PLAIN) and kinds else UNKNOWN
        if name == "enumerate" and args and isinstance(args[0], (list, tuple)):
            start = keywords.get("start", args[1] if len(args) > 1 else 0)
            return [(i, item) for i, item in enumerate(args[0], start)] if isinstance(start, int) else UNKNOWN
        if keywords:
            return self._sorted(args, keywords) if name == "sorted" else UNKNOWN
        if name == "len" and len(args) == 1:
            return self.length(args[0])
        if name == "range" and args and all(isinstance(a, int) for a in args):
            if len(args) == 3 and args[2] == 0:
                raise Stopped("ValueError", "range() arg 3 must not be zero")
            return range(*args[:3])
        if name == "zip" and all(isinstance(a, (list, tuple)) for a in args):
            return [tuple(pair) for pair in zip(*args, strict=False)]
        if name == "list" and not args:
            return []
        if name == "set" and not args:
            return set()
        if len(args) == 1 and isinstance(args[0], (list, tuple, set, range)):
            items = list(args[0])
            whole = all(isinstance(i, int) for i in items)
            if name in ("list", "tuple"):
                return items if name == "list" else tuple(items)
            if name in ("any", "all"):
                return {"any": any, "all": all}[name](self.truth(i, node) for i in items)
            if whole and name in ("set", "frozenset", "sorted", "max", "min", "sum"):
                if not items and name in ("max", "min"):
                    raise Stopped("ValueError", f"{name}() of nothing")
                return {"set": set, "frozenset": set, "sorted": sorted, "max": max, "min": min, "sum": sum}[name](items)
        if name in ("max", "min") and len(args) > 1 and all(isinstance(a, int) for a in args):
            return max(args) if name == "max" else min(args)
        if name in ("int", "abs") and len(args) == 1 and isinstance(args[0], int):
            return int(args[0]) if name == "int" else abs(args[0])
        if name == "bool" and len(args) == 1:
            return self.truth(args[0], node)
        return UNKNOWN

    @staticmethod
    def _sorted(args: list, keywords: Mapping[str, Any]) -> Any:
        plain = len(args) == 1 and isinstance(args[0], (list, tuple, set)) and all(isinstance(i, int) for i in args[0])
        return sorted(args[0], reverse=True) if plain and keywords == {"reverse": True} else UNKNOWN

    def _attribute_call(self, name: str, args: list, node: ast.Call) -> Any:
        if len(args) < 2 or not isinstance(args[1], str):
            raise CannotTell(f"line {node.lineno}: which attribute `{_short(node)}` means cannot be told")
        if name == "setattr":
            return self.set_attribute(args[0], args[1], args[2] if len(args) > 2 else UNKNOWN, node)
        if not isinstance(args[0], StandIn):
            return UNKNOWN
        found = self.attribute(args[0], args[1])
        if name == "hasattr":
            return found is not UNKNOWN
        return args[2] if found is UNKNOWN and len(args) > 2 else found


class _Builtin:
    def __init__(self, name: str) -> None:
        self.name = name


class _Of:
    """A method of a list, a set or a dict."""

    def __init__(self, owner: list | set | dict, name: str) -> None:
        self.owner, self.name = owner, name


class _Super:
    def __init__(self, owner: StandIn, after: Class) -> None:
        self.owner, self.after = owner, after


BUILTINS: set[str] = {
    *("len", "range", "enumerate", "zip", "list", "tuple", "set", "frozenset", "sorted", "max", "min", "sum", "int", "abs", "bool", "any"),
    *("all", "getattr", "hasattr", "setattr", "isinstance", "dict", "str"),
}
"""Builtins that exist here; every other name (open, exec, __import__, …) is unknown, and calling it does nothing."""


def _in(cls: Class, path: str) -> Class:
    """A class that stands for the module in which a function's names are looked up."""
    return Class(cls.package, path, cls.node)


def _matters(value: Any) -> bool:
    return isinstance(value, (StandIn, list, tuple, set)) and value not in ((), [])


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else text[:67] + "…"
