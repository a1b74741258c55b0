"""All checks, cheap ones first. A check is a function `Investigation -> findings`; what it needs and lacks comes out as `not given`.

To add one: write it in the file of its family, give it a stable id, put it into `CHECKS` where its cost belongs.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from eaglelab.checks import (
    caches,
    configs,
    context,
    dump,
    errors,
    images,
    known,
    lossless,
    lost,
    replay,
    served,
    text,
    timing,
    training,
    triangle,
    vocabulary,
    weights,
    wiring,
)
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven

RAISE = "EAGLELAB_RAISE"
"""Environment variable under which an unexpected error of a check raises."""


@dataclass(frozen=True)
class Check:
    id: str
    """The id of its main finding."""
    title: str
    """What it asks."""
    cost: str
    """`config` (no torch), `log` (reads what the server wrote; no torch), `dump` (reads samples), `target` (reads the target), `replay` (runs the drafter)."""
    run: Callable[[Investigation], Iterable[Finding]]


CHECKS: tuple[Check, ...] = (
    Check("wiring.engine", "What does the engine feed with this config?", "config", configs.engine_feeds),
    Check("wiring.versions", "Does another version of the engine feed something else?", "config", configs.versions),
    Check("config", "Which keys does this engine ignore or read otherwise?", "config", configs.lint_config),
    Check("context.rope", "Does the drafter rotate positions as the target does?", "config", context.rope),
    Check("drafter.complete", "Are the drafter's tensors all there?", "config", weights.drafter_complete),
    Check("engine.known", "Is this version known to have a fault that meets this case?", "config", known.known),
    Check("served.acceptance", "Which accept length did the server reach?", "log", served.acceptance),
    Check("served.flags", "Does the server run as the case says?", "log", served.flags),
    Check("served.log", "What does the server's log tell?", "log", served.log),
    Check("errors", "Does the log hold an error?", "log", errors.log),
    Check("served.caches", "Do requests wait for room?", "log", caches.caches),
    Check("served.golden", "Do other engines reach as much with the same feed?", "log", lossless.golden),
    Check("flags", "What do the launch flags lead to?", "log", timing.flags),
    Check("timing.phases", "Where do the milliseconds go?", "log", timing.phases),
    Check("timing.verify", "Is the verify pass near its limit?", "log", timing.verify),
    Check("cost.worth", "Does speculation pay?", "log", timing.worth),
    Check("dump.health", "Are the dump's files whole?", "dump", dump.health),
    Check("dump.norms", "How large are the states in each slot?", "dump", dump.norms),
    Check("dump.images", "Did the pixels go in with the image tokens?", "dump", images.images),
    Check("text.mask", "How much of the text trains?", "dump", text.mask),
    Check("text.faults", "Is the text itself in order?", "dump", text.faults),
    Check("text.tokens", "Were the prompts made with this tokenizer?", "dump", text.tokens),
    Check("drafter.vocabulary", "Does the draft vocabulary's map hold?", "dump", vocabulary.vocabulary_map),
    Check("drafter.vocabulary.other", "Is it the map that the drafter was trained with?", "dump", vocabulary.vocabulary_other),
    Check("drafter.embedding", "Is the drafter's embedding table the target's?", "dump", weights.drafter_embedding),
    Check("wiring.dump", "Which boundary does each slot hold?", "target", wiring.identity),
    Check("wiring.claims", "Is what people say of the slots true?", "target", wiring.claims),
    Check("wiring.match", "Does the engine feed what the dump holds?", "target", wiring.match),
    Check("served.parity", "Does the server feed the dump's own states?", "target", served.parity),
    Check("text.shift", "Does the loss mask lie on the answers?", "target", text.shift),
    Check("text.first_token", "Which predicted token is the first that trains?", "target", text.first_token),
    Check("dump.format", "Does the dump hold the layers that its format implies?", "target", dump.layout),
    Check("dump.last_state", "Is the last state normed once?", "target", dump.last_state),
    Check("drafter.vocabulary.coverage", "How much can the draft vocabulary say?", "replay", vocabulary.vocabulary_coverage),
    Check("replay.works", "Does the drafter work, on its own, on these samples?", "replay", replay.works),
    Check("replay.order", "Which order of slots does the drafter fit?", "replay", replay.order),
    Check("replay.engine", "What does the engine's wiring cost?", "replay", replay.engine_feed),
    Check("replay.choices", "Does another choice of the trainer fit better?", "replay", replay.choices),
    Check("replay.flags", "What does the engine's reading of the config's flags cost?", "replay", replay.flags),
    Check("replay.targets", "Did it learn the target's own choice?", "replay", replay.targets),
    Check("context.rope_fit", "Which rope does the drafter fit?", "replay", context.rope_fit),
    Check("context.knee", "Does acceptance fall with position?", "replay", context.knee),
    Check("lost.steps", "Does it collapse after the first step?", "replay", lost.steps),
    Check("lost.classes", "Which classes of tokens cost acceptance?", "replay", lost.classes),
    Check("lost.tokens", "Which tokens cost most?", "replay", lost.tokens),
    Check("lost.confidence", "Does its confidence tell what will be accepted?", "replay", lost.confidence),
    Check("replay.slots", "Which slots does the drafter use?", "replay", replay.slots),
    Check("replay.sampling", "What does it reach when the server samples?", "replay", replay.sampling),
    Check("replay.expected", "What accept length should it reach?", "replay", replay.expected),
    Check("served.text", "Does the server write the dump's text?", "replay", served.text),
    Check("served.lossless", "Is the text the same without speculation?", "replay", lossless.lossless),
    Check("served.sampling", "Is the temperature honoured?", "replay", lossless.sampling),
    Check("served.expected", "Does the server reach what the replay predicts?", "replay", served.expected),
    Check("served.position", "Does the server's acceptance fall along an answer?", "replay", context.served_position),
    Check("served.variant", "Which deviation reproduces what the server accepted?", "replay", triangle.variant),
    Check("cost.setting", "Which setting is best?", "replay", timing.setting),
    Check("training.metric", "Does the drafter reach what its trainer printed?", "replay", training.metric),
    Check("triangle", "Trainer, replay, server: where is acceptance lost?", "replay", triangle.triangle),
)


def run_checks(investigation: Investigation, costs: Iterable[str] | None = None, only: Iterable[str] | None = None) -> Iterator[Finding]:
    """Findings as they come, check by check; `costs` restricts to some of config, log, dump, target, replay, `only` to checks by id."""
    wanted, ids = None if costs is None else set(costs), None if only is None else set(only)
    told: dict[str, str] = {}  # reason -> the check that named it first
    for check in CHECKS:
        if (wanted is None or check.cost in wanted) and (ids is None or check.id in ids):
            yield from run_check(check, investigation, told)


def findings(investigation: Investigation, *ids: str) -> list[Finding]:
    """All findings of the checks named by id. Raises KeyError for an id that no check has."""
    known = {c.id: c for c in CHECKS}
    told: dict[str, str] = {}
    return [finding for i in ids for finding in run_check(known[i], investigation, told)]


def run_check(check: Check, investigation: Investigation, told: dict[str, str] | None = None) -> Iterator[Finding]:
    """One check. An input that is absent or cannot be used becomes a finding; so does a defect of ours, that the other checks still run
    (where the environment has EAGLELAB_RAISE, as in the tests, it raises).

    told: reasons that an earlier check has named, so that one bad input is not explained ten times.
    """
    try:
        for finding in check.run(investigation):
            investigation.found[finding.id] = finding
            yield finding
    except NotGiven as absent:
        yield Finding(check.id, f"{check.title} Not given: {absent.what}", Status.NOT_GIVEN, next=absent.how)
    except ValueError as error:  # every room's own errors are ValueErrors with a text for the user
        first = (told if told is not None else {}).setdefault(str(error), check.id)
        why = _first_words(error) if first == check.id else f"the reason given at {first}"
        yield Finding(
            check.id,
            f"{check.title} Cannot tell: {why}",
            Status.CANNOT_TELL,
            evidence=str(error),
            numbers={"error": type(error).__name__},
            next="Write the samples in one of the formats that the evidence lists; list_of_four is the plainest."
            if getattr(error, "problem", "") == "unknown format"
            else "Mend the input that is named, or leave its key out of case.toml to go on without it.",
        )
    except Exception as error:  # a defect of ours, or a machine at its end
        if RAISE in os.environ:
            raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {error}"
        yield Finding(
            check.id,
            f"{check.title} Cannot tell: the check itself broke ({_first_words(error)})",
            Status.CANNOT_TELL,
            evidence=f"{said} (in {at.name}, {os.path.basename(at.filename)} line {at.lineno})",
            numbers={"error": type(error).__name__, "defect": True},
            next=f"Please report this to eaglelab's makers, with the evidence's text; {RAISE}=1 in the environment shows the whole traceback.",
        )


def _first_words(error: Exception, most: int = 200) -> str:
    """The first line of an error's text, for a title; the evidence has all of it."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line if len(line) <= most else line[: most - 1] + "…"


def wirings(inv: Investigation, findings: Iterable[Finding], cheap: bool = False) -> dict[str, list | None]:
    """The three wirings for JSON: `dump`, `drafter` and `engine`, each a list of boundaries or None where there is none to give.

    What the findings could not get (an input that cannot be used) is None here, not an error. cheap: the engine's alone, without torch.
    """
    failed = {f.id for f in findings if f.status is Status.CANNOT_TELL and "error" in f.numbers}

    def get(name: str, *ids: str) -> list | None:
        if failed & set(ids):
            return None
        wiring = getattr(inv, name)
        return None if wiring is None else wiring.to_json()

    return {
        "dump": None if cheap else get("dump_wiring", "dump.health", "wiring.dump"),
        "drafter": None if cheap else get("drafter_wiring", "dump.health", "wiring.dump", "replay.order"),
        "engine": None if inv.served_wiring is None else inv.served_wiring.wiring.to_json(),
    }
