"""A case with its parts opened and its measurements taken, each once and only when asked for.

The checks, the CLI and the notebooks all read from here, so that no number exists in only one of them. A part that the case does not
give is None; what is given and cannot be used raises that part's own error, which the checks turn into a finding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.case import Case, open_case
from eaglelab.claims import claimed_capture_ids, claimed_wiring
from eaglelab.engines.conventions import Engine, parse_engine
from eaglelab.engines.launch import Launch, parse_launch
from eaglelab.engines.target_config import read_target_config
from eaglelab.engines.wiring_report import EngineWiring, engine_wiring
from eaglelab.progress import progress
from eaglelab.wiring import FINAL, Boundary, Wiring

if TYPE_CHECKING:  # torch, pandas and transformers load with the parts that need them
    from eaglelab.drafter.audit import Audit
    from eaglelab.drafter.config import DrafterConfig
    from eaglelab.drafter.embedding import EmbeddingRows
    from eaglelab.drafter.model import Drafter
    from eaglelab.dumps import Dump, Sample
    from eaglelab.dumps.health import Health
    from eaglelab.fingerprint import Fingerprint
    from eaglelab.identify import Identification
    from eaglelab.replay import Judge, Ranking, Replay, TargetHead, Variant

IDENTIFY_SAMPLES = 8
"""Samples compared with the target, spread over those read: identity is a matter of values, not of many samples."""
SMALL_TARGET = 8 * 2**30
"""Bytes of weights up to which `way="auto"` runs the target's forward; above it takes the sketch, or single tensors."""
STEPS = 3
"""Drafted steps of a replay unless the launch line says otherwise: SGLang's default for most models."""


class NotGiven(LookupError):
    """A measurement's input is absent from the case. `what` is missing, `how` to get it."""

    def __init__(self, what: str, how: str) -> None:
        super().__init__(f"{what} is not given; {how}")
        self.what, self.how = what, how


@dataclass(frozen=True)
class Feeds:
    """The feeds that get compared by replay, as places in fc."""

    dump: Variant
    """The dump's own feed: what the drafter was trained on, if it was trained on this dump as it stands."""
    engine: Variant | None
    """What the engine feeds with the config as it is; None where its boundaries cannot be had from the inputs at hand."""
    engine_reason: str
    """Why `engine` is None, or how it was put together."""


class Investigation:
    """One case, opened."""

    def __init__(
        self,
        case: Case | str,
        *,
        max_samples: int | None = 32,
        seed: int = 0,
        device: str = "auto",
        dtype: str = "auto",
        steps: int | None = None,
        way: str = "auto",
    ) -> None:
        """max_samples: samples of the dump that are read (None = all). way: how the target is had: auto, forward, sketch, tensors."""
        if way not in ("auto", "forward", "sketch", "tensors"):
            raise ValueError(f"way is {way!r}, expected auto, forward, sketch or tensors")
        self.case = case if isinstance(case, Case) else open_case(case)
        self.max_samples, self.seed, self.device, self.dtype, self.way = max_samples, seed, device, dtype, way
        self._steps = steps

    # -- configs: no torch ------------------------------------------------------------------------------------------------

    @cached_property
    def launch(self) -> Launch | None:
        return parse_launch(self.case.engine.launch) if self.case.engine.launch else None

    @cached_property
    def engine(self) -> Engine | None:
        """The engine that serves: from `[engine]`, else from the launch line (then without a version)."""
        spec = self.case.engine.spec or (self.launch.engine if self.launch else None)
        return parse_engine(spec) if spec else None

    @cached_property
    def draft_config(self) -> dict[str, Any] | None:
        """The config that the engine reads: `[engine] draft_config`, else the drafter's own."""
        from eaglelab.drafter.config import read_config

        path = self.case.engine.draft_config or self.case.drafter.path
        return None if path is None else read_config(path)

    @property
    def draft_config_name(self) -> str:
        """The config's path as the case's reader knows it."""
        path = self.case.engine.draft_config
        if path is None:
            path = self.case.drafter.path / "config.json" if self.case.drafter.path.is_dir() else self.case.drafter.path
        return relative_to_case(self.case, path)

    @cached_property
    def drafter_config(self) -> DrafterConfig | None:
        from eaglelab.drafter.config import DrafterConfig

        path = self.case.drafter.path or self.case.engine.draft_config
        return None if path is None else DrafterConfig.load(path)

    @cached_property
    def target_config(self) -> dict[str, Any] | None:
        """config.json of the target, from `[target] config` or its folder. Raises TargetConfigError where both contradict each other."""
        return read_target_config(self.case.target.config, self.case.target.path)

    @cached_property
    def engine_wiring(self) -> EngineWiring | None:
        """What the engine feeds with the config as it is; None where engine, drafter config or target config is absent."""
        if self.engine is None or self.draft_config is None or self.target_config is None:
            return None
        return engine_wiring(self.draft_config, self.target_config, self.engine)

    @property
    def served_wiring(self) -> EngineWiring | None:
        """`engine_wiring`, None also where engine or config cannot be understood: the finding `wiring.engine` says why."""
        try:
            return self.engine_wiring
        except ValueError:
            return None

    @cached_property
    def audit(self) -> Audit | None:
        """The drafter's tensors against its config, from file headers; None without a folder or with a `.bin` only."""
        from eaglelab.drafter.audit import audit_folder

        path = self.case.drafter.path
        return audit_folder(path, self.drafter_config) if path is not None and path.is_dir() else None

    @property
    def steps(self) -> int:
        """Drafted steps: as asked, else the launch line's, else the default."""
        if self._steps is not None:
            return self._steps
        return (self.launch.num_steps if self.launch else None) or STEPS

    @cached_property
    def claimed(self) -> Wiring | None:
        """The dump's wiring as somebody claims it, slot by slot; None where no claim names a slot's boundary."""
        return claimed_wiring(self.case.claims)

    def parts(self) -> list[dict[str, str]]:
        """The parts of the case, one row each: part, given, what it is for."""
        case, path = self.case, lambda p: "not given" if p is None else relative_to_case(case, p)
        engine = case.engine.spec or "not given"
        return [
            {"part": "dump", "given": path(case.dump.path), "for": "what the drafter was trained on: notebooks 01 to 04"},
            {"part": "drafter", "given": path(case.drafter.path), "for": "its config, tensors and replay"},
            {"part": "embedding rows", "given": path(case.drafter.embed), "for": "the replay, where the target is not at hand"},
            {
                "part": "target",
                "given": path(case.target.path) + ("" if case.target.path or not case.target.sketch else ", or not on this machine"),
                "for": "its boundaries and its own choice of tokens",
            },
            {"part": "target's config", "given": path(case.target.config), "for": "number of layers and architecture"},
            {"part": "sketch", "given": path(case.target.sketch), "for": "a stand-in for the target"},
            {"part": "engine", "given": engine, "for": "which boundaries are fed"},
            {
                "part": "launch line",
                "given": "given" if case.engine.launch else "not given",
                "for": "steps, and flags at odds with the drafter",
            },
            {"part": "training", "given": case.training.framework or "not given", "for": "flags that the trainer forced"},
            {"part": "claims", "given": f"{len(case.claims)}", "for": "what people say of slots and ids"},
        ]

    # -- the dump ---------------------------------------------------------------------------------------------------------

    @cached_property
    def dump(self) -> Dump | None:
        from eaglelab.dumps import open_dump

        section = self.case.dump
        if section.path is None:
            return None
        dump = open_dump(section.path, section.format, section.files, bool(section.allow_pickle))
        if section.feed is not None:
            dump.feed = section.feed
        return dump

    @cached_property
    def samples(self) -> list[Sample]:
        """The chosen samples, memory-mapped. Raises NotGiven without a dump."""
        if self.dump is None:
            raise NotGiven("a dump", "`[dump] path` names the folder of hidden states that the drafter was trained on")
        return list(self.dump.samples(self.max_samples, self.seed))

    def check_feed(self) -> None:
        """Raise ValueError unless the dump's feed has as many slots as the drafter's fc takes."""
        aux, takes = self.dump.feed.aux, self.drafter_config.num_slots
        if len(aux) != takes:
            raise ValueError(
                f"the dump feeds {len(aux)} slots {list(aux)} and the drafter's fc takes {takes}: name them in `[dump] feed`, followed by the "
                "last state's; or this is another drafter's dump"
            )

    @property
    def sampled(self) -> str:
        """`8 of 100,000 samples`."""
        return f"{len(self.samples):,} of {len(self.dump):,} samples"

    @cached_property
    def health(self) -> Health | None:
        from eaglelab.dumps.health import check_health

        if self.dump is None:
            return None
        try:
            config = self.drafter_config
        except ValueError:  # `drafter.complete` says why; the dump can be looked at without
            config = None
        vocabulary, width = (config.vocab_size, config.target_hidden_size) if config else (None, None)
        return check_health(self.dump, self.max_samples, self.seed, vocabulary, width)

    def need_health(self) -> Health:
        """`health`, or NotGiven."""
        if self.health is None:
            self.samples  # noqa: B018 - raises
        return self.health

    def mask_text(self, samples: int = 6) -> list[dict[str, str]]:
        """The text around the first trained token of a few samples. Token ids where no tokenizer is at hand."""
        from eaglelab.text import around_first_trained, load_tokenizer

        tokenizer = load_tokenizer(self.case.target.tokenizer or self.case.target.path)
        cut = [(s.key, *around_first_trained(s, tokenizer)) for s in self.samples[:samples]]
        return [{"sample": key, "before (not trained)": before, "from the first trained token": after} for key, before, after in cut]

    @cached_property
    def fingerprint(self) -> Fingerprint:
        from eaglelab.fingerprint import fingerprint

        return fingerprint(progress(self.samples, "norms"), total=len(self.dump))

    # -- the target -------------------------------------------------------------------------------------------------------

    @cached_property
    def source(self) -> Any:
        """What the slots are compared with: a ForwardSource, a Sketch, a TensorSource, or embedding rows. Raises NotGiven."""
        from eaglelab.target import ForwardSource, TensorSource
        from eaglelab.target.sketch import load_sketch

        target, way = self.case.target, self.way
        if way == "auto":
            small = target.path is not None and weight_bytes(target.path) <= SMALL_TARGET
            way = "forward" if small else "sketch" if target.sketch else "tensors" if target.path else "rows"
        if way == "rows":
            if self.embedding is None or self.dump is None or self._needs_own_embedding:
                raise NotGiven("a target", "give `[target] path`, or `[target] sketch` made by somebody who has it (`eaglelab sketch`)")
            return EmbeddingSource(self.embedding)
        if way == "sketch":
            if target.sketch is None:
                raise NotGiven("a sketch", "`eaglelab sketch TARGET --dump DUMP --out sketch.safetensors` makes one")
            return load_sketch(target.sketch)
        if target.path is None:
            raise NotGiven("the target's checkpoint", "`[target] path` names its folder")
        return ForwardSource(target.path, device=self._torch_device) if way == "forward" else TensorSource(target.path)

    @cached_property
    def identification(self) -> Identification:
        """Which boundary each slot holds. Raises NotGiven."""
        from eaglelab.identify import identify

        return identify(self._spread, self.source, seed=self.seed)

    @property
    def _spread(self) -> list[Sample]:
        """The samples that are compared with the target, evenly out of all that are read."""
        count, kept = len(self.samples), min(IDENTIFY_SAMPLES, len(self.samples))
        return [self.samples[i * count // kept] for i in range(kept)]

    @property
    def compared(self) -> str:
        """`8 of the 32 samples read`."""
        return f"{len(self._spread)} of the {len(self.samples)} samples read"

    @property
    def dump_wiring(self) -> Wiring | None:
        """The dump's wiring by comparison of values; None where there is nothing to compare with."""
        if self.dump is None:
            return None
        try:
            return self.identification.wiring
        except NotGiven:
            return Wiring.of([None] * len(self.samples[0].slots))

    @cached_property
    def head(self) -> TargetHead | None:
        """The target's lm_head and final norm; None without its checkpoint."""
        from eaglelab.replay import TargetHead
        from eaglelab.target import TensorSource

        if self.case.target.path is None:
            return None
        tensors = TensorSource(self.case.target.path)
        return TargetHead.of(tensors.checkpoint, tensors.norm)

    # -- the drafter ------------------------------------------------------------------------------------------------------

    @property
    def _torch_device(self) -> str:
        from eaglelab.drafter.checkpoint import choose_device

        return str(choose_device(self.device))

    @cached_property
    def drafter(self) -> Drafter:
        """Raises NotGiven, DrafterError."""
        from eaglelab.drafter.checkpoint import load_drafter

        if self.case.drafter.path is None:
            raise NotGiven("a drafter", "`[drafter] path` names the folder with its config.json and weights")
        head = self.head.lm_head if self.audit is not None and self.audit.borrowed and self.head is not None else None
        return load_drafter(self.case.drafter.path, device=self.device, dtype=self.dtype, lm_head=head)[0]

    @cached_property
    def embedding(self) -> EmbeddingRows | None:
        """Embedding rows of the samples' tokens: from the case's file, the target, the drafter's own table, or the sketch."""
        import torch

        from eaglelab.drafter.checkpoint import own_embedding
        from eaglelab.drafter.embedding import EmbeddingRows, load_embedding_rows
        from eaglelab.target import TensorSource
        from eaglelab.target.sketch import load_sketch

        if self.case.drafter.embed is not None:
            return load_embedding_rows(self.case.drafter.embed)
        ids = torch.cat([s.token_ids for s in self.samples]).unique()
        if self._needs_own_embedding and (rows := own_embedding(self.case.drafter.path, ids)) is not None:
            return rows
        if self.case.target.path is not None:
            return EmbeddingRows(ids, TensorSource(self.case.target.path).embedding_rows(ids), "the target's embedding table")
        if self.case.drafter.path is not None and (rows := own_embedding(self.case.drafter.path, ids)) is not None:
            return rows
        if self.case.target.sketch is not None:
            sketch = load_sketch(self.case.target.sketch)
            return EmbeddingRows(sketch.embedding_ids, sketch.embedding_rows, "the sketch")
        return None

    @property
    def _needs_own_embedding(self) -> bool:
        """True for a drafter of another width than its target's: only its own table fits."""
        config = self.drafter_config
        return self.case.drafter.path is not None and config.hidden_size != config.target_hidden_size

    @property
    def embedding_fits(self) -> bool:
        """Whether the embedding rows at hand are of the target's width, so that they can stand in a slot's place."""
        return self.embedding is not None and self.embedding.width == self.drafter_config.target_hidden_size

    # -- the replay -------------------------------------------------------------------------------------------------------

    @cached_property
    def judge(self) -> Judge:
        """What counts as right: the target's own choice where its lm_head is at hand, else the text."""
        from eaglelab.replay import Judge

        return Judge(self.dump.feed.last, self.head)

    @cached_property
    def feeds(self) -> Feeds:
        """The dump's feed and the engine's, in terms of what is at hand."""
        from eaglelab.replay import Variant

        aux = tuple(self.dump.feed.aux)
        base = Variant(aux, label="the dump's feed")
        if self.served_wiring is None:
            return Feeds(base, None, "the engine's wiring is not known")
        feed, why = self._sources_of(self.served_wiring.wiring)
        return Feeds(base, None if feed is None else Variant(feed, label="the engine's feed"), why)

    def _sources_of(self, wiring: Wiring) -> tuple[tuple | None, str]:
        """Slots (or the embedding) that hold what the engine feeds, and on what ground that is said."""
        places = self.drafter_config.num_slots
        if len(wiring) != places:
            return None, f"it feeds {len(wiring)} slots and the drafter's fc takes {places}"
        wanted, place, ground = self._named_slots(wiring)
        if None in wanted or len(wanted) < places:
            return None, f"it captures fewer than the {places} slots that the drafter's fc takes"
        if self._beyond_the_dump:
            first = len(self.samples[0].slots)
            place |= {b: first + i for i, b in enumerate(self._beyond_the_dump)}
            ground += "; what no slot holds is computed by the target"
        absent = [str(w) for w in wanted if place.get(w) is None]
        if absent:
            known = self.dump_wiring.known
            return None, f"no slot of the dump holds {', '.join(absent)}" if known else f"which slot holds {', '.join(absent)} is not known"
        return tuple(place[w] for w in wanted), ground

    def _named_slots(self, wiring: Wiring) -> tuple[list[Any], dict[Any, Any], str]:
        """(names of what the engine feeds, names -> slots, the ground).

        By the slots' identity where it is known. Else by the layer ids that the dump is said to have been captured with: the same id is
        the same layer, whatever the convention. Else by what is claimed of the slots, where identity says nothing. The embedding needs
        no slot, and a claim is not believed to be it.
        """
        from eaglelab.replay import EMBEDDING

        known = self.dump_wiring
        identified = {**({0: EMBEDDING} if self.embedding_fits else {}), **_first_slot_of(known)}
        if known.known:
            return list(wiring), identified, "by the slots' identity"
        aux, ids = self.dump.feed.aux, claimed_capture_ids(self.case.claims, len(self.dump.feed.aux))
        # Only within one numbering: where other versions of the engine read the ids otherwise, who captured with which is not known.
        if ids and self.engine_wiring.ids and not self.engine_wiring.other_versions:
            wanted = [EMBEDDING if b == 0 else i for b, i in zip(wiring, sorted(set(self.engine_wiring.ids)), strict=False)]
            place = {**dict(zip(ids, aux, strict=True)), EMBEDDING: EMBEDDING}
            return wanted, place, f"by the ids {ids} that the dump is said to be captured with"
        return list(wiring), {**_first_slot_of(self.claimed or ()), **identified}, "by what is claimed of the slots"

    @cached_property
    def _beyond_the_dump(self) -> tuple[Boundary, ...]:
        """Boundaries that the engine feeds and no slot holds, where the target's forward can give them."""
        from eaglelab.target import ForwardSource

        known = self.dump_wiring
        if self.served_wiring is None or not known.known or not isinstance(self.source, ForwardSource):
            return ()
        held = {*known, *({0} if self.embedding_fits else ())}
        return tuple(dict.fromkeys(b for b in self.served_wiring.wiring if b is not None and b not in held))

    @cached_property
    def replay_samples(self) -> list[Sample]:
        """The samples, with the target's own states at `_beyond_the_dump` as further slots: what the engine would feed."""
        from dataclasses import replace

        from eaglelab.target import ForwardSource

        extra = self._beyond_the_dump
        if not extra:
            return self.samples
        added: list[list[Any]] = [[] for _ in self.samples]

        def keep(boundary: Boundary, states: Sequence[Any]) -> None:
            if boundary in extra:
                for mine, state in zip(added, states, strict=True):
                    mine.append((extra.index(boundary), state.cpu().clone()))

        up_to = None if FINAL in extra else max(extra)
        ForwardSource(self.source.path, self.source.dtype, self.source.device, up_to).visit([s.token_ids for s in self.samples], keep)
        names = tuple(f"the target's boundary {b}" for b in extra)
        return [
            replace(s, slots=(*s.slots, *(state for _, state in sorted(mine, key=lambda m: m[0]))), slot_names=(*s.slot_names, *names))
            for s, mine in zip(self.samples, added, strict=True)
        ]

    @cached_property
    def variants(self) -> list[Variant]:
        """The feeds that get ranked, the dump's own first.

        Candidates: every ordered choice of slots for the places of fc, and the embedding put into the dump's feed (the classic
        misreading of id -1).
        """
        from eaglelab.replay import slot_orders, with_embedding

        named = [self.feeds.dump]
        if self.feeds.engine is not None and self.feeds.engine.feed != self.feeds.dump.feed:
            named.append(self.feeds.engine)
        orders = slot_orders(range(len(self.samples[0].slots)), len(self.feeds.dump.feed), base=self.feeds.dump.feed)
        if self.embedding_fits:
            orders += with_embedding(self.feeds.dump.feed)
        taken = {v.feed for v in named}
        return named + [v for v in orders if v.feed not in taken]

    @cached_property
    def replays(self) -> tuple[Ranking, list[Replay]]:
        """All feeds ranked at step 0, and the finalists over all steps. The dump's feed and the engine's are always among them.

        Raises NotGiven, DrafterError.
        """
        from eaglelab.replay import rank_feeds

        return rank_feeds(self.drafter, self.replay_samples, self._rows(), self.variants, steps=self.steps, judge=self.judge)

    def replay_of(self, variants: Sequence[Variant], *, steps: int | None = None, probabilities: bool = False) -> list[Replay]:
        """Replays of further variants on the same samples."""
        from eaglelab.replay import replay

        options = {"judge": self.judge, "probabilities": probabilities and self.head is not None}
        return replay(self.drafter, self.samples, self._rows(), variants, steps=steps or self.steps, **options)

    @property
    def own_replay(self) -> Replay:
        """The replay on the dump's own feed, over all steps."""
        return self.replay_named("the dump's feed")

    def replay_named(self, label: str) -> Replay | None:
        """The finalist that carries a label, None where it was not run."""
        return next((r for r in self.replays[1] if r.variant.label == label), None)

    @cached_property
    def places(self) -> tuple[Replay, list[Replay]]:
        """The dump's feed, and each place of fc zeroed and one row late: what they cost."""
        from eaglelab.replay import places_changed

        base = self.feeds.dump
        first, *rest = self.replay_of([base, *places_changed(base)], steps=1)
        return first, rest

    @cached_property
    def other_choices(self) -> tuple[Replay, list[Replay]]:
        """The dump's feed, and the choices that trainers and engines make differently, one by one."""
        from eaglelab.drafter.model import Flags
        from eaglelab.replay import other_choices

        base = self.feeds.dump
        first, *rest = self.replay_of([base, *other_choices(base, Flags.of(self.drafter.config))])
        return first, rest

    @cached_property
    def drafter_wiring(self) -> Wiring | None:
        """What the drafter's fc was trained on, as far as the replay tells: the dump's feed where nothing fits better."""
        wiring = self.dump_wiring
        if wiring is None or self.case.drafter.path is None or self.embedding is None:
            return None
        fits = self.fitting_feed
        return None if fits is None else Wiring.of(0 if s == "embedding" else wiring[s] for s in fits)

    @cached_property
    def fitting_feed(self) -> tuple | None:
        """The feed that the drafter fits: the dump's own where nothing fits better, else the one that does; None where the replay cannot
        say (too few samples, a drafter that is right no more often than chance, everything tied)."""
        ranking, _ = self.replays
        table = ranking.table
        if ranking.note or bool(table["tied"].all()) or table["acceptance"].iloc[0] <= 2 * self.constant_guess:
            return None
        if 0 in ranking.tied:  # variant 0 is the dump's own feed
            return self.feeds.dump.feed
        best = self.variants[ranking.order[0]].feed
        return best if all(isinstance(s, str) or s < len(self.samples[0].slots) for s in best) else None

    @cached_property
    def constant_guess(self) -> float:
        """Acceptance of always drafting the commonest trained token: what knowing nothing gives."""
        from collections import Counter

        from eaglelab.replay.answers import trained_positions

        spoken = Counter(t for s in self.samples for t in s.token_ids[trained_positions(s)].tolist())
        return spoken.most_common(1)[0][1] / spoken.total() if spoken else 0.0

    def _rows(self) -> EmbeddingRows:
        if self.embedding is None:
            from eaglelab.drafter.embedding import HOW

            need = "the replay needs the embedding of every token of the samples, and most drafter checkpoints carry no table"
            raise NotGiven("embedding rows", f"{need}: give `[target] path`, or {HOW}")
        return self.embedding


class EmbeddingSource:
    """Embedding rows as a source for `identify`: it shows boundary 0 and nothing else."""

    num_layers = None
    kind = "embedding rows from"

    def __init__(self, rows: EmbeddingRows) -> None:
        self.rows, self.hidden_size, self.path = rows, rows.width, rows.source

    def visit(self, token_ids, visit) -> None:
        visit(0, [self.rows(ids) for ids in token_ids])


def weight_bytes(folder) -> int:
    """Bytes of the weight files in a checkpoint folder."""
    return sum(p.stat().st_size for p in folder.iterdir() if p.suffix in (".safetensors", ".bin"))


def relative_to_case(case: Case, path) -> str:
    """A path as the case's reader knows it: relative to the case where it lies inside, else its folder's name and its own, no more: reports
    are passed round, and a folder right under /home or /Users is somebody's name."""
    try:
        return path.resolve().relative_to(case.root.resolve()).as_posix()
    except ValueError:
        mine = path.parent == Path.home() or path.parent.parent.name in ("home", "Users")
        return path.name if mine else "/".join(path.parts[-2:])


def _first_slot_of(wiring: Sequence[Boundary]) -> dict[Any, Any]:
    """Boundary -> the first slot that holds it."""
    return {b: slot for slot, b in reversed(list(enumerate(wiring))) if b is not None}
