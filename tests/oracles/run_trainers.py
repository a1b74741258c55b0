"""Run the trainers' own code on tiny random EAGLE-3 drafters, on a CPU, and write what it returns: one folder a case under the folder given.

    PYTHONPATH=.venv/oracles python tests/oracles/run_trainers.py FOLDER

tests/test_drafter_oracles.py does so once a test run. The projects (Apache-2.0) are called, none of their code is here. Every folder gets
config.json and model.safetensors as the project itself writes them, `golden.safetensors` (inputs, the logits of every step, the target's
head) and `golden.json` (the metrics that the project's own code returned). See README.md.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import types
from pathlib import Path

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from cases import SPECFORGE, SPECULATORS, STEPS, VD, H, V
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, Qwen3Config

LENGTHS = (20, 13)
ANSWERS = (((5, 9), (12, 20)), ((6, 13),))  # two answers three tokens apart in the first sample, less than STEPS


def main(out: Path) -> None:
    torch.set_num_threads(1)
    for i, (name, case) in enumerate(SPECULATORS.items()):
        write_speculators(out / name, seed=i, **case)
    for i, (name, options) in enumerate(SPECFORGE.items()):
        write_specforge(out / name, options, seed=100 + i)


def random_samples(g: torch.Generator, slots: int = 3, width: int = H) -> list[dict[str, Tensor]]:
    """Token ids [T], aux [S, T, Ht] of very different sizes, loss mask [T]."""
    samples = []
    for length, answers in zip(LENGTHS, ANSWERS, strict=True):
        mask = torch.zeros(length, dtype=torch.int64)
        for first, end in answers:
            mask[first:end] = 1
        aux = torch.randn(slots, length, width, generator=g) * torch.logspace(-1, 3, slots, 2)[:, None, None]
        samples.append({"token_ids": torch.randint(0, V, (length,), generator=g), "aux": aux, "loss_mask": mask})
    return samples


def random_weights(model, g: torch.Generator) -> None:
    """Every weight drawn, norms away from one, in values that bfloat16 holds exactly."""
    for name, parameter in model.named_parameters():
        scale = 0.3 if "norm" in name else 1.0 if "embed" in name else 0.18
        drawn = torch.randn(parameter.shape, generator=g) * scale + (1.0 if "norm" in name else 0.0)
        parameter.data.copy_(drawn.bfloat16())


def random_vocabulary(g: torch.Generator) -> tuple[Tensor, Tensor]:
    """d2t [Vd] offsets and t2d [V] bool of a random choice."""
    chosen = torch.randperm(V, generator=g)[:VD].sort().values
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[chosen] = True
    return chosen - torch.arange(VD), t2d


def last_states(samples: list[dict], drafted: list[Tensor], lm_head: Tensor, gain: Tensor, g: torch.Generator) -> None:
    """Give every sample its last state, so that the target chooses: along a path of chains what these drafted, elsewhere what a random
    chain drafted for that position or, for two in five, a random token (half of these are outside the draft vocabulary).

    drafted: [K, T] target ids of each sample, the chain at row t drafting at step k what should follow position t + 1 + k.
    """
    for sample, tokens in zip(samples, drafted, strict=True):
        length = len(sample["token_ids"])
        wanted, t = torch.randint(0, V, (length,), generator=g), 0
        for p in range(1, length):
            k = int(torch.randint(0, min(STEPS, p), (1,), generator=g))
            if torch.rand(1, generator=g) < 0.6:
                wanted[p] = tokens[k, p - 1 - k]
        while t + 1 + STEPS < length:
            n = min(STEPS, int(torch.randint(0, 3 * STEPS, (1,), generator=g)))  # mostly right to the end
            for k in range(n):
                wanted[t + 1 + k] = tokens[k, t]
            t += n + 1
        noise = torch.randn(length, lm_head.shape[1], generator=g) * 0.2
        sample["last"] = ((lm_head[wanted] + noise) / gain).bfloat16().float()  # [T, H]


def save(folder: Path, samples: list[dict], shared: dict[str, Tensor], metrics: dict) -> None:
    tensors = {f"sample{i}.{k}": v.contiguous() for i, s in enumerate(samples) for k, v in s.items()}
    save_file(tensors | {k: v.contiguous() for k, v in shared.items()}, folder / "golden.safetensors")
    (folder / "golden.json").write_text(json.dumps(metrics))


class HeadLogits:
    """Keeps what a module puts out, call by call."""

    def __init__(self, module) -> None:
        self.calls: list[Tensor] = []
        self.hook = module.register_forward_hook(lambda _m, _i, out: self.calls.append(out.detach().float()[0]))

    def take(self) -> Tensor:
        """[K, rows, Vd] since the last time."""
        calls, self.calls = self.calls, []
        return torch.stack(calls)


# speculators 0.9.0


def speculators_model(layer: str, num_layers: int, slots: int, draft_vocab: int, flags: dict, inner: dict):
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    kind, head = (LlamaConfig, 8) if layer == "llama" else (Qwen3Config, 16)
    transformer = kind(
        hidden_size=H,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head,
        intermediate_size=40,
        vocab_size=V,
        num_hidden_layers=num_layers,
        rms_norm_eps=1e-5,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 500000.0 if layer == "llama" else 1000000.0, "rope_type": "default"},
        tie_word_embeddings=False,
        **inner,
    )
    transformer._attn_implementation = "eager"
    proposal = GreedyTokenProposalConfig(speculative_tokens=STEPS)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=transformer,
        draft_vocab_size=draft_vocab,
        eagle_aux_hidden_state_layer_ids=[2, 8, 15, 21, 27][:slots],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    return Eagle3DraftModel(config).float().eval()


def speculators_forward(model, head: HeadLogits, samples: list[dict]) -> tuple[Tensor, dict]:
    """One packed batch of both samples, as their collator makes it. Logits [K, M, Vd] of the shifted rows, and the metrics."""
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3 import shift_batch

    shifted = []
    for s in samples:
        length = len(s["token_ids"])
        shifted.append(
            shift_batch(
                {
                    "input_ids": s["token_ids"],
                    "hidden_states": s["aux"].transpose(0, 1).flatten(1),  # [T, 3H]
                    "verifier_last_hidden_states": s.get("last", torch.zeros(length, H)),
                    "loss_mask": s["loss_mask"],
                    "lengths": torch.tensor([length]),
                    "position_ids": torch.arange(length),
                }
            )
        )

    def packed(key: str) -> Tensor:
        return torch.cat([s[key] for s in shifted])[None]

    documents = torch.cat([torch.full((int(s["lengths"]),), i) for i, s in enumerate(shifted)])[None]
    with torch.no_grad():
        _, _, metrics = model(
            packed("hidden_states"),
            packed("input_ids"),
            documents,
            loss_mask=packed("loss_mask"),
            position_ids=packed("position_ids"),
            verifier_last_hidden_states=packed("verifier_last_hidden_states"),
            ttt_steps=STEPS,
            loss_config=resolve_loss_config("kl_div", "eager"),
        )
    return head.take(), metrics


def write_speculators(
    folder: Path,
    seed: int,
    layer: str = "llama",
    num_layers: int = 1,
    slots: int = 3,
    draft_vocab: int = VD,
    flags: dict | None = None,
    inner: dict | None = None,
) -> None:
    g = torch.Generator().manual_seed(seed)
    model, samples = speculators_model(layer, num_layers, slots, draft_vocab, flags or {}, inner or {}), random_samples(g, slots)
    random_weights(model, g)
    d2t, t2d = random_vocabulary(g) if draft_vocab < V else (torch.zeros(V, dtype=torch.int64), torch.ones(V, dtype=torch.bool))
    model.load_vocab_mappings(t2d, d2t)
    lm_head = torch.randn(V, H, generator=g).bfloat16().float()
    model.verifier_lm_head.weight.data.copy_(lm_head[t2d])
    gain = model.verifier_norm.weight.data.clone()
    head, ids = HeadLogits(model.lm_head), d2t + torch.arange(draft_vocab)
    sizes = [n - 1 for n in LENGTHS]

    def by_sample(logits: Tensor) -> list[Tensor]:
        return list(logits.split(sizes, 1))

    logits, _ = speculators_forward(model, head, samples)
    last_states(samples, [ids[x.argmax(-1)] for x in by_sample(logits)], lm_head, gain, g)
    logits, metrics = speculators_forward(model, head, samples)
    for sample, x in zip(samples, by_sample(logits), strict=True):
        sample["logits"] = x  # [K, T - 1, Vd]
    alone = [speculators_counts(speculators_forward(model, head, [s])[1]) for s in samples]
    metrics = {"made_with": "speculators 0.9.0", "steps": STEPS, "packed": speculators_counts(metrics), "samples": alone}
    model.bfloat16().save_pretrained(folder)
    save(folder, samples, {"target.lm_head": lm_head, "target.norm": gain}, metrics)


def speculators_counts(metrics: dict) -> dict[str, list[int]]:
    names = [f"{kind}_{{}}_{part}" for kind in ("full_acc", "cond_acc") for part in ("sum", "total")]
    return {name.replace("_{}", ""): [int(metrics[name.format(k)]) for k in range(STEPS)] for name in names}


# SpecForge 0.2.0


def stub_triton() -> None:
    """SpecForge's loss imports triton at the top; its own plain version of the same loss is used instead of the kernel."""
    if "triton" in sys.modules:
        return
    triton, language = types.ModuleType("triton"), types.ModuleType("triton.language")
    triton.jit, triton.language, triton.cdiv = lambda f: f, language, lambda a, b: -(-a // b)
    language.constexpr = int
    sys.modules.update({"triton": triton, "triton.language": language})


def specforge_trainer(options: dict):
    stub_triton()
    import specforge.algorithms.eagle3.model as trainer
    from specforge.core.loss import _compute_loss
    from specforge.modeling.draft.llama3_eagle import LlamaForCausalLMEagle3

    trainer.LogSoftmaxLoss = types.SimpleNamespace(apply=_compute_loss)
    written = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": H,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "vocab_size": V,
        "draft_vocab_size": VD,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64,
        "hidden_act": "silu",
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 14, 26], "use_aux_hidden_state": True},
        **options,
    }
    draft = LlamaForCausalLMEagle3(LlamaConfig(**written), attention_backend="sdpa").float().eval()
    return draft, trainer.OnlineEagle3Model(draft, length=STEPS, attention_backend="sdpa").eval(), written


def specforge_forward(draft, model, head: HeadLogits, sample: dict, lm_head: Tensor) -> tuple[Tensor, list[list[float]]]:
    """One sample through their offline reader's and target head's own preparation. Logits [K, T, Vd], and (accs, corrects, denoms, rates)."""
    from specforge.algorithms.eagle3.data import normalize_offline_sample
    from specforge.modeling.target.target_head import TargetHead

    length = len(sample["token_ids"])
    raw = {
        "aux_hidden_state": sample["aux"].transpose(0, 1).flatten(1)[None],  # [1, T, 3H]
        "hidden_state": sample.get("last", torch.zeros(length, lm_head.shape[1]))[None],
        "input_ids": sample["token_ids"],
        "loss_mask": sample["loss_mask"],
    }
    batch = normalize_offline_sample(raw, max_len=4096)
    logits = batch["target"] @ lm_head.T  # [1, T, V]
    input_ids, target, loss_mask = TargetHead.preprocess(None, batch["input_ids"], logits, batch["loss_mask"])
    with torch.no_grad():
        _, rates, accs, corrects, denoms, *_ = model(input_ids, batch["attention_mask"], target, loss_mask, batch["hidden_state"])
    return head.take(), [[float(x) for x in row] for row in (accs, corrects, denoms, rates)]


def write_specforge(folder: Path, options: dict, seed: int) -> None:
    g, width = torch.Generator().manual_seed(seed), options.get("target_hidden_size", H)
    draft, model, written = specforge_trainer(options)
    samples = random_samples(g, width=width)
    random_weights(draft, g)
    draft.embed_tokens.weight.data[0] = 0  # the padding row
    d2t, t2d = random_vocabulary(g)
    draft.d2t.copy_(d2t)
    draft.t2d.copy_(t2d)
    lm_head = torch.randn(V, width, generator=g).bfloat16().float()
    head, ids = HeadLogits(draft.lm_head), d2t + torch.arange(VD)
    drafted = [ids[specforge_forward(draft, model, head, s, lm_head)[0].argmax(-1)] for s in samples]
    last_states(samples, drafted, lm_head, torch.ones(width), g)
    metrics = []
    for sample in samples:
        sample["logits"], rows = specforge_forward(draft, model, head, sample, lm_head)  # [K, T, Vd]
        metrics.append(dict(zip(("acc", "correct", "denom", "acceptance_rate"), rows, strict=True)))
    export_specforge(draft, written, folder, with_embedding=width != H)
    shared = {"target.lm_head": lm_head, "embedding": draft.embed_tokens.weight.data.float()}
    save(folder, samples, shared, {"made_with": "specforge 0.2.0", "steps": STEPS, "samples": metrics})


def export_specforge(draft, written: dict, folder: Path, with_embedding: bool) -> None:
    """Their own exports of a training checkpoint, in bfloat16: for SGLang, without the embedding table, or for Hugging Face, with it."""
    from specforge.export.to_hf import export_to_hf
    from specforge.export.to_sglang import export_to_sglang

    export = export_to_hf if with_embedding else export_to_sglang
    with tempfile.TemporaryDirectory() as scratch:
        config, state = Path(scratch, "draft.json"), Path(scratch, "training_state.pt")
        config.write_text(json.dumps(written))
        weights = {k: v for k, v in draft.state_dict().items() if with_embedding or "embed" not in k}
        torch.save({"strategy": "eagle3", "draft_state_dict": weights}, state)
        export(str(state), str(config), str(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
