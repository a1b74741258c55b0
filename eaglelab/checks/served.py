"""The served side: what the server reached, whether the replay predicts it, whether it wrote the dump's text, and what its log tells."""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import TYPE_CHECKING

from eaglelab.acceptance import ratio_interval, ratios_apart
from eaglelab.checks.replay import ready_to_replay
from eaglelab.engines.conventions import Engine, parse_engine
from eaglelab.findings import Finding, Status, few
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.served import Recording
from eaglelab.served.published import published_for
from eaglelab.served_case import CLOSE, LIVE, Predicted, Reached

if TYPE_CHECKING:
    from eaglelab.served.predict import Prediction

TEXTS = {
    "identical": (Status.PASS, "The server writes the dump's text"),
    "near-ties": (Status.PASS, "The server writes the dump's text but for near-ties"),
    "other target": (Status.FAIL, "The server writes other text than the target that the case names"),
}
"""What a comparison of answers (`TextComparison.diagnosis`) makes of them."""
BARELY = 1.2
"""Accept length up to which a drafter can hardly pay for itself."""
MANY = 50
"""Verify passes from which "never" and "always" are said of a server."""
ANOTHER = 0.1
"""Relative difference of two accept lengths from which they are not called one run's: a log also holds what others asked."""
OTHER = (
    "The server was fed or computes something else: another drafter or config than the case's, a quantised target, a bug of prefix cache or "
    "graphs in this version. Record again with one thing changed at a time (`--disable-radix-cache`, graphs off, the dump's own target); "
    "`eaglelab live CASE --url … --capture DIR` captures what is fed."
)
"""What to do where the server reaches less than predicted."""
CHANGE = "The engine does what its config says: change the config. The finding wiring.match (`eaglelab check`, page 03) names the ids."


def acceptance(inv: Investigation) -> Iterator[Finding]:
    """What the server reached, in our definition."""
    side = inv.served
    if not side.given:
        raise NotGiven("a server's counters, recordings or log", f"{LIVE}; or name its log in `[engine] log`")
    reached = side.reached
    if reached is None:
        raise NotGiven("an accept length in what the server counted or printed", LIVE)
    counts, steps = reached.counts, len(reached.counts.joint) if reached.counts and reached.counts.joint else 0
    never = counts is not None and counts.verify_steps >= MANY and not counts.accepted
    always = steps > 0 and counts.verify_steps >= MANY and counts.joint[-1] == counts.verify_steps
    who = server_title(inv, reached.engine)
    told = "" if counts is None else f" in {counts.verify_steps:,} verify passes"
    length = f"{reached.accept_length:.2f}" + ", barely more than the 1.00 of no drafter at all" * (reached.accept_length <= BARELY)
    per_step = ", ".join(f"step {k} {counts.joint_rate(k):.1%}" for k in range(steps))
    evidence = f"{reached.source}: {reached.definition}."
    evidence += f" Joint acceptance: {per_step}." if per_step else " Acceptance by step is not told."
    if reached.interval is not None:
        evidence += " On other prompts like these, {:.2f} to {:.2f} (95 %).".format(*reached.interval)
    elsewhere = published_for(inv.target_config)
    if elsewhere:
        evidence += (
            f" Published for targets of this shape: {'; '.join(map(str, elsewhere))}. Other prompts and settings make other lengths."
        )
    evidence += "".join(f" {note[0].upper()}{note[1:]}." for note in (*reached.notes, *_incomplete(side.recording)))
    yield Finding(
        id="served.acceptance",
        title=f"{who} accepted no drafted token{told}"
        if never
        else f"{who} accepted every drafted token{told}: no drafter is always right"
        if always
        else f"{who} counted{told}: accept length {length}"
        if counts is not None
        else f"{who} told in {reached.source}: accept length {length}",
        status=Status.FAIL if never or always else Status.PASS,
        claim="Accept length: tokens per verify pass, the bonus token included.",
        evidence=evidence,
        numbers={
            "accept_length": reached.accept_length,
            "interval": reached.interval,
            "source": reached.source,
            "counts": None if counts is None else counts.to_json(),
            "published": [{"accept_length": p.accept_length, "setting": p.setting, "thread": p.thread} for p in elsewhere],
        },
        next="A drafter without lm_head or map, EAGLE in place of EAGLE3, no states captured, NaN: see drafter.complete and wiring.engine."
        if never
        else "Is simulated acceptance left on (SGLANG_SIMULATE_ACC_LEN)? Unset it and measure again."
        if always
        else "",
    )


def _incomplete(recording: Recording | None) -> list[str]:
    """What a recording lacks, one sentence each."""
    if recording is None:
        return []
    lacks = {"requests got no answer": len(recording.failures), "lines were cut off or damaged and are not read": recording.cut_lines}
    return [f"{n} {what}" for what, n in lacks.items() if n] + ["the recording was not ended"] * (not recording.ended)


# -- served beside predicted ---------------------------------------------------------------------------------------------------------


def expected(inv: Investigation) -> Iterator[Finding]:
    """The served accept length beside the walk on the same text, for the wiring that was fed and for the one trained on."""
    side = inv.served
    if not side.given or side.reached is None:
        return
    ready_to_replay(inv)
    recording = side.recording
    counted = recording is not None and recording.counts is not None
    yield _on_the_same_text(inv, recording) if counted else _on_other_text(inv, side.reached)


def _on_the_same_text(inv: Investigation, recording: Recording) -> Finding:
    """A recording's answers, walked through. What the config costs is a failure, though the server does what the config says."""
    side, right = inv.served, inv.served.right_wiring
    if recording.session.temperature:
        title = f"The recording was sampled at temperature {recording.session.temperature:g}, and the walk predicts greedy servers alone"
        return Finding("served.expected", title, Status.CANNOT_TELL, next=f"Record greedily: {LIVE}.")
    fed = side.predicted(recording)
    other = side.predicted(recording, right) if right is not None and right != fed.wiring else None
    who = server_title(inv, parse_engine(recording.session.engine) if recording.session.engine else None)
    served, predicted = fed.served, fed.predicted
    if served is None or predicted is None:
        title = "The recorded answers are too short to predict a verify pass"
        return Finding("served.expected", title, Status.CANNOT_TELL, next="Record longer answers: `eaglelab live CASE --url … `.")
    as_right = other is not None and bool(other.equal) and fed.equal is False
    costs = bool(fed.equal) and other is not None and _more(fed, other)
    on = f"on {len(fed.pairs)} of {len(recording.requests)} prompts"
    beside = "" if other is None else f"; the right wiring {other.wiring} predicts {other.predicted:.2f}"
    if fed.equal:
        title = f"{who} reached {served:.2f} {on}, as predicted for boundaries {fed.wiring} ({predicted:.2f}){beside}"
    elif as_right:
        title = (
            f"{who} reached {served:.2f} {on}, what the right wiring {other.wiring} predicts ({other.predicted:.2f}), and not the {predicted:.2f} of "
            f"boundaries {fed.wiring}, which its config names"
        )
    else:
        how = "Whether it is as predicted cannot be told: " if fed.equal is None else ""
        title = f"{how}{who} reached {served:.2f} {on}, the replay of boundaries {fed.wiring} predicts {predicted:.2f}{beside}"
    text = "the same text" if fed.same_text else "the same prompts; the answers part from the dump's"
    return Finding(
        id="served.expected",
        title=title,
        status=Status.CANNOT_TELL if fed.equal is None else Status.PASS if fed.equal and not costs else Status.FAIL,
        claim=f"{who} feeds {fed.wiring}, by its rule and the config that it was served with.",
        evidence=f"{len(fed.pairs)} requests of {len(recording.requests)}, {text}: served less predicted {_apart(fed.gap)}; "
        f"called equal within {CLOSE:.0%}. {_step_by_step(fed.prediction)}".rstrip(),
        numbers={
            "fed": fed.to_json(),
            "right": None if other is None else other.to_json(),
            "as_fed": bool(fed.equal),
            "as_right": as_right,
            "same_text": True,
            "engine": recording.session.engine and parse_engine(recording.session.engine).name,
        },
        next=_what_next(inv, fed, costs, as_right),
    )


def _more(fed: Predicted, other: Predicted) -> bool:
    """Whether the other wiring predicts more for the same requests, beyond chance and by what is worth a word."""
    if len(fed.pairs) != len(other.pairs):
        return False
    ours, theirs = ([(p.accepted, p.verify_steps) for _, p in side.pairs] for side in (fed, other))
    gain, low, _ = ratios_apart(theirs, ours)
    return low > 0 and gain > CLOSE * fed.predicted


def _apart(gap: tuple[float, float, float]) -> str:
    """A difference and its interval; a zero has no sign."""
    less, low, high = (f"{round(n, 3) + 0.0:+.3f}".replace("+0.000", "0.000") for n in gap)
    return f"{less} (95 % by request {low} to {high})" if isfinite(gap[1]) else f"{less} (of one request, without an interval)"


def _step_by_step(found: Prediction) -> str:
    """How far the engine's own counts are those of the walk."""
    told = [r for r in found.requests if r.equal is not None]
    if found.differing is not None:
        return f"Pass by pass, {found.compared - found.differing:,} of {found.compared:,} accepted what the walk accepts."
    return (
        f"{sum(r.equal for r in told)} of {len(told)} requests have the walk's own histogram, {found.compared:,} verify passes."
        if told
        else ""
    )


def _what_next(inv: Investigation, fed: Predicted, costs: bool, as_right: bool) -> str:
    if as_right:
        return "Find the config that this server read: it is not the case's. `[engine] draft_config` names it."
    if fed.equal is None:
        return "More prompts tell: `eaglelab live` with more samples of the dump."
    if costs:
        own = inv.served_wiring is None or inv.served_wiring.wiring == fed.wiring
        return CHANGE if own else "Serve the case's config: this server read another one (see served.flags)."
    if fed.equal:
        return ""
    if fed.served < fed.predicted:
        return OTHER
    return (
        "The server was fed something that fits better, drafted in another way (more steps, a tree), or served another drafter: compare "
        "served.flags and the config that it read."
    )


def _on_other_text(inv: Investigation, reached: Reached) -> Finding:
    """Totals or a log: whose text it was is not known, so what is predicted for the dump's answers is a range."""
    if reached.engine is not None and inv.engine is not None and reached.engine.name != inv.engine.name:
        title = f"The accept length is {reached.engine.title}'s ({reached.source}), the case names {inv.engine.title}: what was fed is not known"
        return Finding(
            "served.expected", title, Status.CANNOT_TELL, next="Name the engine that served in `[engine]`, with the config that it read."
        )
    own, fed = inv.own_replay, inv.feeds.engine
    served = own if fed is not None and fed.feed == inv.feeds.dump.feed else None if fed is None else inv.replay_named("the engine's feed")
    if served is None or served.walk is None or not served.walk.verify_steps:
        why = inv.feeds.engine_reason if served is None else "there is no walk through these samples (see replay.expected)"
        return Finding(
            "served.expected", f"What the server should reach cannot be predicted: {why}", Status.CANNOT_TELL, next="See replay.engine."
        )
    ranges = {name: _range(r) for name, r in (("fed", served), ("right", own)) if r.walk is not None and r.walk.verify_steps}
    inside = {name: low * (1 - CLOSE) <= reached.accept_length <= high * (1 + CLOSE) for name, (_, low, high) in ranges.items()}
    apart = served is not own and not (inside["fed"] and inside.get("right"))
    who, wiring = server_title(inv, reached.engine), inv.engine_wiring.wiring
    mean, low, high = ranges["fed"]
    beside = f"; the dump's feed predicts {own.walk.accept_length:.2f}" if served is not own else ""
    as_right = served is not own and not inside["fed"] and inside.get("right", False)
    agrees = inside["fed"] and (served is own or apart)
    costs = agrees and apart and "right" in ranges and ranges["right"][1] > reached.accept_length * (1 + CLOSE)
    title = f"{who} reached {reached.accept_length:.2f}" + (
        f", as predicted for boundaries {wiring} ({mean:.2f}){beside}"
        if agrees
        else f", about what the dump's feed predicts ({own.walk.accept_length:.2f}), and not the {mean:.2f} of boundaries {wiring}, which its config names"
        if as_right
        else f", the replay of boundaries {wiring} predicts {mean:.2f}{beside}: on other text that may be"
    )
    return Finding(
        id="served.expected",
        title=title,
        status=Status.FAIL if costs else Status.PASS if agrees else Status.CANNOT_TELL,
        claim=f"{who} feeds {wiring}. Served: {reached.source}.",
        evidence=f"Predicted on the dump's answers, not on the text that was served: {mean:.2f}, on other text like it {low:.2f} to {high:.2f} (95 % by sample).",
        numbers={
            "served": reached.accept_length,
            "predicted": ranges,
            "as_fed": agrees,
            "as_right": as_right,
            "same_text": False,
            "engine": reached.engine and reached.engine.name,
            "outside": not any(inside.values()),
        },
        next=CHANGE if costs else "" if agrees else f"Compare on the same text: {LIVE}.",
    )


def _range(result) -> tuple[float, float, float]:
    """(accept length, low, high) of a replay's walk."""
    walks = [o.walk for o in result.outcomes]
    low, high = ratio_interval([sum(w) for w in walks], [len(w) for w in walks])
    return result.walk.accept_length, 1 + low, 1 + high


def server_title(inv: Investigation, said: Engine | None) -> str:
    """The engine that a source names; with the case's version where it names none, and the case's where it names no engine."""
    case = inv.engine
    if said is None or (case is not None and said.name == case.name and said.version is None):
        return "The server" if case is None else case.title
    return said.title


# -- text, flags, log ------------------------------------------------------------------------------------------------------------------


def text(inv: Investigation) -> Iterator[Finding]:
    """The served answers beside the dump's to the same prompts: the same target, in the same arithmetic?"""
    if not inv.served.given or inv.dump is None:
        return
    if inv.served.recording is None:
        raise NotGiven("a recording of the server's answers", LIVE)
    compared = inv.served.text(inv.served.recording)
    kind, said = compared.diagnosis
    if kind == "not compared":
        raise NotGiven("an answer in tokens to a prompt of the dump's samples in the recording", LIVE)
    status, title = TEXTS.get(kind, (Status.CANNOT_TELL, "Whether the server writes the dump's text cannot be told"))
    if kind == "other text" and compared.table["gap"].notna().any():  # the target itself prefers what was served
        status, title = Status.NOT_APPLICABLE, "The dump's answers are not the target's own greedy text, so the server's differ"
    yield Finding(
        id="served.text",
        title=f"{title}: {compared.identical} of {len(compared.table)} answers are the same to the end",
        status=status,
        claim="The dump's answers are the served target's own, to the same prompts.",
        evidence=f"{said}.",
        numbers={k: v for k, v in compared.to_json().items() if k != "text"},
        next="Serve the very checkpoint that wrote the dump's answers, unquantised and greedily, or dump this server's answers and train on them."
        if status is Status.FAIL
        else "",
    )


def flags(inv: Investigation) -> Iterator[Finding]:
    """What the server says it runs with, beside the case's engine and config and what its launch line leads to."""
    side = inv.served
    if not side.given:
        return
    ran = side.settings
    if not ran:
        raise NotGiven("the flags that the server runs with", f"a log from the server's start on holds them; so does a recording: {LIVE}")
    asked = side.asked
    pairs = [(source, name, value) for source, said in ran.items() for name, value in said.items() if name in asked]
    written = inv.launch if inv.engine is not None and inv.engine.version is None else None  # what becomes of it is then not known
    apart = [
        (source, name, value)
        for source, name, value in pairs
        if not _same_setting(asked[name], value) and not (written is not None and value == getattr(written, name, None))
    ]
    both, differ = list(dict.fromkeys(name for _, name, _ in pairs)), list(dict.fromkeys(name for _, name, _ in apart))
    first = {name: value for _, name, value in reversed(apart)}
    said = "; ".join(f"{name} = {first[name]}, not {asked[name]}" for name in differ)
    merged = {name: value for source in reversed(ran.values()) for name, value in source.items()}
    yield Finding(
        id="served.flags",
        title=f"The server runs with other settings than the case says: {said}"
        if apart
        else f"The server runs with the case's settings: {', '.join(both)}"
        if both
        else "Nothing that the case says of its settings can be held against the server's own words",
        status=Status.FAIL if apart else Status.PASS if both else Status.CANNOT_TELL,
        claim="; ".join(f"{name} = {value}" for name, value in asked.items()),
        evidence=" ".join(
            f"{source[0].upper()}{source[1:]}: {'; '.join(f'{name} = {value}' for name, value in told.items())}."
            for source, told in ran.items()
        ),
        numbers={"asked": _plain(asked), "ran": _plain(merged), "apart": differ},
        next="Find out which launch line and config this server was started with, and put these into the case (or start it with the case's)."
        if apart
        else "",
    )


def parity(inv: Investigation) -> Iterator[Finding]:
    """The dump beside states captured from the running server: the direct proof of what it feeds."""
    folder = inv.case.engine.capture
    if folder is None:
        return
    from eaglelab.capture.parity import parity_of

    found = parity_of(inv, folder)
    wrong = "; ".join(s.sentence() for s in found.slots if s.verdict not in ("same", "not compared"))
    titles = {
        Status.PASS: "The server feeds the dump's own states: captured and dumped are the same, slot by slot",
        Status.FAIL: f"The server feeds other states than the dump's: {wrong}",
    }
    yield Finding(
        id="served.parity",
        title=titles.get(
            found.status, f"Whether the server feeds the dump's states cannot be told from the capture{': ' * bool(wrong)}{wrong}"
        ),
        status=found.status,
        claim=f"What the dump feeds, slots {list(found.feed)}, is what the server feeds.",
        evidence=found.summary,
        numbers=found.to_json(),
        next="See wiring.match for the ids that feed what the dump holds." if found.status is Status.FAIL else "",
    )


def _same_setting(asked: object, ran: object) -> bool:
    """Versions are compared where both are told, a build's own suffix (`+cpu`) left out."""
    if isinstance(asked, Engine) and isinstance(ran, Engine):
        versions = [e.version.split("+")[0] for e in (asked, ran) if e.version is not None]
        return asked.name == ran.name and len(set(versions)) < 2
    return str(asked).lower() == str(ran).lower()


def _plain(settings: dict[str, object]) -> dict[str, object]:
    return {name: str(value) if isinstance(value, Engine) else value for name, value in settings.items()}


def _span(low: float, high: float) -> str:
    """What a range says as it is printed: equal ends are one number."""
    first, last = f"{low:.2f}", f"{high:.2f}"
    return f"lies between {first} and {last}" if first != last else f"is {first}"


def log(inv: Investigation) -> Iterator[Finding]:
    """What the log's lines tell together: starts, graphs, an accept length that never moves, falls, or differs between ranks."""
    if inv.case.engine.log is None:
        return
    from eaglelab.served import over_time

    log, table = inv.served.log, inv.served.log.table
    lines = over_time.passes(table)
    if lines.empty:
        title = f"No line of the log tells an accept length ({log.lines:,} lines read)"
        how = "Is speculation on? SGLang prints `accept len` in its decode lines, vLLM a SpecDecoding line unless log stats are off."
        yield Finding("served.log", title, Status.CANNOT_TELL, next=how)
        return
    starts, low, high = int(table["start"].max()) + 1, lines["accept_length"].min(), lines["accept_length"].max()
    yield Finding(
        id="served.log",
        title=f"The log's accept length {_span(low, high)} in {len(lines):,} lines",
        status=Status.PASS,
        claim="; ".join(lines["accept_definition"].dropna().unique()[:3]),
        evidence=f"{starts} start{'s' if starts > 1 else ''} of the server in {log.lines:,} lines of the log. {_rates(lines)}".strip(),
        numbers={"lines": len(lines), "low": low, "high": high, "starts": starts},
    )
    yield from _of_another_run(inv)
    yield from _graphs(inv, over_time.graphs(table))
    if (alike := over_time.constant(table)) is not None:
        yield Finding(
            "served.log.constant",
            f"Every line of the log has the same accept length, {alike:.2f}: it is simulated, or nothing is measured",
            Status.FAIL,
            evidence=f"{len(lines):,} lines; real ones vary with the text.",
            numbers={"accept_length": alike, "lines": len(lines)},
            next="Unset SGLANG_SIMULATE_ACC_LEN and start the server again.",
        )
    falls = [c for c in over_time.trends(table) if over_time.fell(c)]
    if falls:
        listed = few([f"{c.before:.2f} to {c.after:.2f} in {c.name} ({c.low:+.2f} to {c.high:+.2f})" for c in falls], 4, "; ")
        yield Finding(
            "served.log.trend",
            f"The accept length falls with uptime: {listed}",
            Status.FAIL if len(falls) > 1 else Status.CANNOT_TELL,
            evidence="First third of the lines against the last, of each start. "
            + (
                "It falls again after a restart, so the server's state is at fault, not the traffic."
                if len(falls) > 1
                else "The traffic may have changed meanwhile."
            ),
            numbers={"starts": [vars(c) for c in falls]},
            next="Send the same prompts to a fresh and to an old server (`eaglelab live`); then without the prefix cache (`--disable-radix-cache`, "
            "`--no-enable-prefix-caching`): blocks that are read before they are written do this.",
        )
    if (apart := over_time.ranks(table)) is not None:
        yield Finding(
            "served.log.ranks",
            f"The ranks differ: {apart.name.replace(' and ', f' reaches {apart.before:.2f}, ')} {apart.after:.2f}",
            Status.CANNOT_TELL,
            evidence=f"Difference {apart.after - apart.before:+.2f} ({apart.low:+.2f} to {apart.high:+.2f}) over {apart.lines:,} lines.",
            numbers=vars(apart),
            next="Do the ranks get the same traffic? Then one of them runs other weights, flags or code.",
        )


def _of_another_run(inv: Investigation) -> Iterator[Finding]:
    """The log beside the counters: another engine, or another accept length, is another run."""
    counted, logged = inv.served.by_counters, inv.served.by_log
    if counted is None or logged is None:
        return
    engines = [r.engine for r in (counted, logged) if r.engine is not None]
    other = len(engines) == 2 and not _same_setting(*engines)
    spans = [r.interval or (r.accept_length,) * 2 for r in (counted, logged)]
    apart = abs(counted.accept_length - logged.accept_length) > ANOTHER * counted.accept_length
    if other or (apart and max(low for low, _ in spans) > min(high for _, high in spans)):
        yield Finding(
            "served.log.counters",
            f"The log is of another run than the counters: {logged.accept_length:.2f} in {logged.source}, {counted.accept_length:.2f} in {counted.source}",
            Status.CANNOT_TELL,
            claim="`[engine] log` and `counters` are of one server.",
            evidence=" and ".join(dict.fromkeys(e.title for e in engines)) + " wrote them." if other else "Their intervals do not meet.",
            numbers={"log": logged.accept_length, "counters": counted.accept_length},
            next="Name the log and the counters of one and the same run.",
        )


def _rates(lines) -> str:
    kinds = lines["rate_definition"].dropna().unique()
    words = {"accepted_share": "accepted of all drafted tokens", "length_share": "accept length over draft tokens"}
    return f"Its accept rate is {' and '.join(words.get(k, k) for k in kinds)}." if len(kinds) else ""


def _graphs(inv: Investigation, by_batch) -> Iterator[Finding]:
    """Passes that ran without a captured graph, by batch."""
    off, lines = int(by_batch["off"].sum()), int(by_batch["lines"].sum())
    if not lines:
        return
    cpu, said = inv.served.on_cpu, {"by_batch": by_batch.to_dict(orient="records"), "off": off, "lines": lines}
    if not off or cpu:
        title = (
            "Every decode line ran as a captured graph" if not off else f"{off:,} of {lines:,} decode lines ran without a graph, on a CPU"
        )
        yield Finding("served.log.graphs", title, Status.PASS, numbers=said)
        return
    on = by_batch.loc[by_batch["off"] < by_batch["lines"], "running"]
    largest = int(on.max()) if len(on) else 0
    above = by_batch.loc[by_batch["off"] > 0, "running"]
    yield Finding(
        "served.log.graphs",
        f"{off:,} of {lines:,} decode lines ran without a captured graph, at {int(above.min())} to {int(above.max())} running requests",
        Status.FAIL,
        claim="Graphs are on unless a flag or the batch size turns them off.",
        evidence=f"The largest batch with a graph had {largest} requests." if largest else "No decode line ran as a graph.",
        numbers=said,
        next="Raise `--cuda-graph-max-bs` to the batch that is served (its memory is taken from the cache)."
        if largest
        else "Is `--disable-cuda-graph` (vLLM: `--enforce-eager`) on the launch line? Each pass then pays its launches one by one.",
    )
