"""The drafter's checkpoint: names and shapes from its header, then the vocabulary map."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven

DRAFTER = "`[drafter] path` names the folder with the drafter's config.json and weights"


def drafter_complete(inv: Investigation) -> Iterator[Finding]:
    """Every tensor that the config implies is there, with the right shape."""
    if inv.case.drafter.path is None:
        raise NotGiven("a drafter", DRAFTER)
    audit = inv.audit
    if audit is None:  # a .bin: only loading it tells
        inv.drafter  # noqa: B018
        yield Finding(
            "drafter.complete", "The drafter loads, with every tensor that its config implies", Status.PASS, evidence="A .bin file: loaded."
        )
        return
    config = inv.drafter_config
    problems = [f"missing {n}" for n in audit.missing] + list(audit.wrong_shape)
    extra = f" Not used: {', '.join(audit.unexpected[:6])}." if audit.unexpected else ""
    borrowed = f" Taken from the target: {', '.join(audit.borrowed)}." if audit.borrowed else ""
    yield Finding(
        id="drafter.complete",
        title=(
            f"The drafter's checkpoint does not fit its config: {'; '.join(problems[:3])}"
            + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
            if problems
            else f"The drafter's checkpoint is whole: {config.num_slots} slots of {config.target_hidden_size} into a layer of {config.hidden_size}"
        ),
        status=Status.FAIL if problems else Status.PASS,
        claim=f"The config describes a {config.layer_type} draft layer ({config.family} layout) with {config.draft_vocab_size} draft tokens.",
        evidence=("; ".join(problems) + "." if problems else "Every name and shape that the config implies is in the file.")
        + extra
        + borrowed,
        numbers={
            "missing": list(audit.missing),
            "wrong_shape": list(audit.wrong_shape),
            "unexpected": list(audit.unexpected),
            "borrowed": list(audit.borrowed),
        },
        next="Export the checkpoint again. SGLang says nothing about missing tensors: they stay random, and the accept length is 1.0."
        if problems
        else "",
    )


def vocabulary_map(inv: Investigation) -> Iterator[Finding]:
    """d2t in range, ascending, and how much of the trained text the draft vocabulary can say: an upper bound on acceptance."""
    if inv.case.drafter.path is None:
        raise NotGiven("a drafter", DRAFTER)
    broken = _broken_map(inv)
    if broken:
        yield Finding(
            "drafter.vocabulary",
            "The draft vocabulary's map is broken: drafted tokens are none of the target's",
            Status.FAIL,
            claim="d2t holds offsets: target id = draft id + d2t[draft id].",
            evidence=broken,
            next="Export d2t from the training run again.",
        )
        return
    drafter = inv.drafter
    config = drafter.config
    if config.draft_vocab_size == config.vocab_size:
        yield Finding("drafter.vocabulary", "The drafter speaks the target's whole vocabulary: no map is needed", Status.NOT_APPLICABLE)
        return
    import torch

    ids = drafter.target_ids.cpu()
    ascending = bool((ids.diff() > 0).all())
    identity = bool((ids == torch.arange(len(ids))).all())
    numbers = {"draft_vocab_size": config.draft_vocab_size, "vocab_size": config.vocab_size, "ascending": ascending, "identity": identity}
    covered = ""
    if inv.dump is not None:
        from eaglelab.replay.answers import trained_positions

        spoken = torch.cat([s.token_ids[trained_positions(s)] for s in inv.samples])
        share = float(torch.isin(spoken, ids).float().mean()) if len(spoken) else float("nan")
        numbers |= {"coverage": share, "trained_tokens": len(spoken)}
        covered = f" It covers {share:.1%} of {len(spoken):,} trained tokens: on the target's own text no acceptance can be higher."
    bad = identity or not ascending
    yield Finding(
        id="drafter.vocabulary",
        title="The draft vocabulary's map is the identity or out of order: d2t was lost or made wrongly"
        if bad
        else f"The draft vocabulary's map is sound; {config.draft_vocab_size:,} of {config.vocab_size:,} tokens",
        status=Status.FAIL if bad else Status.PASS,
        claim="d2t holds offsets: target id = draft id + d2t[draft id].",
        evidence=("Target ids ascend." if ascending else "Target ids do not ascend.") + covered,
        numbers=numbers,
        next="Export d2t from the training run again; without it an engine takes the first tokens of the vocabulary." if bad else "",
    )


def _broken_map(inv: Investigation) -> str:
    """Why d2t cannot be used, empty where it can or where there is none to look at."""
    from eaglelab.drafter.audit import DrafterError
    from eaglelab.drafter.vocabulary import check_d2t
    from eaglelab.target.checkpoint import CheckpointError, open_checkpoint

    try:
        checkpoint = open_checkpoint(inv.case.drafter.path)
        if "d2t" not in checkpoint.names() or len(checkpoint.shape("d2t")) != 1:
            return ""
        check_d2t(checkpoint.tensor("d2t"), inv.drafter_config, inv.case.drafter.path)
    except CheckpointError:
        return ""  # loading the drafter says what is wrong with the file
    except DrafterError as error:
        return str(error)
    return ""
