"""The options that a version of SGLang takes on its command line, read out of its published wheel. Nothing of the wheel runs."""

import ast
from functools import lru_cache

from engine_wheels import published

from eaglelab.engines.source.archive import open_source


@lru_cache
def options(version: str) -> set[str]:
    """Without dashes: of `parser.add_argument("--…")`, and in newer versions of the annotated fields of ServerArgs."""
    source = open_source("sglang", published(version))
    trees = [source.tree(p) for p in ("srt/server_args.py", *source.paths("srt/arg_groups/fields/"))]
    found: set[str] = set()
    for tree in trees:
        for call in add_arguments(tree):
            found |= {a.value for a in call.args if isinstance(a, ast.Constant) and str(a.value).startswith("--")}
        for field in fields(tree):
            found |= _of_field(field)
    return {option.removeprefix("--") for option in found}


def fields(tree: ast.Module) -> list[ast.AnnAssign]:
    """Annotated names of the module's classes."""
    return [n for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body if isinstance(n, ast.AnnAssign)]


def add_arguments(tree: ast.Module) -> list[ast.Call]:
    """Calls of `parser.add_argument`. All stand in a method of this name; walking the whole file would take most of the tests' time."""
    methods = [n for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body if getattr(n, "name", None) == "add_cli_args"]
    nodes = (node for method in methods for node in ast.walk(method))
    return [n for n in nodes if isinstance(n, ast.Call) and getattr(n.func, "attr", None) == "add_argument"]


def _of_field(field: ast.AnnAssign) -> set[str]:
    """`name: A[type, "help"]` or `name: A[type, Arg(aliases=…, cli_name=…, no_cli=…)]`."""
    annotation = field.annotation
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"):
        return set()
    arg = next((n for n in ast.walk(annotation) if isinstance(n, ast.Call) and ast.unparse(n.func) == "Arg"), None)
    keywords = {k.arg: k.value for k in arg.keywords} if arg else {}
    if "no_cli" in keywords and ast.literal_eval(keywords["no_cli"]):
        return set()
    name = ast.literal_eval(keywords["cli_name"]) if "cli_name" in keywords else f"--{field.target.id.replace('_', '-')}"
    names = [name, *(ast.literal_eval(keywords["aliases"]) if "aliases" in keywords else ())]
    if "BooleanOptionalAction" in ast.unparse(annotation):
        names += [f"--no-{n.removeprefix('--')}" for n in names]
    return {n for n in names if n.startswith("--")}
