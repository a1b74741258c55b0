"""What one version of SGLang makes of speculative flags: its own order of rules, with the numbers that come out of it.

Steps, top-k and draft tokens as in `Launch`: draft tokens are the nodes of a verify pass, the root included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eaglelab.engines.capabilities import table as capabilities
from eaglelab.engines.capabilities import usual_chain
from eaglelab.engines.conventions import Engine
from eaglelab.engines.effective.given import Given
from eaglelab.engines.effective.rules import Rules

EAGLES = ("EAGLE", "EAGLE3")
FAMILY = (*EAGLES, "STANDALONE")
"""Algorithms whose rules are worked out here."""
STEPS, TOPK, TOKENS = CHAIN = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
SPEC_V2 = "SGLANG_ENABLE_SPEC_V2"
KEYS = (
    "algorithm",
    "num_steps",
    "eagle_topk",
    "num_draft_tokens",
    "max_running_requests",
    "cuda_graph",
    "cuda_graph_max_bs",
    "overlap_schedule",
    "mixed_chunk",
    "radix_cache",
    "adaptive",
    "accept_threshold_single",
    "accept_threshold_acc",
    "rejection_sampling",
    "simulated_accept_length",
)


@dataclass(frozen=True)
class Stop:
    """Why the start-up ends."""

    what: str
    """The last part of the finding's id."""
    title: str
    raises: str
    """Class of the exception."""
    read: str
    next: str


class Stops(Exception):
    """Carries a `Stop` out of the rules."""

    def __init__(self, *parts: str) -> None:
        self.stop = Stop(*parts)
        super().__init__(self.stop.title)


@dataclass
class Resolved:
    """`values` by the names of `KEYS`; None: not known, or no such thing. `why`: name -> the rule that set it, with its source."""

    values: dict[str, Any] = field(default_factory=lambda: dict.fromkeys(KEYS))
    why: dict[str, str] = field(default_factory=dict)
    stop: Stop | None = None
    open: str | None = None
    """Why steps, top-k and draft tokens cannot be told, and what would tell."""
    adaptive_off: str | None = None
    """Why --speculative-adaptive has no effect."""
    draft_is_target: bool = False
    """The draft layer is taken from the target's own checkpoint."""

    @property
    def chain(self) -> tuple[int | None, int | None, int | None]:
        return self.values["num_steps"], self.values["eagle_topk"], self.values["num_draft_tokens"]


def resolve(given: Given, rules: Rules, architecture: str | None) -> Resolved:
    """architecture: the target's class, None where it is not known."""
    found = Resolved()
    v = found.values
    v["radix_cache"] = not given.switch("disable_radix_cache")
    v["max_running_requests"] = given.whole("max_running_requests")
    _graphs(given, rules, v)
    try:
        _algorithm(given, rules, v)
        if v["algorithm"] is not None:
            v["simulated_accept_length"] = simulated(given, rules)
        if v["algorithm"] in FAMILY:
            _family(given, rules, architecture, found)
        elif v["algorithm"] is not None:
            found.open = f"the rules of {v['algorithm']} are not worked out here, those of EAGLE, EAGLE3 and STANDALONE are"
            v["num_steps"], v["eagle_topk"], v["num_draft_tokens"] = (given.whole(name) for name in CHAIN)
    except Stops as stops:
        found.stop = stops.stop
        v["num_steps"] = v["eagle_topk"] = v["num_draft_tokens"] = None
    return found


def tree_nodes(steps: int, topk: int) -> int:
    """Candidates that a draft of `steps` steps and `topk` tokens a step has: topk + (steps - 1) * topk^2.

    SGLang 0.5.23, speculative/eagle_utils.py:97-110; sgl-project/sglang PR#24054.
    """
    return topk + (steps - 1) * topk**2


def chains(version: str) -> set[tuple[int, int, int]]:
    """All (steps, top-k, draft tokens) that a version takes by itself, whatever the target."""
    rows = (row for row in capabilities()["chains"] if row["family"] == "sglang")
    names = {None, *(name for row in rows for name in row["architectures"] if name != "*")}
    return {usual_chain(Engine("sglang", version), name) for name in names}


def attention_dp(given: Given) -> bool:
    """Whether attention runs data-parallel: `--attn-dp-size N`, or the older `--dp-size N --enable-dp-attention`."""
    size = given.whole("attn_dp_size") or (given.whole("dp_size") if given.switch("enable_dp_attention") else None)
    return (size or 1) > 1 or (given.switch("enable_dp_attention") and not given.has("dp_size"))


def simulated(given: Given, rules: Rules) -> float | None:
    """The accept length that the environment puts in the place of the real one; None where it does not."""
    row = rules.get("simulated")
    text = given.launch.env.get(row["variable"]) if row else None
    try:
        length = float(text) if text else None
    except ValueError:
        return None
    return length if length is not None and (row["any_value"] or length > 0) else None


def _algorithm(given: Given, rules: Rules, v: dict[str, Any]) -> None:
    name, row = given.text("speculative_algorithm"), rules.get("algorithms")
    if name is None:
        return
    name = name.upper() if row["any_case"] else name
    if name not in row["names"]:
        raise Stops(
            "algorithm",
            f"--speculative-algorithm {given.text('speculative_algorithm')} is no algorithm of SGLang {rules.version}",
            "ValueError" if row["any_case"] else "SystemExit",
            f"It knows {', '.join(row['names'])}" + (" and what a plugin registers" if row["any_case"] else "") + f" ({row['read']})",
            "Write one of these; EAGLE3 for an EAGLE-3 drafter.",
        )
    v["algorithm"] = "EAGLE" if name == "NEXTN" else name


def _family(given: Given, rules: Rules, architecture: str | None, found: Resolved) -> None:
    v, why = found.values, found.why
    own = rules.get("own_draft")
    found.draft_is_target = not given.has("speculative_draft_model_path") and bool(own) and architecture in own["architectures"]
    if not given.has("max_running_requests"):
        v["max_running_requests"] = rules.get("running_requests")["value"]
        why["max_running_requests"] = rules.read("running_requests")
    v["accept_threshold_single"] = 1.0 if not given.has(s := "speculative_accept_threshold_single") else given.real(s)
    v["accept_threshold_acc"] = 1.0 if not given.has(a := "speculative_accept_threshold_acc") else given.real(a)
    v["rejection_sampling"] = given.switch("speculative_use_rejection_sampling")
    steps, topk, tokens = (given.whole(name) for name in CHAIN)
    unreadable = [n for n in (*CHAIN, "page_size") if n in given.unknown or n in given.refused]
    if unreadable:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in unreadable)
        found.open = f"{options} cannot be read; write the numbers that the server is really started with"
    steps, topk, tokens = _adaptive_first(given, rules, found, steps, topk, tokens)
    v["overlap_schedule"] = _overlap(given, rules, v["algorithm"], topk)
    why["overlap_schedule"] = rules.read("overlap")
    row = rules.get("mixed_chunk")
    v["mixed_chunk"] = given.switch("enable_mixed_chunk") and (row is None or v["algorithm"] in row["kept"])
    if found.open:
        return
    steps, topk, tokens = _defaults(given, rules, architecture, found, steps, topk, tokens)
    if found.open:
        return
    backends = _backends(given)
    if rules.get("trtllm_mha") and "trtllm_mha" in backends and topk is not None and topk > 1:
        raise Stops(
            "backend",
            f"trtllm_mha takes top-k 1 alone, the line asks for {topk}",
            "ValueError",
            rules.read("trtllm_mha"),
            "Write --speculative-eagle-topk 1, or another attention backend.",
        )
    if topk is None and rules.get("steps_need_topk"):
        raise Stops(
            "chain",
            f"--speculative-num-steps {steps} without --speculative-eagle-topk, which then has no default",
            "TypeError",
            f"{rules.read('steps_need_topk')}: None is compared with 1",
            f"Give all three: --speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {steps + 1}.",
        )
    _rejection(given, rules, v, topk)
    if topk == 1 and rules.get("chain") and tokens != steps + 1:
        tokens = steps + 1
        why["num_draft_tokens"] = rules.read("chain")
    topk = _page(given, rules, found, topk)
    v["num_steps"], v["eagle_topk"], v["num_draft_tokens"] = steps, topk, tokens
    _adaptive_last(given, rules, found)


def _defaults(given: Given, rules: Rules, architecture: str | None, found: Resolved, steps, topk, tokens) -> tuple:
    """Steps, top-k and draft tokens where no steps are given."""
    if steps is not None:
        return steps, topk, tokens
    if topk is not None or tokens is not None:
        told = [f"--{name.replace('_', '-')}" for name in CHAIN[1:] if given.has(name)]
        raise Stops(
            "chain",
            f"{' and '.join(told)} without --speculative-num-steps: it is all three or none",
            "AssertionError",
            f"{rules.read('all_or_none')}: an assertion without a text",
            f"Add --speculative-num-steps{f' {tokens - 1}' if tokens and topk in (None, 1) and tokens > 1 else ''}.",
        )
    possible = {(3, 1, 4)} if found.values["algorithm"] == "STANDALONE" else chains(rules.version)
    if architecture is None and len(possible) > 1:
        found.open = (
            "they are not given, and what the engine takes by itself depends on the target's class: "
            f"{' or '.join(str(list(c)) for c in sorted(possible))} (steps, top-k, draft tokens); give the target's config"
        )
        return None, None, None
    chosen = next(iter(possible)) if len(possible) == 1 else usual_chain(Engine("sglang", rules.version), architecture)
    for name in ("num_steps", "eagle_topk", "num_draft_tokens"):
        found.why[name] = f"none of the three is given: the engine's own choice for {architecture or 'any target'}"
    return chosen


def _page(given: Given, rules: Rules, found: Resolved, topk: int | None) -> int | None:
    row, page = rules.get("page"), given.whole("page_size") or 1
    if row is None or page <= 1 or topk is None or topk <= 1:
        return topk
    if row.get("lowered"):
        found.why["eagle_topk"] = rules.read("page")
        return 1
    backend = given.text("attention_backend")
    if backend is None:
        found.why["page"] = (
            f"--page-size {page} with top-k {topk} starts on {', '.join(row['backends'])} alone, and the line names no --attention-backend"
        )
    elif backend not in row["backends"]:
        raise Stops(
            "page_size",
            f"Top-k {topk} with --page-size {page} does not start on {backend}: only {', '.join(row['backends'])} can do it",
            "ValueError",
            rules.read("page"),
            "Write --page-size 1, --speculative-eagle-topk 1, or one of these backends.",
        )
    return topk


def _backends(given: Given) -> set[str | None]:
    return {given.text(n) for n in ("attention_backend", "prefill_attention_backend", "decode_attention_backend")}


def _overlap(given: Given, rules: Rules, algorithm: str, topk: int | None) -> bool:
    mode, off = rules.get("overlap")["mode"], given.switch("disable_overlap_schedule")
    v2 = given.variable(SPEC_V2)
    if rules.get("cpu_overlap") and given.text("device") == "cpu":
        return False
    if mode == "never":
        return False
    if mode == "beta":
        return bool(v2) and (algorithm == "EAGLE" or not off)
    if mode == "v2":
        if v2 and topk is not None and topk > 1:
            raise Stops(
                "overlap",
                f"{SPEC_V2} takes top-k 1 alone, the line asks for {topk}",
                "ValueError",
                rules.read("overlap"),
                f"Write --speculative-eagle-topk 1, or leave {SPEC_V2} out.",
            )
        return bool(v2)
    if mode == "v2_chain" and topk is not None and topk > 1:
        return False
    return not off and (mode == "flag" or v2 is not False)


def _rejection(given: Given, rules: Rules, v: dict[str, Any], topk: int | None) -> None:
    if not v["rejection_sampling"] or not rules.get("rejection"):
        return
    thresholds = (v["accept_threshold_single"], v["accept_threshold_acc"])
    wants = [
        (v["algorithm"] in EAGLES, f"EAGLE or EAGLE3, not {v['algorithm']}", "NotImplementedError", "Leave it out."),
        (topk == 1, f"top-k 1, not {topk}", "ValueError", "Write --speculative-eagle-topk 1."),
        (thresholds == (1.0, 1.0), "accept thresholds of 1", "ValueError", "Leave the thresholds out."),
    ]
    for holds, wanted, raises, then in wants:
        if not holds:
            title = f"--speculative-use-rejection-sampling asks for {wanted}"
            raise Stops("rejection_sampling", title, raises, rules.read("rejection"), then)


def _adaptive_first(given: Given, rules: Rules, found: Resolved, steps, topk, tokens) -> tuple:
    """Newer versions: adaptive steps choose the chain before the other rules see it."""
    row = rules.get("adaptive")
    if row is None or not given.switch("speculative_adaptive"):
        found.values["adaptive"] = False
        return steps, topk, tokens
    found.values["adaptive"] = True
    if row["order"] != "early":
        return steps, topk, tokens
    found.adaptive_off = _no_adaptive(given, found.values["algorithm"], topk, none_counts=True)
    if found.adaptive_off:
        found.values["adaptive"] = False
        return steps, topk, tokens
    if given.has("speculative_adaptive_config"):
        if steps is None:
            found.open = "--speculative-adaptive-config names the steps, and that file is not read"
        return steps, topk or 1, None if steps is None else steps + 1
    candidates = row["candidates"]
    if steps is None:
        steps = candidates[len(candidates) // 2]
        found.why["num_steps"] = f"adaptive: it starts in the middle of {candidates}"
    _in_candidates(rules, steps, candidates)
    return steps, topk or 1, steps + 1


def _adaptive_last(given: Given, rules: Rules, found: Resolved) -> None:
    row = rules.get("adaptive")
    if not found.values["adaptive"] or row["order"] != "late":
        return
    found.adaptive_off = _no_adaptive(given, found.values["algorithm"], found.values["eagle_topk"], none_counts=False)
    found.values["adaptive"] = found.adaptive_off is None
    if found.values["adaptive"] and "candidates" in row and not given.has("speculative_adaptive_config"):
        _in_candidates(rules, found.values["num_steps"], row["candidates"])


def _in_candidates(rules: Rules, steps: int, candidates: list[int]) -> None:
    if steps not in candidates:
        raise Stops(
            "adaptive",
            f"--speculative-adaptive starts with one of {candidates} steps, the line asks for {steps}",
            "ValueError",
            rules.read("adaptive"),
            f"Write --speculative-num-steps {min(candidates, key=lambda c: (abs(c - steps), c))}, or leave the steps out.",
        )


def _no_adaptive(given: Given, algorithm: str, topk: int | None, none_counts: bool) -> str | None:
    if algorithm not in EAGLES:
        return f"it works with EAGLE and EAGLE3, not {algorithm}"
    if topk != 1 and not (topk is None and none_counts):
        return f"it works with top-k 1, not {topk}"
    if attention_dp(given):
        return "it does not work with data-parallel attention"
    switches = ("enable_multi_layer_eagle", "enable_two_batch_overlap", "enable_pdmux")
    wrong = next((name for name in switches if given.switch(name)), None)
    return f"it does not work with --{wrong.replace('_', '-')}" if wrong else None


def _graphs(given: Given, rules: Rules, v: dict[str, Any]) -> None:
    """Graphs of the decode and verify passes, as far as the line says: the default depends on the GPU's memory."""
    row = rules.get("graph_flags")
    off = given.switch(*row["off"])
    limits = [given.whole(name) for name in row["max_bs"] if given.has(name)]
    sizes = given.sizes(*row["sizes"])
    largest = max(sizes) if sizes else limits[0] if limits else None
    backend = given.text("cuda_graph_backend_decode")
    config = given.mapping("cuda_graph_config")
    decode = (config or {}).get("decode")
    if isinstance(decode, dict):  # above all other options (0.5.23, arg_groups/cuda_graph_hook.py:84-89)
        backend = str(decode.get("backend") or backend or "") or None
        bs, top = decode.get("bs"), decode.get("max_bs")
        whole = isinstance(bs, list) and bs and all(isinstance(b, int) for b in bs)
        largest = max(bs) if whole else top if isinstance(top, int) else largest
    if backend is not None:
        off = backend == "disabled"
    v["cuda_graph"] = False if off or given.text("device") == "cpu" else None if largest is None else True
    v["cuda_graph_max_bs"] = None if v["cuda_graph"] is False else largest
