"""Layer ids that an engine does not read, and slots that do not fit its fc."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eaglelab.drafter.config import IDS_KEY, written_ids
from eaglelab.engines.capabilities import fc_slots
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
    off = not uses_aux_hidden_states(s.config)
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
        if not (s.sglang and described == 3 and s.drafter.layer_type != "mla" and s.drafter.num_slots != 3)
        else "This version builds fc for 3 slots whatever the config says (up to 0.5.11, llama_eagle3.py:138), or the ids stand where it "
        "does not look.",
        numbers={"captured": captured, "fc": described},
        next=f"Write num_aux_hidden_states = {captured} {'into transformer_layer_config' if s.speculators else 'at the top level'}, where "
        "the drafter was trained on as many slots; `eaglelab wiring … --write` does."
        if captured == s.drafter.num_slots
        else "Write the ids of the slots that the drafter was trained on where the engine looks: `eaglelab wiring … --write`.",
    )
