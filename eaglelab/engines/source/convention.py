"""A Convention read out of an engine's own code: the same type as a row of the table, so that it feeds, inverts and reports alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from eaglelab.engines.conventions import (
    RULES,
    USUAL_DEFAULT,
    Convention,
    Engine,
    Fed,
    check_ids,
    formula,
    table,
    table_convention,
)
from eaglelab.engines.source import sglang, vllm
from eaglelab.engines.source.archive import Source, open_source
from eaglelab.engines.source.interpreter import CannotTell, Stopped
from eaglelab.engines.source.target import Captured, Target

PROBE_LAYERS = 24
"""N at which the code is asked for the words of the table: far from any special number of a setter."""
OWN = "engine"
"""The name of a rule that is none of the table's: the engine's own function is run for each list of ids."""


@dataclass(frozen=True)
class SourceConvention(Convention):
    """What the engine's own functions do. `rule`, `last`, … are the table's words for what was measured by running them."""

    target: Target | None = field(default=None, repr=False, compare=False)

    def run(self, ids: Sequence[int] | None, num_layers: int) -> Captured:
        """The engine's setter and forward for these ids, as they are. Raises CannotTell."""
        return self.target.run(ids, num_layers)

    def feed(self, ids: Sequence[int] | None, num_layers: int) -> Fed:
        """As Convention.feed; where the engine's own functions give something else than the words of the table, theirs is taken."""
        by_words = super().feed(ids, num_layers)
        try:
            captured = self.run(ids, num_layers)
        except CannotTell as reason:
            return by_words._replace(notes=(*by_words.notes, f"Not checked against the engine's own functions for these ids: {reason}."))
        wanted = len(captured.numbers) if ids is None else len(ids)
        boundaries = (*captured.boundaries, *[None] * (wanted - len(captured.boundaries)))
        foreseen = captured.error and any(w in " ".join(by_words.notes) for w in ("IndexError", "it raises", "captured X of Y"))
        if foreseen or boundaries == by_words.boundaries or self.rule == "none":
            return by_words
        return Fed(boundaries, (f"{self.engine.title}'s own functions, run for these ids, feed this.", *_said(captured)))

    def _default_numbers(self, num_layers: int) -> list[int]:
        try:
            return list(self.target.run(None, num_layers).numbers) or super()._default_numbers(num_layers)
        except CannotTell:
            return super()._default_numbers(num_layers)

    def _shift(self, ids: list[int], num_layers: int) -> list[int]:
        if self.rule != OWN:
            return super()._shift(ids, num_layers)
        try:
            return list(self.run(ids, num_layers).numbers) or list(ids)
        except CannotTell:
            return list(ids)


def _said(captured: Captured) -> list[str]:
    return [f"It ends with {captured.error.split(': ', 1)[1]}."] if captured.error else []


@lru_cache(maxsize=64)
def source_convention(engine: Engine, architecture: str | None) -> Convention:
    """The convention of `engine.source` for a target class; the table's, with the reason among the assumptions, where it cannot be told.

    Raises SourceError for a place that holds no such engine.
    """
    source = open_source(engine.name, engine.source)
    try:
        if architecture is None:
            raise CannotTell("the target's architecture is not given")
        return _measured(engine, architecture, source)
    except (CannotTell, RecursionError) as error:
        reason = "its expressions are nested too deeply" if isinstance(error, RecursionError) else error
        if " has no set_" in str(reason):
            note = f"{engine.title} captures nothing for {architecture}: {reason}. The start-up fails."
            family = table()["families"][engine.name]
            return Convention(engine, architecture, "none", USUAL_DEFAULT, note=note, read=source.where, family=family)
        row = table_convention(replace(engine, source=None), architecture)
        why = f"{engine.title} ({source.where}) does not say by itself what it captures ({reason}): the table's rule is assumed."
        if not row.assumptions and "cannot be read" not in why:  # this version and class are known: asking its code takes nothing away
            why = why.replace("the table's rule is assumed", f"the table's row for this version is taken ({row.read})")
            return replace(row, engine=engine, note=f"{row.note} {why}".strip())
        return replace(row, engine=engine, assumptions=(why, *row.assumptions))


def forget() -> None:
    """Read anew what was read before: a checkout may have changed since."""
    open_source.cache_clear()
    source_convention.cache_clear()


def _measured(engine: Engine, architecture: str, source: Source) -> SourceConvention:
    asked = (sglang if engine.name == "sglang" else vllm).target(source, architecture)
    words = measure(asked)
    family, assumptions = dict(table()["families"][engine.name]), list(words.pop("assumptions"))
    keys, uses_aux, where = asked.config_keys()
    if keys:
        family |= {"keys": list(keys), "use_aux": uses_aux}
    else:
        assumptions.append(f"Where {engine.title} reads the ids was not found in {source.where}: the table's keys are assumed.")
    read = f"{source.where}: {asked.read}" + (f"; ids read in {where}" if where else "")
    return SourceConvention(engine, architecture, read=read, family=family, assumptions=tuple(assumptions), target=asked, **words)


def measure(asked: Target) -> dict[str, Any]:
    """The words of the table for what the code does: rule, default, last, embedding, negative, bug, and what had to be assumed.

    Raises CannotTell where the code cannot be followed.
    """
    n = PROBE_LAYERS
    plain, default = asked.run([3, 9, 14], n), asked.run(None, n)
    runs = [plain, default]
    if not plain.boundaries and not default.boundaries and not plain.error:
        note = "What its setter sets, the forward of this target does not act on: nothing is captured, and the forward fails."
        return {"rule": "none", "default": USUAL_DEFAULT, "note": note, "assumptions": plain.assumptions}
    rule = next((r for r in RULES if r not in ("none", OWN) and _fits(asked, r, n)), OWN)
    with_last = _run_with(asked, n, n)
    with_zero = _run_with(asked, 0, n)
    below = _run_with(asked, -1, n)
    bug = "no_residual" if plain.no_residual else None
    words = {
        "rule": rule,
        "default": tuple(_formula_of(asked, place) for place in range(len(default.numbers))),
        "last": _last(with_last, n),
        "embedding": _embedding(with_zero),
        "negative": "wraps" if below is not None and n - 1 in below.boundaries else "missing",
        "bug": bug,
        "assumptions": tuple(dict.fromkeys(a for run in runs for a in run.assumptions)),
    }
    if bug:
        words["note"] = (
            "A state is captured without the residual that the layer hands on beside it: a slot holds a branch, not the boundary."
        )
    return words


def _fits(asked: Target, rule: str, n: int) -> bool:
    """Whether the setter maps id lists as a rule of the table does."""
    if rule == "fixed":
        return asked.setter_numbers([3, 9, 14], n) == asked.setter_numbers([1], n) == asked.setter_numbers(None, n)
    lists = [[3, 9, 14], [1, 9, 14], [2, 9, 14], [0, 4], [1], [5, n], [n], [n - 1, 1], [14, 9, 1], [-1, 4], [n, 2, 7], [n + 2, 3]]
    words = Convention(Engine("hf"), None, rule, USUAL_DEFAULT)
    for ids in lists:
        try:
            numbers = asked.setter_numbers(ids, n)
        except Stopped:
            continue
        if sorted(set(numbers)) != sorted(set(words._shift(check_ids(ids), n))):
            return False
    return True


def _run_with(asked: Target, number: int, n: int) -> Captured | None:
    """A run in which one of the captured numbers is `number`; None where no ids give it."""
    for candidate in (number, number - 1, number + 1):
        for ids in ([4, candidate] if candidate > 4 else [candidate, 4], [candidate]):
            try:
                if number in asked.setter_numbers(ids, n):
                    return asked.run(ids, n)
            except Stopped:
                return asked.run(ids, n)
    return None


def _last(run: Captured | None, n: int) -> str:
    if run is None:
        return "missing"
    if run.error.startswith("start-up: IndexError"):
        return "index_error"
    return "captured" if n in run.boundaries else "error" if run.error else "missing"


def _embedding(run: Captured | None) -> str:
    if run is None:
        return "captured"
    return "raises" if run.error else "captured" if 0 in run.boundaries else "missing"


def _formula_of(asked: Target, place: int) -> str:
    """The default's place-th number as a formula in N, by its values for several N."""
    values = {n: asked.setter_numbers(None, n)[place] for n in (PROBE_LAYERS, PROBE_LAYERS + 7, 61)}
    for text in (
        str(values[61]),
        *(f"N//2{k:+d}" if k else "N//2" for k in range(-4, 5)),
        *(f"N{k:+d}" if k else "N" for k in range(-6, 3)),
    ):
        if all(formula(text, n) == v for n, v in values.items()):
            return text
    raise CannotTell(f"{asked.read}: the default layers {values} follow no simple formula")


@dataclass(frozen=True)
class Disagreement:
    """Ids for which the engine's own functions and the shipped table say different things."""

    ids: tuple[int, ...] | None
    own: Fed
    by_table: Fed


def disagreement(engine: Engine, architecture: str | None, ids: Sequence[int] | None, num_layers: int) -> Disagreement | None:
    """Where an engine's source is given and its version is in the table: whether both feed the same for these ids. None: they do.

    None too where there is nothing to compare: no source, a version that the table does not know, code that does not tell.
    """
    if engine.source is None or engine.version is None:
        return None
    by_table = table_convention(replace(engine, source=None), architecture)
    own = source_convention(engine, architecture)
    if own.assumptions or any("newer than" in a or "not in the table" in a for a in by_table.assumptions):
        return None
    a, b = own.feed(ids, num_layers), by_table.feed(ids, num_layers)
    same = a.boundaries == b.boundaries and own.bug == by_table.bug
    return None if same else Disagreement(None if ids is None else tuple(ids), a, b)
