"""Wiring playground: other layer ids, another engine or version, and what would then be fed, beside what the drafter was trained on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglelab.engines.config_ids import config_ids
from eaglelab.engines.conventions import (
    RULES,
    ConventionError,
    Engine,
    convention_for,
    parse_engine,
    ranges_that_agree,
    table,
    versions_that_differ,
)
from eaglelab.engines.wiring_report import EngineWiring, wiring_of_ids
from eaglelab.explore.feed_replays import FeedReplays
from eaglelab.explore.frame import Explorer, labelled
from eaglelab.opened import DUMP, NotGiven
from eaglelab.reports import parts
from eaglelab.wiring import Boundary, Wiring, boundary_name

if TYPE_CHECKING:
    from ipywidgets import ValueWidget

    from eaglelab.investigation import Investigation

MOST_IDS = 64
SHOWN = 60
"""Characters of a text that was typed, in what is said about it."""
USUAL = "sglang"
"""The engine to begin with where the case names none."""


class WiringPlayground(Explorer):
    """What layer ids mean to an engine, and what the drafter makes of it. Raises NotGiven without the target's config, TargetConfigError."""

    title = "Wiring playground: layer ids, engine and version, and what is fed"

    def __init__(self, inv: Investigation) -> None:
        from eaglelab.engines.target_config import target_shape

        if inv.target_config is None:
            raise NotGiven(
                "the target's config", "`[target] config` names its config.json: layer ids mean nothing without the number of layers"
            )
        self.inv, self.target, self.replays = inv, target_shape(inv.target_config), FeedReplays(inv)

    # -- the case -------------------------------------------------------------------------------------------------------------

    @cached_property
    def draft_config(self) -> dict[str, Any]:
        """The config that is played with; empty where the case gives none, or none that can be read."""
        try:
            return self.inv.draft_config or {}
        except ValueError:  # `drafter.complete` says why
            return {}

    @cached_property
    def own_engine(self) -> Engine | None:
        try:
            return self.inv.engine
        except ValueError:  # `wiring.engine` says why
            return None

    @cached_property
    def held(self) -> tuple[Wiring | None, str]:
        """The dump's wiring along its feed, and why it is not known in full."""
        inv = self.inv
        try:
            if inv.dump is None:
                return None, f"The case gives no dump: {DUMP}."
            wiring = inv.dump_wiring.select(inv.dump.feed.aux)
            return wiring, "" if wiring.known else f"What the dump's slots hold is not known in full. {inv.identification.next_step}"
        except (NotGiven, ValueError) as reason:
            return None, f"What the dump's slots hold cannot be told: {reason}."

    @cached_property
    def trained(self) -> Wiring | None:
        """What the drafter was trained on: by the replay where that tells, else the dump's feed. None: not known."""
        drafter = self.replays.drafter_wiring or self.held[0]
        return drafter if drafter is not None and drafter.known else None

    def own_ids(self, engine: Engine) -> list[int] | None:
        """The ids that an engine reads from the config as it is."""
        if not self.draft_config:
            return None
        convention = convention_for(engine, self.target.architecture)
        found = config_ids(self.draft_config, convention).ids
        if found is None and not convention.family["keys"] and self.own_engine is not None:  # a framework that reads none from a config
            return config_ids(self.draft_config, convention_for(self.own_engine, self.target.architecture)).ids
        return found

    def wanted_ids(self, engine: Engine) -> dict[str, Any] | None:
        """`checks.wiring.ids_for` what the drafter was trained on; None where that is not known."""
        from eaglelab.checks.wiring import ids_for

        return None if self.trained is None else ids_for(self.draft_config, self.trained, self.inv.target_config, engine)

    # -- controls ---------------------------------------------------------------------------------------------------------------

    @cached_property
    def engines(self) -> dict[str, list[tuple[str, Engine]]]:
        """Name -> (label, engine) of each version, newest first, the case's own before them."""
        found, own = {}, self.own_engine
        for name, family in sorted(table()["families"].items(), key=lambda item: (item[1]["kind"] != "engine", item[0])):
            versions = [(v, Engine(name, v)) for v in reversed(family.get("read_versions", []))]
            if own is not None and own.name == name:
                label = f"{own.version or 'no version'}, the case's{f' own code ({own.source[:SHOWN]})' if own.source else ''}"
                versions = [(parts.clean(label), own), *((v, e) for v, e in versions if e != own)]
            found[name] = versions or [("any version", Engine(name))]
        return found

    def controls(self) -> dict[str, ValueWidget]:
        import ipywidgets as widgets

        engine = self.own_engine or parse_engine(USUAL)
        titles = [(table()["families"][name]["title"], name) for name in self.engines]
        controls = {
            "ids": labelled(widgets.Text(placeholder="empty: the engine's default"), "Layer ids", "20em", "Layer ids, as in -1, 2, 15"),
            "engine": labelled(widgets.Dropdown(options=titles, value=engine.name), "Engine", "22em"),
            "version": labelled(widgets.Dropdown(options=self.engines[engine.name]), "Version", "20em"),
        }
        with suppress(ConventionError):  # of what stands there and is no list of ids, `wiring.engine` speaks
            controls["ids"].value = ids_text(self.own_ids(controls["version"].value))
        return controls

    def adjust(self, changed: str, controls: Mapping[str, ValueWidget]) -> None:
        version, options = controls["version"], self.engines[controls["engine"].value]
        if version.options != tuple(options):
            version.options = options

    def actions(self) -> dict[str, Callable[[Mapping[str, ValueWidget]], None]]:
        return {"As the config has it": self._as_it_is, "What the drafter wants": self._as_wanted}

    def _as_it_is(self, controls: Mapping[str, ValueWidget]) -> None:
        if self.own_engine is not None:
            controls["engine"].value = self.own_engine.name
            self.adjust("engine", controls)
            controls["version"].value = self.own_engine
        if not self.draft_config:
            raise NotGiven("the drafter's config", "`[drafter] path` or `[engine] draft_config` names it")
        controls["ids"].value = ids_text(self.own_ids(controls["version"].value))

    def _as_wanted(self, controls: Mapping[str, ValueWidget]) -> None:
        wanted = self.wanted_ids(controls["version"].value)
        if wanted is None:
            raise ValueError(f"What the drafter was trained on is not known. {self.held[1]}")
        if wanted["ids"] is None:
            raise ValueError(wanted["why"] or "No layer ids do it: the drafter takes the final state alone.")
        controls["ids"].value = ids_text(wanted["ids"])

    # -- what is shown ------------------------------------------------------------------------------------------------------------

    def view(self, ids: str, engine: str, version: Engine) -> str:
        fed = wiring_of_ids(self.draft_config, parse_ids(ids), self.inv.target_config, version)
        said = [f"<p><strong>{parts.prose(fed.headline)}</strong></p>", self._places(fed)]
        said += [f"<p>{parts.prose(text)}</p>" for text in (self.replays.text(fed), self.wanted_text(version)) if text]
        rule = f"{RULES[fed.convention.rule]}. Read: {fed.convention.read}"
        notes = [f"Rule of {fed.engine.title}: {rule}", *fed.notes, *fed.assumptions, self.held[1], self.replays.reason]
        listed = "".join(f"<li>{parts.prose(note)}</li>" for note in dict.fromkeys(filter(None, notes)))
        return "".join(said) + f"<ul>{listed}</ul>" + self._elsewhere(fed.ids)

    def _places(self, fed: EngineWiring) -> str:
        """One row a place of fc: id, fed, what the dump's slot holds, what the drafter was trained on, and whether they agree."""
        dump, drafter, trained = self.held[0], self.replays.drafter_wiring, self.trained
        slots = self.inv.dump.feed.aux if dump is not None else ()
        layers, columns, rows = self.target.num_layers, ["place", "id", "is fed"], []
        columns += ["the dump holds"] * (dump is not None) + ["the drafter fits"] * (drafter is not None) + ["as trained on?"]
        known = fed.rows()
        for place in range(max(len(fed.wiring), len(dump or ()), len(drafter or ()))):
            row = known[place] if place < len(known) else {"id": None, "is": "nothing"}
            cells = [place, "" if row["id"] is None else str(row["id"]), row["is"]]
            cells += [f"{_named(dump, place, layers)} (slot {slots[place]})" if place < len(slots) else "nothing"] * (dump is not None)
            cells += [_named(drafter, place, layers)] * (drafter is not None)
            rows.append([*cells, beside(fed.wiring[place] if place < len(fed.wiring) else None, trained, place, fed.captures_boundaries)])
        return parts.table(columns, rows, caption=f"What goes into each place of the drafter's fc, with {fed.engine.title}", row_headers=1)

    def wanted_text(self, engine: Engine) -> str:
        """The ids that make an engine feed what the drafter was trained on, or why none do."""
        wanted = self.wanted_ids(engine)
        if wanted is None:
            return ""
        if not wanted["ids"]:
            edits = " and ".join(f"`{key} = {json.dumps(value)}`" for key, value in wanted["edits"].items())
            return f"To feed {self.trained}, {engine.title} needs {edits}." if edits else wanted["why"]
        return f"The ids that make {engine.title} feed {self.trained}: `{wanted['ids']}` in `{wanted['key']}`."

    def _elsewhere(self, ids: Sequence[int] | None) -> str:
        """What the same ids mean to other engines and trainers, a row where it turns."""
        rows = [[who, str(wiring), agree(wiring, self.trained)] for who, wiring in self.meanings(ids)]
        said = "a config without ids means" if ids is None else f"the ids {ids} mean"
        return parts.table(
            ["who", "boundaries", "as trained on?"],
            rows,
            caption=f"What {said} elsewhere (N = {self.target.num_layers}; ? is not captured)",
            row_headers=1,
        )

    def meanings(self, ids: Sequence[int] | None) -> list[tuple[str, Wiring]]:
        """(engine and range of versions, or trainer; boundaries), engines first."""
        found, architecture, layers = [], self.target.architecture, self.target.num_layers
        for name in self.engines:
            title = table()["families"][name]["title"]
            if table()["families"][name].get("read_versions"):
                ranges = ranges_that_agree(name, architecture, ids, layers)
                found += [(f"{title} {group.versions}", Wiring(group.boundaries)) for group in ranges]
            else:
                found.append((title, Wiring(convention_for(Engine(name), architecture).feed(ids, layers).boundaries)))
        return found

    # -- in a report ----------------------------------------------------------------------------------------------------------------

    def twin(self) -> str:
        """A table of candidates: the config's ids and the wanted ones, in the case's engine and wherever they mean something else."""
        own = self.own_engine or parse_engine(USUAL)
        rows, seen = [], set()
        for name, ids, engine in self._candidates(own):
            fed = wiring_of_ids(self.draft_config, ids, self.inv.target_config, engine)
            if (engine.title, fed.boundaries, name) in seen:
                continue
            seen.add((engine.title, fed.boundaries, name))
            told = fed.fails or self.replays.short(fed)
            rows.append([name, "none" if ids is None else str(ids), engine.title, str(fed.wiring), agree(fed.wiring, self.trained), told])
        columns = ["whose ids", "ids", "engine", "is fed", "as trained on?", "replay of that feed"]
        notes = [self.held[1], self.replays.reason, "" if self.own_engine else f"The case names no engine: {own.title} is shown."]
        said = "".join(f"<p>{parts.prose(note)}</p>" for note in dict.fromkeys(filter(None, notes)))
        return parts.table(columns, rows, caption="Candidate layer ids and what they would do", row_headers=1) + said

    def _candidates(self, own: Engine) -> list[tuple[str, list[int] | None, Engine]]:
        """(which, ids, engine): as the config has it, where that turns in other versions and engines, and what the drafter wants."""
        engines = [own, *self._neighbours(own)]
        found = []
        for engine in engines:
            try:
                found.append(("the config's", self.own_ids(engine), engine))
            except ConventionError as reason:
                raise ValueError(f"The drafter's config holds no list of layer ids: {reason}") from None
        for engine in engines:
            wanted = self.wanted_ids(engine)
            if wanted is not None and wanted["ids"]:
                found.append(("the drafter's", wanted["ids"], engine))
        return found

    def _neighbours(self, own: Engine) -> list[Engine]:
        """The newest version of each range in which the config's ids mean something else, of the case's engine; the newest of other engines."""
        differ = versions_that_differ(own, self.target.architecture, self.own_ids(own), self.target.num_layers)
        turning = [Engine(own.name, group.last) for group in differ]
        others = [versions[0][1] for name, versions in self.engines.items() if name != own.name and versions[0][1].is_engine]
        return [*reversed(turning), *others]


def parse_ids(text: str) -> list[int] | None:
    """`-1, 2, 15`, with or without brackets; None where nothing is written. Raises ValueError with what to write."""
    bare = text.replace("\u2212", "-").strip().strip("[](){} ,;")
    words = [w for w in re.split(r"[\s,;]+", bare) if w]
    got = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    if not all(re.fullmatch(r"[+-]?[0-9]{1,6}", w) for w in words):
        raise ValueError(f"Layer ids are {got!r}, expected whole numbers with commas between, as in -1, 2, 15; or nothing, for the default")
    if len(words) > MOST_IDS:
        raise ValueError(f"{len(words):,} layer ids, expected {MOST_IDS} at most: a drafter takes 3 to 5")
    return [int(w) for w in words] or None


def ids_text(ids: Sequence[int] | None) -> str:
    return "" if ids is None else ", ".join(map(str, ids))


SAME, DIFFERS, UNKNOWN = "✓ same", "✕ differs", "? cannot tell"


def beside(fed: Boundary, trained: Wiring | None, place: int, captures: bool = True) -> str:
    """One place of what is fed beside what was trained on, as a symbol and a word."""
    if trained is None:
        return UNKNOWN
    wanted = trained[place] if place < len(trained) else None
    return SAME if captures and fed is not None and fed == wanted else DIFFERS


def agree(wiring: Wiring, trained: Wiring | None) -> str:
    return UNKNOWN if trained is None else SAME if wiring == trained else DIFFERS


def _named(wiring: Wiring | None, place: int, num_layers: int) -> str:
    return boundary_name(wiring[place], num_layers) if wiring is not None and place < len(wiring) else "nothing"
