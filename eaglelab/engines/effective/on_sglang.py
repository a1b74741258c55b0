"""A launch line of SGLang: the resolved settings, and the checks on them. Each check is a small function from a `Line` to findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eaglelab.engines.conventions import Engine
from eaglelab.engines.effective import options
from eaglelab.engines.effective.given import Given, as_written
from eaglelab.engines.effective.rules import Rules, neighbours, table, was_read
from eaglelab.engines.effective.sglang import CHAIN, EAGLES, FAMILY, SPEC_V2, TOKENS, Resolved, attention_dp, resolve, tree_nodes
from eaglelab.engines.launch import Launch
from eaglelab.engines.shell import Raw
from eaglelab.engines.target_config import TargetConfigError, target_shape
from eaglelab.findings import Finding, Status
from eaglelab.outside_json import text_part

ASKED = {
    "algorithm": "speculative_algorithm",
    "num_steps": "speculative_num_steps",
    "eagle_topk": "speculative_eagle_topk",
    "num_draft_tokens": "speculative_num_draft_tokens",
    "max_running_requests": "max_running_requests",
    "accept_threshold_single": "speculative_accept_threshold_single",
    "accept_threshold_acc": "speculative_accept_threshold_acc",
}


@dataclass(frozen=True)
class Line:
    """What the checks look at."""

    engine: Engine
    rules: Rules
    given: Given
    resolved: Resolved
    architecture: str | None
    target: Mapping[str, Any] | None
    """The text part of the target's config."""
    drafter: Mapping[str, Any] | None
    running: int | None
    graphs: bool

    @property
    def title(self) -> str:
        return self.engine.title

    @property
    def values(self) -> Mapping[str, Any]:
        return self.resolved.values

    @property
    def algorithm(self) -> str | None:
        return self.values["algorithm"]

    def fail(self, what: str, title: str, rule: str | None, claim: str, evidence: str, then: str, **numbers: Any) -> Finding:
        return self._finding(Status.FAIL, what, title, rule, claim, evidence, then, numbers)

    def ask(self, what: str, title: str, rule: str | None, claim: str, evidence: str, then: str, **numbers: Any) -> Finding:
        return self._finding(Status.CANNOT_TELL, what, title, rule, claim, evidence, then, numbers)

    def _finding(self, status, what, title, rule, claim, evidence, then, numbers) -> Finding:
        source = f" (read in {self.rules.read(rule)})" if rule else ""
        return Finding(f"flags.{what}", title, status, claim, f"{evidence}{source}.", numbers, then)


def read(
    launch: Launch, engine: Engine, target: Mapping[str, Any] | None, drafter: Mapping[str, Any] | None, running: int | None, graphs: bool
) -> tuple[dict[str, Any], dict[str, Any], list[Finding]]:
    """(given, effective, findings)."""
    near = neighbours(engine)
    rules = Rules(near[0])
    architecture = _architecture(target)
    given = Given(launch if launch.engine in (None, "sglang") else Launch(), options.options(engine, rules.version))
    resolved = resolve(given, rules, architecture)
    line = Line(engine, rules, given, resolved, architecture, None if target is None else text_part(target), drafter, running, graphs)
    findings = [finding for check in CHECKS for finding in check(line)]
    fragment = any(f.id == "flags.off" and f.status is Status.CANNOT_TELL for f in findings)
    if not fragment or engine.version is not None:  # what versions make of a line that names no algorithm is nothing
        findings = [*_version(line, near), *findings]
    refused = resolved.stop is not None or any(f.id in REFUSALS and f.status is Status.FAIL for f in findings)
    open_ = fragment or any(f.id in REFUSALS for f in findings)
    asked = {name: given.flags.get(option) for name, option in ASKED.items()}
    asked |= {name: _number(value) for name, value in asked.items() if name != "algorithm"}
    return asked, resolved.values | {"starts": False if refused else None if open_ else True}, findings


REFUSALS = ("flags.unknown", "flags.value", "flags.pipeline")
"""Findings that end the start-up."""


def _number(value: Any) -> Any:
    for kind in (int, float):
        try:
            return value if value is None or value is True else kind(value)
        except (TypeError, ValueError, OverflowError):
            continue
    return value


def _architecture(target: Mapping[str, Any] | None) -> str | None:
    if target is None:
        return None
    try:
        return target_shape(target).architecture
    except TargetConfigError:
        names = target.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _version(s: Line, near: tuple[str, ...]) -> Iterator[Finding]:
    """A version that nobody read: the nearest one speaks for it, and whether the other neighbour says the same."""
    if s.engine.version is None:
        yield _no_version(s)
        return
    if was_read(s.engine):
        return
    other = [_in_version(s, v) for v in near[1:]]
    differ = sorted(k for r in other for k in r.values if r.values[k] != s.values[k] or bool(r.stop) != bool(s.resolved.stop))
    if other and not differ:
        title = f"{s.title} was not read: {near[0]} and {near[1]}, which were, make the same of the line"
        yield Finding(
            "flags.version", title, Status.PASS, f"engine {s.engine}", "What lies between two versions that agree is taken to agree."
        )
    else:
        yield s.ask(
            "version",
            f"{s.title} was not read: the rules of {near[0]} are taken"
            + (f", and {near[1]} makes something else of the line: {', '.join(dict.fromkeys(differ))}" if differ else ""),
            None,
            f"engine {s.engine}",
            "What lies between two versions that were read is taken from the nearest one",
            "Compare with what the server logs at its start (server_args=…), or with /server_info.",
            **{name: {near[0]: s.values[name], near[1]: other[0].values[name]} for name in dict.fromkeys(differ)},
        )


def _in_version(s: Line, version: str) -> Resolved:
    return resolve(Given(s.given.launch, options.options(s.engine, version)), Rules(version), s.architecture)


def _no_version(s: Line) -> Finding:
    """The newest version speaks. Which of the others would say something else of what is drafted?"""
    read = table()["read"]["sglang"]
    told = {v: _in_version(s, v) for v in read}
    names = ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    differ = {n: {v: told[v].values[n] for v in read} for n in names if any(told[v].values[n] != s.values[n] for v in read)}
    stops = [v for v in read if bool(told[v].stop) != bool(s.resolved.stop)]
    claim, then = "engine sglang", "Give it: --engine sglang==VERSION, in a case `[engine] version`."
    if not differ and not stops:
        title = f"No version is given: what is drafted is the same in all that were read, {read[0]} to {read[-1]}"
        evidence = "Schedulers, graphs and options differ between them; what is said here of those is of the newest"
        return Finding("flags.version", title, Status.PASS, claim, f"{evidence}.", next=then)
    others = [v for v in read if v in stops or any(by[v] != s.values[n] for n, by in differ.items())]
    what = [*differ, *(["whether it starts"] if stops else [])]
    title = (
        f"No version is given: SGLang {read[-1]} is taken; in {', '.join(others)} the line leads to another answer on: {', '.join(what)}"
    )
    return s.ask("version", title, None, claim, "Rules and options differ between versions", then, **differ)


def _open_ended(s: Line) -> bool:
    """Whether there may be more on the line than could be read."""
    return bool(s.given.launch.problems) or any(isinstance(word, Raw) for word in s.given.launch.arguments)


def unknown_options(s: Line) -> Iterator[Finding]:
    """Words that the version's parser does not take: it stops at them. Without a version: those that no version takes that was read."""
    if s.given.known is None:
        return
    removed, read = s.rules.get("removed"), table()["read"]["sglang"]
    others = [] if s.engine.version else [Given(s.given.launch, options.options(s.engine, v)) for v in read[:-1]]
    for written, meant in s.given.meanings.items():
        if meant.name is not None:
            continue
        instead = removed["names"].get(written) if removed else None
        close = instead or options.nearest(written, s.given.known)
        several = f"it could be {' or '.join('--' + name for name in meant.could_be[:4])}" if meant.could_be else "it has no such option"
        nowhere = bool(others) and all(one.meanings[written].name is None for one in others)
        say = s.fail if nowhere or was_read(s.engine) else s.ask
        also = f", nor does any that was read, from {read[0]} on" if nowhere else ""
        yield say(
            "unknown",
            f"SGLang {s.rules.version} does not take {option(written)}: {several}{also}",
            None,
            as_written(written, s.given.launch.given[written]),
            f"All options of SGLang {s.rules.version} were looked up in its wheel; its parser stops at a word that is none of them",
            f"Write {close}."
            if close
            else "Write it in full."
            if meant.could_be
            else "Leave it out, or serve with the version that has it.",
        )


def deprecated(s: Line) -> Iterator[Finding]:
    row = s.rules.get("deprecated")
    for name, now in (row["names"] if row else {}).items():
        if s.given.has(name):
            title = f"{option(name)} still works in {s.title} and is to go: {now} is its name now"
            yield Finding(
                "flags.deprecated", title, Status.PASS, option(name), f"Read in {s.rules.read('deprecated')}.", next=f"Write {now}."
            )


def values(s: Line) -> Iterator[Finding]:
    """Values that are no numbers, and numbers that mean nothing."""
    numbers = {name: s.given.whole(name) for name in (*CHAIN, "max_running_requests")}  # read without an algorithm too: the parser does
    for text in s.given.refused.values():
        evidence = "The parser stops with 'invalid int value', 'invalid float value' or 'expected one argument'"
        yield s.fail("value", f"{s.title} does not start: {text}", None, text, evidence, "Mend the value.")
    if s.given.unknown:
        names = ", ".join(map(option, s.given.unknown))
        evidence = "A variable that the line does not set stands in its place"
        title = f"What {names} is cannot be read off the line"
        yield s.ask("value", title, None, names, evidence, "Write the value, or the line that sets the variable.")
    for name, number in numbers.items():
        if number is not None and number < 1 and not (number == 0 and s.values["adaptive"]):
            evidence = "No version that was read refuses it when it starts; what follows drafts nothing, or fails at the first batch"
            title, claim = f"{option(name)} is {number}, expected 1 or more", f"{option(name)} {number}"
            yield s.fail("count", title, None, claim, evidence, "Write 1 or more.")


def stopped(s: Line) -> Iterator[Finding]:
    """The rule at which the start-up ends."""
    stop = s.resolved.stop
    if stop is not None:
        how = "The parser refuses it" if stop.raises == "SystemExit" else f"A {stop.raises} ends the start-up"
        title = f"{s.title} does not start: {stop.title}"
        yield Finding(f"flags.{stop.what}", title, Status.FAIL, _chain(s), f"{how}: {stop.read}.", {}, stop.next)


def _chain(s: Line) -> str:
    told = [f"{option(n)} {s.given.flags[n]}" for n in ("speculative_algorithm", *CHAIN) if s.given.has(n)]
    return " ".join(told)[:300] or "no speculative flags"


def off(s: Line) -> Iterator[Finding]:
    """Speculative flags, or a drafter, without an algorithm: the engine serves without speculation."""
    flags = [n for n in s.given.flags if n.startswith("speculative_")]
    claim = " ".join(map(option, flags))[:300] or "no speculative flags; there is a drafter"
    if s.resolved.stop is not None or s.algorithm is not None or s.given.has("speculative_algorithm") or not s.given.launch.given:
        return
    if _open_ended(s):  # also where the line names no program
        if flags:
            title = f"No --speculative-algorithm on it: a fragment? {_with_eagle3(s)}"
            evidence = f"Without the algorithm's name {s.title} would serve without speculation"
            then = "Give the whole line, or add --speculative-algorithm EAGLE3"
            then += "." if s.engine.version else ", and the version, since rules differ: --engine sglang==VERSION."
            yield s.ask("off", title, None, claim, evidence, then)
    elif flags or s.drafter is not None:
        yield s.fail(
            "off",
            f"{s.title} serves without speculation: the line names no --speculative-algorithm",
            None,
            claim,
            "Without the algorithm's name no drafter is loaded and the other speculative flags are not looked at"
            + (f". {_with_eagle3(s)}" if flags else ""),
            "Add --speculative-algorithm EAGLE3.",
        )


def _with_eagle3(s: Line) -> str:
    """What the line's steps, top-k and draft tokens would become."""
    given = Given(s.given.launch, s.given.known)
    given.flags["speculative_algorithm"] = "EAGLE3"
    found, asked = resolve(given, s.rules, s.architecture), given.whole(TOKENS)
    steps, topk, tokens = found.chain
    title = f"SGLang {s.rules.version}"
    if found.stop is not None:
        return f"With EAGLE3 {title} would not start: {found.stop.title}"
    if steps is None or topk is None:
        return f"With EAGLE3 steps, top-k and draft tokens cannot be told: {found.open}"
    drafts = f"With EAGLE3 {title} would draft {steps} step{'s' * (steps != 1)} with top-k {topk}"
    if tokens is None:
        return f"{drafts}; the draft tokens are not given and have no default"
    return f"{drafts} and verify {tokens} tokens a pass" + (f", not the {asked} of the line" if asked not in (None, tokens) else "")


def algorithm(s: Line) -> Iterator[Finding]:
    """EAGLE for an EAGLE-3 drafter: no slots are captured (sgl-project/sglang PR#21272, #25673). And the other way round."""
    if s.drafter is None or s.algorithm is None:
        return
    third, name = is_eagle3(s.drafter), s.given.text("speculative_algorithm")
    if third and s.algorithm == "EAGLE":
        handed, own = (s.target or {}).get("hidden_size"), s.drafter.get("hidden_size")
        apart = isinstance(handed, int) and isinstance(own, int) and handed != own
        effect = (
            f", {handed} wide, which a drafter of hidden size {own} cannot take"
            if apart
            else " and its fc is passed over; the accept length is then about 1.00 (public reports: sgl-project/sglang PR#21272 and #25673)"
        )
        yield s.fail(
            "algorithm",
            f"{name} is given for an EAGLE-3 drafter: no slots are captured",
            None,
            f"--speculative-algorithm {name}; the drafter's architecture: {_first(s.drafter)}",
            f"With EAGLE (NEXTN is the same) the drafter is handed the target's last state alone{effect}",
            "Write --speculative-algorithm EAGLE3.",
        )
    elif third and s.algorithm not in EAGLES:
        yield s.fail(
            "algorithm",
            f"{name} is given for an EAGLE-3 drafter: it is not used as one",
            None,
            f"--speculative-algorithm {name}; the drafter's architecture: {_first(s.drafter)}",
            "Slots are captured for EAGLE3 alone",
            "Write --speculative-algorithm EAGLE3.",
        )
    if third is False and s.algorithm == "EAGLE3":
        yield s.fail(
            "algorithm",
            f"EAGLE3 is given, and the drafter ({_first(s.drafter)}) is none of EAGLE-3",
            None,
            "--speculative-algorithm EAGLE3",
            "The target then captures slots that this drafter has no fc for",
            "Write --speculative-algorithm EAGLE, or name the EAGLE-3 drafter.",
        )


def is_eagle3(config: Mapping[str, Any]) -> bool | None:
    """Whether a config.json is an EAGLE-3 drafter's; None where it does not say."""
    kind, name = config.get("speculators_model_type"), _first(config)
    if kind is not None:
        return kind == "eagle3"
    if name is None:
        return None
    third = "eagle3" in name.lower() or "eagle_config" in config or "draft_vocab_size" in config
    return third or (False if "eagle" in name.lower() else None)


def _first(config: Mapping[str, Any]) -> str | None:
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None


def draft_model(s: Line) -> Iterator[Finding]:
    """No path to a drafter."""
    if s.algorithm not in FAMILY or s.given.has("speculative_draft_model_path") or s.resolved.stop:
        return
    if s.resolved.draft_is_target and s.algorithm == "EAGLE":
        return
    if s.architecture is None and s.algorithm == "EAGLE":
        evidence = "Some targets bring a draft layer of their own, which is then taken; with the others the start-up ends"
        then = "Add --speculative-draft-model-path, or give the target's config."
        yield s.ask(
            "draft_model", f"No --speculative-draft-model-path: {s.title} needs one for most targets", None, _chain(s), evidence, then
        )
        return
    effect = (
        f"the target's own draft layer is taken, which is none of {s.algorithm}"
        if s.resolved.draft_is_target
        else "there is nothing to draft with, and the start-up ends"
    )
    then = "Add --speculative-draft-model-path DRAFTER."
    yield s.fail(
        "draft_model", f"{s.algorithm} without --speculative-draft-model-path: {effect}", None, _chain(s), effect.capitalize(), then
    )


def untold(s: Line) -> Iterator[Finding]:
    if s.resolved.open and not s.given.unknown and not s.given.refused:
        title = f"Steps, top-k and draft tokens cannot be told: {s.resolved.open}"
        yield s.ask("chain", title, None, _chain(s), "They are left open in the effective settings", "Give all three.")


def draft_tokens(s: Line) -> Iterator[Finding]:
    """A chain (top-k 1) verifies steps + 1 tokens, whatever the line asks for."""
    asked, (steps, topk, tokens) = s.given.whole(TOKENS), s.resolved.chain
    if asked is None or tokens is None or asked == tokens or steps < 1 or s.values["adaptive"]:
        return
    reach = f"an accept length above {tokens} cannot be reached"
    yield s.fail(
        "draft_tokens",
        f"{s.title} verifies {tokens} tokens a pass, not the {asked} of the line: with top-k {topk} the steps decide",
        "chain",
        _chain(s),
        f"With top-k 1 the draft tokens are set to steps + 1 = {tokens}, and a warning in the log is all that says so; {reach}",
        f"Say which was meant: --speculative-num-draft-tokens {tokens}"
        + (f", or --speculative-num-steps {asked - 1} --speculative-num-draft-tokens {asked}." if asked > 1 else "."),
        asked=asked,
        in_force=tokens,
        steps=steps,
    )


def tree(s: Line) -> Iterator[Finding]:
    """Draft tokens against what a tree of these steps and this top-k can hold, and against its depth."""
    steps, topk, tokens = s.resolved.chain
    if steps is None or topk is None or min(steps, topk) < 1 or s.algorithm not in FAMILY:
        return
    if tokens is None:
        evidence = "No default is put in where steps are given; the first draft then computes with None"
        then = f"Add --speculative-num-draft-tokens, at most {tree_nodes(steps, topk) + 1}."
        yield s.fail("tree", "No --speculative-num-draft-tokens beside steps and top-k", None, _chain(s), evidence, then)
    elif tokens - 1 > (nodes := tree_nodes(steps, topk)):
        yield s.fail(
            "tree",
            f"{tokens} draft tokens are asked of a tree that has {nodes} candidates: at most {nodes + 1} can be verified",
            None,
            _chain(s),
            f"{steps} steps with top-k {topk} draft topk + (steps - 1) * topk^2 = {nodes} candidates, of which the {tokens - 1} best are taken: "
            "torch.topk raises 'selected index k out of range' (SGLang 0.5.23, speculative/eagle_utils.py:97-110; PR#24054)",
            f"Write --speculative-num-draft-tokens {nodes + 1} or less, or more steps.",
            candidates=nodes,
            asked=tokens,
        )
    elif topk > 1 and tokens <= steps:
        evidence = (
            f"{tokens - 1} nodes below the root reach {tokens - 1} deep at most, so that the drafts of the last steps are never verified"
        )
        then = f"Write --speculative-num-draft-tokens {steps + 1} or more, or --speculative-num-steps {max(tokens - 1, 1)}."
        title = f"{steps} steps are drafted, and {tokens} draft tokens cannot hold a path that long"
        yield s.fail("tree", title, None, _chain(s), evidence, then, steps=steps, draft_tokens=tokens)


def page_topk(s: Line) -> Iterator[Finding]:
    asked, topk = s.given.whole("speculative_eagle_topk"), s.resolved.chain[1]
    if s.resolved.why.get("eagle_topk") and asked not in (None, topk):
        title = f"{s.title} drafts with top-k {topk}, not the {asked} of the line: pages hold more than one token"
        then = "Write --page-size 1, or --speculative-eagle-topk 1."
        yield s.fail(
            "page_size", title, "page", _chain(s), "Top-k is set to 1 where --page-size is above 1", then, asked=asked, in_force=topk
        )
    if note := s.resolved.why.get("page"):
        yield s.ask(
            "page_size", note, "page", _chain(s), "The default backend depends on the GPU", "Name the backend, or write --page-size 1."
        )


def running_requests(s: Line) -> Iterator[Finding]:
    """The default of 48 that comes with speculation, where it was in the way."""
    most = s.values["max_running_requests"]
    if s.algorithm is None or most is None or s.running is None or s.running < most:
        return
    own = s.given.has("max_running_requests")
    yield s.ask(
        "max_running_requests",
        f"{s.running} requests ran at the same time, and {most} is the most that {s.title} lets run",
        None if own else "running_requests",
        f"--max-running-requests {most}" if own else "no --max-running-requests",
        "Further requests wait" + ("" if own else "; with speculation the number is 48 where none is given, with a line in the log"),
        "If they wait (#queue-req in the log), give --max-running-requests a larger number and look at the memory that is left.",
        running=s.running,
        most=most,
    )


def graphs(s: Line) -> Iterator[Finding]:
    """Batches that run without a CUDA graph: the same accept length, fewer tokens a second (sgl-project/sglang PR#4247: 276 to 379 tok/s)."""
    if s.algorithm is None or not s.graphs or s.given.text("device") == "cpu":
        return
    on, largest = s.values["cuda_graph"], s.values["cuda_graph_max_bs"]
    flag, most = s.rules.get("graph_flags")["now"], s.values["max_running_requests"]
    if on is False:
        evidence = "Drafts of one token are short: without graphs launching them takes longer than computing them; one public report went from 276 to "
        evidence += "379 tok/s at the same accept length when graphs came (sgl-project/sglang PR#4247)"
        yield s.fail(
            "cuda_graph",
            "CUDA graphs are off for drafting and verifying",
            "graph_flags",
            _graph_flags(s),
            evidence,
            "Leave the switch out.",
        )
    elif largest is not None and s.running is not None and s.running > largest:
        yield s.fail(
            "cuda_graph",
            f"{s.running} requests ran at the same time, and graphs end at {largest}: such batches run without one",
            "graph_flags",
            _graph_flags(s),
            "A batch larger than the largest captured one runs eagerly, drafts and verify pass both",
            f"Write {flag} {s.running} or more.",
            running=s.running,
            largest=largest,
        )
    elif largest is not None and s.running is None and most is not None and most > largest:
        yield s.ask(
            "cuda_graph",
            f"Graphs end at {largest} requests, and up to {most} may run: larger batches run without one",
            "graph_flags",
            _graph_flags(s),
            "Whether such batches come is in the log: 'cuda graph: False' beside #running-req",
            f"Write {flag} {most}, or --max-running-requests {largest}.",
            largest=largest,
            most=most,
        )
    elif largest is None and s.running is not None:
        yield s.ask(
            "cuda_graph",
            f"Whether {s.running} requests at the same time had a graph cannot be told: the line gives no largest batch",
            "graph_flags",
            _graph_flags(s),
            "The default depends on the GPU's memory and on the tensor parallel size",
            f"Look for 'cuda graph: False' in the log, or write {flag} {s.running}.",
            running=s.running,
        )


def _graph_flags(s: Line) -> str:
    told = [f"{option(n)} {v if v is not True else ''}".strip() for n, v in s.given.flags.items() if "cuda_graph" in n]
    return " ".join(told)[:200] or "no flag about graphs"


def simulation(s: Line) -> Iterator[Finding]:
    """An accept length that a variable makes up."""
    row, length = s.rules.get("simulated"), s.values["simulated_accept_length"]
    if length is not None:
        claim = f"{row['variable']}={s.given.launch.env[row['variable']]}"
        evidence = "The real verify result is overwritten: accept length and tok/s are those of the variable, and the text is worth nothing"
        title = f"The accept length is made up: {row['variable']} puts {length:g} in its place"
        yield s.fail("simulated", title, "simulated", claim, evidence, f"Start the server without {row['variable']}.", length=length)


def overlap(s: Line) -> Iterator[Finding]:
    """SGLANG_ENABLE_SPEC_V2 where it has no effect."""
    row, set_to = s.rules.get("overlap"), s.given.launch.env.get(SPEC_V2)
    if set_to is None or s.algorithm not in FAMILY or row["mode"] not in ("flag", "never"):
        return
    how = "the variable is gone" if row["mode"] == "flag" else "this version does not read it"
    in_force = "on" if s.values["overlap_schedule"] else "off"
    meant = s.given.variable(SPEC_V2)
    if meant != s.values["overlap_schedule"]:
        title = f"{SPEC_V2}={set_to} has no effect in {s.title}: the overlap scheduler is {in_force}"
        then = "Write --disable-overlap-schedule to turn it off." if row["mode"] == "flag" else "Leave it out, or take a newer version."
        yield s.fail("overlap", title, "overlap", f"{SPEC_V2}={set_to}", how.capitalize(), then)


def mixed_chunk(s: Line) -> Iterator[Finding]:
    if not s.given.switch("enable_mixed_chunk") or s.algorithm not in FAMILY or s.resolved.stop:
        return
    claim = f"--enable-mixed-chunk with {s.algorithm}"
    if not s.values["mixed_chunk"]:
        evidence = "It is turned off with a warning in the log"
        yield s.fail("mixed_chunk", f"{s.title} turns --enable-mixed-chunk off", "mixed_chunk", claim, evidence, "Leave it out.")
    elif s.rules.get("mixed_chunk"):
        evidence = "In a pass that holds prefill and decode together the running requests take one token, undrafted"
        then = "Compare the accept length and tok/s with and without it under your load."
        yield s.ask("mixed_chunk", "With --enable-mixed-chunk part of the passes do not draft", "mixed_chunk", claim, evidence, then)


def thresholds(s: Line) -> Iterator[Finding]:
    """Accept thresholds below 1 take tokens that the target would not have."""
    for name in ("accept_threshold_single", "accept_threshold_acc"):
        value = s.values[name]
        if value is not None and value < 1:
            claim = f"{option('speculative_' + name)} {value:g}"
            evidence = (
                "Below 1 tokens are accepted that the target would not have drawn: the text is no longer the target's, and accept lengths "
            )
            evidence += "do not compare with those of 1"
            yield s.fail(
                "thresholds", f"Acceptance is loosened: {claim}", None, claim, evidence, "Write 1.0, or leave it out.", **{name: value}
            )


def token_map(s: Line) -> Iterator[Finding]:
    if s.algorithm == "EAGLE3" and s.given.has("speculative_token_map"):
        evidence = "EAGLE-3 checkpoints hold a map of their own, and this one is passed over with a warning"
        title = "--speculative-token-map has no effect with EAGLE3"
        yield s.fail(
            "token_map", title, "token_map", f"--speculative-token-map {s.given.text('speculative_token_map')}", evidence, "Leave it out."
        )


def adaptive(s: Line) -> Iterator[Finding]:
    if s.resolved.adaptive_off:
        evidence = "It falls back to the fixed steps, with a warning in the log"
        title = f"--speculative-adaptive is turned off: {s.resolved.adaptive_off}"
        yield s.fail("adaptive", title, "adaptive", _chain(s), evidence, "Mend that, or leave it out.")
    elif s.values["adaptive"]:
        row = s.rules.get("adaptive")
        claim = f"--speculative-adaptive {_chain(s)}"
        evidence = "The engine changes the steps by batch size and accept length while it runs" + (
            f"; its own list is {row['candidates']}" if "candidates" in row else ""
        )
        title = "Steps and draft tokens change while the server runs: those of the line are where it starts"
        yield s.ask(
            "adaptive", title, "adaptive", claim, evidence, "Measure a fixed setting without it, or read spec_num_steps off /metrics."
        )


def dummy(s: Line) -> Iterator[Finding]:
    own = s.given.text("speculative_draft_load_format")
    what = own or (s.given.text("load_format") if s.algorithm in FAMILY else None)
    if what == "dummy" and s.algorithm is not None:
        flag = "--speculative-draft-load-format" if own else "--load-format"
        evidence = "Its weights are random numbers, for profiling: nothing that it drafts is right"
        yield s.fail("dummy", f"The drafter is not loaded: {flag} dummy", None, f"{flag} dummy", evidence, "Leave it out.")


def rejection(s: Line) -> Iterator[Finding]:
    """Rejection sampling with a drafter of a smaller vocabulary."""
    if not s.values["rejection_sampling"] or not s.rules.get("rejection") or s.drafter is None or s.target is None or s.resolved.stop:
        return
    own, whole = s.drafter.get("draft_vocab_size"), s.target.get("vocab_size")
    if isinstance(own, int) and isinstance(whole, int) and own != whole:
        claim = f"--speculative-use-rejection-sampling; draft_vocab_size {own}, the target's vocab_size {whole}"
        title = f"{s.title} does not start: rejection sampling needs a drafter of the target's whole vocabulary"
        yield s.fail(
            "rejection_sampling", title, "rejection", claim, "A ValueError names both sizes", "Leave it out.", draft=own, target=whole
        )


def pipeline(s: Line) -> Iterator[Finding]:
    row, stages = s.rules.get("pipeline"), s.given.whole("pp_size")
    if row is None or s.algorithm is None or stages is None or stages < 2:
        return
    if row["allowed"] == "eagle_prefill" and s.algorithm == "EAGLE":
        return
    title = f"{s.title} does not start: {s.algorithm} with {stages} pipeline stages"
    then = "Write --pp-size 1, and more tensor parallel ranks where memory asks."
    yield s.fail("pipeline", title, "pipeline", f"--pp-size {stages}", "An assertion refuses it", then)


def temperature(s: Line) -> Iterator[Finding]:
    if s.algorithm in FAMILY and s.given.text("device") == "cpu" and s.rules.get("greedy_on_cpu"):
        evidence = "Tokens are verified by argmax there, without a word"
        title = "On the CPU the temperature is not applied: every answer is the greedy one"
        yield s.ask(
            "temperature", title, "greedy_on_cpu", "--device cpu", evidence, "Send temperature 0, and compare with nothing that sampled."
        )


def data_parallel(s: Line) -> Iterator[Finding]:
    if s.algorithm == "STANDALONE" and attention_dp(s.given) and not s.resolved.stop:
        title = f"{s.title} does not start: STANDALONE with data-parallel attention"
        yield s.fail("data_parallel", title, None, "STANDALONE, --enable-dp-attention", "A ValueError refuses it", "Leave one of both out.")


CHECKS = (
    unknown_options,
    deprecated,
    values,
    stopped,
    off,
    algorithm,
    draft_model,
    untold,
    draft_tokens,
    tree,
    page_topk,
    running_requests,
    graphs,
    simulation,
    overlap,
    mixed_chunk,
    thresholds,
    token_map,
    adaptive,
    dummy,
    rejection,
    pipeline,
    temperature,
    data_parallel,
)
