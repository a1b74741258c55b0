"""How far the drafter's positions reach, and how they are rotated, beside the target's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eaglelab.drafter.config import DrafterConfigError, normalise_rope
from eaglelab.engines.lint.subject import Subject, whole
from eaglelab.engines.rope import first_difference, rotation
from eaglelab.findings import Finding, Status

LONGER = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"


def context(s: Subject) -> Iterator[Finding]:
    """max_position_embeddings of the drafter against the context that the server is started with."""
    asked = None if s.launch is None else s.launch.number("context_length") if s.sglang else s.launch.number("max_model_len")
    served = asked or reach(s.target_text)
    stated = whole(s.layer, "max_position_embeddings")
    drafter = None if stated is None else reach(s.layer)
    if served is None or drafter is None or drafter >= served:
        return
    whose = f"{served} of the launch line" if asked else f"the target's {served}"
    numbers = {"drafter": drafter, "served": served}
    if s.sglang:
        if s.launch is not None and s.launch.env.get(LONGER, "").lower() in ("1", "true", "yes", "y"):
            return  # SGLang then sizes the drafter's rope by the target's context
        yield Finding(
            id="config.max_position_embeddings",
            title=f"The drafter's positions end at {drafter}, before {whose}: {s.title} stops at start-up",
            status=Status.FAIL if s.launch is not None else Status.CANNOT_TELL,
            claim=f"max_position_embeddings = {stated} in the drafter's config",
            evidence=f"The drafter takes over the target's context length; a longer one than its own is a ValueError unless {LONGER}=1 "
            "(SGLang 0.5.23, configs/model_config.py:1290-1318; 0.5.3 has the same).",
            numbers=numbers,
            next=f"Set {LONGER}=1 (the drafter was not trained beyond its own length: look at acceptance by position), or start with "
            f"--context-length {drafter}.",
        )
    else:
        yield Finding(
            id="config.max_position_embeddings",
            title=f"The drafter's length is {drafter}, shorter than {whose}: the older of vLLM's runners stops drafting for the whole batch "
            "while any of its sequences is longer",
            status=Status.CANNOT_TELL,
            claim=f"max_position_embeddings = {stated} in the drafter's config",
            evidence="vLLM 0.32.0 makes the rotary table as long as the target's context (config/speculative.py:1393-1401), the drafter's "
            "max_model_len stays (:1556-1561), and v1/worker/gpu_model_runner.py:4288-4301 drafts only where the longest sequence and the "
            "drafted tokens fit into it. The newer runner (v1/worker/gpu/) has no such test.",
            numbers=numbers,
            next=f"Write max_position_embeddings = {served} into the config that is served where longer texts are drafted for, or compare the "
            "number of drafts for short and long texts.",
        )


def reach(config: Mapping[str, Any]) -> int | None:
    """Positions that a config describes, by SGLang's rule (utils/hf_transformers/common.py:677-694): a scaling's factor counts where it
    names no original length and is not llama3's."""
    length = whole(config, "max_position_embeddings")
    scaling = next((config[key] for key in ("rope_scaling", "rope_parameters") if isinstance(config.get(key), Mapping)), {})
    factor = scaling.get("factor", 1)
    plain = "original_max_position_embeddings" in scaling or scaling.get("rope_type", scaling.get("type")) in ("llama3", "yarn", "longrope")
    if length is None or plain or isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 1 <= factor <= 1e6:
        return length
    return int(length * factor)


def rope(s: Subject) -> Iterator[Finding]:
    """The drafter's rotation against the target's, in numbers. A drafter may have its own: only its trainer knows."""
    theirs = s.target_text
    if not any(theirs.get(key) is not None for key in ("rope_theta", "rope_parameters", "rope_scaling")):
        return
    try:
        target = rotation(theirs)
    except DrafterConfigError:
        return
    own = rotation(s.layer)
    if target is None or own is None or own.width != target.width:
        return
    position = first_difference(own, target)
    length = min((n for n in (reach(s.layer), reach(theirs)) if n), default=None)
    if position is None or (length is not None and position >= length):
        return
    ours = normalise_rope(s.layer)
    stated = "rope_theta" in s.layer or "rope_theta" in (s.layer.get("rope_parameters") or {})
    what = f"theta {ours['rope_theta']:g}, {own.kind}" + ("" if stated else " (no rope_theta in its config: the default)")
    yield Finding(
        id="config.rope",
        title=f"The drafter rotates its positions otherwise than the target, by more than 0.1 radian from position {position} on: "
        f"{what} instead of theta {target.theta:g}, {target.kind}",
        status=Status.CANNOT_TELL,
        claim=f"{s.title} rotates by the drafter's own config.",
        evidence=f"Frequencies of the {own.width // 2} pairs of channels compared; the largest difference is {own.largest(target):.3g} radian a "
        "position. The rope is right where the drafter was trained with it: a target's rope is not handed on.",
        numbers={"drafter": own.summary, "target": target.summary, "position": position, "largest": own.largest(target)},
        next="Write the rope that the drafter was trained with into the config that is served. Where nobody knows it, replay with both"
        + (f" on samples longer than {position} tokens" if position > 1 else "")
        + ": with the wrong one acceptance falls with position.",
    )
