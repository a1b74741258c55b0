"""Widths, activation and head of the drafter's config that an engine cannot take."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelab.engines.capabilities import fc_slots, limit
from eaglelab.engines.config_ids import uses_aux_hidden_states
from eaglelab.engines.lint.subject import Subject, whole
from eaglelab.engines.loading import consequence
from eaglelab.findings import Finding, Status


def widths(s: Subject) -> Iterator[Finding]:
    """fc's input width, as the engine works it out, against the width of the target's states."""
    key, row = "target_hidden_size", limit(s.engine, "target_hidden_size_null", s.drafter.layer_type)
    holder = s.layer if s.speculators else s.config
    if row and key in holder and holder[key] is None:
        yield Finding(
            id="config.target_hidden_size",
            title=f"{s.title} cannot build fc: target_hidden_size is null",
            status=Status.FAIL,
            claim="target_hidden_size = null in the drafter's config",
            evidence=f"{row['text']} ({row['read']}).",
            next=f"Leave the key out, or write the target's hidden size{_hint(s)}.",
        )
    width, fed = s.drafter.target_hidden_size, whole(s.target_text, "hidden_size")
    if fed is not None and fed != width:
        captures = uses_aux_hidden_states(s.config, s.convention)
        slots = fc_slots(s.engine, s.drafter.layer_type, s.config) if captures else s.drafter.num_slots
        yield Finding(
            id="config.target_hidden_size",
            title=f"fc takes slots of {width}, the target's states are {fed} wide: {s.title} cannot multiply them",
            status=Status.FAIL,
            claim=f"target_hidden_size = {s.config.get(key)!r}, hidden_size = {s.drafter.hidden_size}; without the first the second is taken",
            evidence=f"fc is built for {slots} * {width} = {slots * width} channels and is given {slots} * {fed} = {slots * fed}.",
            numbers={"fc_input": slots * width, "fed": slots * fed, "drafter": s.drafter.hidden_size, "target": fed},
            next=f"Write target_hidden_size = {fed} where the drafter was trained on this target; it then needs an embed_tokens of its own, "
            f"{s.drafter.hidden_size} wide. Else this is another target's drafter.",
        )


def _hint(s: Subject) -> str:
    size = whole(s.target_text, "hidden_size")
    return "" if size is None else f" ({size})"


def activation(s: Subject) -> Iterator[Finding]:
    """Both engines' draft classes have one activation."""
    row = limit(s.engine, "hidden_act")
    if row is None or s.drafter.hidden_act == "silu":
        return
    yield Finding(
        id="config.hidden_act",
        title=f"{s.title} has no draft layer with {s.drafter.hidden_act}: it stops at start-up",
        status=Status.FAIL,
        claim=f"hidden_act = {s.drafter.hidden_act!r} in the drafter's config",
        evidence=f"{row['text']} ({row['read']}).",
        next="Train the drafter with silu: this engine serves no other.",
    )


def head(s: Subject) -> Iterator[Finding]:
    """draft_vocab_size absent, or tied embeddings with a smaller vocabulary. With the checkpoint at hand `drafter.complete` says it."""
    config, tied, reduced = s.config, s.drafter.tie_word_embeddings, s.drafter.draft_vocab_size < s.drafter.vocab_size
    case = "lm_head_kept_but_tied" if tied and reduced else "draft_vocab_absent" if not tied and "draft_vocab_size" not in config else None
    found = consequence(s.engine.name, case, "lm_head.weight", s.drafter.layer_type) if case and not s.audited else None
    if found is None or found.effect not in ("stops", "silent"):
        return
    key, value = ("tie_word_embeddings", "false") if tied else ("draft_vocab_size", "the number of rows of lm_head, or null")
    unsure = found.effect == "silent" and not tied
    yield Finding(
        id=f"config.{key}",
        title=f"{key} is {repr(config[key]) if key in config else 'not in the config'}: {found.engine} {found.text}",
        status=Status.CANNOT_TELL if unsure else Status.FAIL,
        claim=f"{key} = {config.get(key)!r}, draft_vocab_size = {config.get('draft_vocab_size')!r} of {s.drafter.vocab_size}",
        evidence=f"Read in {found.read}."
        + (" A text that is not empty counts as true, whatever it says." if tied and isinstance(config.get(key), str) else ""),
        next=f"Write {key} = {value} into the config that is served.",
    )


def vocabulary(s: Subject) -> Iterator[Finding]:
    """The whole vocabulary that the drafter's config describes, against the target's: token ids and the map's offsets are of one of them."""
    own, theirs = whole(s.layer, "vocab_size") or whole(s.config, "vocab_size"), whole(s.target_text, "vocab_size")
    if own is None or theirs is None or own == theirs:
        return
    yield Finding(
        id="config.vocab_size",
        title=f"The drafter's config describes a vocabulary of {own:,} tokens, the target's has {theirs:,}: is it another target's drafter?",
        status=Status.CANNOT_TELL,
        claim=f"vocab_size = {own} in the drafter's config",
        evidence="Draft ids become target ids by the map (d2t), which counts in the vocabulary of training; with another tokenizer every draft is "
        "another token. Sizes also differ where one of both was padded for the hardware, and then nothing is wrong.",
        numbers={"drafter": own, "target": theirs},
        next="Compare the two tokenizers (text.tokens holds the dump's prompts against the target's). Where they are one, write "
        f"vocab_size = {theirs}.",
    )
