"""Layer ids that an engine does not read, and slots that do not fit its fc."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eaglelab.drafter.config import IDS_KEY, written_ids
from eaglelab.engines.capabilities import fc_slots, holds, limit
from eaglelab.engines.config_ids import config_ids, ignored_ids, read_keys, uses_aux_hidden_states
from eaglelab.engines.conventions import check_ids, convention_for
from eaglelab.engines.lint.subject import Subject
from eaglelab.findings import Finding, Status
from eaglelab.wiring import Wiring


def ids_elsewhere(s: Subject) -> Iterator[Finding]:
    """Ids that stand where this engine does not look, unless it feeds the same boundaries by its default."""
    for key, value in ignored_ids(s.config, s.convention).items():
        meaning = convention_for("speculators" if key == IDS_KEY else "specforge")
        meant = served = None
        if s.target is not None:
            meant = meaning.feed(check_ids(value, key), s.target.num_layers).boundaries
            served = s.convention.feed(config_ids(s.config, s.convention).ids, s.target.num_layers).boundaries
        same = meant is not None and meant == served
        yield Finding(
            id="config.ids_ignored",
            title=f"{s.title} does not read the layer ids under {key}" + (", but feeds the same boundaries without them" if same else ""),
            status=Status.PASS if same else Status.CANNOT_TELL if meant is None else Status.FAIL,
            claim=f"{key} = {value}" + ("" if meant is None else f": boundaries {Wiring(meant)} in the numbering usual for this key"),
            evidence=f"It looks at {' and '.join(read_keys(s.config, s.convention))}"
            + ("." if served is None else f" and feeds {Wiring(served)}."),
            numbers={} if meant is None else {"meant": list(meant), "served": list(served)},
            next=""
            if same
            else "Write the ids where the engine looks: `eaglelab wiring CONFIG --target … --engine … --boundaries … --write`.",
        )


def ids_by_runner(s: Subject) -> Iterator[Finding]:
    """vLLM's two model runners do not read the same keys."""
    key_note = s.convention.family.get("key_note")
    found = config_ids(s.config, s.convention)
    if not key_note or found.key != key_note["key"]:
        return
    numbers: dict[str, Any] = {}
    if s.target is not None:
        read = s.convention.feed(found.ids, s.target.num_layers).boundaries
        default = s.convention.feed(None, s.target.num_layers).boundaries
        if read == default:
            return
        numbers = {"older_runner": list(read), "newer_runner": list(default)}
    yield Finding(
        id="config.ids_runner",
        title=f"Whether {s.title} reads these layer ids depends on its model runner",
        status=Status.CANNOT_TELL,
        claim=f"{found.key} = {found.ids}",
        evidence=key_note["text"],
        numbers=numbers,
        next=f"Write the ids to {s.convention.family['write_key']} at the top level, which both read; the server's log says "
        "'Using Eagle3 auxiliary layers from config' or 'from model'.",
    )


def slots(s: Subject) -> Iterator[Finding]:
    """Slots that the engine captures against those that it builds fc for."""
    off = not uses_aux_hidden_states(s.config, s.convention)
    described = fc_slots(s.engine, s.drafter.layer_type, s.config)
    ids, key, _ = config_ids(s.config, s.convention)
    if off:
        stated = max(s.config.get("num_aux_hidden_states") or 0, *(len(v) for v in written_ids(s.config).values()), 0)
        if stated < 2:
            return
        yield Finding(
            id="config.use_aux_hidden_state",
            title=f"use_aux_hidden_state is false and the config describes {stated} slots: {s.title} captures none and passes fc over",
            status=Status.FAIL,
            claim=f"eagle_config.use_aux_hidden_state = false; layer ids {written_ids(s.config) or 'none'}",
            evidence="The drafter is then given the target's final normed state in place of the fused slots, without an error where the "
            "widths agree (SGLang 0.5.23, spec_aux_hidden_state.py:185-196, llama_eagle3.py:238; vLLM 0.32.0, llama_eagle3.py:400-402).",
            next="Write use_aux_hidden_state = true where the drafter was trained on slots.",
        )
        return
    captured = len(ids) if ids is not None else 3
    if not uses_aux_hidden_states(s.config) and s.drafter.num_slots == 1 and not written_ids(s.config):
        yield Finding(
            id="config.use_aux_hidden_state",
            title=f"{s.title} does not read use_aux_hidden_state = false: it captures {captured} slots and builds fc for {described}",
            status=Status.FAIL,
            claim="eagle_config.use_aux_hidden_state = false and no layer ids: a drafter of the last state alone",
            evidence=f"{s.convention.family['title']} reads the key from {s.convention.family.get('use_aux_since')} on.",
            next=f"Serve with {s.convention.family['title']} {s.convention.family.get('use_aux_since')} or newer.",
        )
        return
    fixed = s.sglang and s.drafter.layer_type != "mla" and holds(s.engine, row := limit(s.engine, "fc_of_three")) is not True
    if captured == described or s.convention.rule == "none":
        return
    yield Finding(
        id="config.slots",
        title=f"{s.title} captures {captured} slots and builds fc for {described}: the widths do not fit, it stops",
        status=Status.FAIL,
        claim=f"{f'{key} = {ids}' if key else 'no layer ids where it looks: its default of 3'}; num_aux_hidden_states = "
        f"{s.config.get('num_aux_hidden_states')!r}",
        evidence="fc's width is num_aux_hidden_states, else the number of ids in eagle_config, else 3; ids at the top level do not count "
        "(of a speculators config only transformer_layer_config counts)."
        if not fixed
        else f"{row['text']} up to {row['after']} ({row['read']}).",
        numbers={"captured": captured, "fc": described},
        next=f"Serve with {s.convention.family['title']} {row['since']} or newer."
        if fixed and captured == s.drafter.num_slots
        else f"Write num_aux_hidden_states = {captured} {'into transformer_layer_config' if s.speculators else 'at the top level'}, where "
        "the drafter was trained on as many slots; `eaglelab wiring … --write` does."
        if captured == s.drafter.num_slots
        else "Write the ids of the slots that the drafter was trained on where the engine looks: `eaglelab wiring … --write`.",
    )
