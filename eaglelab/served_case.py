"""The served side of a case: what its server reached, and what the replay predicts for the same text.

Configs, counters, recordings and logs are read without torch; only predictions run the drafter.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import ratio_interval, ratios_apart
from eaglelab.cache import kept
from eaglelab.engines.conventions import ConventionError, Engine, parse_engine
from eaglelab.engines.wiring_report import EngineWiring, engine_wiring
from eaglelab.opened import DUMP, NotGiven, relative_to_case
from eaglelab.served import Recording, RecordingError, ServedCounts
from eaglelab.wiring import Boundary, Wiring

if TYPE_CHECKING:  # torch and pandas load with the parts that need them
    import numpy as np
    import pandas as pd

    from eaglelab.drafter.embedding import EmbeddingRows
    from eaglelab.dumps import Sample
    from eaglelab.investigation import Investigation
    from eaglelab.live.compare import TextComparison
    from eaglelab.served import Counters, ServedLog
    from eaglelab.served.predict import Prediction, RequestPrediction
    from eaglelab.served.variant_fit import VariantFit

LIVE = (
    "`eaglelab live CASE --url http://localhost:30000` sends the dump's own prompts to the running server (30000 is SGLang's port, 8000 vLLM's) and "
    "writes a recording: name it in `[engine] counters`"
)
"""How to get what a server reached on the same text, for messages."""
LENGTH = "accept length (tokens per verify pass)"
COLUMNS = {
    "accept_length": LENGTH,
    "verify_passes": "verify passes",
    "exact": "counted, not a mean of means",
    "drafted": "drafted (steps-top-k-nodes)",
    "right": "fed as trained",
    "served": f"served {LENGTH}",
    "low": "from (95 %)",
    "high": "to (95 %)",
    "predicted": f"predicted {LENGTH}",
}
"""What the columns of `ServedCase.sources` and of `compared`'s first table are called where people read them."""
NUMBERS = ("served", "low", "high", "predicted")
STATES_BYTES = 2**32
"""States of the served text that are kept at most, of all boundaries together; beyond it those of what is fed and trained on alone."""
SETTINGS = ("num_steps", "eagle_topk", "num_draft_tokens")
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
    """95 % by request (of a log: by line); None where they are not told apart."""
    notes: tuple[str, ...] = ()
    engine: Engine | None = None
    """The engine that the source itself names, with its version where it tells that."""


@dataclass(frozen=True)
class Predicted:
    """One wiring's walk through the answers of a recording, beside what was served."""

    wiring: Wiring
    prediction: Prediction
    pairs: tuple[tuple[ServedCounts, ServedCounts], ...]
    """(served, predicted) request by request, as far as they are of the same text: the verify passes that are predicted where the engine
    told each of its own, else whole answers (with the engine's last pass, which the end of the text cuts). Only where there is neither:
    answers that part from the dump's, predicted up to there."""
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
        if self.prediction.equal and self.same_text:
            return True
        if self.served is None or self.predicted is None:
            return None
        gap, low, high = self.gap
        if abs(gap) <= CLOSE * self.predicted:
            return True
        if not low <= 0 <= high:
            return False
        return True if max(-low, high) <= TIGHT * self.predicted else None

    def to_json(self) -> dict[str, Any]:
        found = self.prediction
        steps = {"compared": found.compared, "differing": found.differing, "requests_equal": sum(r.equal is True for r in found.requests)}
        numbers = {"served": self.served, "predicted": self.predicted, "difference": list(self.gap), "same_text": self.same_text}
        return {"wiring": self.wiring.to_json(), "requests": len(self.pairs), **numbers, "verify_steps": steps, "equal": self.equal}


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
        for path in [] if folder is None else sorted(folder.glob("*.jsonl"), key=lambda p: p.stem):
            if own is None or path.resolve() != own.path.resolve():
                try:
                    found[path.stem] = Recording.load(path)
                except RecordingError as error:
                    bad.append(str(error))
        return found, bad

    @cached_property
    def log(self) -> ServedLog | None:
        """`[engine] log`, read. Raises LogError."""
        from eaglelab.served import read_log

        path, launch = self.case.engine.log, self.inv.launch
        if path is None:
            return None
        tokens, steps = (None, None) if launch is None else (launch.num_draft_tokens, launch.num_steps)
        return read_log(path, engine=self.inv.engine, num_draft_tokens=tokens, steps=steps)

    @cached_property
    def counters(self) -> Counters | None:
        """`[engine] counters`, read. Raises CountersError, RecordingError."""
        from eaglelab.served import read_counters

        path = self.case.engine.counters
        return None if path is None else read_counters(path)

    @cached_property
    def reached(self) -> Reached | None:
        """By counters where they are given (exact), else by the log. None where neither tells an accept length."""
        return self.by_counters or self.by_log

    @cached_property
    def by_counters(self) -> Reached | None:
        """What `[engine] counters` tell."""
        found = self.counters
        if found is None or found.accept_length is None:
            return None
        name = relative_to_case(self.case, found.path)
        told = [part.counts for part in found.parts if part.counts is not None and part.counts.verify_steps]
        interval = None
        by_request = found.kind == "answers" or (self.recording is not None and self.recording.counts is not None)
        if by_request and len(told) > 1:
            name += f", {len(told)} requests"
            low, high = ratio_interval([c.accepted for c in told], [c.verify_steps for c in told])
            interval = (1 + low, 1 + high)
        return Reached(found.accept_length, name, found.definition, found.counts, interval, found.notes, _engine(found.engine))

    @cached_property
    def by_log(self) -> Reached | None:
        """What `[engine] log` tells."""
        if self.log is None or (told := self.log.accept_length()).value is None:
            return None
        source = f"{relative_to_case(self.case, self.log.path)}, {told.lines:,} lines"
        definition = (
            "1 + accepted / verify passes, from the log's counts"
            if told.exact
            else f"mean of the lines' accept lengths, weighted by {told.weight}"
        )
        return Reached(told.value, source, definition, told.counts, told.interval, told.notes, self._log_engine)

    @property
    def _log_engine(self) -> Engine | None:
        """The engine whose lines the log holds, with the version that it printed."""
        started = self.log.server_args
        return _engine(self.log.engine, started.get("version") if started.get("engine") == self.log.engine else None)

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
        """The walk through the recorded answers to the dump's prompts (to the first prompts, where none is the dump's), fed `wiring`
        (default: what its server fed).

        The states are the target's own along the served text, by its forward in float32, where that is at hand. Else they are the dump's,
        and an answer is walked up to the token in which it parts from the dump's. Raises NotGiven where states or answers are absent.
        """
        if self.inv.dump is None:
            raise NotGiven("a dump", DUMP)
        if wiring is None:
            fed = self.wiring_of(recording)
            if fed is None:
                raise NotGiven(
                    "what the recording's server fed", "its session names engine and drafter's config, `[target] config` the target's"
                )
            wiring = fed.wiring
        key = (id(recording), wiring)
        if key not in self._predictions:
            self._predictions[key] = self._predict(recording, wiring)
        return self._predictions[key]

    @cached_property
    def _predictions(self) -> dict[Any, Predicted]:
        return {}

    def leads_of(self, recording: Recording, wiring: Wiring) -> dict[int, np.ndarray]:
        """Request -> `RequestPrediction.leads` of a prediction that was made already; none where it was not."""
        made = self._predictions.get((id(recording), wiring))
        return {} if made is None else {r.index: r.leads for r in made.prediction.requests if r.leads is not None}

    def _predict(self, recording: Recording, wiring: Wiring) -> Predicted:
        name = "a recording" if recording.path is None else recording.path.stem
        told = (recording.session, recording.requests, wiring)  # of any recording: one of a running server lies nowhere in the case
        return self.inv.results.of(f"the prediction for {name}", "predicted", lambda: self._walk(recording, wiring), told)

    def _walk(self, recording: Recording, wiring: Wiring) -> Predicted:
        from eaglelab.replay import EMBEDDING, Variant
        from eaglelab.served.predict import from_dump, predict

        inv, layout, trees = self.inv, self._layout(wiring), (recording.session.eagle_topk or 1) > 1
        if layout is None:
            feed, why = inv.sources_of(wiring)
            if feed is None:
                raise NotGiven(f"the states at {wiring}", why)
            samples, rows, table = from_dump(recording, inv.replay_samples), inv._rows(), inv.boundary_rows
            if trees:
                rows, table = inv._rows_to_draft
        else:
            samples = self._states(recording, layout)
            rows, table = self._rows_of(samples, trees)
            feed = tuple(EMBEDDING if b == 0 else layout.index(b) for b in wiring)
        if not samples:
            raise NotGiven("an answer to one of the dump's own prompts in the recording", LIVE)
        steps = recording.session.num_steps or inv.steps
        most = max((n for r in recording.requests for n in (*(r.accepted or ()), len(r.histogram or (0,)) - 1)), default=0)
        if most > steps:
            raise NotGiven(
                f"how many steps the recording's server drafted ({most} were accepted, {steps} are assumed)", "its session names num_steps"
            )
        options = {"target_embed": table, "steps": steps, "unfinished": inv.results.unfinished}
        found = predict(recording, inv.drafter, samples, rows, Variant(feed), **options)
        return Predicted(wiring, found, *_pairs(found))

    def _layout(self, wiring: Wiring) -> tuple[Boundary, ...] | None:
        """Boundaries to have the states of: the wiring's, and those of `states_layout`. None where the target's forward cannot give them."""
        layout = self.states_layout(wiring) if wiring.known else None
        return layout if layout is not None and all(b == 0 or b in layout for b in wiring) else None

    def states_layout(self, wiring: Wiring | None) -> tuple[Boundary, ...] | None:
        """Boundaries that one forward of the target keeps for everything that is asked of the served text: the dump's, a wiring's, and those
        that other wirings feed which a server may have. None where the target's forward cannot give them."""
        from eaglelab.served.candidates import wirings
        from eaglelab.target import ForwardSource

        inv = self.inv
        try:
            forward = isinstance(inv.source, ForwardSource)
        except NotGiven:
            return None
        width = inv.drafter.config.target_hidden_size
        if not forward or not inv.dump_wiring.known or inv.drafter.config.hidden_size != width:
            return None
        asked = [b for b in (*inv.dump_wiring.select(inv.dump.feed.aux), *(wiring or ())) if b is not None]
        others = [*inv.dump_wiring, *(b for other in wirings(inv) for b in other)]
        rows = sum(len(r.prompt_token_ids) + len(r.token_ids or ()) for r in self.recording.requests) if self.recording else 0
        few = 4 * rows * width * len({*asked, *others}) > STATES_BYTES
        return tuple(dict.fromkeys(b for b in (*asked, *(() if few else others)) if b != 0))

    def _states(self, recording: Recording, layout: tuple[Boundary, ...]) -> list[Sample]:
        """The target's states along the answers, slot by slot as in `layout`."""
        from eaglelab.served.predict import states_of

        keys, source = {s.key for s in self.inv.samples}, self.inv.source
        answered = [r for r in recording.requests if r.token_ids]
        asked = [r for r in answered if r.sample in keys] or answered[: self.inv.max_samples]
        texts = self._forwarded.setdefault(layout, {})
        new = {text: r for r in asked if (text := (*r.prompt_token_ids, *r.token_ids)) not in texts}
        if new:
            made = states_of(replace(recording, requests=tuple(new.values())), source.path, layout, device=source.device)
            texts |= dict(zip(new, made, strict=True))
        return [replace(texts[*r.prompt_token_ids, *r.token_ids], key=f"request {r.index}") for r in asked]

    @cached_property
    def _forwarded(self) -> dict[Any, dict[tuple[int, ...], Sample]]:
        """Samples by layout and tokens: recordings of one target mostly hold the same answers."""
        return {}

    def _rows_of(self, samples: list[Sample], trees: bool) -> tuple[EmbeddingRows, EmbeddingRows]:
        """The drafter's embedding rows of these texts, and the target's. trees: also of what a drafter may say, which is fed in them."""
        import torch

        from eaglelab.drafter.checkpoint import own_embedding
        from eaglelab.drafter.embedding import EmbeddingRows
        from eaglelab.target import TensorSource

        inv = self.inv
        ids = torch.cat([s.token_ids for s in samples] + [inv.drafted_ids] * trees).unique()
        target = EmbeddingRows(ids, TensorSource(inv.source.path).embedding_rows(ids), "the target's embedding table")
        own = None if inv.embedding is inv.target_rows else own_embedding(inv.case.drafter.path, ids)
        return own or target, target

    @cached_property
    @kept("the deviations, ranked by likelihood")
    def variant_fit(self) -> VariantFit:
        """Which deviation reproduces what the server accepted. Raises NotGiven."""
        from eaglelab.served.variant_fit import fit_variants

        return fit_variants(self.inv)

    # -- tables -----------------------------------------------------------------------------------------------------------

    def sources(self) -> pd.DataFrame:
        """What each source says: source, accept_length (our definition), verify_passes, exact (bool), definition, notes."""
        import pandas as pd

        rows = [
            (
                r.source,
                r.accept_length,
                None if r.counts is None else r.counts.verify_steps,
                r.counts is not None,
                r.definition,
                "; ".join(r.notes),
            )
            for r in (self.by_counters, self.by_log)
            if r is not None
        ]
        columns = ["source", "accept_length", "verify_passes", "exact", "definition", "notes"]
        return pd.DataFrame(rows, columns=columns).astype({"verify_passes": "Int64"})

    @cached_property
    def compared(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        """(one row a recording: recording, engine, drafted, wiring, right, requests, verify_passes, served, low, high, predicted, note; one
        row a recording and step: recording, right, step, served, predicted).

        right: fed what the drafter was trained on. served and predicted: accept length over the same answers; low and high: 95 % of the
        served one by request. note: how many requests are as predicted pass by pass, or why there is no prediction. The second table has
        joint acceptance as fractions.
        """
        import pandas as pd

        if not self.recordings:
            raise NotGiven("a recording", LIVE)
        rows, steps = [], []
        right = self.right_wiring
        for name, recording in self.recordings.items():
            session = recording.session
            drafted = "-".join("?" if n is None else str(n) for n in (session.num_steps, session.eagle_topk, session.num_draft_tokens))
            row = {"recording": name, "engine": session.engine, "dtype": session.dtype, "drafted": drafted, "wiring": None, "right": False}
            try:
                found = self.predicted(recording)
            except (NotGiven, ValueError) as error:
                counts = recording.counts
                length = None if counts is None else counts.accept_length
                rows.append(row | {"requests": len(recording.requests), "served": length, "note": f"not predicted: {error}"})
                continue
            mine = {"recording": name, "right": found.wiring == right}
            rows.append(row | mine | _summary(found))
            steps += [mine | step for step in _by_step(found)]
        columns = ["recording", "engine", "dtype", "drafted", "wiring", "right", "requests", "verify_passes", *NUMBERS, "note"]
        table = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(NUMBERS, float) | {"verify_passes": "Int64"})
        joint = pd.DataFrame(steps, columns=["recording", "right", "step", "served", "predicted"])
        return table, joint.astype({"served": float, "predicted": float})

    @property
    def joint(self) -> pd.DataFrame:
        """Of `compared`'s second table the case's own recording (else the first) and its counterpart: the same draft by the same engine, as
        far as there is one, fed what the drafter was trained on."""
        lengths, joint = self.compared
        own = lengths.iloc[0]
        others = lengths[lengths["right"] & (lengths["recording"] != own["recording"]) & lengths["predicted"].notna()]
        alike = (others["drafted"] == own["drafted"]).astype(int) * 2 + (others["engine"] == own["engine"]).astype(int)
        beside = [] if own["right"] or others.empty else [others.loc[alike.idxmax(), "recording"]]
        return joint[joint["recording"].isin([own["recording"], *beside])].reset_index(drop=True)

    @property
    def right_wiring(self) -> Wiring | None:
        """What the drafter was trained on, by the dump's feed; None where the slots are not known."""
        held = None if self.inv.dump is None else self.inv.dump_wiring.select(self.inv.dump.feed.aux)
        return held if held is not None and held.known else None

    def over_time(self) -> pd.DataFrame:
        """The log's lines that tell an accept length: at (minutes since the first where times are printed, else the line; `attrs["unit"]`
        says which), accept_length, graph, start, running. Raises NotGiven without a log."""
        from eaglelab.served.over_time import passes

        if self.log is None:
            raise NotGiven(
                "a server's log", "`[engine] log` names the file that the server writes; SGLang prints a decode line every 40 passes"
            )
        lines = passes(self.log.table)
        timed = lines["time"].notna().all()
        at = (lines["time"] - lines["time"].min()).dt.total_seconds() / 60 if timed else lines["line"].astype(float)
        found = lines.assign(at=at)[["at", "accept_length", "graph", "start", "running", "rank"]].reset_index(drop=True)
        found.attrs["unit"] = "minutes since the first line" if timed else "line of the log"
        return found

    # -- the text ---------------------------------------------------------------------------------------------------------

    def text(self, recording: Recording) -> TextComparison:
        """The answers beside the dump's to the same prompts, with the target's own gap where they part, where its lm_head is at hand."""
        from eaglelab.live.compare import compare_text, gap_by
        from eaglelab.live.prompts import PromptError, dump_prompts

        try:
            prompts = {p.sample: p for p in dump_prompts(self.inv.samples).prompts}
        except PromptError:
            prompts = {}
        asked = [replace(prompts[r.sample], index=r.index) for r in recording.requests if r.sample in prompts]
        tokenizer = None
        with suppress(NotGiven, ValueError):  # ids are shown instead
            tokenizer = self.inv.tokenizer
        return compare_text(recording, asked, tokenizer, gap_by(self.inv.judge, self.inv.samples))

    # -- settings ---------------------------------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, dict[str, Any]]:
        """What the server says that it runs with, source by source (the recording or counters, the log): engine, algorithm, num_steps,
        eagle_topk, num_draft_tokens, boundaries, as far as they are told."""
        told: dict[str, dict[str, Any]] = {}
        if self.recording is not None:
            session = self.recording.session
            fed = self.wiring_of(self.recording) if session.draft_config else None
            told["the recording"] = {
                "engine": _engine(session.engine),
                **{name: getattr(session, name) for name in SETTINGS},
                "boundaries": None if fed is None else fed.wiring.to_json(),
            }
        elif self.counters is not None:
            found = self.counters
            told["the counters"] = {
                "engine": _engine(found.engine),
                "num_steps": found.num_steps,
                "num_draft_tokens": found.num_draft_tokens,
            }
        if self.log is not None:
            started = self.log.server_args
            told["the log"] = {"engine": self._log_engine, **{name: started.get(name) for name in ("algorithm", *SETTINGS)}}
        known = {source: {name: value for name, value in said.items() if value is not None} for source, said in told.items()}
        return {source: said for source, said in known.items() if said}

    @property
    def asked(self) -> dict[str, Any]:
        """The same by the case's `[engine]`, its config, and what its launch line gives: as the engine makes it of the line."""
        inv, launch = self.inv, self.inv.launch
        asked: dict[str, Any] = {} if inv.engine is None else {"engine": inv.engine}
        try:
            effective = inv.timing.flags.effective
        except (NotGiven, ValueError):
            effective = {}
        for name in ("algorithm", *SETTINGS):
            if launch is not None and getattr(launch, name) is not None:
                told = effective.get(name)
                asked[name] = getattr(launch, name) if told is None else told
        return asked | ({} if inv.served_wiring is None else {"boundaries": inv.served_wiring.wiring.to_json()})

    @property
    def on_cpu(self) -> bool:
        """Whether the server says that it ran on a CPU, where captured graphs are no matter of course."""
        starts = [] if self.log is None else [s.settings.get("given", {}).get("device") for s in self.log.starts]
        launched = None if self.inv.launch is None else self.inv.launch.given.get("device")
        return "cpu" in (*starts, launched)


def _pairs(found: Prediction) -> tuple[tuple[tuple[ServedCounts, ServedCounts], ...], bool]:
    """(served, predicted) by request, and whether they are of the same text."""
    same = [pair for r in found.requests if (pair := _same_text(r, found.steps)) is not None]
    if sum(p.verify_steps for _, p in same):
        return tuple(same), True
    like = [
        (c, ServedCounts.from_accepted(r.walk.accepted[: r.walk.whole], found.steps))
        for r in found.requests
        if (c := r.request.counts(found.steps))
    ]
    return tuple(like), False


def _same_text(r: RequestPrediction, steps: int) -> tuple[ServedCounts, ServedCounts] | None:
    """A histogram does not say which pass is the last, which the end of the text cuts: it is left out where all others are the walk's."""
    walked = ServedCounts.from_accepted(r.walk.accepted, steps)
    if r.told == "every step":
        return ServedCounts.from_accepted(r.request.accepted[: len(r.walk.accepted)], steps), walked
    if r.told != "histogram":
        return None
    return (walked if r.equal else ServedCounts.from_histogram(r.request.histogram, steps)), walked


def _summary(found: Predicted) -> dict[str, Any]:
    told = [r for r in found.prediction.requests if r.equal is not None]
    counts = [served for served, _ in found.pairs]
    low, high = ratio_interval([c.accepted for c in counts], [c.verify_steps for c in counts])
    exact = (
        f"{sum(r.equal for r in told)} of {len(told)} requests are the walk's to the last pass"
        if told
        else "counts told for no whole answer"
    )
    return {
        "wiring": str(found.wiring),
        "requests": len(found.pairs),
        "verify_passes": total(counts).verify_steps,
        "served": found.served,
        "low": 1 + low,
        "high": 1 + high,
        "predicted": found.predicted,
        "note": exact if found.same_text else "the answers part from the dump's: predicted up to there",
    }


def _by_step(found: Predicted) -> list[dict[str, Any]]:
    served, predicted = (total(side) for side in zip(*found.pairs, strict=True)) if found.pairs else (ServedCounts(0, 0),) * 2
    steps = range(len(served.joint or ()))
    return [{"step": k, "served": served.joint_rate(k), "predicted": predicted.joint_rate(k)} for k in steps]


def total(counts: Iterable[ServedCounts]) -> ServedCounts:
    counts = list(counts)
    return sum(counts[1:], counts[0]) if counts else ServedCounts(0, 0)


def _engine(said: str | None, version: str | None = None) -> Engine | None:
    """An engine as a file names it; without its version, or None, where that cannot be understood."""
    for more in (version, None) if said and "@" not in said else ():
        with suppress(ConventionError):
            return parse_engine(said, more)
    return None
