"""How far into a text the drafter holds: its rope and its positions beside the target's, acceptance by position, the server's beside the replay's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from eaglelab.acceptance import FEW_SAMPLES, ratios_apart
from eaglelab.checks.configs import CONFIG_HINT
from eaglelab.checks.lost import working_drafter
from eaglelab.checks.replay import ready_to_replay
from eaglelab.drafter.config import DrafterConfigError, normalise_rope
from eaglelab.engines.lint.positions import reach
from eaglelab.engines.rope import Rotation, first_difference, rotation
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.outside_json import text_part

if TYPE_CHECKING:
    from eaglelab.replay import Replay

MATTERS = 0.2
"""Share of the acceptance before a position that must be lost behind it to be called a fall: texts get harder and easier by a tenth on
their way (the example's samples by up to 8 %), a wrong rope takes most of it."""
KEYS = ("rope_theta", "rope_type", "factor", "original_max_position_embeddings", "partial_rotary_factor")
TRAINER_THETA = 10000.0
"""What trainers and engines take where a config names no theta."""


def rope(inv: Investigation) -> Iterator[Finding]:
    """The drafter's rotation against the target's, key by key and in numbers, and how far its positions reach. Nothing is run."""
    if inv.draft_config is None or inv.target_config is None:
        raise NotGiven("the drafter's or the target's config", CONFIG_HINT)
    own, target = _layer(inv.draft_config), text_part(inv.target_config)
    length, longest = reach(own), _longest_served(inv)
    looks = [_beside(own, theirs, length) for theirs in target_ropes(target).values()]
    ours, apart, turned, position, same = next((look for look in looks if look[-1]), looks[0])
    numbers = {
        "keys": apart,
        "position": position,
        "drafter_reach": length,
        "target_reach": reach(target),
        "longest_served": longest,
        "drafter": turned[0] and turned[0].summary,
        "target": turned[1] and turned[1].summary,
    }
    beyond = longest is not None and length is not None and longest > length
    words = "; ".join(f"{key} {_value(a)} instead of {_value(b)}" for key, (a, b) in apart.items())
    title = f"The drafter rotates positions as the target does (theta {ours['rope_theta']:g}, {ours['rope_type']})"
    if not same:
        title = f"The drafter's rope is not the target's: {words}"
        title += f"; more than 0.1 radian apart from position {position} on" if position is not None else ""
    if beyond:
        title += f"; its positions end at {length:,} and texts of {longest:,} tokens were served"
    yield Finding(
        id="context.rope",
        title=title,
        status=Status.PASS if same and not beyond else Status.CANNOT_TELL,
        claim=f"{inv.draft_config_name}: max_position_embeddings {own.get('max_position_embeddings', 'absent')}.",
        evidence=("" if None in turned or same else f"{_largest(turned)} ")
        + f"The drafter's positions reach {_count(length)}, the target's {_count(reach(target))}"
        + (f"; the longest text in the recording has {longest:,} tokens." if longest else ".")
        + ("" if same else " A drafter may have a rope of its own: it is right where it was trained with it."),
        numbers=numbers,
        next=""
        if same and not beyond
        else "Nobody has seen this drafter beyond its positions: look at context.knee on samples as long as what is served, or train on longer ones."
        if same
        else "Compare with the trainer's own config. With a dump context.rope_fit replays the drafter with both; "
        "the one that it was trained with belongs into the config that is served.",
    )


def _beside(own: Mapping[str, Any], target: Mapping[str, Any], length: int | None) -> tuple:
    """(the drafter's rope, keys that differ, both rotations, the position from which they part, whether they are the same)."""
    ours, theirs = normalise_rope(own), normalise_rope(target)
    apart = {key: [ours.get(key), theirs.get(key)] for key in KEYS if ours.get(key) != theirs.get(key)}
    turned = rotation(own), rotation(target)
    position = _parts(*turned)
    return ours, apart, turned, position, _same(turned, apart, position, length)


def target_ropes(target: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The target's config with each of its ropes alone, by the type of layer; most have one (""). The first is that of whole attention."""
    given, local = target.get("rope_parameters"), target.get("rope_local_base_freq")
    several = {name: r for name, r in given.items() if isinstance(r, Mapping)} if isinstance(given, Mapping) else {}
    if several:
        names = sorted(several, key=lambda name: (name != "full_attention", name))
        names = [n for i, n in enumerate(names) if several[n] not in [several[m] for m in names[:i]]]
        return {name: {**target, "rope_parameters": several[name], "rope_local_base_freq": None} for name in names}
    whole = {**target, "rope_local_base_freq": None}
    near = {"rope_theta": local, "rope_type": "default"}
    return {"": whole} if local is None else {"": whole, "local": {**whole, "rope_scaling": None, "rope_parameters": near}}


def _layer(config: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = config.get("transformer_layer_config")
    return nested if isinstance(nested, Mapping) else config


def _parts(own: Rotation | None, target: Rotation | None) -> int | None:
    """The first position at which two rotations differ; None where they never do, or cannot be compared."""
    return None if own is None or target is None or own.width != target.width else first_difference(own, target)


def _same(turned: tuple[Rotation | None, Rotation | None], apart: Mapping[str, Any], position: int | None, length: int | None) -> bool:
    """By the rotations where both are known (two configs may spell one in two ways), else by the keys."""
    if None in turned or turned[0].width != turned[1].width:
        return not apart
    return position is None or (length is not None and position >= length)


def _largest(turned: tuple[Rotation, Rotation]) -> str:
    if turned[0].width != turned[1].width:
        return f"The drafter rotates {turned[0].width} channels of a head, the target {turned[1].width}: only the keys are compared."
    return f"The frequencies of the {turned[0].width // 2} pairs of channels differ by up to {turned[0].largest(turned[1]):.3g} radian a position."


def _count(length: int | None) -> str:
    return "a length that its config does not name" if length is None else f"{length:,}"


def _value(value: Any) -> str:
    return "absent" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _longest_served(inv: Investigation) -> int | None:
    """Tokens of the longest prompt and answer of the recording; None without one (or with one that cannot be read: `served.acceptance`)."""
    try:
        requests = inv.recording.requests if inv.recording else ()
    except ValueError:
        return None
    return max((len(r.prompt_token_ids) + len(r.token_ids or ()) for r in requests), default=None)


def rope_fit(inv: Investigation) -> Iterator[Finding]:
    """Where the drafter's rope is not the target's, or acceptance falls with position: which rope does the drafter fit?"""
    ready_to_replay(inv)
    if inv.target_config is None:
        return
    ropes = _other_ropes(inv)
    shared = len([name for name in ropes if name != "the default"]) < len(target_ropes(text_part(inv.target_config)))
    if not ropes or (shared and not (inv.lost.fall is not None and inv.lost.fall.told)):
        return  # each rope is a replay: the default alone is tried where something falls
    from eaglelab.replay import difference, rank

    own, others = inv.own_replay, {name: _with_rope(inv, *rope) for name, rope in ropes.items()}
    step = None if own.counts.complete else 0
    ranking = rank([own, *others.values()], step=step)
    names = ["its config's", *others]
    best, first = names[ranking.order[0]], next(iter(others))
    gap, low, high = difference(own, others[first], step=step)
    ahead, behind = 0 not in ranking.tied, low > 0
    longest = max(len(s.token_ids) for s in inv.samples)
    yield Finding(
        id="context.rope_fit",
        title=f"The drafter fits {best} rope better than the one in its config"
        if ahead
        else f"The drafter fits its config's rope better than {first}"
        if behind
        else f"On samples of up to {longest:,} tokens the drafter fits its config's rope and {first} alike",
        status=Status.FAIL if ahead else Status.PASS if behind else Status.CANNOT_TELL,
        claim=f"The config's rope: {_rope_words(inv.drafter.config.rope)}.",
        evidence=f"Replays with nothing changed but the rope, over {inv.sampled}: accept length "
        + "; ".join(f"{_length(r)} with {n} ({_rope_words(x)})" for n, r, x in _listed(inv, own, others, ropes))
        + f". Its config's rope less {first}: {gap:+.3f} ({low:+.3f} to {high:+.3f}, 95 % by sample).",
        numbers={
            "ranking": ranking.table.assign(variant=[names[i] for i in ranking.order]).to_dict(orient="records"),
            "difference": [gap, low, high],
            "costs": float(ranking.table["acceptance"].max() - ranking.table["acceptance"].iloc[ranking.order.index(0)]),
            "best": ropes[best][0] if ahead else dict(inv.drafter.config.rope),
            "longest": longest,
        },
        next=f"Write {_rope_words(ropes[best][0])} into the config that is served."
        if ahead
        else ""
        if behind
        else "Longer samples decide: a wrong rope costs more the further on.",
    )


def _other_ropes(inv: Investigation) -> dict[str, tuple[dict[str, Any], int | None]]:
    """Ropes that the drafter may have been trained with instead of its config's, which turn otherwise within the samples' length."""
    target, own = text_part(inv.target_config), inv.drafter.config
    ropes = target_ropes(target).items()
    theirs = {f"the target's {name}".rstrip(): (normalise_rope(config), reach(target)) for name, config in ropes}
    longest = max(len(s.token_ids) for s in inv.samples)
    plain = {"rope_theta": TRAINER_THETA, "rope_type": "default"}
    width = {"head_dim": own.rotated_width, "max_position_embeddings": own.max_position_embeddings}
    ours = rotation({**width, "rope_parameters": own.rope})
    found = {}
    for name, (rope, length) in (theirs | {"the default": (plain, None)}).items():
        try:
            turned = rotation({**width, "max_position_embeddings": length or own.max_position_embeddings, "rope_parameters": rope})
        except DrafterConfigError:
            continue
        position = _parts(ours, turned)
        if position is not None and position < longest and all(rope != other for other, _ in found.values()):
            found[name] = (rope, length)
    return found


def _with_rope(inv: Investigation, rope: dict[str, Any], length: int | None) -> Replay:
    """The drafter's weights with another rope, on the dump's feed. Raises DrafterError for a rope that cannot be built."""
    import copy
    from dataclasses import replace

    from eaglelab.drafter.model import Rotary

    own = inv.drafter
    other = copy.copy(own)
    other.config = replace(own.config, rope=rope, max_position_embeddings=length or own.config.max_position_embeddings)
    other._modules = {**own._modules, "rotary": Rotary(other.config).to(own.fc.weight.device)}
    return inv.replay_of([inv.feeds.dump], drafter=other)[0]


def _listed(
    inv: Investigation, own: Replay, others: Mapping[str, Replay], ropes: Mapping[str, tuple[dict[str, Any], int | None]]
) -> list[tuple]:
    return [("its config's", own, inv.drafter.config.rope), *((name, r, ropes[name][0]) for name, r in others.items())]


def _length(result: Replay) -> str:
    return "not known" if result.counts.accept_length is None else f"{result.counts.accept_length:.3f}"


def _rope_words(rope: Mapping[str, Any]) -> str:
    rest = "".join(f", {key} {rope[key]:g}" for key in KEYS[2:] if isinstance(rope.get(key), (int, float)))
    return f"rope_theta {rope['rope_theta']:g}, rope_type {rope.get('rope_type', 'default')}{rest}"


def knee(inv: Investigation) -> Iterator[Finding]:
    """Step-0 acceptance by position: whether it falls from some position on, and what lies there."""
    if (said := working_drafter(inv, "context.knee", "From which position on it loses acceptance")) is not None:
        yield said
        return
    from eaglelab.lost.context import by_position

    found, own = inv.lost.fall, inv.drafter.config
    longest, length = max(len(s.token_ids) for s in inv.samples), reach(_layer(inv.draft_config))
    bins = by_position(inv.lost.rows)
    trained = f"it was trained on samples of up to {longest:,} tokens" if inv.case.dump.split == "train" else ""
    numbers = {"fall": found and vars(found), "longest": longest, "drafter_reach": length, "bins": bins.to_dict(orient="records")}
    seen = f"The longest of {inv.sampled} has {longest:,} tokens; the drafter's positions reach {_count(length)}" + (
        f"; {trained}." if trained else "."
    )
    if found is None:
        yield Finding(
            "context.knee",
            f"Whether acceptance falls with position cannot be told: fewer than {FEW_SAMPLES} samples are long enough",
            Status.CANNOT_TELL,
            evidence=seen,
            numbers=numbers,
            next="Read more samples (`--max-samples`), and dump texts as long as what is served.",
        )
        return
    rates = (
        f"Step 0 is right in {found.before:.1%} before position {found.position:,} and in {found.after:.1%} from it on (marginal, n = {found.n[0]:,} and "
        f"{found.n[1]:,}, {found.samples} samples; difference {found.difference[0]:+.1%}, {found.difference[1]:+.1%} to {found.difference[2]:+.1%} by sample); "
        f"chance alone falls as much in {found.chance:.1%} of the draws, over all positions tried."
    )
    if not (found.told and found.share >= MATTERS):
        yield Finding(
            "context.knee",
            f"Acceptance does not fall with position, up to {longest:,} tokens",
            Status.PASS,
            evidence=f"{rates} {seen}",
            numbers=numbers,
            next=""
            if length is None or longest >= length or longest >= (_longest_served(inv) or 0)
            else "Served texts are longer: dump some of their length to see further.",
        )
        return
    causes = _causes(inv, found, length)
    yield Finding(
        id="context.knee",
        title=f"From position {found.position:,} on step 0 is right in {found.after:.1%} instead of {found.before:.1%}"
        + (f": {causes[0]}" if causes else "; nothing in the configs says why"),
        status=Status.FAIL if causes else Status.CANNOT_TELL,
        claim=f"rope {_rope_words(own.rope)}, max_position_embeddings {_count(length)}",
        evidence=f"{rates} The position itself lies between {found.low:,} and {found.high:,} (95 % by sample). {seen}",
        numbers={**numbers, "causes": causes},
        next="Write the rope that it was trained with into the config (context.rope, context.rope_fit); or train it on texts as long as what is served."
        if causes
        else "Was it trained on shorter texts than these? Then train on longer ones. Or do these texts grow harder? Compare with others.",
    )


def _causes(inv: Investigation, found: Any, length: int | None) -> list[str]:
    """What in the configs explains a fall at that position."""
    causes = []
    if length is not None and found.high >= length:
        causes.append(f"the drafter's positions end at {length:,}")
    if inv.target_config is not None:
        own = _layer(inv.draft_config)
        looks = [_beside(own, theirs, length) for theirs in target_ropes(text_part(inv.target_config)).values()]
        position = None if any(look[-1] for look in looks) else looks[0][3]
        if position is not None and position <= found.high:
            causes.append(f"its rope and the target's part from position {position:,} on")
    return causes


def served_position(inv: Investigation) -> Iterator[Finding]:
    """Whether the server's acceptance falls along an answer where the replay of the same text does not: what only the engine can do."""
    recording = inv.served.recording
    if recording is None or not any(r.accepted for r in recording.requests):
        return
    try:
        found = inv.served.predicted(recording).prediction
    except (NotGiven, ValueError):  # `served.expected` says why
        return
    early, late = [], []
    for r in found.requests:
        n = min(len(r.request.accepted or ()), r.walk.whole)
        if n >= 4:  # two passes on either side
            halves = [(sum(side[a:b]), b - a) for side in (r.request.accepted, r.walk.accepted) for a, b in ((0, n // 2), (n // 2, n))]
            early.append((halves[0], halves[2]))
            late.append((halves[1], halves[3]))
    if len(early) < FEW_SAMPLES:
        return
    total = lambda side, which: sum(x[which][0] for x in side) / sum(x[which][1] for x in side)  # noqa: E731
    served, predicted = ((total(early, w), total(late, w)) for w in (0, 1))
    below = [ratios_apart([x[0] for x in side], [x[1] for x in side]) for side in (early, late)]
    if below[1][2] < 0 and below[1][2] < below[0][1] and served[1] < (1 - MATTERS) * served[0] < served[0]:
        yield Finding(
            id="served.position",
            title=f"The server accepts less and less along an answer ({1 + served[0]:.2f} in its first half of passes, {1 + served[1]:.2f} in its second) and the "
            "replay of the same text does not",
            status=Status.FAIL,
            claim="The drafter is fed the states of the text that the server itself wrote.",
            evidence=f"Predicted {1 + predicted[0]:.2f} and {1 + predicted[1]:.2f}. Served less predicted: {below[0][0]:+.2f} in the first halves, {below[1][0]:+.2f} "
            f"({below[1][1]:+.2f} to {below[1][2]:+.2f}) in the second, over {len(early)} requests.",
            numbers={"served": [1 + x for x in served], "predicted": [1 + x for x in predicted], "gap": below, "requests": len(early)},
            next="What grows along an answer is the engine's state: serve once without the prefix cache and once without graphs, and record again.",
        )
