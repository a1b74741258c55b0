"""A case's measurements over several of its parts: which feed the drafter fits, what the engine's feed costs, what accept length to expect.

The checks, the CLI and the notebooks all read from here, so that no number exists in only one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglelab.cache import kept
from eaglelab.claims import claimed_capture_ids
from eaglelab.opened import DUMP, NotGiven, OpenedCase
from eaglelab.wiring import FINAL, Boundary, Wiring

__all__ = ["Feeds", "Investigation", "NotGiven"]

OTHER_STATES = (
    "no match",
    "shifted",
    "swapped rows",
    "without residual",
    "rotated basis",
    "permuted channels",
    "in between",
    "other tokens",
)
"""Kinds of anomalies of a slot that fits no boundary on its own tokens: no choice of the target's can be had from it."""

if TYPE_CHECKING:  # torch, pandas and transformers load with the parts that need them
    from torch import Tensor

    from eaglelab.drafter.embedding import EmbeddingRows
    from eaglelab.drafter.model import Drafter, Flags
    from eaglelab.dumps import Sample
    from eaglelab.engines.training import Framework
    from eaglelab.findings import Finding
    from eaglelab.lost import LostCase
    from eaglelab.replay import Judge, Ranking, Replay, Variant
    from eaglelab.replay.last_state import LastState
    from eaglelab.replay.strip import RowDrafts
    from eaglelab.replay.tree import TreeReplay
    from eaglelab.served_case import ServedCase
    from eaglelab.target import FinalNorm
    from eaglelab.timing_case import TimingCase


@dataclass(frozen=True)
class Feeds:
    """The feeds that get compared by replay, as places in fc."""

    dump: Variant
    """The dump's own feed: what the drafter was trained on, if it was trained on this dump as it stands."""
    engine: Variant | None
    """What the engine feeds with the config as it is; None where its boundaries cannot be had from the inputs at hand."""
    engine_reason: str
    """Why `engine` is None, or how it was put together."""


class Investigation(OpenedCase):
    """One case, opened and measured."""

    @cached_property
    def found(self) -> dict[str, Finding]:
        """What the checks have found so far, by id: a later one builds on it and counts nothing twice."""
        return {}

    @cached_property
    def served(self) -> ServedCase:
        """The server's side: what was counted, and what the replay predicts for it."""
        from eaglelab.served_case import ServedCase

        return ServedCase(self)

    @cached_property
    def timing(self) -> TimingCase:
        """Where the milliseconds go, what breaks even, how many steps."""
        from eaglelab.timing_case import TimingCase

        return TimingCase(self)

    @cached_property
    def lost(self) -> LostCase:
        """Where acceptance is lost: by token class, position, confidence and step."""
        from eaglelab.lost.case import LostCase

        return LostCase(self)

    @cached_property
    def judge(self) -> Judge:
        """What counts as right: the target's own choice where its lm_head is at hand and the last state is one, else the text."""
        from eaglelab.replay import Judge

        head = None if self.dump.feed.last is None else self.head
        return Judge(self.dump.feed.last, None if head is None or self.last_fault else head, measure=lambda: self.last_state)

    @cached_property
    def last_fault(self) -> str:
        """Why the target's choices cannot be had from the last slot; "" where they can, as far as anything tells, and where there is none."""
        from eaglelab.wiring import boundary_name

        slot, identified = self.dump.feed.last, self.identified_last
        if slot is None:
            return ""
        if isinstance(identified, int) and identified != (layers := self.identification.num_layers):
            return f"slot {slot} goes as the last state and holds {boundary_name(identified, layers)}"
        try:
            if self.last_state.twice:
                return f"slot {slot} was normed twice in the dump"
        except (NotGiven, ValueError):  # `dump.last_state` says why it cannot be measured
            pass
        if identified is None and (kinds := self._fits_no_boundary(slot)):
            return f"slot {slot} goes as the last state and fits no boundary of the target up to final ({', '.join(kinds)})"
        return ""

    def _fits_no_boundary(self, slot: int) -> list[str]:
        """What a slot is instead, where it was compared with all boundaries up to final and fits none; empty where that cannot be said."""
        try:
            found = self.identification
        except ValueError:
            return []
        if FINAL not in found.boundaries:
            return []
        ends = (found.num_layers, FINAL)
        return [
            a.kind
            for a in found.anomalies
            if a.slot == slot and (a.kind in OTHER_STATES or (a.kind == "scaled" and a.boundary not in ends))
        ]

    @cached_property
    @kept("the looks at the last state")
    def last_state(self) -> LastState:
        """Whether the last state is normed, by the final norm's weight and lm_head, as far as the target's folder has them.

        Raises NotGiven where the dump keeps no last state or neither tensor is at hand.
        """
        from eaglelab.replay.last_state import measure_last_state

        if self.dump is None or self.dump.feed.last is None:
            raise NotGiven("a last state", "the dump holds aux slots alone; the replay is judged by the text's token")
        norm, lm_head = self._norm_and_head()
        return measure_last_state(self.samples[:4], self.dump.feed.last, norm, lm_head)

    def _norm_and_head(self) -> tuple[FinalNorm | None, Any]:
        """The target's final norm and lm_head, each None where its folder lacks it; NotGiven, or the reason, where it lacks both."""
        from eaglelab.target import CheckpointError, TensorSource

        try:
            if self.head is not None:
                return self.head.norm, self.head.lm_head
        except CheckpointError as reason:
            source, found = TensorSource(self.case.target.path), []
            for part in ("norm", "lm_head"):
                try:
                    found.append(getattr(source, part))
                except CheckpointError:
                    found.append(None)
            if found == [None, None]:
                raise reason from None
            return found[0], found[1]
        raise NotGiven("the target's lm_head and final norm", "`[target] path` names the target's checkpoint; two tensors of it are enough")

    @property
    def identified_last(self) -> Boundary:
        """What the last state is by comparison with the target. None where there is none, where that cannot tell, or cannot be made:
        `wiring.dump` says why."""
        last = self.dump.feed.last
        try:
            return None if last is None else self.dump_wiring[last]
        except ValueError:
            return None

    @property
    def last_boundary(self) -> Boundary:
        """What the last state is: by comparison with the target where that tells, else by `last_state`. None where neither can, or where it
        is none of the target's."""
        identified = self.identified_last
        if isinstance(identified, int):
            return identified
        if self.last_fault or identified is not None:
            return None if self.last_fault else identified
        try:
            normed = self.last_state.normed
        except NotGiven:
            return None
        return None if normed is None else FINAL if normed else self.num_layers

    @cached_property
    def trainer(self) -> Framework | None:
        """What trained on the dump, as far as case, config and layout tell."""
        from eaglelab.engines.training import trainer_of

        implied, told = None if self.dump is None else self.dump.implied, self.case.training
        try:
            config = self.draft_config
        except ValueError:  # `drafter.complete` says why
            config = None
        return trainer_of(config, None if implied is None else implied.framework, told.framework, told.version)

    @property
    def trainer_norms(self) -> bool:
        """Whether the trainer norms the last slot itself."""
        from eaglelab.engines.training import norms_last_slot

        return self.trainer is not None and norms_last_slot(self.trainer, self.flagged_last_state)

    @property
    def flagged_last_state(self) -> str | None:
        """`N` or `final` where the dump's own files say it, sample by sample (ModelOpt's `hidden_states_prenorm`)."""
        said = {s.last_state for s in self.samples}
        return said.pop() if len(said) == 1 else None

    @property
    def num_layers(self) -> int | None:
        """N of the target, by its config."""
        from eaglelab.engines.target_config import target_shape

        return None if self.target_config is None else target_shape(self.target_config).num_layers

    @cached_property
    def dump_feed(self) -> Variant:
        """The dump's own feed, for which nothing needs to be known of its slots."""
        from eaglelab.replay import Variant

        if self.dump is None:
            raise NotGiven("a dump", DUMP)
        return Variant(tuple(self.dump.feed.aux), label="the dump's feed")

    @cached_property
    def feeds(self) -> Feeds:
        """The dump's feed and the engine's, in terms of what is at hand."""
        from eaglelab.replay import Variant

        base = self.dump_feed
        if self.served_wiring is None:
            return Feeds(base, None, "the engine's wiring is not known")
        feed, why = self.sources_of(self.served_wiring.wiring)
        return Feeds(base, None if feed is None else Variant(feed, label="the engine's feed"), why)

    def sources_of(self, wiring: Wiring) -> tuple[tuple | None, str]:
        """Slots (or the embedding) that hold what an engine feeds, None where the dump lacks some; and why, or on what ground that is said."""
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
        identified = {**({} if self.boundary_rows is None else {0: EMBEDDING}), **_first_slot_of(known)}
        if known.known:
            return list(wiring), identified, "by the slots' identity"
        aux, ids = self.dump.feed.aux, claimed_capture_ids(self.case.claims, len(self.dump.feed.aux))
        # Only within one numbering: where other versions of the engine read the ids otherwise, who captured with which is not known. And only
        # the engine's own wiring: of another one the ids are not known here.
        served = self.served_wiring
        if ids and served is not None and served.ids and not served.other_versions and wiring == served.wiring:
            wanted = [EMBEDDING if b == 0 else i for b, i in zip(wiring, sorted(set(served.ids)), strict=False)]
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
        held = {*known, *(() if self.boundary_rows is None else {0})}
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
        if self.boundary_rows is not None:
            orders += with_embedding(self.feeds.dump.feed)
        taken = {v.feed for v in named}
        return named + [v for v in orders if v.feed not in taken]

    @cached_property
    @kept("the feeds, ranked by replay")
    def replays(self) -> tuple[Ranking, list[Replay]]:
        """All feeds ranked at step 0, and the finalists over all steps. The dump's feed and the engine's are always among them.

        Raises NotGiven, DrafterError.
        """
        from eaglelab.replay import rank_feeds

        options = {"judge": self.judge, "target_embed": self.boundary_rows, "known": [self.own_replay]}
        options["unfinished"] = self.results.unfinished
        return rank_feeds(self.drafter, self.replay_samples, self._rows(), self.variants, steps=self.steps, **options)

    def replay_of(
        self,
        variants: Sequence[Variant],
        *,
        drafter: Drafter | None = None,
        samples: Sequence[Sample] | None = None,
        steps: int | None = None,
        confidences: bool = False,
        probabilities: bool = False,
        judge: Judge | None = None,
    ) -> list[Replay]:
        """Replays of further variants on the same samples (or on others). drafter: one with other weights than the case's."""
        from eaglelab.replay import replay

        judge = judge or self.judge
        options = {"judge": judge, "target_embed": self.boundary_rows, "confidences": confidences, "unfinished": self.results.unfinished}
        options["probabilities"] = probabilities and judge.head is not None
        return replay(drafter or self.drafter, samples or self.samples, self._rows(), variants, steps=steps or self.steps, **options)

    def row_drafts(self, variant: Variant, sample: Sample) -> RowDrafts:
        """The drafter's choices at single rows of one sample. Raises NotGiven, and ValueError where they cannot be had."""
        from eaglelab.replay.strip import RowDrafts

        return RowDrafts(self.drafter, sample, self._rows(), variant, steps=self.steps, target_embed=self.boundary_rows)

    @cached_property
    @kept("the replay on the dump's feed")
    def own_replay(self) -> Replay:
        """The replay on the dump's own feed, over all steps, with the target's probabilities where its head judges. All comparisons share it."""
        return self.replay_of([self.feeds.dump], confidences=True, probabilities=True)[0]

    def tree_replay(
        self,
        variant: Variant | None = None,
        *,
        steps: int | None = None,
        topk: int | None = None,
        num_draft_tokens: int | None = None,
        judge: Judge | None = None,
    ) -> TreeReplay | None:
        """Draft trees on a variant (default: the dump's feed). topk, num_draft_tokens: by default both are the launch line's; None where that
        says nothing of trees. Raises NotGiven, and ValueError for a tree that cannot be, or one whose tokens have no embedding rows."""
        from eaglelab.replay.tree import tree_replay

        line = self.launch if topk is None else None
        topk = topk or (line.eagle_topk if line else None) or 1
        nodes = num_draft_tokens or (line.num_draft_tokens if line else None)
        if topk == 1:
            return None
        rows, target_rows = self._rows_to_draft
        options = {"steps": steps or self.steps, "topk": topk, "num_draft_tokens": nodes, "target_embed": target_rows}
        options["unfinished"] = self.results.unfinished
        samples = self.samples if variant is None else self.replay_samples  # the dump's feed needs no state beyond the dump
        return tree_replay(self.drafter, samples, rows, variant or self.dump_feed, judge or self.judge, **options)

    def replay_named(self, label: str) -> Replay | None:
        """The finalist that carries a label, None where it was not run."""
        return next((r for r in self.replays[1] if r.variant.label == label), None)

    @cached_property
    def places(self) -> tuple[Replay, list[Replay]]:
        """The dump's feed, and each place of fc zeroed and one row late: what they cost."""
        return self.own_replay, self._places()

    @kept("the replays with a place of fc changed")
    def _places(self) -> list[Replay]:
        from eaglelab.replay import places_changed

        return self.replay_of(places_changed(self.feeds.dump), steps=1)

    @cached_property
    def engine_flags(self) -> Flags | None:
        """What the case's engine computes with these weights; None where the engine is not known, or is none."""
        from eaglelab.drafter.model import Flags
        from eaglelab.engines.computes import engine_flags, overwrites_embedding

        if self.engine is None or not self.engine.is_engine:
            return None
        loses = self.own_table and overwrites_embedding(self.engine)
        return Flags(**engine_flags(self.drafter.config, self.draft_config, self.engine), target_embedding=loses)

    @property
    def computed_flags(self) -> Flags | None:
        """`engine_flags`, None also where engine or config cannot be understood: the finding `replay.flags` says why."""
        try:
            return self.engine_flags
        except ValueError:
            return None

    @cached_property
    def other_choices(self) -> tuple[Replay, list[Replay]]:
        """The dump's feed, and the choices that trainers and engines make differently, one by one; last the target's lm_head, and before it
        the engine's own where it differs. Those that are far behind ran the beginning of each answer alone (`eaglelab.replay.race`)."""
        return self._choices[1][0], self._choices[1][1:]

    @property
    def choice_ranking(self) -> Ranking:
        """The config's choice (index 0) and all others, by accept length; by step 0 where no row has all steps."""
        return self._choices[0]

    @cached_property
    @kept("the replays of other choices")
    def _choices(self) -> tuple[Ranking, list[Replay]]:
        from dataclasses import replace

        from eaglelab.drafter.model import Flags
        from eaglelab.replay import other_choices, race
        from eaglelab.replay.race import rough

        base, config = replace(self.feeds.dump, label="as the config says"), self.drafter.config
        variants = [base, *other_choices(base, config, mapped=bool(self.drafter.d2t.any()), own_table=self.own_table)]
        always = [0]
        if self.computed_flags not in (None, Flags.of(config)):
            always.append(len(variants))
            variants.append(replace(base, flags=self.computed_flags, label=f"as {self.engine.title} computes it"))
        if self.with_targets_head is not None:
            variants.append(replace(base, label="the target's lm_head"))

        def run(wanted: Sequence[Variant], samples: Sequence[Sample]) -> list[Replay]:
            found = {base: replace(self.own_replay, variant=base)} if samples is self.samples else {}
            heads = {v: self.with_targets_head if v.label == "the target's lm_head" else None for v in wanted if v not in found}
            for head in dict.fromkeys(heads.values()):
                mine = [v for v, other in heads.items() if other is head]
                drafter = (head or self.drafter) if samples is self.samples else rough(head or self.drafter)
                found |= {r.variant: r for r in self.replay_of(mine, drafter=drafter, samples=samples)}
            return [found[v] for v in wanted]

        return race(run, variants, self.samples, step=None if self.own_replay.counts.complete else 0, always=always)

    @cached_property
    def with_targets_head(self) -> Drafter | None:
        """The drafter with the target's rows of lm_head in place of its own, as some engines and trainers share it; None where it has no
        other than these, or they are not at hand."""
        import copy

        from torch import nn

        from eaglelab.target.head import head_rows

        own = self.drafter
        borrowed = self.audit is not None and self.audit.borrowed
        if self.judge.head is None or borrowed or self.judge.head.lm_head.shape[1] != own.config.hidden_size:
            return None
        rows = head_rows(self.judge.head.lm_head, own.target_ids.cpu()).to(own.lm_head.weight)  # [Vd, H]
        other = copy.copy(own)
        other._modules = {**own._modules, "lm_head": nn.Linear(rows.shape[1], len(rows), bias=False, device="meta")}
        other.lm_head.weight = nn.Parameter(rows, requires_grad=False)
        return other

    def with_map(self, target_ids: Any) -> Replay:
        """The drafter's weights read by another vocabulary map, on the dump's feed, one step. target_ids: [Vd] int64.

        Raises NotGiven and ValueError where there is no replay.
        """
        import copy

        import torch

        own = self.drafter
        other = copy.copy(own)
        places = torch.arange(len(target_ids))
        other._buffers = {**own._buffers, "d2t": (target_ids.cpu() - places).to(own.d2t.device)}
        return self.replay_of([self.feeds.dump], drafter=other, steps=1)[0]

    @cached_property
    def fitting_choice(self) -> Replay:
        """The replay with the flags that the drafter fits: the config's where nothing is better beyond its interval."""
        base, others = self.other_choices
        every, ranking = [base, *others], self.choice_ranking
        ahead = [] if 0 in ranking.tied else [every[i] for i in ranking.order if i in ranking.tied]
        return next((r for r in ahead if r.variant.flags is not None), base)

    @cached_property
    @kept("the replay judged by a last state that is normed otherwise")
    def both_targets(self) -> tuple[Replay, Replay, tuple[int, int]]:
        """The dump's feed judged by the target's own choice, and by what a trainer takes for it that norms the last state the other way
        (once more, or not at all); and how often both choices are the same, of all trained positions. On a few samples: the head is read
        again. Raises NotGiven."""
        from dataclasses import replace

        from eaglelab.replay import Judge
        from eaglelab.replay.answers import trained_positions
        from eaglelab.replay.run import judged_again

        if self.last_fault:
            raise NotGiven("a last state to judge by", f"{self.last_fault}: see dump.last_state")
        if self.last_state.normed is None or self.judge.head is None or self.judge.head.norm is None:
            raise NotGiven(
                "the target's final norm and lm_head", "`[target] path` names the target's checkpoint; two tensors of it are enough"
            )
        other = Judge(self.judge.last, self.judge.head, norm_last=self.last_state.normed)
        samples = self._spread
        own = replace(self.own_replay, outcomes=tuple(o for o in self.own_replay.outcomes if o.key in {s.key for s in samples}))
        judged = judged_again(own, samples, other, self.drafter.target_ids.cpu())
        same = total = 0
        for s, one, two in zip(samples, self.judge.answers(samples), other.answers(samples), strict=True):
            at = trained_positions(s)
            same, total = same + int((one.token == two.token)[at].sum()), total + int(at.sum())
        return own, judged, (same, total)

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
        best = self.variants[ranking.order[0]].feed
        if 0 in ranking.tied:  # variant 0 is the dump's own feed
            return best if self.engine_fits_better else self.feeds.dump.feed
        return best if all(isinstance(s, str) or s < len(self.samples[0].slots) for s in best) else None

    @cached_property
    def engine_fits_better(self) -> bool:
        """Whether the engine's feed beats the dump's: one pair named beforehand, so without the correction for many."""
        from eaglelab.replay import difference

        served = self.replay_named("the engine's feed")
        return served is not None and difference(self.own_replay, served)[2] < 0

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

    @property
    def drafted_ids(self) -> Tensor:
        """[Vd] int64: the tokens that the drafter can say, without what a broken map makes of them."""
        said = self.drafter.target_ids.cpu()
        return said[(said >= 0) & (said < self.drafter.config.vocab_size)]

    @cached_property
    def _rows_to_draft(self) -> tuple[EmbeddingRows, EmbeddingRows | None]:
        """`_rows` and `boundary_rows` with the rows of the draft vocabulary, from wherever a whole table is at hand: a tree is fed what it drafts."""
        import torch

        from eaglelab.drafter.checkpoint import own_embedding
        from eaglelab.drafter.embedding import EmbeddingRows
        from eaglelab.target import TensorSource

        own, target, wider = self._rows(), self.boundary_rows, None
        ids = torch.cat([self._token_ids, self.drafted_ids]).unique()
        if self.target_rows is not None and self.case.drafter.embed is None:
            wider = EmbeddingRows(ids, TensorSource(self.case.target.path).embedding_rows(ids), self.target_rows.source)
        if own is not self.target_rows and self.case.drafter.path is not None:
            return own_embedding(self.case.drafter.path, ids) or own, wider or target
        return wider or own, wider or target


def _first_slot_of(wiring: Sequence[Boundary]) -> dict[Any, Any]:
    """Boundary -> the first slot that holds it."""
    return {b: slot for slot, b in reversed(list(enumerate(wiring))) if b is not None}
