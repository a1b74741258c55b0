"""Classes and flags of the drafter that an engine does not have, ignores, or reads with another meaning."""

from __future__ import annotations

from collections.abc import Iterator

from eaglelab.drafter.config import first_architecture
from eaglelab.engines.capabilities import holds, limit, table, was_read
from eaglelab.engines.lint.subject import Subject
from eaglelab.findings import Finding, Status


def architecture(s: Subject) -> Iterator[Finding]:
    name, known = first_architecture(s.config), table()["drafters"].get(s.engine.name, {})
    loads = holds(s.engine, known[name]) if name in known else False if was_read(s.engine) else None
    here = [other for other, row in known.items() if holds(s.engine, row)]
    since = known.get(name, {}).get("since")
    if loads or (s.engine.name == "vllm" and "speculators_model_type" in s.config):
        return
    yield Finding(
        id="config.architecture",
        title=f"{s.title} has no EAGLE-3 drafter class named {name}" if name else "The drafter's config names no architecture",
        status=Status.CANNOT_TELL if loads is None else Status.FAIL,
        claim=f"architectures = {s.config.get('architectures')!r}",
        evidence=f"Names loaded as EAGLE-3 drafters in this version, as far as it was read: {', '.join(here)}.",
        next=f"Serve with {s.convention.family['title']} {since} or newer."
        if since
        else "Serve it with vLLM, which reads the speculators layout. Or convert it: a flat config with LlamaForCausalLMEagle3 and ids "
        "under eagle_config, possible only where norm_before_residual is false and the draft layer is of the Llama type."
        if s.engine.name == "sglang" and s.drafter.family == "speculators"
        else "For a Llama-type draft layer write LlamaForCausalLMEagle3 into architectures, and check the names of the tensors."
        if s.drafter.layer_type == "llama"
        else "Serve it with an engine that has the class.",
    )


def target(s: Subject) -> Iterator[Finding]:
    """A target class that has no capture at all."""
    if s.convention.rule != "none" or s.target is None:
        return
    row = limit(s.engine, "no_capture")
    yield Finding(
        id="config.target",
        title=f"{s.title} cannot serve an EAGLE-3 drafter for {s.target.architecture}: the class hands over no layers",
        status=Status.FAIL,
        claim=f"architectures = [{s.target.architecture!r}] in the target's config",
        evidence=f"{s.convention.read}. {row['text']} ({row['read']}).",
        next="Serve with another engine or version that captures layers of this target.",
    )


def layer_types(s: Subject) -> Iterator[Finding]:
    """Draft layers that the engine's class has no code for: an MLA layer without q_lora_rank, a speculators layer of another type."""
    row = limit(s.engine, "q_lora_rank_null", s.drafter.layer_type)
    if row and s.drafter.latent is not None and s.drafter.latent.q_rank is None:
        yield Finding(
            id="config.q_lora_rank",
            title=f"{s.title} has no MLA draft layer without q_lora_rank: it stops at start-up",
            status=Status.FAIL,
            claim=f"q_lora_rank = {s.layer.get('q_lora_rank')!r} in the drafter's config",
            evidence=f"{row['text']} ({row['read']}).",
            next="Serve with vLLM, or train the drafter with a q_lora_rank.",
        )
    row, kind = limit(s.engine, "speculators_types"), s.layer.get("model_type", "llama")
    if row and s.speculators and kind not in row["names"]:
        yield Finding(
            id="config.model_type",
            title=f"{s.title} builds no speculators drafter whose layer is a {kind}: it stops at start-up",
            status=Status.FAIL if was_read(s.engine) else Status.CANNOT_TELL,
            claim=f"model_type = {kind!r} in transformer_layer_config",
            evidence=f"{row['text']}; {' and '.join(row['names'])} are built ({row['read']}).",
            next="Write the model_type that the layer's tensors are of (llama, or qwen3 with q_norm and k_norm), where it is one of them.",
        )


UNREAD = {
    "norm_before_residual": "the draft layer adds another residual than in training",
    "norm_before_fc": "the slots go into fc without the norm over all of them",
    "fc_norm": "the slots go into fc without the norm that each had in training",
    "norm_output": "the next draft step starts from the state before the final norm, not from the normed one",
    "attention_bias": "biases of the attention are dropped without a word",
    "qk_norm": "the weights of q_norm and k_norm are dropped without a word",
    "num_hidden_layers": "a drafter of more than one layer is refused at start-up",
    "fc_bias": "fc's bias is dropped without a word",
    "mlp_bias": "biases of the MLP are dropped without a word",
    "sliding_window": "attention looks back over the whole text, not over the window of training",
    "use_aux_norm": "it reads this setting as fc_norm alone, and the slots go into fc without their norms",
    "further_norm": "the layers after the first norm their input without the gain that was trained",
}
"""What happens where an engine does not read a flag."""
SAID = {"further_norm": "input_layernorm of the layers after the first"}
"""Flags that are no key of the config, in words."""


def flags(s: Subject) -> Iterator[Finding]:
    """Flags that are on and that this engine, for this type of draft layer, does not honour."""
    given = {flag: getattr(s.drafter, flag, False) for flag in UNREAD}
    given |= {"qk_norm": s.drafter.layer_type == "qwen3", "num_hidden_layers": s.drafter.num_layers > 1}
    given["further_norm"] = given["num_hidden_layers"] and s.support("num_hidden_layers")[0] == "honoured"
    given["attention_bias"] = s.drafter.attention_bias and s.biased
    given["use_aux_norm"] = bool(s.config.get("use_aux_norm")) and not s.config.get("fc_norm")
    specforge = s.framework.name == "specforge"  # whose norm_output has another meaning
    given["norm_output"] = bool(s.config.get("norm_output")) and not (specforge and s.framework.told)
    family = s.convention.family["title"]
    for flag, effect in UNREAD.items():
        answer, row = s.support(flag)
        if not given[flag] or answer in (None, "honoured"):
            continue
        unknown, since = answer == "unknown", row.get("since")
        guessed = flag == "norm_output" and specforge and not unknown
        key = {"further_norm": "num_hidden_layers", "fc_bias": "bias"}.get(flag, flag)
        yield Finding(
            id=f"config.{flag}",
            title=f"It is not known whether {s.title} reads {flag}"
            if unknown
            else f"{s.title} ignores {SAID.get(flag, flag)}: {effect}" + (", unless SpecForge trained it" if guessed else ""),
            status=Status.CANNOT_TELL if unknown or guessed else Status.FAIL,
            claim=f"{key} = {s.config.get(key, given[flag])!r} in the drafter's config",
            evidence=row["read"] + (f"; {family} honours it from {since} on." if since else "."),
            next=(
                "Name what trained the drafter under [training] in case.toml: SpecForge always does as this engine does. "
                if guessed
                else ""
            )
            + _remedy(s, since),
        )


def _remedy(s: Subject, since: str | None) -> str:
    if since:
        return f"Serve with {s.convention.family['title']} {since} or newer."
    if not was_read(s.engine):
        return f"Look for the key in this version's drafter class, or serve with a version that was read ({table()['flags_read'][s.engine.name][1]})."
    return "Serve with an engine that honours it, or train without it."


def missing_residual(s: Subject) -> Iterator[Finding]:
    if s.config.get("norm_before_residual") is None and s.drafter.family == "speculators":
        reads = "true" if s.engine.name == "vllm" else "false"
        yield Finding(
            id="config.norm_before_residual",
            title=f"norm_before_residual is not in the config: {s.title} takes it as {reads}, speculators' own class as false",
            status=Status.CANNOT_TELL,
            claim="Nothing is said about norm_before_residual.",
            evidence="speculators up to 0.3 always trained with true, its command line does so by default; vLLM takes a missing key so.",
            next="Replay both ways and write the one that fits into the config.",
        )


def norm_output(s: Subject) -> Iterator[Finding]:
    """SpecForge's norm_output is about lm_head, everybody else's about the recurrence."""
    stated = s.config.get("norm_output")
    if stated is None or s.framework.name != "specforge":
        return
    answer = s.support("norm_output")[0]
    if stated and (answer == "ignored" or (answer == "unknown" and not s.framework.told)):
        return  # an engine that does not know the flag does what SpecForge trained: norm before lm_head, recurrence before the norm
    effect = (
        f"{s.title} takes it as 'the next draft step starts from the normed state'; SpecForge always goes on from the one before the norm."
        if stated
        else f"{s.title} always norms before lm_head; SpecForge trained without."
    )
    remedy = (
        "If 'before' fits, remove norm_output from the config that is served."
        if stated
        else "No engine serves this: train again with the norm."
    )
    yield Finding(
        id="config.norm_output",
        title=f"norm_output = {str(bool(stated)).lower()} means one thing to SpecForge and another to {s.title}",
        status=Status.FAIL if s.framework.told else Status.CANNOT_TELL,
        claim=f"{s.framework.title}: {'norm' if stated else 'no norm'} before lm_head",
        evidence=effect,
        next=f"Replay with the recurrence before and after the norm. {remedy}",
    )
