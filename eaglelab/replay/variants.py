"""What is fed to the drafter in one replay, and the sets of variants worth comparing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice, permutations, product
from math import perm

from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.model import Flags

MOST_ORDERS = 64
"""Orders of slots that are compared: 8 slots in 7 places would have 40,320."""
EMBEDDING = "embedding"
Source = int | str
"""A slot of the dump, or EMBEDDING: the embedding row of the row's own token (boundary 0)."""

VOCABULARIES = {
    "d2t": "",  # offsets: target id = draft id + d2t[draft id]
    "identity": "identity vocabulary map",  # what an engine does when d2t is missing
    "up": "d2t moved by +1",
    "down": "d2t moved by -1",
    "ids": "d2t read as token ids",
}
"""Ways to read a vocabulary map, and their names."""


@dataclass(frozen=True)
class Variant:
    """One way of running the drafter over the same samples."""

    feed: tuple[Source, ...]
    """What goes into each place of fc, in order."""
    token_shift: int = 0
    """0: state g[t] goes with token x[t+1]. -1: with x[t]."""
    state_shift: tuple[int, ...] = ()
    """Rows by which each place's states are moved back (1: g[t-1] where g[t] belongs); empty for none."""
    zeroed: tuple[int, ...] = ()
    """Places whose states are replaced by zeros."""
    flags: Flags | None = None
    """Another choice than the config's."""
    vocabulary: str = "d2t"
    """How draft ids are read as target ids: a key of `VOCABULARIES`."""
    label: str = ""
    """A name of its own, for variants that carry one (the claim, the dump's wiring)."""

    @property
    def name(self) -> str:
        if self.label:
            return self.label
        parts = ["feed " + ", ".join(f"slot {s}" if isinstance(s, int) else s for s in self.feed)]
        if self.token_shift:
            parts.append(f"token shifted by {self.token_shift:+d}")
        parts += [f"place {p}'s states {by} row late" for p, by in enumerate(self.state_shift) if by]
        parts += [f"place {p} zeroed" for p in self.zeroed]
        if self.flags is not None:
            parts.append(", ".join(f"{k} {'on' if v else 'off'}" for k, v in vars(self.flags).items() if v) or "all flags off")
        if self.vocabulary != "d2t":
            parts.append(VOCABULARIES[self.vocabulary])
        return "; ".join(parts)


def slot_orders(slots: Iterable[int], places: int, base: Sequence[int] | None = None, limit: int = MOST_ORDERS) -> list[Variant]:
    """Ordered choices of `places` slots out of the dump's: all of them (24 for three places and four slots), or where these are more
    than `limit`, those that a mistake makes of `base` (by default the first slots), likelier mistakes first."""
    slots = tuple(slots)
    if perm(len(slots), places) <= limit:
        return [Variant(feed) for feed in permutations(slots, places)]
    near = mistakes(slots, tuple(base or slots[:places]))
    return [Variant(feed) for feed in islice(dict.fromkeys(near), limit)]


def mistakes(slots: Sequence[int], base: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The base feed; every place one slot up or down; turned round and rotated; two places swapped; one slot replaced by an unused one;
    all ascending choices."""
    yield base
    places = range(len(base))
    for by in (1, -1):
        if all(s + by in slots for s in base):
            yield tuple(s + by for s in base)
    yield base[::-1]
    yield from (base[by:] + base[:by] for by in (1, len(base) - 1))
    for p, q in combinations(places, 2):
        yield tuple(base[{p: q, q: p}.get(i, i)] for i in places)
    for p, other in product(places, [s for s in slots if s not in base]):
        yield (*base[:p], other, *base[p + 1 :])
    yield from combinations(slots, len(base))


def places_changed(base: Variant) -> list[Variant]:
    """For each place of the fused input: zeroed, and one row late. What they cost is how much the drafter uses that place."""
    count = len(base.feed)
    zeroed = [replace(base, zeroed=(p,), label="") for p in range(count)]
    late = [replace(base, state_shift=tuple(int(p == q) for q in range(count)), label="") for p in range(count)]
    return zeroed + late


def other_choices(base: Variant, config: DrafterConfig, mapped: bool = True, own_table: bool = False) -> list[Variant]:
    """Token shift either way, every flag that changes something for this drafter the other way round, and other readings of its map.

    mapped: the drafter has a vocabulary map other than the identity. own_table: it has an embedding table that is not the target's.
    """
    shifted = [replace(base, token_shift=by, label=f"token shifted by {by:+d}") for by in (-1, 1)]
    turned = [replace(base, flags=flags, label=name) for name, flags in turned_flags(config, own_table).items()]
    read = [replace(base, vocabulary=how, label=name) for how, name in VOCABULARIES.items() if name and mapped]
    return [*shifted, *turned, *read]


def turned_flags(config: DrafterConfig, own_table: bool = False) -> dict[str, Flags]:
    """Name -> the config's flags with one of them the other way round. What a checkpoint has no weights for cannot be turned on."""
    flags = Flags.of(config)
    post, after, unnormed = flags.post_norm_recurrence, flags.norm_before_residual, flags.skip_final_norm
    turned = {
        f"the next step starts from the {'pre' if post else 'post'}-norm state": {"post_norm_recurrence": not post},
        f"residual {'before' if after else 'after'} hidden_norm": {"norm_before_residual": not after},
        f"{'the' if unnormed else 'no'} final norm before lm_head": {"skip_final_norm": not unnormed},
    }
    if config.norm_before_fc or config.fc_norm:
        turned["no norm before fc"] = {"skip_fc_norms": True}
    if config.layer_type == "qwen3":
        turned["no norm of queries and keys"] = {"skip_qk_norm": True}
    if config.attention_bias:
        turned["no bias in attention"] = {"skip_attention_bias": True}
    if config.num_layers > 1:
        turned["no gain in further layers' input norm"] = {"skip_further_gain": True}
    if own_table:
        turned["the target's embedding in place of its own"] = {"target_embedding": True}
    return {name: replace(flags, **change) for name, change in turned.items()}


DOES = {
    "norm_before_residual": ("takes the residual before hidden_norm", "takes the residual after hidden_norm"),
    "post_norm_recurrence": ("starts the next step from the pre-norm state", "starts the next step from the post-norm state"),
    "skip_final_norm": ("norms before lm_head", "leaves out the norm before lm_head"),
    "skip_fc_norms": ("norms before fc", "leaves out the norm before fc"),
    "skip_qk_norm": ("norms queries and keys", "leaves out q_norm and k_norm"),
    "skip_attention_bias": ("adds the attention's biases", "leaves out the attention's biases"),
    "skip_further_gain": ("norms further layers' input with their gain", "norms further layers' input with a gain of one"),
    "target_embedding": ("keeps the drafter's embedding table", "puts the target's embedding in place of the drafter's"),
}
"""Field of `Flags` -> what somebody does who has it off, on."""

MENDS = {
    "norm_before_residual": ("Write `norm_before_residual: false`", "Write `norm_before_residual: true`"),
    "post_norm_recurrence": ("Remove norm_output, or write `norm_output: false`,", "Write `norm_output: true`"),
    "skip_final_norm": ("Remove norm_output", "Write SpecForge's `norm_output: false`"),
    "skip_fc_norms": ("", "Remove norm_before_fc and fc_norm"),
    "skip_qk_norm": ("", "Name a llama layer, not qwen3's,"),
    "skip_attention_bias": ("", "Write `attention_bias: false`"),
}
"""Field of `Flags` -> how to make a config say that it is off, on; what a config has no key for is left out."""


def mend(variant: Variant, config: DrafterConfig) -> str:
    """What to do about a drafter that fits one of `other_choices` better than its config and map."""
    if variant.vocabulary != "d2t":
        return "d2t is not the map that lm_head was trained with: export lm_head, d2t and t2d again, from one checkpoint."
    if variant.token_shift:
        return (
            "It was trained with tokens and states a row apart, and no engine serves that: have the trainer pair state t with token t + 1."
        )
    if variant.flags is None:  # the target's lm_head
        if config.draft_vocab_size < config.vocab_size:
            return "lm_head's rows and d2t disagree: export both again, from one checkpoint."
        return "lm_head is not the one that it was trained with: export it again, or leave it out for the target's."
    keys = [MENDS[name][getattr(variant.flags, name)] for name in differences(Flags.of(config), variant.flags) if name in MENDS]
    if keys:
        return f"{'. '.join(keys)} in the config; where the engine computes it otherwise (see config.*), serve with one that does not."
    if variant.flags.target_embedding:
        return "Leave embed_tokens out of the file: engines then take the target's."
    return "No key of a config says so: train again as the engines compute it."


def differences(flags: Flags, other: Flags) -> dict[str, str]:
    """What `other` does otherwise than `flags`: field -> in words, as the rest of a sentence."""
    return {name: DOES[name][bool(value)] for name, value in vars(other).items() if value != getattr(flags, name)}


def with_embedding(feed: Sequence[Source]) -> list[Variant]:
    """The embedding in each place of a feed, and in front with the last slot pushed out: how layer id -1 gets misread."""
    placed = [Variant(tuple(EMBEDDING if p == place else s for p, s in enumerate(feed))) for place in range(len(feed))]
    pushed = Variant((EMBEDDING, *feed[:-1]))
    return placed + [pushed] * (pushed not in placed)
