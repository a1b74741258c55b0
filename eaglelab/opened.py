"""A case with its parts opened: configs, dump, target and drafter, each once and only when asked for.

A part that the case does not give is None or raises `NotGiven`; what is given and cannot be used raises that part's own error, which the
checks turn into a finding. What is measured over several parts is in `eaglelab.investigation`.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.cache import Results, kept
from eaglelab.case import Case, open_case
from eaglelab.claims import claimed_wiring
from eaglelab.engines.conventions import Engine, parse_engine
from eaglelab.engines.launch import Launch, parse_launch
from eaglelab.engines.target_config import read_target_config
from eaglelab.engines.wiring_report import EngineWiring, engine_wiring
from eaglelab.progress import progress
from eaglelab.wiring import Wiring

if TYPE_CHECKING:  # torch, pandas and transformers load with the parts that need them
    from torch import Tensor

    from eaglelab.drafter.audit import Audit
    from eaglelab.drafter.config import DrafterConfig
    from eaglelab.drafter.embedding import EmbeddingRows
    from eaglelab.drafter.model import Drafter
    from eaglelab.dumps import Dump, Sample
    from eaglelab.dumps.health import Health
    from eaglelab.fingerprint import Fingerprint
    from eaglelab.identify import Identification
    from eaglelab.replay import TargetHead
    from eaglelab.served import Recording

IDENTIFY_SAMPLES = 8
"""Samples compared with the target, spread over those read: identity is a matter of values, not of many samples."""
SMALL_TARGET = 8 * 2**30
"""Bytes of weights up to which `way="auto"` runs the target's forward; above it takes the sketch, or single tensors."""
SAME_ROW = 2**-6
"""Relative difference of two embedding rows that one rounding to bfloat16 (2^-8), or two, may leave."""
STEPS = 3
"""Drafted steps of a replay unless the launch line says otherwise: SGLang's default for most models."""

DUMP = "`[dump] path` names the folder of hidden states that the drafter was trained on"
"""How to get a dump, for messages."""


class NotGiven(LookupError):
    """A measurement's input is absent from the case. `what` is missing, `how` to get it."""

    def __init__(self, what: str, how: str) -> None:
        super().__init__(f"{what} is not given; {how}")
        self.what, self.how = what, how


class OpenedCase:
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
        self.results = Results(self)
        """The heavy results; without a cache unless it is given one (`eaglelab.cache.open_results`)."""

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
        """The drafter's tensors against its config, from file headers; None without a drafter. Raises DrafterError."""
        from eaglelab.drafter.audit import audit_folder

        path = self.case.drafter.path
        return audit_folder(path, self.drafter_config) if path is not None else None

    @cached_property
    def recording(self) -> Recording | None:
        """`[engine] counters`, where that is a recording of `eaglelab live`. Raises RecordingError where it begins as one and holds none."""
        from eaglelab.served import Recording

        path = self.case.engine.counters
        return Recording.load(path) if path is not None and path.is_file() and is_recording(path) else None

    @property
    def steps(self) -> int:
        """Drafted steps: as asked, else the launch line's, else the recording's, else the default."""
        if self._steps is not None:
            return self._steps
        try:
            recorded = self.recording.session.num_steps if self.recording else None
        except ValueError:  # `served.acceptance` says why
            recorded = None
        return (self.launch.num_steps if self.launch else None) or recorded or STEPS

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
            {"part": "server's log", "given": path(case.engine.log), "for": "accept length over time, graphs, flags: notebook 05"},
            {
                "part": "server's counters",
                "given": path(case.engine.counters),
                "for": "what was reached, exactly, beside the replay's prediction",
            },
            {"part": "recordings", "given": path(case.engine.recordings), "for": "other wirings and engines, predicted and served"},
            {"part": "training", "given": case.training.framework or "not given", "for": "flags that the trainer forced"},
            {"part": "training log", "given": path(case.training.metrics), "for": "the trainer's numbers, counted again in the replay"},
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
            raise NotGiven("a dump", DUMP)
        return list(self.dump.samples(self.max_samples, self.seed))

    def check_feed(self) -> None:
        """Raise ValueError unless the dump's feed has as many slots as the drafter's fc takes."""
        aux, takes = self.dump.feed.aux, self.drafter_config.num_slots
        if not aux:
            raise ValueError(
                f"this {self.dump.format} dump holds no aux slots and the drafter's fc takes {takes}: it cannot be what an EAGLE-3 drafter was "
                "trained on. Dump again with the aux states"
            )
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
        return None if self.dump is None else self._health()

    @kept("the dump's health", by_path=True)
    def _health(self) -> Health:
        from eaglelab.dumps.health import check_health

        try:
            config = self.drafter_config
        except ValueError:  # `drafter.complete` says why; the dump can be looked at without
            config = None
        vocabulary, width = (config.vocab_size, config.target_hidden_size) if config else (None, None)
        return check_health(self.dump, self.max_samples, self.seed, vocabulary, width, unfinished=self.results.unfinished)

    def need_health(self) -> Health:
        """`health`, or NotGiven."""
        if self.health is None:
            self.samples  # noqa: B018 - raises
        return self.health

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer: `[target] tokenizer`, else what lies in the target's folder. Raises NotGiven, and ValueError for a folder
        that is named as the tokenizer's and holds none."""

        tokenizer, absent = self._tokenizer
        if tokenizer is None:
            raise NotGiven(f"a tokenizer{absent}", "`[target] tokenizer` names a folder with tokenizer.json")
        return tokenizer

    @cached_property
    def _tokenizer(self) -> tuple[Any | None, str]:
        """The tokenizer, or why there is none."""
        from eaglelab.text import load_tokenizer

        named, target = self.case.target.tokenizer, self.case.target.path
        if named is not None or target is None:
            return load_tokenizer(named), ""
        try:
            return load_tokenizer(target), ""
        except ValueError:
            return None, " (the target's folder holds none that can be read without running its code)"

    def mask_text(self, samples: int = 6) -> list[dict[str, str]]:
        """The text around the ends of the trained spans of a few samples. Token ids where no tokenizer is at hand."""
        from eaglelab.text import around_spans

        try:
            tokenizer = self.tokenizer
        except NotGiven:
            tokenizer = None
        return [row for s in self.samples[:samples] for row in around_spans(s, tokenizer)]

    @cached_property
    @kept("norm fingerprints")
    def fingerprint(self) -> Fingerprint:
        from eaglelab.fingerprint import fingerprint

        samples = progress(self.samples, "norms", unit="samples")
        return fingerprint(samples, total=len(self.dump), unfinished=self.results.unfinished)

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
            if self.dump is None or self.boundary_rows is None:
                raise NotGiven("a target", "give `[target] path`, or `[target] sketch` made by somebody who has it (`eaglelab sketch`)")
            return EmbeddingSource(self.boundary_rows)
        if way == "sketch":
            if target.sketch is None:
                raise NotGiven("a sketch", "`eaglelab sketch TARGET --dump DUMP --out sketch.safetensors` makes one")
            return load_sketch(target.sketch)
        if target.path is None:
            raise NotGiven("the target's checkpoint", "`[target] path` names its folder")
        return ForwardSource(target.path, device=self._torch_device) if way == "forward" else TensorSource(target.path)

    @cached_property
    @kept("the slots' boundaries")
    def identification(self) -> Identification:
        """Which boundary each slot holds. Raises NotGiven."""
        from eaglelab.identify import identify

        return identify(self._spread, self.source, seed=self.seed, unfinished=self.results.unfinished)

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
        from eaglelab.drafter.device import choose_device

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
        """Embedding rows of the samples' tokens that the drafter was trained with: those of its own table, else the target's.

        A table of its own that holds nothing (NaN, zeros) is passed over where the target's rows are at hand.
        """
        from eaglelab.drafter.audit import DrafterError
        from eaglelab.drafter.checkpoint import own_embedding
        from eaglelab.drafter.embedding import EmbeddingRows
        from eaglelab.target.sketch import load_sketch

        if self.case.drafter.path is not None:
            try:
                own = own_embedding(self.case.drafter.path, self._token_ids)
            except DrafterError:  # `drafter.embedding` says so
                if self.target_rows is None or self.target_rows.width != self.drafter_config.hidden_size:
                    raise
                own = None
            if own is not None:
                return own
        if self.target_rows is not None:
            return self.target_rows
        if self.case.target.sketch is not None:
            sketch = load_sketch(self.case.target.sketch)
            return EmbeddingRows(sketch.embedding_ids, sketch.embedding_rows, "the sketch")
        return None

    @property
    def _token_ids(self) -> Tensor:
        """[n] int64, the distinct tokens of the samples."""
        import torch

        return torch.cat([s.token_ids for s in self.samples]).unique()

    @cached_property
    def target_rows(self) -> EmbeddingRows | None:
        """The target's embedding rows: from the case's file, or its checkpoint. None without either."""
        from eaglelab.drafter.embedding import EmbeddingRows, load_embedding_rows
        from eaglelab.target import TensorSource

        if self.case.drafter.embed is not None:
            return load_embedding_rows(self.case.drafter.embed)
        if self.case.target.path is None:
            return None
        ids = self._token_ids
        return EmbeddingRows(ids, TensorSource(self.case.target.path).embedding_rows(ids), "the target's embedding table")

    @property
    def boundary_rows(self) -> EmbeddingRows | None:
        """Embedding rows that can stand in a slot's place: the target's, else those that the drafter has; None where none are as wide."""
        if self.drafter_config is None:
            return self.target_rows
        rows, width = self.target_rows or self.embedding, self.drafter_config.target_hidden_size
        return rows if rows is not None and rows.width == width else None

    @cached_property
    def own_table(self) -> bool:
        """Whether the drafter's own embedding rows are others than the target's: beyond what rounding leaves, in any row."""
        import torch

        from eaglelab.drafter.embedding import apart

        own, target = self.embedding, self.target_rows
        if own is None or target is None or own is target or own.width != target.width:
            return False
        ids = own.token_ids[torch.isin(own.token_ids, target.token_ids)]
        return bool((apart(own(ids), target(ids)) > SAME_ROW).any())


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


def is_recording(path: Path) -> bool:
    """Whether a file begins as a recording does, however its JSON is spaced."""
    with path.open("rb") as file:
        return b"".join(file.read(64).split()).startswith(b'{"kind":"session"')


def relative_to_case(case: Case, path) -> str:
    """A path as the case's reader knows it: relative to the case where it lies inside, else its folder's name and its own, no more: reports
    are passed round, and a folder right under /home or /Users is somebody's name."""
    try:
        return path.resolve().relative_to(case.root.resolve()).as_posix()
    except ValueError:
        mine = path.parent == Path.home() or path.parent.parent.name in ("home", "Users")
        return path.name if mine else "/".join(path.parts[-2:])
