"""What a launch line says that does not go with this drafter's config. What it leads to by itself is said by `engines/effective/`."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelab.engines.capabilities import holds, limit
from eaglelab.engines.lint.subject import Subject
from eaglelab.findings import Finding, Status


def quantisation(s: Subject) -> Iterator[Finding]:
    """SGLang hands the target's --quantization on to the drafter."""
    given = s.launch.given.get("quantization") if s.launch is not None and s.sglang else None
    own = s.config.get("quantization_config")
    flag = "speculative_draft_model_quantization"
    if not isinstance(given, str) or given == "unquant" or own or flag in s.launch.given:
        return
    row = limit(s.engine, flag)
    has_flag = holds(s.engine, row)
    yield Finding(
        id="config.draft_quantization",
        title=f"{s.title} quantises the drafter as the target: --quantization {given} holds for both, the drafter's config names none",
        status=Status.CANNOT_TELL,
        claim=f"--quantization {given}, no --speculative-draft-model-quantization, no quantization_config in the drafter's config",
        evidence=f"{row['text']} ({row['read']}). Where the method quantises on loading the drafter computes with other numbers than in "
        "training; where it expects packed weights the drafter has none.",
        next="Add --speculative-draft-model-quantization unquant and compare the accept length."
        if has_flag
        else f"This version has no flag for the drafter alone: SGLang {row['since']} or newer has --speculative-draft-model-quantization.",
    )
