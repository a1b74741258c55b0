"""A launch line of vLLM: the speculative config as its own class reads it, and the checks on it. Read in vLLM 0.32.0.

vLLM drafts chains: top-k is 1, and `num_speculative_tokens` K makes K + 1 tokens of a verify pass.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eaglelab.engines.conventions import Engine
from eaglelab.engines.effective import options
from eaglelab.engines.effective.given import Given, as_written
from eaglelab.engines.effective.on_sglang import is_eagle3
from eaglelab.engines.effective.rules import neighbours, table, was_read
from eaglelab.engines.launch import VLLM_CONFIG_FLAGS, VLLM_SHORT_FLAGS, Launch, vllm_speculative_config
from eaglelab.engines.shell import Raw
from eaglelab.findings import Finding, Status

KEYS = (
    "algorithm",
    "num_steps",
    "eagle_topk",
    "num_draft_tokens",
    "max_running_requests",
    "cuda_graph",
    "cuda_graph_max_bs",
    "overlap_schedule",
    "radix_cache",
    "draft_tensor_parallel_size",
    "rejection_sample_method",
    "draft_sample_method",
)
REFUSALS = (
    "flags.unknown",
    "flags.value",
    "flags.keys",
    "flags.draft_tp",
    "flags.steps",
    "flags.algorithm_name",
    "flags.synthetic",
    "flags.sampling",
)
SYNTHETIC = ("synthetic_acceptance_rates", "synthetic_acceptance_length")


@dataclass(frozen=True)
class Line:
    """What the checks look at."""

    engine: Engine
    given: Given
    settings: Mapping[str, Any]
    """The speculative config, underscores for dashes."""
    values: dict[str, Any]
    drafter: Mapping[str, Any] | None
    running: int | None
    graphs: bool

    def fail(self, what: str, title: str, claim: str, evidence: str, then: str, read: str = "", **numbers: Any) -> Finding:
        source = f" (read in vLLM 0.32.0, {read})" if read else ""
        return Finding(f"flags.{what}", title, Status.FAIL, claim, f"{evidence}{source}.", numbers, then)

    def ask(self, what: str, title: str, claim: str, evidence: str, then: str, read: str = "", **numbers: Any) -> Finding:
        source = f" (read in vLLM 0.32.0, {read})" if read else ""
        return Finding(f"flags.{what}", title, Status.CANNOT_TELL, claim, f"{evidence}{source}.", numbers, then)


def read(
    launch: Launch, engine: Engine, target: Mapping[str, Any] | None, drafter: Mapping[str, Any] | None, running: int | None, graphs: bool
) -> tuple[dict[str, Any], dict[str, Any], list[Finding]]:
    """(given, effective, findings)."""
    version = neighbours(engine)[0]
    mine = launch if launch.engine in (None, "vllm") else Launch()
    given = Given(mine, options.options(engine, version))
    told = mine.settings if mine.engine else vllm_speculative_config(mine.given, [])  # bare flags, without a program
    settings = {key.replace("-", "_"): value for key, value in told.items()}
    line = Line(engine, given, settings, _values(given, settings, drafter), drafter, running, graphs)
    findings = [*_version(engine, version), *(finding for check in CHECKS for finding in check(line))]
    refused = any(f.id in REFUSALS and f.status is Status.FAIL for f in findings)
    unread = any("is no JSON object" in problem for problem in mine.problems)
    open_ = unread or any(f.id in REFUSALS for f in findings)
    asked = {
        "algorithm": settings.get("method"),
        "num_steps": whole(settings.get("num_speculative_tokens")),
        "eagle_topk": None,
        "num_draft_tokens": None,
        "max_running_requests": given.whole("max_num_seqs"),
    }
    return asked, line.values | {"starts": False if refused else None if open_ else True}, findings


def method_of(settings: Mapping[str, Any]) -> str | None:
    """The method that vLLM takes: as given, else by the draft model's path, `eagle-` before `eagle3`; None where nothing speculates.

    vLLM 0.32.0, config/speculative.py:1131-1145, :1327-1337.
    """
    if not settings:
        return None
    method, path = settings.get("method"), str(settings.get("model") or "")
    if method is None:
        if path in ("ngram", "[ngram]"):
            return "ngram"
        small = path.lower()
        return next(
            (name for part, name in (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash")) if part in small), "draft_model"
        )
    known = table()["vllm"]["methods"]
    return "mtp" if str(method).endswith("_mtp") and method not in known else str(method)


def whole(value: Any) -> int | None:
    """A whole number as pydantic takes it: 3, "3", 3.0; None for all else."""
    if isinstance(value, (bool, Raw)):
        return None
    try:
        return int(value) if float(value) == int(float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None


def _values(given: Given, settings: Mapping[str, Any], drafter: Mapping[str, Any] | None) -> dict[str, Any]:
    v: dict[str, Any] = dict.fromkeys(KEYS)
    v["algorithm"] = method = method_of(settings)
    v["max_running_requests"] = given.whole("max_num_seqs")
    v["radix_cache"] = False if given.switch("no_enable_prefix_caching") else None
    v["cuda_graph"] = False if given.switch("enforce_eager") else None
    if method is None:
        return v
    steps = whole(settings.get("num_speculative_tokens"))
    if "num_speculative_tokens" not in settings:
        steps = (drafter or {}).get("n_predict") or _speculators_steps(drafter)
    v["num_steps"] = steps if isinstance(steps, int) and steps > 0 else None
    v["eagle_topk"] = 1
    v["num_draft_tokens"] = None if v["num_steps"] is None else v["num_steps"] + 1
    v["rejection_sample_method"] = settings.get("rejection_sample_method", "standard")
    v["draft_sample_method"] = settings.get("draft_sample_method", "greedy")
    tp = given.whole("tensor_parallel_size") or 1
    v["draft_tensor_parallel_size"] = whole(settings.get("draft_tensor_parallel_size")) or tp
    overlapped = method in table()["vllm"]["overlapped"] and settings.get("disable_padded_drafter_batch") not in (True, "true", "True")
    v["overlap_schedule"] = overlapped and not given.switch("no_async_scheduling")
    sizes = _graph_sizes(given)
    if v["cuda_graph"] is None and sizes is not None:
        v["cuda_graph"] = max(sizes, default=0) > 0
        v["cuda_graph_max_bs"] = max(sizes, default=0) // v["num_draft_tokens"] if v["num_draft_tokens"] and v["cuda_graph"] else None
    return v


def _speculators_steps(drafter: Mapping[str, Any] | None) -> int | None:
    """`speculative_tokens` of a speculators config (transformers_utils/configs/speculators/base.py:121)."""
    part = (drafter or {}).get("speculators_config")
    methods = part.get("proposal_methods") if isinstance(part, Mapping) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    return whole(first.get("speculative_tokens")) if isinstance(first, Mapping) else None


def _graph_sizes(given: Given) -> list[int] | None:
    """Sizes of captured batches in tokens, as far as the line sets them."""
    sizes, top = given.sizes("cudagraph_capture_sizes"), given.whole("max_cudagraph_capture_size")
    config = given.mapping("compilation_config") or {}
    inner = config.get("cudagraph_capture_sizes")
    mode = str(config.get("cudagraph_mode", "")).upper()
    if mode == "NONE":
        return [0]
    if isinstance(inner, list) and all(isinstance(n, int) for n in inner):
        sizes = inner
    top = top if top is not None else whole(config.get("max_cudagraph_capture_size"))
    return sizes or ([top] if top is not None else None)


def _version(engine: Engine, version: str) -> Iterator[Finding]:
    if not was_read(engine):
        title = "No version is given" if engine.version is None else f"{engine.title} was not read"
        evidence = "Options and keys of the speculative config differ between versions."
        then = "Compare with what the server logs at its start (speculative_config=…)."
        if engine.version is None:
            then = f"Give it: --engine vllm==VERSION, in a case `[engine] version`. {then}"
        title = f"{title}: the rules of vLLM {version} are taken"
        yield Finding("flags.version", title, Status.CANNOT_TELL, f"engine {engine}", evidence, next=then)


def unknown_options(s: Line) -> Iterator[Finding]:
    if s.given.known is None:
        return
    removed = table()["vllm"]["removed_options"]
    for written, meant in s.given.meanings.items():
        if meant.name is not None:
            continue
        instead = removed.get(written) or options.nearest(written, s.given.known)
        evidence = "All options of vLLM 0.32.0 were looked up; its parser stops at a word that is none of them"
        say = s.fail if was_read(s.engine) else s.ask
        yield say(
            "unknown",
            f"vLLM 0.32.0 does not take --{written.replace('_', '-')}" + (": an option of earlier versions" if written in removed else ""),
            as_written(written, s.given.launch.given[written]),
            evidence,
            f"Write {instead}." if instead else "Leave it out.",
        )


def values(s: Line) -> Iterator[Finding]:
    for text in s.given.refused.values():
        yield s.fail("value", f"{s.engine.title} does not start: {text}", text, "The parser stops at it", "Mend the value.")
    say = s.fail if was_read(s.engine) else s.ask
    for name in VLLM_CONFIG_FLAGS:
        value = s.given.launch.given.get(name)
        if value is not None and not isinstance(value, (Raw, dict)) and not _json(value):
            flag = f"--{name.replace('_', '-')}"
            evidence, then = "The parser reads the value as JSON and stops where it is none", "Write it as JSON, in single quotes."
            title = f"vLLM 0.32.0 does not start: {flag} is no JSON"
            yield say("value", title, as_written(name, value), evidence, then, "engine/arg_utils.py:1826")


def _json(value: Any) -> bool:
    """Whether the parser takes it (engine/arg_utils.py:172-184): JSON, nothing, or None."""
    try:
        if value not in ("", "None"):
            json.loads(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def keys(s: Line) -> Iterator[Finding]:
    """Keys that SpeculativeConfig does not have: it refuses them."""
    known, removed = table()["vllm"]["fields"].split(), table()["vllm"]["removed_keys"]
    for key in s.settings:
        if key in known and key != "tensor_parallel_size":
            continue
        instead = removed.get(key) or next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.75)), None)
        yield s.fail(
            "keys",
            f"{s.engine.title} does not start: the speculative config has no key {key}",
            f"{key} = {s.settings[key]!r}"[:120],
            "Keys that the class does not have are refused",
            f"Write {instead}." if instead else "Leave it out.",
            table()["vllm"]["fields_read"],
        )
    if (both := [flag for flag, key in VLLM_SHORT_FLAGS.items() if s.given.has(flag) and _in_config(s, key)]) != []:
        flag = f"--{both[0].replace('_', '-')}"
        evidence = "A ValueError says that they are mutually exclusive"
        yield s.fail(
            "keys",
            f"{flag} stands beside the same key in --speculative-config",
            flag,
            evidence,
            "Leave one out.",
            "engine/arg_utils.py:2068-2081",
        )


def _in_config(s: Line, key: str) -> bool:
    config = s.given.launch.given.get("speculative_config", s.given.launch.given.get("sc"))
    return isinstance(config, str) and f'"{key}"' in config


def algorithm(s: Line) -> Iterator[Finding]:
    """A method that is unknown, or not the drafter's: vLLM captures layers for eagle3 alone."""
    method = s.values["algorithm"]
    if method is None:
        written = [n for n in s.given.launch.given if n.startswith("spec") and n not in table()["vllm"]["removed_options"]]
        launch = s.given.launch
        open_ended = launch.problems or any(isinstance(word, Raw) for word in launch.arguments)  # one that is no JSON is said elsewhere
        # A speculators folder that is served as the model brings its own speculative config (transformers_utils/config.py).
        by_itself = "speculators_model_type" in (s.drafter or {})
        if (written or (s.drafter is not None and launch.arguments and not by_itself)) and not open_ended:
            title = f"{s.engine.title} serves without speculation: no --speculative-config is read off the line"
            claim = ", ".join(written) or "no speculative flags; there is a drafter"
            yield s.fail("off", title, claim, "Nothing else turns it on", 'Write --speculative-config \'{"method": "eagle3", …}\'.')
        return
    if method not in table()["vllm"]["methods"]:
        near = next(iter(difflib.get_close_matches(method.lower(), table()["vllm"]["methods"], n=1)), "eagle3")
        evidence = f"It takes {', '.join(table()['vllm']['methods'])}, in small letters"
        title = f"{s.engine.title} does not start: {method!r} is no method of its speculative config"
        yield s.fail("algorithm_name", title, f"method = {method!r}", evidence, f"Write {near}.", "config/speculative.py:40-88")
        return
    third = None if s.drafter is None else is_eagle3(s.drafter)
    if (third and method != "eagle3") or (third is False and method == "eagle3"):
        how = "the line says so" if s.settings.get("method") else f"no method is given, and the path {s.settings.get('model')!r} decides"
        yield s.fail(
            "algorithm",
            f"{s.engine.title} takes the drafter as method {method}, and it is {'an' if third else 'no'} EAGLE-3 drafter",
            f"method = {s.settings.get('method')!r}, model = {s.settings.get('model')!r}",
            f"{how.capitalize()}; layers are captured for eagle3 alone",
            'Write "method": "eagle3".' if third else 'Write "method": "eagle", or name the EAGLE-3 drafter.',
            "config/speculative.py:1327-1337, v1/worker/gpu_model_runner.py:640",
        )


def steps(s: Line) -> Iterator[Finding]:
    if s.values["algorithm"] is None or s.values["num_steps"] is not None or s.values["algorithm"] == "suffix":
        return
    asked = s.settings.get("num_speculative_tokens")
    if isinstance(asked, Raw):
        yield s.ask(
            "steps", "What num_speculative_tokens is cannot be read off the line", str(asked), "A variable stands there", "Write the value."
        )
    elif asked is not None:
        title = f"{s.engine.title} does not start: num_speculative_tokens is {asked!r}, expected 1 or more"
        evidence = "The class asks for a whole number above 0"
        yield s.fail(
            "steps", title, f"num_speculative_tokens = {asked!r}", evidence, "Write 1 or more.", "config/speculative.py:393, :1826"
        )
    elif s.drafter is None:
        evidence = "It is read off the drafter's config where that has n_predict or is of speculators; else the start-up ends"
        yield s.ask(
            "steps",
            "num_speculative_tokens is not given",
            "no num_speculative_tokens",
            evidence,
            "Write it.",
            "config/speculative.py:1489-1507",
        )
    else:
        title = f"{s.engine.title} does not start: num_speculative_tokens is not given, and the drafter's config has none"
        evidence = "There is no default"
        yield s.fail(
            "steps", title, "no num_speculative_tokens", evidence, 'Write "num_speculative_tokens": 3.', "config/speculative.py:1503-1507"
        )


def draft_parallel(s: Line) -> Iterator[Finding]:
    own, whole_ = whole(s.settings.get("draft_tensor_parallel_size")), s.given.whole("tensor_parallel_size") or 1
    if own is not None and own not in (1, whole_):
        title = f"{s.engine.title} does not start: draft_tensor_parallel_size {own} is neither 1 nor the target's {whole_}"
        claim = f"draft_tensor_parallel_size = {own}, --tensor-parallel-size {whole_}"
        yield s.fail(
            "draft_tp",
            title,
            claim,
            "A ValueError says so",
            f"Write 1{f' or {whole_}' if whole_ > 1 else ''}.",
            "config/speculative.py:1712-1743",
        )


def synthetic(s: Line) -> Iterator[Finding]:
    """Acceptance that is made up, for measuring."""
    if s.values["rejection_sample_method"] == "synthetic":
        told = {key: s.settings[key] for key in SYNTHETIC if key in s.settings}
        evidence = "Draft tokens are accepted by chance at the rates given, right or wrong: counters and tok/s are made up, the text is worth nothing"
        title = "The acceptance is made up: rejection_sample_method is synthetic"
        yield s.fail(
            "simulated",
            title,
            f"{told or 'no rates'}"[:200],
            evidence,
            'Leave it out, or write "standard".',
            "config/speculative.py:535-556",
        )
    elif any(key in s.settings for key in SYNTHETIC):
        title = f"{s.engine.title} does not start: synthetic rates without rejection_sample_method synthetic"
        then = "Leave them out: they make the acceptance up."
        yield s.fail(
            "synthetic",
            title,
            ", ".join(k for k in SYNTHETIC if k in s.settings),
            "A ValueError says so",
            then,
            "config/speculative.py:1838-1849",
        )


def sampling(s: Line) -> Iterator[Finding]:
    """Names that the two sampling keys do not take, and synthetic acceptance without its rates."""
    for key, names in table()["vllm"]["sampling"].items():
        value = s.values[key]
        if value is not None and not isinstance(value, Raw) and value not in names:
            title = f"{s.engine.title} does not start: {key} is {value!r}"
            read = "config/speculative.py:89-90"
            yield s.fail(
                "sampling", title, f"{key} = {value!r}", f"It takes {', '.join(names)}", f"Write {names[0]}, or leave it out.", read
            )
    if s.values["rejection_sample_method"] == "synthetic" and len([key for key in SYNTHETIC if key in s.settings]) != 1:
        title = f"{s.engine.title} does not start: synthetic acceptance takes one of {' and '.join(SYNTHETIC)}"
        yield s.fail(
            "synthetic",
            title,
            "rejection_sample_method = 'synthetic'",
            "A ValueError says so",
            "Leave all of it out.",
            "config/speculative.py:559-566",
        )


def graphs(s: Line) -> Iterator[Finding]:
    v = s.values
    if v["algorithm"] is None or not s.graphs:
        return
    if v["cuda_graph"] is False:
        evidence = "Drafts of one token are short: without graphs launching them takes longer than computing them"
        claim = "--enforce-eager" if s.given.switch("enforce_eager") else "cudagraph_mode NONE, or sizes of 0"
        yield s.fail("cuda_graph", "CUDA graphs are off for drafting and verifying", claim, evidence, "Leave it out.")
    elif s.settings.get("enforce_eager") in (True, "true", "True"):
        evidence = "The target keeps its graphs; the drafter launches each kernel of its short steps alone"
        title = "The drafter runs without CUDA graphs: enforce_eager in the speculative config"
        then = "Leave it out."
        yield s.fail("cuda_graph", title, "enforce_eager = true", evidence, then, "v1/spec_decode/llm_base_proposer.py:428")
    elif (largest := v["cuda_graph_max_bs"]) is not None:
        run, seen = (s.running, True) if s.running is not None else (v["max_running_requests"], False)
        if run is not None and run > largest:
            tokens = v["num_draft_tokens"]
            say = s.fail if seen else s.ask
            yield say(
                "cuda_graph",
                f"Graphs end at {largest} requests, and {run} {'ran' if seen else 'may run'} at the same time: such batches run without one",
                f"capture sizes up to {largest * tokens} tokens and more; {tokens} tokens a request",
                f"Sizes count tokens: a request takes num_speculative_tokens + 1 = {tokens} of them in a verify pass",
                f"Write --max-cudagraph-capture-size {run * tokens}, or leave the sizes out.",
                table()["vllm"]["graph_read"],
                largest=largest,
                running=run,
            )
    elif s.running is not None and s.running > table()["vllm"]["graph_default"]:
        most = table()["vllm"]["graph_default"]
        title = f"{s.running} requests ran at the same time; by default graphs reach {most} (1024 on newer GPUs)"
        then = "Name the sizes, or look at the log's capture lines."
        yield s.ask("cuda_graph", title, "no capture sizes on the line", "It depends on the GPU", then, table()["vllm"]["graph_read"])


def running_requests(s: Line) -> Iterator[Finding]:
    most = s.values["max_running_requests"]
    if most is not None and s.running is not None and s.running >= most:
        title = f"{s.running} requests ran at the same time, and {most} is the most that --max-num-seqs lets run"
        then = "If they wait (Waiting: in the log), give it a larger number and look at the memory that is left."
        yield s.ask("max_running_requests", title, f"--max-num-seqs {most}", "Further requests wait", then, running=s.running, most=most)


def padded(s: Line) -> Iterator[Finding]:
    if s.settings.get("disable_padded_drafter_batch") not in (True, "true", "True") or s.values["algorithm"] is None:
        return
    read, claim = table()["vllm"]["overlap_read"], "disable_padded_drafter_batch = true"
    if s.given.switch("async_scheduling"):
        title = f"{s.engine.title} does not start: --async-scheduling with disable_padded_drafter_batch"
        yield s.fail("value", title, claim, "A ValueError says so", "Leave one of both out.", read)
    else:
        evidence = "Scheduling and computing then take turns, with a warning in the log"
        yield s.fail("overlap", "disable_padded_drafter_batch turns asynchronous scheduling off", claim, evidence, "Leave it out.", read)


def load(s: Line) -> Iterator[Finding]:
    config = s.settings.get("draft_load_config")
    own = isinstance(config, Mapping) and config.get("load_format") == "dummy"
    if s.values["algorithm"] and (own or (not config and s.given.text("load_format") == "dummy")):
        claim = "draft_load_config.load_format = dummy" if own else "--load-format dummy"
        yield s.fail(
            "dummy",
            f"The drafter is not loaded: {claim}",
            claim,
            "Its weights are random numbers: nothing that it drafts is right",
            "Leave it out.",
        )


def by_batch(s: Line) -> Iterator[Finding]:
    schedule = s.settings.get("num_speculative_tokens_per_batch_size")
    if schedule is not None and s.values["algorithm"]:
        evidence = "The number drafted changes with the batch while the server runs"
        title = "Steps and draft tokens change with the batch size: num_speculative_tokens is the most"
        then = "Read the accept length per batch size, or measure without the schedule."
        yield s.ask(
            "adaptive", title, f"num_speculative_tokens_per_batch_size = {schedule}"[:200], evidence, then, "config/speculative.py:497-503"
        )


CHECKS = (
    unknown_options,
    values,
    keys,
    algorithm,
    steps,
    draft_parallel,
    synthetic,
    sampling,
    graphs,
    running_requests,
    padded,
    load,
    by_batch,
)
