"""The drafter's checkpoint: names, shapes and dtypes from its headers, and what the engine makes of what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from eaglelab.engines.loading import ENGINES, Consequence, consequences
from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation, NotGiven

DRAFTER = "`[drafter] path` names the folder with the drafter's config.json and weights"
LAYERS = ("midlayer.", "layers.", "fc", "norm.", "input_norm.", "lm_head.")
"""How the names of weights begin that a forward pass uses: unexpected ones among them were trained, and nothing uses them."""
NO_BIASES = (
    "Write `attention_bias: false` into the config that is served if the trainer built none (SpecForge never does); else export them."
)
TABLE_ROWS = 64  # rows of the two embedding tables that are compared
SAME = 2**-6  # relative difference of two rows that one rounding to bf16 (2^-8), or two, may leave


MENDS = {
    "export": "Export the checkpoint again, with every tensor of the training run.",
    "copy": "Copy or download the files that are not there; nothing is said about the training.",
    "folder": "Move the weight files that do not belong to the drafter out of the folder.",
    "config": "",
    "unused": "These weights were trained and nothing uses them: is a flag missing in the config? The replay shows how the drafter does without.",
    "note": "",
}
"""Where a problem is put right -> what to do. A note is said and asks for nothing."""


@dataclass(frozen=True)
class Problem:
    """One thing that a checkpoint has otherwise than its config says, and what the engines do."""

    text: str
    consequences: list[Consequence]
    sure: bool = True
    """False where it may be meant so: the replay decides."""
    mend: str = "export"
    """Where it is put right, a key of `MENDS`."""
    how: str = ""
    """In place of what `MENDS` says."""

    @property
    def matters(self) -> bool:
        """Whether an engine that is looked at makes something else of it than of a sound one."""
        return self.mend != "note" and any(c.effect != "harmless" for c in self.consequences)

    @property
    def certain(self) -> bool:
        """Whether each of them does."""
        return self.sure and self.matters and all(c.effect != "harmless" for c in self.consequences)


def engines_of(inv: Investigation) -> tuple[str, ...]:
    """The case's engine, or all that are known where it names none."""
    engine = inv.engine
    return (engine.name,) if engine is not None and engine.name in ENGINES else ENGINES


def drafter_complete(inv: Investigation) -> Iterator[Finding]:
    """Every tensor that the config implies is there, with the right shape and dtype; else what the engine does."""
    if inv.case.drafter.path is None:
        raise NotGiven("a drafter", DRAFTER)
    config, audit = inv.drafter_config, inv.audit
    problems = list(_problems(inv))
    bad = [p for p in problems if p.certain]
    doubtful = [p for p in problems if p.matters and not p.certain]
    asked = bad or doubtful
    said = [p.text for p in asked]
    status = Status.FAIL if bad else Status.CANNOT_TELL if doubtful else Status.PASS
    whole = (
        f"The drafter's checkpoint is whole: {config.num_slots} slots of {config.target_hidden_size} into a layer of {config.hidden_size}"
    )
    title = whole if status is Status.PASS else f"The drafter's checkpoint does not fit its config: {few(said, 3, '; ')}"
    stored = ", ".join(f"{count} weights in {kind}" for kind, count in audit.dtypes.items())
    borrowed = f" Taken from the target: {', '.join(audit.borrowed)}." if audit.borrowed else ""
    notes = [p for p in problems if not p.matters or (bad and p in doubtful)]
    also = f" Also: {few([p.text for p in notes], 6, '; ')}." if notes else ""
    yield Finding(
        id="drafter.complete",
        title=title,
        status=status,
        claim=f"The config describes a {config.layer_type} draft layer ({config.family} layout) with {config.draft_vocab_size} draft tokens.",
        evidence=("; ".join(said) + "." if said else "Every name and shape that the config implies is in the file.")
        + f" {stored}.{also}{borrowed}{_what_engines_do(problems)}",
        numbers={
            "missing": list(audit.missing),
            "wrong_shape": list(audit.wrong_shape),
            "unexpected": list(audit.unexpected),
            "borrowed": list(audit.borrowed),
            "wrong_dtype": audit.wrong_dtype,
            "quantised": list(audit.quantised),
            "dtypes": audit.dtypes,
            "absent_shards": audit.absent_shards,
            "mend": list(dict.fromkeys(p.mend for p in asked)),
            "engines": [
                {"what": p.text, "engine": c.engine, "effect": c.effect, "does": c.text, "read": c.read}
                for p in problems
                for c in p.consequences
            ],
        },
        next=" ".join(dict.fromkeys(p.how or MENDS[p.mend] for p in asked)),
    )


def _problems(inv: Investigation) -> Iterator[Problem]:
    from eaglelab.drafter.audit import WHOLE_NUMBERS, canonical_name

    audit, config, engines = inv.audit, inv.drafter_config, engines_of(inv)

    def problem(text: str, case: str, name: str, **more: Any) -> Problem:
        return Problem(text, consequences(engines, case, canonical_name(name), config.layer_type), **more)

    for file, count in audit.absent_shards.items():
        yield problem(f"the index names {file}, which is not there ({count} tensors)", "absent_shard", file, mend="copy")
    for name in () if audit.absent_shards else audit.missing:
        tied = name == "lm_head.weight" and config.tie_word_embeddings
        bias = {"mend": "config", "how": NO_BIASES} if "self_attn." in name and name.endswith(".bias") else {}
        yield problem(f"missing {name}", "lm_head_tied_reduced" if tied else "missing", name, **bias)
    for file in audit.other_files:
        yield problem(f"{file} stands beside the weights, and no index says which files count", "other_file", file, mend="folder")
    for file in audit.unread_files:
        yield Problem(f"{file} is not in the index and not read", [])
    for names in audit.twice:
        yield Problem(f"{' and '.join(names)} are one tensor: which of them counts hangs on the order of loading", [])
    for text in audit.wrong_shape:
        yield problem(text, "wrong_shape", text.split(" is ")[0])
    for name, kind in audit.wrong_dtype.items():
        is_map = canonical_name(name) == "d2t"
        expected = (
            "expected whole numbers" if is_map else "expected floats, or scales beside it" if kind in WHOLE_NUMBERS else "without scales"
        )
        text = f"{name} is {kind}, {expected}"
        yield problem(text, "map_of_floats" if is_map else "integers", name)
    if audit.quantised and not (inv.draft_config or {}).get("quantization_config"):
        text = f"{len(audit.quantised)} quantised weights ({audit.quantised[0]}, …) and no quantization_config in the config"
        yield problem(text, "quantised", audit.quantised[0])
    for kind, names in audit.respelt.items():
        yield problem(f"{len(names)} names are spelt like {names[0]}", kind, names[0])
    for name in audit.unexpected:
        used = canonical_name(name).startswith(LAYERS) and "rotary_emb" not in name
        stops = [c for c in consequences(engines, "unexpected", canonical_name(name), config.layer_type) if c.effect == "stops"]
        if used or (stops and len(engines) == 1):
            sure = bool(stops) and len(engines) == 1
            yield problem(f"{name} is in no drafter of this config", "unexpected", name, sure=sure, mend="unused")
        else:
            yield Problem(f"{name} is not used", [])
    number = (inv.draft_config or {}).get("draft_vocab_size")
    for name in () if audit.absent_shards else audit.borrowed:
        case = "lm_head_tied" if config.tie_word_embeddings else "lm_head_null" if number is None else "lm_head_same"
        how = "Write `draft_vocab_size: null` into the config that is served."
        yield problem(f"{name} is left to the target's", case, name, mend="config", how=how)
    yield from _told_otherwise(inv, problem)


def _told_otherwise(inv: Investigation, problem: Callable[..., Problem]) -> Iterator[Problem]:
    """What the file holds and the config makes an engine drop, or cannot build."""
    audit, config, raw = inv.audit, inv.drafter_config, inv.draft_config or {}
    number = f"Write `draft_vocab_size: {config.draft_vocab_size}` into the config that is served."
    if config.tie_word_embeddings and audit.head is not None:
        text, how = (
            f"tie_word_embeddings is true, and {audit.head} is in the file",
            "Write `tie_word_embeddings: false` into the config that is served.",
        )
        yield problem(text, "lm_head_kept_but_tied", audit.head, mend="config", how=how)
    elif "draft_vocab_size" not in raw:
        yield problem("the config has no draft_vocab_size", "draft_vocab_absent", "lm_head.weight", mend="config", how=number)
    elif raw["draft_vocab_size"] is None and audit.head is not None:
        text = f"draft_vocab_size is null, and {audit.head} is in the file"
        yield problem(text, "lm_head_null_overwritten", audit.head, mend="config", how=number)
    if config.latent is not None and config.latent.q_rank is None:
        how = "Train the draft layer with a q_lora_rank, or serve it with an engine that takes one without."
        yield problem("the MLA layer has no q_lora_rank", "no_q_rank", "midlayer.self_attn.q_proj.weight", how=how)
    if config.num_layers > 1:  # `config.further_norm` decides
        text = f"layers 1 to {config.num_layers - 1} norm their input by input_layernorm"
        yield problem(text, "further_norm", "layers.1.input_layernorm.weight", mend="note")


def _what_engines_do(problems: list[Problem]) -> str:
    """One sentence an engine and deed, with the sources in `numbers`."""
    deeds: dict[tuple[str, str], list[str]] = {}
    for p in problems:
        for c in p.consequences:
            deeds.setdefault((c.engine, c.text), []).append(p.text)
    return "".join(f" {engine} (as read in its code), where {few(what, 3, '; ')}: {text}." for (engine, text), what in deeds.items())


def drafter_embedding(inv: Investigation) -> Iterator[Finding]:
    """An embedding table of the drafter's own: is it the target's? SGLang overwrites it, vLLM keeps it."""
    if inv.case.drafter.path is None:
        raise NotGiven("a drafter", DRAFTER)
    name, config = inv.audit.embedding, inv.drafter_config
    if name is None and config.hidden_size != config.target_hidden_size:
        yield Finding(
            "drafter.embedding",
            f"The drafter brings no embedding table, and the target's does not fit: {config.target_hidden_size} wide, not {config.hidden_size}",
            Status.FAIL,
            claim=f"hidden_size = {config.hidden_size}, target_hidden_size = {config.target_hidden_size}, no embed_tokens in the checkpoint",
            evidence="The target's table is put in place only where the widths agree (SGLang 0.5.23, models/llama.py:910-916).",
            next="Put the embed_tokens.weight that the drafter was trained with into its checkpoint.",
        )
        return
    if name is None or config.hidden_size != config.target_hidden_size:
        title = (
            "The drafter brings no embedding table: the target's is used"
            if name is None
            else "Only the drafter's own embedding table fits its width"
        )
        yield Finding("drafter.embedding", title, Status.NOT_APPLICABLE)
        return
    rows = _target_rows(inv)
    from eaglelab.drafter.audit import canonical_name
    from eaglelab.target.checkpoint import open_checkpoint

    mine = open_checkpoint(inv.case.drafter.path).rows(name, rows.token_ids).float()  # [n, H]
    target = rows.rows.float()
    if mine.shape != target.shape:
        raise ValueError(f"{name} has rows of {mine.shape[1]}, those of {rows.source} are {target.shape[1]} wide")
    apart = (mine - target).norm(dim=1) / target.norm(dim=1).clamp(min=1e-12)  # [n]
    other = ~(apart <= SAME)  # [n] NaN is not the same
    ruined = other & (~mine.isfinite().all(1) | ~mine.any(1))  # [n] no table that anything was trained with
    differ, broken, n = int(other.sum()), int(ruined.sum()), len(apart)
    measured = apart[apart.isfinite()]
    median, largest = (float(measured.median()), float(measured.max())) if len(measured) else (None, None)
    does = consequences(engines_of(inv), "embedding_ruined" if broken and broken == differ else "embedding", canonical_name(name))
    lost = [c for c in does if c.effect != "harmless"] if differ else []
    ids = few([str(i) for i in rows.token_ids[ruined].tolist()], 5)
    rubbish = f"{broken:,} rows hold NaN or infinity, or nothing but zeros (token ids {ids}). " if broken else ""
    relative = f"Relative difference of a row: median {median:.2g}, largest {largest:.2g}" if measured.numel() else "No row can be compared"
    yield Finding(
        id="drafter.embedding",
        title=f"The drafter's embedding table is not the target's: {differ:,} of {n:,} rows differ"
        if differ
        else f"The drafter's embedding table is the target's, in all {n:,} rows compared",
        status=Status.PASS if not lost else Status.FAIL if len(does) == 1 else Status.CANNOT_TELL,
        claim=f"{name} is in the drafter's checkpoint.",
        evidence=f"{rubbish}{relative}, against {rows.source}." + "".join(f" {c.engine} {c.text}." for c in does if differ),
        numbers={"rows": n, "differ": differ, "ruined": broken, "median": median, "largest": largest},
        next=""
        if not lost
        else "Export the table again, or leave it out of the file: engines then take the target's."
        if broken
        else "The drafter was trained with another table: serve it with an engine that keeps it, or train with the target's, frozen.",
    )


def _target_rows(inv: Investigation):
    """A few rows of the target's table, spread over it: from its checkpoint, or those at hand."""
    import torch

    from eaglelab.drafter.embedding import EmbeddingRows, load_embedding_rows
    from eaglelab.target import TensorSource

    if inv.case.target.path is not None:
        tensors = TensorSource(inv.case.target.path)
        size = min(tensors.checkpoint.vocab_size, inv.drafter_config.vocab_size)
        ids = torch.linspace(0, size - 1, TABLE_ROWS).long().unique()
        return EmbeddingRows(ids, tensors.embedding_rows(ids), "the target's embedding table")
    if inv.case.drafter.embed is None:
        raise NotGiven("rows of the target's embedding table", "give `[target] path`, or `[drafter] embed`")
    rows = load_embedding_rows(inv.case.drafter.embed)
    return EmbeddingRows(rows.token_ids[:TABLE_ROWS], rows.rows[:TABLE_ROWS], rows.source)
