"""C: what trains is not the answer, or the answers are not what the target says when it is served."""

from __future__ import annotations

import json
from random import Random

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from faults.kinds.common import Family, between, drop_trainer, last_boundary, retrain
from faults.language import VOCAB
from faults.plan import Inapplicable, Plan
from faults.targets import load_target, states_of

KINDS = Family("C")
TEMPLATE = (
    "<bos>{% for m in messages %}{% if m.role == 'user' %} {{ m.content }} <sep>{% else %} {{ m.content }} <eos>{% endif %}{% endfor %}"
)


def tokenizer(plan: Plan) -> None:
    """One word a token, and the template of the worlds' prompts. The example brings its own."""
    if plan.world.kind == "example":
        if not plan.world.folder.exists():
            raise Inapplicable("the target is not at hand")
        return
    words = Tokenizer(
        WordLevel({w: i for i, w in enumerate(["<pad>", "<bos>", "<eos>", "<sep>", *(f"w{i}" for i in range(4, VOCAB))])}, "<pad>")
    )
    words.pre_tokenizer = WhitespaceSplit()
    words.add_special_tokens(["<pad>", "<bos>", "<eos>", "<sep>"])
    told = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": TEMPLATE, "tokenizer_class": "PreTrainedTokenizerFast"}
    plan.files |= {"tokenizer/tokenizer.json": words.to_str(), "tokenizer/tokenizer_config.json": json.dumps(told)}
    plan.sections.setdefault("target", {})["tokenizer"] = "tokenizer"


def _masks(plan: Plan, change) -> None:
    for sample in plan.samples:
        sample["loss_mask"] = change(sample["loss_mask"]).to(sample["loss_mask"].dtype)


@KINDS.kind("mask all zero", "text.mask dump.health", source="marin-community/marin#7237")
def mask_zero(plan: Plan, strength: float, rng: Random) -> None:
    """A chat template without a generation tag: the helper returns zeros, and the drafter stays as it was initialised."""
    retrain(plan, mask="none")
    _masks(plan, torch.zeros_like)


@KINDS.kind("mask all one", "text.mask", source="NVIDIA-NeMo/Megatron-Bridge#3359")
def mask_one(plan: Plan, strength: float, rng: Random) -> None:
    """The helper falls back to ones: prompts train too."""
    retrain(plan, mask="all")
    _masks(plan, torch.ones_like)


@KINDS.kind("mask shifted", "text.shift", source="sgl-project/SpecForge#885")
def mask_shifted(plan: Plan, strength: float, rng: Random) -> None:
    """The mask lies a token or more behind the answers' beginnings; the drafter learned from where it lies."""
    tokenizer(plan)
    by = 1 + round(between(strength, 0, 2))
    retrain(plan, mask="late")
    _masks(plan, lambda mask: torch.cat([mask.new_zeros(by), mask[:-by]]))


@KINDS.kind("mask on the prompts", "text.side text.shift", source="vllm-project/speculators#195")
def mask_on_prompts(plan: Plan, strength: float, rng: Random) -> None:
    """The regular expression finds the wrong role."""
    retrain(plan, mask="prompt")
    _masks(plan, lambda mask: 1 - mask)


@KINDS.kind("BOS twice", "text.faults", source="SafeAILab/EAGLE#196")
def bos_twice(plan: Plan, strength: float, rng: Random) -> None:
    """The template writes it, and the tokenizer again."""
    tokenizer(plan)
    _rewritten(plan, lambda ids, mask: (torch.cat([ids[:1], ids]), torch.cat([mask[:1], mask])))


@KINDS.kind("answers of another model", "replay.expected", source="vllm-project/speculators#751")
def not_own(plan: Plan, strength: float, rng: Random) -> None:
    """A public corpus, not regenerated: part of each answer's tokens are not what the target would say."""
    size, share = plan.config["vocab_size"], between(strength, 0.15, 0.6)

    def other(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        swap = [bool(m) and rng.random() < share for m in mask.tolist()]
        return torch.tensor([rng.randrange(4, size) if s else t for t, s in zip(ids.tolist(), swap, strict=True)]), mask

    _rewritten(plan, other)
    drop_trainer(plan)


def _rewritten(plan: Plan, change) -> None:
    """Other tokens, and the target's states on them. Raises Inapplicable where the target is not at hand."""
    if not plan.world.folder.exists():
        raise Inapplicable("the target is not at hand")
    for sample in plan.samples:
        sample["input_ids"], sample["loss_mask"] = change(sample["input_ids"], sample["loss_mask"])
    made = states_of(load_target(plan.world.folder), [s["input_ids"] for s in plan.samples])
    slots = [*plan.slots[:-1], last_boundary(plan)]
    for sample, states in zip(plan.samples, made, strict=True):
        sample["hidden_states"] = [states[b].to(h.dtype) for b, h in zip(slots, sample["hidden_states"], strict=True)]
