"""The served side of a case: what its server reached, and what the replay predicts for the same text.

Configs, counters, recordings and logs are read without torch; only predictions run the drafter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import ratio_interval, ratios_apart
from eaglelab.engines.conventions import parse_engine
from eaglelab.engines.wiring_report import EngineWiring, engine_wiring
from eaglelab.opened import NotGiven, relative_to_case
from eaglelab.served import Recording, RecordingError, ServedCounts
from eaglelab.wiring import Wiring

if TYPE_CHECKING:  # torch and pandas load with the parts that need them
    import pandas as pd

    from eaglelab.dumps import Sample
    from eaglelab.investigation import Investigation
    from eaglelab.served.predict import Prediction, RequestPrediction

LIVE = (
    "`eaglelab live CASE --url http://localhost:30000` sends the dump's own prompts to the running server and writes a recording: name it in "
    "`[engine] counters`"
)
"""How to get what a server reached on the same text, for messages."""
CLOSE = 0.02
"""Accept lengths that are this near, relative to the predicted one, are called equal: what bf16 and the cut last step of an answer leave."""
TIGHT = 0.1
"""An interval that holds 0 and is no wider than this either way, relative to the predicted length, is called equal as well."""


@dataclass(frozen=True)
class Reached:
    """What a server reached, by the best source of the case."""

    accept_length: float
    source: str
    """`engine/sglang-right.jsonl, 48 requests`."""
    definition: str
    """How the accept length comes out of what the source tells."""
    counts: ServedCounts | None = None
    """None: the source tells only means."""
    interval: tuple[float, float] | None = None
    """95 % by request; None where requests are not told apart."""


@dataclass(frozen=True)
class Predicted:
    """One wiring's walk through the answers of a recording, beside what was served."""

    wiring: Wiring
    prediction: Prediction
    pairs: tuple[tuple[ServedCounts, ServedCounts], ...]
    """(served, predicted) request by request, as far as they are of the same text: all verify steps where the engine told each of them,
    else whole answers. Answers that part from the dump's are there in full, and predicted up to there, only where nothing else is."""
    same_text: bool
    """Whether `pairs` are of the same text throughout."""

    @property
    def served(self) -> float | None:
        return total(s for s, _ in self.pairs).accept_length

    @property
    def predicted(self) -> float | None:
        return total(p for _, p in self.pairs).accept_length

    @property
    def gap(self) -> tuple[float, float, float]:
        """(served - predicted, low, high): accept lengths and the 95 % interval of their paired difference by request."""
        sides = [[(c.accepted, c.verify_steps) for c in side] for side in zip(*self.pairs, strict=True)]
        return ratios_apart(*sides)

    @property
    def equal(self) -> bool | None:
        """Whether served and predicted agree; None where the interval is too wide to say."""
        if self.served is None or self.predicted is None:
            return None
        gap, low, high = self.gap
        if abs(gap) <= CLOSE * self.predicted:
            return True
        if not low <= 0 <= high:
            return False
        return True if max(-low, high) <= TIGHT * self.predicted else None

    def to_json(self) -> dict[str, Any]:
        steps = {"compared": self.prediction.compared, "differing": self.prediction.differing}
        found = {"served": self.served, "predicted": self.predicted, "difference": list(self.gap), "same_text": self.same_text}
        return {"wiring": self.wiring.to_json(), "requests": len(self.pairs), **found, "verify_steps": steps, "equal": self.equal}


class ServedCase:
    """What a case gives of its server. Each part is None where it is not given, and raises its own error where it cannot be used."""

    def __init__(self, inv: Investigation) -> None:
        self.inv, self.case = inv, inv.case

    @property
    def given(self) -> bool:
        """Whether anything of the server is given."""
        engine = self.case.engine
        return any(part is not None for part in (engine.log, engine.counters, engine.recordings))

    @property
    def recording(self) -> Recording | None:
        """`[engine] counters`, where it is a recording. Raises RecordingError where it begins as one and cannot be read."""
        return self.inv.recording

    @cached_property
    def recordings(self) -> dict[str, Recording]:
        """All recordings by name, the case's own first, then those of the folder."""
        return self._folder[0]

    @property
    def unreadable(self) -> list[str]:
        """Why files of the folder of recordings cannot be read, one sentence each."""
        return self._folder[1]

    @cached_property
    def _folder(self) -> tuple[dict[str, Recording], list[str]]:
        own, folder = self.recording, self.case.engine.recordings
        found, bad = {} if own is None else {own.path.stem: own}, []
        for path in [] if folder is None else sorted(folder.glob("*.jsonl")):
            if own is None or path.resolve() != own.path.resolve():
                try:
                    found[path.stem] = Recording.load(path)
                except RecordingError as error:
                    bad.append(str(error))
        return found, bad

    @cached_property
    def reached(self) -> Reached | None:
        """By counters where they are given (exact), else the mean over the log's lines. None where neither tells an accept length."""
        path = self.case.engine.counters
        return (None if path is None else self._counted()) or self._logged()

    # -- what a recording's server fed ------------------------------------------------------------------------------------

    def wiring_of(self, recording: Recording) -> EngineWiring | None:
        """Its engine's rule on the config that it was served with, by default the case's. None where engine or configs are not known.
        Raises ConventionError."""
        session = recording.session
        engine = parse_engine(session.engine) if session.engine else self.inv.engine
        config = session.draft_config or self.inv.draft_config
        if engine is None or config is None or self.inv.target_config is None:
            return None
        return engine_wiring(config, self.inv.target_config, engine)

    # -- predictions ------------------------------------------------------------------------------------------------------

    def predicted(self, recording: Recording, wiring: Wiring | None = None) -> Predicted:
        """The walk through the recorded answers, fed `wiring` (default: what its server fed), on the dump's states.

        Raises NotGiven where the states are not in the dump or no answer is of its samples.
        """
        if wiring is None:
            fed = self.wiring_of(recording)
            if fed is None:
                raise NotGiven("what the recording's server fed", "its session names engine and drafter's config, `[target] config` the target's")
            wiring = fed.wiring
        key = (id(recording), wiring)
        if key not in self._predictions:
            self._predictions[key] = self._predict(recording, wiring)
        return self._predictions[key]

    @cached_property
    def _predictions(self) -> dict[Any, Predicted]:
        return {}

    def _predict(self, recording: Recording, wiring: Wiring) -> Predicted:
        from eaglelab.replay import Variant
        from eaglelab.served.predict import from_dump, predict

        feed, why = self.inv.sources_of(wiring)
        if feed is None:
            raise NotGiven(f"the states at {wiring}", why)
        samples = from_dump(recording, self.inv.replay_samples)
        if not samples:
            raise NotGiven("an answer of the dump's own prompts in the recording", LIVE)
        rows, table = self.inv._rows(), self.inv.boundary_rows
        found = predict(recording, self.inv.drafter, samples, rows, Variant(feed), target_embed=table, steps=recording.session.num_steps or self.inv.steps)
        return Predicted(wiring, found, *_pairs(found))

    # -- the text ---------------------------------------------------------------------------------------------------------

    def texts(self, recording: Recording) -> pd.DataFrame:
        """Each answer beside the dump's to the same prompt: request, sample, prompt_same (bool), compared, same (tokens from the start)."""
        import pandas as pd

        samples = {s.key: s for s in self.inv.samples}
        rows = [
            (r.index, r.sample, *_beside(samples[r.sample], r.prompt_token_ids, r.token_ids))
            for r in recording.requests
            if r.sample in samples and r.token_ids
        ]
        return pd.DataFrame(rows, columns=["request", "sample", "prompt_same", "compared", "same"])


def _pairs(found: Prediction) -> tuple[tuple[tuple[ServedCounts, ServedCounts], ...], bool]:
    """(served, predicted) by request, and whether they are of the same text."""
    same = [pair for r in found.requests if (pair := _same_text(r, found.steps)) is not None]
    if sum(p.verify_steps for _, p in same):
        return tuple(same), True
    like = [(c, ServedCounts.from_accepted(r.walk.accepted[: r.walk.whole], found.steps)) for r in found.requests if (c := r.request.counts(found.steps))]
    return tuple(like), False


def _same_text(r: RequestPrediction, steps: int) -> tuple[ServedCounts, ServedCounts] | None:
    walked = ServedCounts.from_accepted(r.walk.accepted, steps)
    if r.told == "every step":
        return ServedCounts.from_accepted(r.request.accepted[: len(r.walk.accepted)], steps), walked
    return (ServedCounts.from_histogram(r.request.histogram, steps), walked) if r.told == "histogram" else None


def _beside(sample: Sample, prompt: Sequence[int], answer: Sequence[int]) -> tuple[bool, int, int]:
    ids = sample.token_ids.tolist()
    dumped = ids[len(prompt) : _end_of_answer(sample, len(prompt))]
    return ids[: len(prompt)] == list(prompt), min(len(dumped), len(answer)), _alike(dumped, answer)


def _end_of_answer(sample: Sample, start: int) -> int:
    """End of the trained run that begins at `start`; the sample's end where the mask does not say."""
    from eaglelab.dumps.mask import spans

    found = [] if sample.loss_mask is None else spans(sample.loss_mask)
    return next((end for first, end in found if first <= start < end), len(sample.token_ids))


def _alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Entries from the start that both have in common."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def total(counts: Iterable[ServedCounts]) -> ServedCounts:
    counts = list(counts)
    return sum(counts[1:], counts[0]) if counts else ServedCounts(0, 0)
