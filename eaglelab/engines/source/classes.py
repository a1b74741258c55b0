"""Names, classes and inheritance of a package, read from its syntax trees."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from eaglelab.engines.source.archive import Source

FunctionDef = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, eq=False)
class Class:
    """A class of the package, with the file that it stands in."""

    package: Package
    path: str
    node: ast.ClassDef

    @property
    def name(self) -> str:
        return self.node.name

    def own(self, name: str) -> ast.AST | None:
        """What the body defines under a name: a function, or the value that is assigned. The last one holds."""
        found = None
        for node in self.node.body:
            if isinstance(node, FunctionDef) and node.name == name:
                found = node
            elif (isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets)) or (
                isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name
            ):
                found = node.value
        return found

    @property
    def order(self) -> list[Class]:
        """The class and its bases within the package, in the order in which Python looks (C3)."""
        return self.package.order(self)

    def find(self, name: str) -> tuple[Class, ast.AST] | None:
        """The class that defines a name, and what it is; None where none within the package does."""
        return next(((cls, found) for cls in self.order if (found := cls.own(name)) is not None), None)


@dataclass(frozen=True, eq=False)
class Function:
    """A function at the top of a module."""

    path: str
    node: ast.FunctionDef


class Package:
    """Modules of a source by path, and what names in them stand for."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._classes: dict[tuple[str, str], Class | None] = {}
        self._orders: dict[Class, list[Class]] = {}
        self._names: dict[str, dict[str, tuple]] = {}

    def architectures(self, paths: Iterable[str]) -> dict[str, Class]:
        """Classes named by the `EntryClass` of these modules: what SGLang's model registry offers of them."""
        found = {}
        for path in paths:
            if "EntryClass" not in (self.source.text(path) or ""):
                continue
            for node in _top(self.source.tree(path)):
                if isinstance(node, (ast.Assign, ast.AnnAssign)):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    if any(isinstance(t, ast.Name) and t.id == "EntryClass" for t in targets) and node.value is not None:
                        items = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
                        for item in items:
                            cls = self.resolve(path, item.id) if isinstance(item, ast.Name) else None
                            if isinstance(cls, Class):
                                found[cls.name] = cls
        return found

    def resolve(self, path: str, name: str, depth: int = 0) -> Class | Function | ast.AST | None:
        """What a name means at the top of a module: a class, a function, the value assigned to it; None for what is not the package's."""
        if depth > 8:
            return None
        kind, *rest = self._table(path).get(name, (None,))
        if kind == "class":
            key = (path, name)
            if key not in self._classes:
                self._classes[key] = Class(self, path, rest[0])
            return self._classes[key]
        if kind == "function":
            return Function(path, rest[0])
        if kind == "value":
            return self.resolve(path, rest[0].id, depth + 1) if isinstance(rest[0], ast.Name) and rest[0].id != name else rest[0]
        if kind == "import":
            return self.resolve(rest[0], rest[1], depth + 1)
        return None

    def named(self, path: str, node: ast.AST | None, inside: ast.AST | None = None) -> Class | Function | ast.AST | None:
        """What a `Name` or a `module.Name` means in a module, `inside` a function with imports of its own."""
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            kind, *rest = self._table(path).get(node.value.id, (None,))
            return self.resolve(rest[0], node.attr) if kind == "module" else None
        if not isinstance(node, ast.Name):
            return None
        for found in ast.walk(inside) if inside is not None else ():
            if isinstance(found, ast.ImportFrom):
                for alias in found.names:
                    if (alias.asname or alias.name) == node.id and (module := self._module(path, found)):
                        return self.resolve(module, alias.name)
        return self.resolve(path, node.id)

    def order(self, cls: Class) -> list[Class]:
        if cls not in self._orders:
            self._orders[cls] = [cls]  # a class that inherits from itself ends here
            bases = [b for base in cls.node.bases if isinstance(b := self._base(cls.path, base), Class) and b is not cls]
            self._orders[cls] = [cls, *_merge([*[list(self.order(b)) for b in bases], bases])]
        return self._orders[cls]

    def _base(self, path: str, base: ast.AST):
        return self.named(path, base.value if isinstance(base, ast.Subscript) else base)

    def _table(self, path: str) -> dict[str, tuple]:
        """What stands at the top of a module, `if` and `try` looked into; the first definition of a name holds there."""
        if path in self._names:
            return self._names[path]
        table: dict[str, tuple] = {}
        for node in _top(self.source.tree(path)):
            if isinstance(node, ast.ClassDef):
                table[node.name] = ("class", node)
            elif isinstance(node, FunctionDef):
                table[node.name] = ("function", node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        table.setdefault(target.id, ("value", node.value))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                table.setdefault(node.target.id, ("value", node.value))
            elif isinstance(node, ast.ImportFrom):
                module = self._module(path, node)
                for alias in node.names if module else ():
                    inner = f"{module.removesuffix('__init__.py').removesuffix('.py').rstrip('/')}/{alias.name}.py"
                    entry = ("module", inner) if self.source.has(inner) else ("import", module, alias.name)
                    table.setdefault(alias.asname or alias.name, entry)
        self._names[path] = table
        return table

    def _module(self, path: str, node: ast.ImportFrom) -> str | None:
        """The file of a module of this package that is imported from."""
        parts = (node.module or "").split(".") if node.module else []
        if node.level:
            above = path.split("/")[: -node.level]
        elif parts[:1] == [self.source.name]:
            above, parts = [], parts[1:]
        else:
            return None
        stem = "/".join([*above, *parts])
        return next((f for f in (f"{stem}.py", f"{stem}/__init__.py") if self.source.has(f)), f"{stem}/__init__.py")


def _top(tree: ast.Module | None) -> Iterator[ast.stmt]:
    waiting = list(tree.body) if tree else []
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, (ast.If, ast.Try)):
            waiting = [*node.body, *node.orelse, *waiting]
        else:
            yield node


def _merge(lists: list[list[Class]]) -> list[Class]:
    """C3; where the bases contradict each other, the order in which they come."""
    merged: list[Class] = []
    while lists := [rest for rest in lists if rest]:
        heads = [rest[0] for rest in lists]
        head = next((h for h in heads if not any(h in rest[1:] for rest in lists)), heads[0])
        merged.append(head)
        lists = [[c for c in rest if c is not head] for rest in lists]
    return merged
