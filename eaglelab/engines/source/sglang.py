"""SGLang: `set_eagle3_layers_to_capture` of a registered model, and the key of the drafter's config that gives the ids."""

from __future__ import annotations

import ast
import re

from eaglelab.engines.source.archive import MODELS as FOLDERS
from eaglelab.engines.source.archive import Source
from eaglelab.engines.source.classes import Class, Package
from eaglelab.engines.source.interpreter import CannotTell
from eaglelab.engines.source.target import IDS_KEY, Target, is_drafter

MODELS = FOLDERS["sglang"]
SETTER = "set_eagle3_layers_to_capture"


class SGLangTarget(Target):
    SETTER, HELD = SETTER, "layers_to_capture"

    @property
    def when_short(self) -> str:
        """What AuxHiddenStatePacker.finalize raises."""
        packer = self.package.resolve("srt/layers/aux_hidden_states.py", "AuxHiddenStatePacker")
        finalize = packer.own("finalize") if isinstance(packer, Class) else None
        kinds = [type(n) for n in ast.walk(finalize)] if finalize is not None else []
        return "RuntimeError" if ast.Raise in kinds else "AssertionError" if ast.Assert in kinds else ""

    def config_keys(self) -> tuple[tuple[str, ...], bool | None, str]:
        return config_keys(self.package.source)


def registered(source: Source) -> dict[str, Class]:
    """Classes of the model registry by architecture: all 300 files are parsed, which takes some seconds."""
    return Package(source).architectures(source.paths(MODELS))


def targets(source: Source) -> dict[str, SGLangTarget]:
    """Every architecture of the model registry with a setter, by name; drafters left out."""
    package, found = Package(source), {}
    for name, cls in package.architectures(_may_have_a_setter(source)).items():
        if not is_drafter(name) and cls.find(SETTER) is not None:
            found[name] = SGLangTarget(package, cls)
    return found


def _may_have_a_setter(source: Source) -> list[str]:
    """Files in which the setter stands, or a class of such a file is named: parsing all 300 takes long."""
    texts = {path: source.text(path) or "" for path in source.paths(MODELS)}
    found = {path for path, text in texts.items() if SETTER in text}
    while True:
        classes = {name for path in found for name in re.findall(r"^class (\w+For[A-Z]\w+)", texts[path], re.MULTILINE)}
        pattern = re.compile(r"\b(?:" + "|".join(sorted(classes)) + r")\b")
        more = {path for path, text in texts.items() if path not in found and classes and pattern.search(text)}
        if not more:
            return sorted(found)
        found |= more


def target(source: Source, architecture: str) -> SGLangTarget:
    """One architecture. Raises CannotTell where the registry has none of this name, or it has no setter."""
    package = Package(source)
    texts = {path: source.text(path) for path in source.paths(MODELS)}
    paths = [path for path, text in texts.items() if architecture in (text or "")]
    cls = package.architectures(paths).get(architecture)
    lost = [path for path, text in texts.items() if text is None] + [path for path in paths if source.tree(path) is None]
    if cls is None and lost:
        raise CannotTell(f"{lost[0]} cannot be read as Python")
    if cls is None:
        raise CannotTell(f"no model of {source.where} is registered as {architecture}")
    return SGLangTarget(package, cls)


def config_keys(source: Source) -> tuple[tuple[str, ...], bool | None, str]:
    """(dotted keys of the drafter's config that are read for the ids, whether use_aux_hidden_state is read, where).

    No keys where the place cannot be found. The reader is the code that takes `eagle_config` off the drafter's config and subscripts it.
    """
    for path in source.paths("srt/model_executor/"):
        if "eagle_aux_hidden_state_layer_ids" not in (source.text(path) or ""):
            continue
        read, line, uses = [], 0, False
        for node in ast.walk(source.tree(path) or ast.Module([], [])):
            if isinstance(node, ast.Subscript) and _is(node.slice, IDS_KEY):
                read, line = [f"{ast.unparse(node.value)}.{IDS_KEY}"], node.lineno
            uses |= isinstance(node, ast.Call) and bool(node.args) and _is(node.args[0], "use_aux_hidden_state")
            if isinstance(node, ast.Call) and len(node.args) > 1 and _is(node.args[1], IDS_KEY) and ast.unparse(node.func) == "getattr":
                read, line = [*read, IDS_KEY], node.lineno
        if read == [f"eagle_config.{IDS_KEY}"]:
            return tuple(read), uses, f"{path}:{line}"
    return (), None, ""


def _is(node: ast.AST, word: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == word
