"""`case.toml` in, a checked `Case` out.

Every section is a small frozen record whose fields are the keys of the file; a key or section that is absent is None. Paths are resolved
against the file's folder and must exist. What is wrong is a `CaseError` that names the file, the key, what was got and what was expected.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
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
    """Slots that go into fc, in its order, then the last-state slot or -1: there is none. None: all but the last, then the last."""
    allow_pickle: bool | None = None


@dataclass(frozen=True)
class DrafterSection:
    path: Path | None = None
    embed: Path | None = None
    vocabulary: Path | None = None
    """Another vocabulary map to hold the drafter's against: a checkpoint, `vocab_mapping.pt`, `d2t.npy`."""


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
    recordings: Path | None = None
    """A folder of further recordings (`eaglelab live`): other wirings, steps or engines, to compare with."""
    capture: Path | None = None
    """A dump of the states that the running engine feeds (`eaglelab live … --capture DIR`)."""
    url: str | None = None
    draft_config: Path | None = None
    source: str | None = None
    """A wheel, an sdist or a folder of the engine, or `installed`: its own code says what it captures. Absolute, but for `installed`."""

    @property
    def spec(self) -> str | None:
        """`sglang==0.5.23`, `sglang`, `sglang@PATH` or None: as `parse_engine` takes it."""
        if self.name is not None and self.source is not None:
            return f"{self.name}@{self.source}"
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
    samples: int | None = None
    """Conversations that it was trained on."""


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

    @property
    def root(self) -> Path:
        return self.file.parent

    @property
    def name(self) -> str:
        return self.root.name


def open_case(path: str | Path) -> Case:
    """The case in `path`, a case.toml or the folder that holds it. Raises CaseError."""
    file = _case_file(path)
    content = _read(file)
    _refuse_unknown(content, (*SECTIONS, "claims"), file, "section")
    sections = {name: _section(file, name, kind, content.get(name, {})) for name, kind in SECTIONS.items()}
    case = Case(file=file, claims=_claims(file, content.get("claims", [])), **sections)
    if not any(content.values()):
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
        raise CaseError(
            f"{file} is not TOML: {error}. Text stands in quotes; a text with quotes of its own, as a launch line, between ''' and '''"
        ) from None
    except RecursionError:
        raise CaseError(f"{file} is nested too deeply, expected sections with keys") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CaseError(f"{file} cannot be read as UTF-8 text: {error}") from None


def _refuse_unknown(content: Mapping[str, Any], known: Iterable[str], file: Path, what: str, inside: str = "") -> None:
    for name in content:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            guess = f"did you mean {near[0]!r}? " if near else ""
            raise CaseError(f"{file}: unknown {what} {name!r}{inside}; {guess}Known: {', '.join(known)}")


def _section(file: Path, name: str, kind: type, content: Any) -> Any:
    if not isinstance(content, dict):
        raise CaseError(f"{file}: {name} is {_shown(content)}, expected a section [{name}] with keys")
    checks = {f.name: CHECKS.get(f.name) or CHECKS[f.type] for f in fields(kind)}
    _refuse_unknown(content, checks, file, "key", f" in [{name}]")
    if name == "target" and not _target_is_here(file, content):
        content = {key: value for key, value in content.items() if key != "path"}
    return kind(**{key: checks[key](value, f"{file}: [{name}] {key}", file) for key, value in content.items()})


def _target_is_here(file: Path, content: Mapping[str, Any]) -> bool:
    """A sketch or a config stands in for a target that is too large to be everywhere: its path may then lead nowhere."""
    path = content.get("path")
    stands_in = "sketch" in content or "config" in content
    return not (stands_in and isinstance(path, str) and path and not os.path.exists(_resolve(file, path)))


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


def _source(value: Any, where: str, file: Path) -> str:
    return value if value == "installed" else str(_path(value, where, file))


def _engine_name(value: Any, where: str, file: Path) -> str:
    """`sglang`, or `sglang@PATH` with PATH relative to the file like every other path."""
    name, at, place = _text(value, where, file).partition("@")
    return f"{name}@{_source(place, where, file)}" if at and not place[:1].isdigit() else value


def _split(value: Any, where: str, file: Path) -> str:
    if value not in SPLITS:
        raise CaseError(f"{where} is {_shown(value)}, expected one of {', '.join(map(repr, SPLITS))}")
    return value


def _switch(value: Any, where: str, file: Path) -> bool:
    if not isinstance(value, bool):
        raise CaseError(f"{where} is {_shown(value)}, expected true or false")
    return value


def _number(value: Any, where: str, file: Path) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise CaseError(f"{where} is {_shown(value)}, expected a whole number of 1 or more")
    return value


def _slots(value: Any, where: str, file: Path) -> tuple[int, ...]:
    whole = isinstance(value, list) and all(isinstance(slot, int) and not isinstance(slot, bool) for slot in value)
    if not whole or len(value) < 2 or min(value[:-1]) < 0 or value[-1] < -1:
        raise CaseError(
            f"{where} is {_shown(value)}, expected slot numbers: those for fc in its order, then the last state's (-1: the dump holds none), "
            "as in [0, 1, 2, 3]"
        )
    return tuple(value)


def _names(value: Any, where: str, file: Path) -> dict[str, Any]:
    """A table for a raw layout; its reader checks what stands in it."""
    if not isinstance(value, dict) or not value:
        raise CaseError(f'{where} is {_shown(value)}, expected a table of names, as in {{ token_ids = "tokens.pt" }}')
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '…'} ({type(value).__name__})"


CHECKS = {
    "str | None": _text,
    "Path | None": _path,
    "bool | None": _switch,
    "int | None": _number,
    "tuple[int, ...] | None": _slots,
    "dict[str, Any] | None": _names,
    "launch": _launch,
    "name": _engine_name,
    "source": _source,
    "split": _split,
}
"""How a value is checked: by the name of its key, else by the type of the field."""
