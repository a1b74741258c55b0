"""What a launch line says that does not go with an EAGLE-3 drafter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from eaglelab.drafter.config import first_architecture
from eaglelab.engines.capabilities import holds, limit
from eaglelab.engines.config_ids import config_ids
from eaglelab.engines.effective.on_vllm import method_of
from eaglelab.engines.effective.rules import Rules, neighbours
from eaglelab.engines.lint.subject import Subject, whole
from eaglelab.engines.shell import Raw
from eaglelab.findings import Finding, Status


def launch(s: Subject) -> Iterator[Finding]:
    """What of the line could not be read."""
    if s.launch is None:
        return
    if s.launch.problems:
        yield Finding(
            id="config.launch",
            title="The launch line cannot be read in full: " + "; ".join(s.launch.problems),
            status=Status.CANNOT_TELL,
            evidence="What could not be read counts as not given.",
            next="Mend the launch line in case.toml, with the values that the server was really started with.",
        )


def algorithm(s: Subject) -> Iterator[Finding]:
    """EAGLE where EAGLE3 is meant: no slots are captured (reports of accept lengths of exactly 1.00). Or no EAGLE-3 at all."""
    if s.launch is None or s.launch.engine != s.engine.name:
        return
    open_ended = s.launch.problems or any(isinstance(word, Raw) for word in s.launch.arguments)
    said = (s.launch.algorithm or "").upper() if s.sglang else s.launch.settings.get("method")
    if s.launch.settings and not s.sglang:
        yield from _vllm_method(s, s.launch.settings)
    elif s.sglang and said in ("EAGLE", "NEXTN"):
        width = whole(s.target_text, "hidden_size")
        fits = width in (None, s.drafter.hidden_size)
        effect = "fc is passed over without an error. The accept length is then about 1.00."
        yield Finding(
            id="config.algorithm",
            title=f"The launch line says {s.launch.algorithm}, the drafter is an EAGLE-3 drafter: no slots are captured"
            + (" and fc is skipped" if fits else ""),
            status=Status.FAIL,
            claim=f"--speculative-algorithm {s.launch.algorithm}",
            evidence="SGLang captures layers only for EAGLE3; with EAGLE the drafter is handed the target's last state alone: "
            + (effect if fits else f"{width} wide, which its fc of {s.drafter.num_slots} slots cannot multiply."),
            next="Start the server with --speculative-algorithm EAGLE3.",
        )
    elif (s.sglang and said != "EAGLE3" and (said or not open_ended)) or not (s.sglang or s.speculators or open_ended):
        given = s.launch.given.get("speculative_algorithm", s.launch.given.get("speculative_algo"))
        flag = "--speculative-algorithm EAGLE3" if s.sglang else 'a --speculative-config with "method": "eagle3"'
        yield Finding(
            id="config.algorithm",
            title=f"The launch line starts {s.title} "
            + (f"with {given}, not EAGLE3" if given else "without speculation")
            + ": the drafter is not used as an EAGLE-3 drafter",
            status=Status.FAIL,
            claim=f"speculative flags on the line: {[name for name in s.launch.given if name.startswith('spec')] or 'none'}",
            evidence="Without the algorithm's name no drafter is loaded, and with another one no layers are captured for it.",
            next=f"Start the server with {flag}.",
        )


def draft_tokens(s: Subject) -> Iterator[Finding]:
    """A chain (top-k 1) verifies steps + 1 tokens, whatever the line asks for."""
    if s.launch is None or not s.sglang or s.launch.eagle_topk != 1:
        return
    steps, asked = s.launch.num_steps, s.launch.num_draft_tokens
    rules = Rules(neighbours(s.engine)[0])
    if steps is not None and asked is not None and asked != steps + 1 and rules.get("chain"):
        yield Finding(
            id="config.draft_tokens",
            title=f"{s.title} verifies {steps + 1} tokens a pass, not the {asked} of the launch line: with top-k 1 the steps decide",
            status=Status.CANNOT_TELL,
            claim=f"--speculative-num-steps {steps} --speculative-eagle-topk 1 --speculative-num-draft-tokens {asked}",
            evidence=f"With top-k 1 the draft tokens are set to steps + 1, with a warning in the log alone ({rules.read('chain')}).",
            numbers={"asked": asked, "in_force": steps + 1},
            next=f"Say which was meant: --speculative-num-draft-tokens {steps + 1}"
            + (f", or --speculative-num-steps {asked - 1}." if asked > 1 else "."),
        )


def _vllm_method(s: Subject, settings: Mapping[str, Any]) -> Iterator[Finding]:
    """vLLM 0.32.0, config/speculative.py:1139, :1327-1337: without a method the draft model's path decides, `eagle-` before `eagle3`."""
    path, guessed, method = str(settings.get("model") or ""), settings.get("method") is None, method_of(settings)
    if method == "eagle3":
        return
    effect = {
        "eagle": "it then hands the drafter the target's last state alone and captures no slots"
        if s.speculators
        else f"it then looks for a class Eagle{first_architecture(s.config)}, which it does not have, and stops",
        "draft_model": "it then takes the drafter for a whole language model of its own",
    }.get(str(method), "it then drafts in another way, or stops where it knows no such method")
    why = (
        f"no method is given and the path {path!r} names {'eagle' if method == 'eagle' else 'none'}"
        if guessed
        else "the launch line says so"
    )
    yield Finding(
        id="config.algorithm",
        title=f"{s.title} takes the drafter as method {method}, it is an EAGLE-3 drafter: {effect}",
        status=Status.FAIL,
        claim=f"method = {settings.get('method')!r}, model = {path!r}",
        evidence=f"{why[0].upper()}{why[1:]}: "
        + (
            "vLLM looks for 'eagle-', then for 'eagle3', in the path's small letters (config/speculative.py:1327-1337), and "
            if guessed
            else "vLLM "
        )
        + "captures layers for eagle3 alone, in small letters (v1/worker/gpu_model_runner.py:640).",
        next='Write "method": "eagle3" into --speculative-config.',
    )


def quantisation(s: Subject) -> Iterator[Finding]:
    """SGLang hands the target's --quantization on to the drafter."""
    given = s.launch.given.get("quantization") if s.launch is not None and s.sglang else None
    own = s.config.get("quantization_config")
    flag = "speculative_draft_model_quantization"
    if not isinstance(given, str) or given == "unquant" or own or flag in s.launch.given:
        return
    row = limit(s.engine, flag)
    has_flag = holds(s.engine, row)
    yield Finding(
        id="config.draft_quantization",
        title=f"{s.title} quantises the drafter as the target: --quantization {given} holds for both, the drafter's config names none",
        status=Status.CANNOT_TELL,
        claim=f"--quantization {given}, no --speculative-draft-model-quantization, no quantization_config in the drafter's config",
        evidence=f"{row['text']} ({row['read']}). Where the method quantises on loading the drafter computes with other numbers than in "
        "training; where it expects packed weights the drafter has none.",
        next="Add --speculative-draft-model-quantization unquant and compare the accept length."
        if has_flag
        else f"This version has no flag for the drafter alone: SGLang {row['since']} or newer has --speculative-draft-model-quantization.",
    )


def parallel(s: Subject) -> Iterator[Finding]:
    """Pipeline stages hide layers from the capture; vLLM refuses odd draft tensor parallel sizes."""
    if s.launch is None:
        return
    stages = s.launch.number("pp_size", "pipeline_parallel_size", "pp") if s.sglang else None
    if stages is not None and stages > 1 and s.target is not None:
        fed = [b for b in s.convention.feed(config_ids(s.config, s.convention).ids, s.target.num_layers).boundaries if isinstance(b, int)]
        layers = s.target.num_layers
        first = layers - layers // stages - (layers % stages > 0)  # a rest goes to the last stages (distributed/utils.py get_pp_indices)
        early = [b for b in fed if b < first]
        if early:
            yield Finding(
                id="config.pipeline",
                title=f"With {stages} pipeline stages {s.title} captures on the last one alone: boundaries {early} lie on earlier ones",
                status=Status.FAIL,
                claim=f"--pp-size {stages}; the config asks for boundaries {fed} of {layers} layers",
                evidence="The setter of the target returns at once on every rank but the last (SGLang 0.5.23, models/llama.py:930); the last "
                f"stage begins at layer {first}.",
                numbers={"stages": stages, "asked": fed, "first_layer_of_last_stage": first},
                next="Serve with tensor parallelism alone (--pp-size 1).",
            )
    settings = s.launch.settings
    size, target = settings.get("draft_tensor_parallel_size"), s.launch.number("tensor_parallel_size", "tp") or 1
    if s.engine.name == "vllm" and isinstance(size, int) and size not in (1, target):
        yield Finding(
            id="config.draft_parallel",
            title=f"{s.title} refuses draft_tensor_parallel_size {size}: it is neither 1 nor the target's {target}",
            status=Status.FAIL,
            claim=f"draft_tensor_parallel_size = {size}, --tensor-parallel-size {target}",
            evidence="vLLM 0.32.0, config/speculative.py:1735-1742 raises a ValueError.",
            next=f"Leave it out ({target} is taken) or write 1.",
        )
