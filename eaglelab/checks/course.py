"""The course of a training: how much it has seen, and whether it was still getting better when it ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from eaglelab.findings import Finding, Status
from eaglelab.metrics import Reported, Row

DEMO, SMALL = 5_000, 68_000
"""Conversations. 5,000 are the number of speculators' own example, of which its makers say that it only shows the steps
(vllm-project/speculators#751); 68,000 (ShareGPT) are the least that EAGLE's published heads were trained on, EAGLE-3's took 532,000."""
ENOUGH = 4
"""Evaluations from which a course can be told: a rise, a best and two that fall."""
APART = 2.77
"""1.96 * sqrt(2): two values that differ by more standard deviations than this differ beyond noise (95 %)."""


WORTH = 0.01
"""Share of the best value below which a fall is not spoken of: of an accept length of 2 it is 0.02, as much as rounding in a server's log."""


def amount(samples: int | None) -> Iterator[Finding]:
    """Whether the training has seen enough to be expected to work. samples: conversations, as the case says."""
    if samples is None:
        return
    few = samples < SMALL
    yield Finding(
        id="training.amount",
        title=f"The drafter was trained on {samples:,} conversations"
        + (": as many as an example of the steps takes, too few to help" if samples <= DEMO else ", fewer than any published head" * few),
        status=Status.FAIL if samples <= DEMO else Status.CANNOT_TELL if few else Status.PASS,
        claim=f"[training] samples = {samples}",
        evidence="EAGLE-3's heads were trained on 532,000 conversations (ShareGPT and UltraChat), with answers generated anew by the target; EAGLE's "
        "first on 68,000. With 50,000 for 5 epochs a Qwen2.5-7B head reached an accept length of 1.94 (sgl-project/SpecForge#128); "
        "speculators' example of 5,000 shows the steps, real runs take 500,000 for 2 to 3 epochs (vllm-project/speculators#751).",
        numbers={"samples": samples, "published": [SMALL, 532_000]},
        next="If training and held-out samples replay far apart (replay.works on each), more conversations are what is missing: train on 500,000, "
        "with the target's own answers."
        if few
        else "",
    )


def course(reported: Reported) -> Iterator[Finding]:
    """Whether the last checkpoint is the best, by what was evaluated along the way. A loss is no judge: it keeps falling while the accept
    length falls too (deepseek-ai/DeepSpec#84)."""
    row = max((r for r in reported.rows if _tells(r)), key=lambda r: (r.kind == "accept_length", len(r.evaluations)), default=None)
    if row is None:
        return
    places, values = zip(*row.evaluations, strict=True)
    best = max(range(len(values)), key=lambda i: values[i])
    steps = [b - a for a, b in pairwise(values)]
    noise = math.sqrt(sum(d * d for d in steps) / len(steps) / 2)  # von Neumann's: what trends adds to it makes it larger
    lost = values[best] - values[-1]
    falls = max(steps[-2:]) < 0 and lost > max(APART * noise, WORTH * values[best])
    listed = ", ".join(f"{v:.4g}" for v in values[-8:])
    yield Finding(
        id="training.course",
        title=f"{row.name} was best at {places[best]} ({values[best]:.4g}) and fell to {values[-1]:.4g} at {places[-1]}: trained too long"
        if falls
        else f"{row.name} ended at {values[-1]:.4g}, {'its best' if values[-1] == values[best] else f'near its best ({values[best]:.4g})'}",
        status=Status.CANNOT_TELL if falls else Status.PASS,
        claim=f"The last checkpoint is the one to serve. {row.title}: {row.in_words}.",
        evidence=f"The last of {len(values)} evaluations: {listed}. Two that follow each other differ by {noise:.2g} for one standard deviation; the "
        f"last is {lost:.2g} below the best.",
        numbers={"at": list(places), "values": list(values), "best": best, "noise": noise, "lost": lost},
        next=f"Replay the checkpoint of {places[best]} beside the last on the same held-out samples (`eaglelab replay`), and serve the better one."
        if falls
        else "",
    )


def _tells(row: Row) -> bool:
    rate = row.kind in ("joint", "marginal", "conditional") and row.step == 0
    return len(row.evaluations) >= ENOUGH and (rate or row.kind == "accept_length")
