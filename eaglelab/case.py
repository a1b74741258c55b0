"""`case.toml` in, a checked `Case` out.

Every section is a small frozen record whose fields are the keys of the file; a key or section that is absent is None. Paths are resolved
against the file's folder and must exist. What is wrong is a `CaseError` that names the file, the key, what was got and what was expected.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

CASE_FILE = "case.toml"
TEMPLATE = Path(__file__).with_name("templates") / CASE_FILE
SPLITS = ("train", "heldout")


class CaseError(ValueError):
    """A case that cannot be used, with what to change."""


@dataclass(frozen=True)
class DumpSection:
    path: Path | None = None
    format: str | None = None
    files: dict[str, Any] | None = None
    split: str | None = None
    feed: tuple[int, ...] | None = None
    """Slots that go into fc, in its order, then the last-state slot. None: all but the last, then the last."""
    allow_pickle: bool | None = None


@dataclass(frozen=True)
class DrafterSection:
    path: Path | None = None
    embed: Path | None = None


@dataclass(frozen=True)
class TargetSection:
    path: Path | None = None
    config: Path | None = None
    sketch: Path | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True)
class EngineSection:
    name: str | None = None
    version: str | None = None
    launch: str | None = None
    """The launch command line itself, also where the file names a file that holds it."""
    log: Path | None = None
    counters: Path | None = None
    url: str | None = None
    draft_config: Path | None = None

    @property
    def spec(self) -> str | None:
        """`sglang==0.5.23`, `sglang`, or None: as `parse_engine` takes it."""
        return self.name if self.name is None or self.version is None else f"{self.name}=={self.version}"


@dataclass(frozen=True)
class TimingSection:
    trace: Path | None = None
    metrics: Path | None = None
    table: Path | None = None


@dataclass(frozen=True)
class TrainingSection:
    framework: str | None = None
    version: str | None = None
    metrics: Path | None = None


@dataclass(frozen=True)
class Claim:
    """What somebody says about a slot or a config key, and where it is said."""

    text: str
    slot: int | None = None
    key: str | None = None
    source: str = ""


SECTIONS = {
    "dump": DumpSection,
    "drafter": DrafterSection,
    "target": TargetSection,
    "engine": EngineSection,
    "timing": TimingSection,
    "training": TrainingSection,
}


@dataclass(frozen=True)
class Case:
    """One investigation. `file` is case.toml, `root` its folder, `name` the folder's name."""

    file: Path
    dump: DumpSection = DumpSection()
    drafter: DrafterSection = DrafterSection()
    target: TargetSection = TargetSection()
    engine: EngineSection = EngineSection()
    timing: TimingSection = TimingSection()
    training: TrainingSection = TrainingSection()
    claims: tuple[Claim, ...] = ()
    notes: tuple[str, ...] = ()
    """What was left out and why, one sentence each (a target that is not on this machine)."""

    @property
    def root(self) -> Path:
        return self.file.parent

    @property
    def name(self) -> str:
        return self.root.name

    def given(self, section: str) -> bool:
        """True when anything of the section is there. Raises KeyError for a section that does not exist."""
        if section == "claims":
            return bool(self.claims)
        if section not in SECTIONS:
            raise KeyError(f"no section {section!r} in a case: {', '.join((*SECTIONS, 'claims'))}")
        part = getattr(self, section)
        return any(getattr(part, f.name) is not None for f in fields(part))


def open_case(path: str | Path) -> Case:
    """The case in `path`, a case.toml or the folder that holds it. Raises CaseError."""
    file = _case_file(path)
    content = _read(file)
    _refuse_unknown(content, (*SECTIONS, "claims"), file, "section")
    notes: list[str] = []
    sections = {name: _section(file, name, kind, content.get(name, {}), notes) for name, kind in SECTIONS.items()}
    case = Case(file=file, claims=_claims(file, content.get("claims", [])), notes=tuple(notes), **sections)
    if not content or (not any(case.given(name) for name in (*SECTIONS, "claims")) and not notes):
        raise CaseError(
            f"{file} gives nothing yet: uncomment at least one section, such as [dump] with its path or [drafter] with its path"
        )
    return case


def new_case(directory: str | Path) -> Path:
    """Write a commented case.toml into `directory`, which is made if need be. Raises CaseError when one is there already."""
    directory = Path(directory).expanduser()
    file = directory / CASE_FILE
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as out:
            out.write(TEMPLATE.read_text(encoding="utf-8"))
    except FileExistsError:
        what = f"{file} is there already" if directory.is_dir() else f"{directory} is a file, expected a folder"
        raise CaseError(f"{what}: it is left as it is; give another folder") from None
    except OSError as error:
        raise CaseError(f"{file} cannot be written: {error.strerror}") from None
    return file


def _case_file(path: str | Path) -> Path:
    path = Path(os.path.abspath(Path(path).expanduser()))
    if path.is_dir():
        path = path / CASE_FILE
        if not path.is_file():
            raise CaseError(f"no {CASE_FILE} in {path.parent}: `eaglelab new {path.parent}` writes one to fill in")
    if not path.is_file():
        raise CaseError(f"no case at {path}: expected a {CASE_FILE} or the folder that holds it; `eaglelab new DIR` writes one")
    return path


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        raise CaseError(f"{file} is not TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{file} cannot be read as UTF-8 text: {error}") from None


def _refuse_unknown(content: Mapping[str, Any], known: tuple[str, ...], file: Path, what: str, inside: str = "") -> None:
    for name in content:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise CaseError(f"{file}: unknown {what} {name!r}{inside}; {guess}Known: {', '.join(known)}")


def _section(file: Path, name: str, kind: type, content: Any, notes: list[str]) -> Any:
    if not isinstance(content, dict):
        raise CaseError(f"{file}: {name} is {_shown(content)}, expected a section [{name}] with keys")
    known = KEYS[name]
    _refuse_unknown(content, tuple(known), file, "key", f" in [{name}]")
    values = {}
    for key, value in content.items():
        where = f"{file}: [{name}] {key}"
        if (name, key) == ("target", "path") and _target_may_be_absent(file, value, content):
            notes.append(f"[target] path {_resolve(file, value)} is not on this machine: the case goes on with the rest of [target].")
            continue
        values[key] = known[key](value, where, file)
    return kind(**values)


def _target_may_be_absent(file: Path, value: Any, content: Mapping[str, Any]) -> bool:
    """A sketch or a config stands in for a target that is too large to be everywhere."""
    stands_in = "sketch" in content or "config" in content
    return isinstance(value, str) and value != "" and stands_in and not os.path.exists(_resolve(file, value))


def _claims(file: Path, content: Any) -> tuple[Claim, ...]:
    if not isinstance(content, list) or not all(isinstance(entry, dict) for entry in content):
        raise CaseError(f"{file}: claims is {_shown(content)}, expected [[claims]] entries, each with slot or key, and text")
    return tuple(_claim(f"{file}: [[claims]] number {place}", entry, file) for place, entry in enumerate(content, start=1))


def _claim(where: str, entry: dict[str, Any], file: Path) -> Claim:
    _refuse_unknown(entry, ("slot", "key", "text", "source"), file, "key", " in [[claims]]")
    if ("slot" in entry) == ("key" in entry):
        raise CaseError(f"{where}: expected either slot (its number) or key (a config key), got {sorted(entry)}")
    if "text" not in entry:
        raise CaseError(f"{where}: text is missing, expected what is said, as it is written")
    slot = entry.get("slot")
    if slot is not None and (isinstance(slot, bool) or not isinstance(slot, int) or slot < 0):
        raise CaseError(f"{where}: slot is {_shown(slot)}, expected a slot's number, 0 or more")
    words = {key: _text(entry[key], f"{where}: {key}", file) for key in ("key", "text", "source") if key in entry}
    return Claim(slot=slot, **words)


def _text(value: Any, where: str, file: Path) -> str:
    if not isinstance(value, str):
        quote = ' (put it in quotes: "0.5")' if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
        raise CaseError(f"{where} is {_shown(value)}, expected text{quote}")
    if not value.strip():
        raise CaseError(f"{where} is empty, expected text; comment the line out when there is none")
    return value


def _path(value: Any, where: str, file: Path) -> Path:
    path = _resolve(file, _text(value, where, file))
    if not os.path.exists(path):
        raise CaseError(f"{where} = {value!r}: nothing at {path}; paths are relative to {file.parent}")
    return path


def _resolve(file: Path, value: str) -> Path:
    return Path(os.path.normpath(file.parent / os.path.expanduser(value)))


def _launch(value: Any, where: str, file: Path) -> str:
    """The command line, or a file that holds it: what looks like a path must be one."""
    text = _text(value, where, file)
    path = _resolve(file, text) if "\n" not in text and len(text) < 1024 else None
    if path is not None and os.path.isfile(path):
        try:
            content = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise CaseError(f"{where}: {path} cannot be read as text: {error}") from None
        return _text(content, f"{where}: the content of {path}", file)
    if len(text.split()) == 1:
        raise CaseError(f"{where} = {text!r}: neither a file at {path} nor a command line with flags")
    return text


def _split(value: Any, where: str, file: Path) -> str:
    if value not in SPLITS:
        raise CaseError(f"{where} is {_shown(value)}, expected one of {', '.join(map(repr, SPLITS))}")
    return value


def _switch(value: Any, where: str, file: Path) -> bool:
    if not isinstance(value, bool):
        raise CaseError(f"{where} is {_shown(value)}, expected true or false")
    return value


def _slots(value: Any, where: str, file: Path) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(isinstance(slot, int) and not isinstance(slot, bool) and slot >= 0 for slot in value)
    if not whole or len(value) < 2:
        raise CaseError(
            f"{where} is {_shown(value)}, expected slot numbers: those for fc in its order, then the last state's, as in [0, 1, 2, 3]"
        )
    return tuple(value)


def _names(value: Any, where: str, file: Path) -> dict[str, Any]:
    """Tensor names to file names (or lists of them), for raw layouts."""
    if not isinstance(value, dict) or not value:
        raise CaseError(f'{where} is {_shown(value)}, expected a table of names, as in {{ token_ids = "tokens.pt" }}')
    names = {}
    for name, entry in value.items():
        parts = entry if isinstance(entry, list) else [entry]
        if not parts:
            raise CaseError(f"{where}.{name} is an empty list, expected file names")
        texts = [_text(part, f"{where}.{name}", file) for part in parts]
        names[name] = texts if isinstance(entry, list) else texts[0]
    return names


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '…'} ({type(value).__name__})"


KEYS = {
    "dump": {"path": _path, "format": _text, "files": _names, "split": _split, "feed": _slots, "allow_pickle": _switch},
    "drafter": {"path": _path, "embed": _path},
    "target": {"path": _path, "config": _path, "sketch": _path, "tokenizer": _path},
    "engine": {
        "name": _text,
        "version": _text,
        "launch": _launch,
        "log": _path,
        "counters": _path,
        "url": _text,
        "draft_config": _path,
    },
    "timing": {"trace": _path, "metrics": _path, "table": _path},
    "training": {"framework": _text, "version": _text, "metrics": _path},
}
"""How each key's value is checked."""
