"""Step 3 of the recipe: train the drafter on the dumped states, starting from the target's last layer.

Training-time test over 3 steps with soft targets over a reduced draft vocabulary, float32 master weights, bf16 autocast, AdamW with
cosine decay. Writes the drafter in the EAGLE/SpecForge layout, with what was measured on the held-out samples in training.json.

    python data/example/recipe/train.py --target data/example/target --dump .live/example/dump --out .live/example/drafter
"""

import argparse
import json
import math
import time
from collections import Counter
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from eaglelab.drafter.chains import Packed, draft_chains
from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.model import Drafter

DRAFT_VOCABULARY = 4096
STEPS = 3
STEP_WEIGHT = 0.8  # the loss of step k counts 0.8^k, as in EAGLE-3
BATCH = 16
LEARNING_RATE = 6e-4
WARMUP = 50


def load_samples(folder: Path) -> list[dict]:
    files = sorted(folder.rglob("data_*.pt"), key=lambda p: int(p.stem.split("_")[1]))
    return [torch.load(f, weights_only=True, mmap=True) for f in files]


def draft_vocabulary(samples: list[dict]) -> torch.Tensor:
    """The most frequent tokens of the answers, ascending. [Vd] int64."""
    counts = Counter()
    for s in samples:
        counts.update(s["input_ids"][s["loss_mask"] == 1].tolist())
    chosen = [token for token, _ in counts.most_common(DRAFT_VOCABULARY)]
    return torch.tensor(sorted(chosen))


def drafter_config(target: dict) -> DrafterConfig:
    return DrafterConfig(
        hidden_size=target["hidden_size"],
        target_hidden_size=target["hidden_size"],
        num_slots=3,
        vocab_size=target["vocab_size"],
        draft_vocab_size=DRAFT_VOCABULARY,
        num_attention_heads=target["num_attention_heads"],
        num_key_value_heads=target["num_key_value_heads"],
        head_dim=target["head_dim"],
        intermediate_size=target["intermediate_size"],
        rms_norm_eps=target["rms_norm_eps"],
        rope=dict(target["rope_parameters"]),
        max_position_embeddings=target["max_position_embeddings"],
    )


@torch.no_grad()
def start_from_target(drafter: Drafter, weights, last_layer: int, vocabulary: torch.Tensor) -> None:
    """lm_head rows, final norm, last layer's attention (on the hidden half of the input) and MLP; fc passes the last slot through."""

    def take(name: str) -> torch.Tensor:
        return weights.get_tensor(name).float()

    prefix, width = f"model.layers.{last_layer}.", drafter.config.hidden_size
    for name in ("q_proj", "k_proj", "v_proj"):
        projection = getattr(drafter.midlayer.self_attn, name).weight
        projection.normal_(0, 0.02)
        projection[:, width:] = take(f"{prefix}self_attn.{name}.weight")
    drafter.midlayer.self_attn.o_proj.weight.copy_(take(f"{prefix}self_attn.o_proj.weight"))
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(drafter.midlayer.mlp, name).weight.copy_(take(f"{prefix}mlp.{name}.weight"))
    drafter.midlayer.hidden_norm.weight.copy_(take(f"{prefix}input_layernorm.weight"))
    drafter.midlayer.post_attention_layernorm.weight.copy_(take(f"{prefix}post_attention_layernorm.weight"))
    drafter.norm.weight.copy_(take("model.norm.weight"))
    drafter.lm_head.weight.copy_(take("model.embed_tokens.weight")[vocabulary])
    drafter.fc.weight.normal_(0, 0.002)
    drafter.fc.weight[:, 2 * width :] += torch.eye(width)
    drafter.d2t.copy_(vocabulary - torch.arange(len(vocabulary)))


class Batch:
    """A few samples packed, with the soft targets and the mask of every step."""

    def __init__(self, samples: list[dict], head: torch.Tensor, in_vocabulary: torch.Tensor) -> None:
        self.packed = Packed.of([s["input_ids"] for s in samples])
        self.slots = [torch.cat([s["hidden_states"][i] for s in samples]) for i in range(4)]  # 4 x [M, H] bf16
        self.mask = torch.cat([s["loss_mask"] for s in samples]).bool()  # [M]
        rows = torch.arange(len(self.mask))
        ahead = self.packed.ahead(rows, 1)
        self.rows = rows[self.mask[ahead] & (ahead > rows)]  # chains start where the token that is fed first is the answer's
        self.head, self.in_vocabulary = head, in_vocabulary

    def targets(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Of row t at step k: logits of y[t+1+k] over the draft vocabulary [R, Vd], whether it counts [R], the text's token [R]."""
        source = self.packed.ahead(self.rows, 1 + step)
        counts = self.mask[source] & (source == self.rows + 1 + step)
        after = self.packed.ahead(self.rows, 2 + step)
        return self.slots[3][source] @ self.head.T, counts & (after > source), self.packed.token_ids[after]


def run(drafter: Drafter, batch: Batch, embedding: torch.Tensor) -> tuple[torch.Tensor, list[tuple[int, int]]]:
    """Loss of one batch, and (right, counted) of each step against the text, which is the target's own greedy answer."""
    products = [drafter.slot_product(place, batch.slots[place]) for place in range(3)]
    fused = drafter.fuse(products, batch.slots[:3])
    chains = draft_chains(drafter, batch.packed, fused, lambda ids: embedding[ids], batch.rows, STEPS)
    loss, outcomes = 0.0, []
    for step, output in enumerate(chains):
        logits, counts, token = batch.targets(step)
        teaches = counts & batch.in_vocabulary[token]
        soft = logits[teaches].float().softmax(-1)
        loss = loss + STEP_WEIGHT**step * F.cross_entropy(output.logits[teaches].float(), soft)
        right = drafter.target_ids[output.logits.argmax(-1)] == token
        outcomes.append((int((right & counts).sum()), int(counts.sum())))
    return loss, outcomes


def evaluate(drafter: Drafter, batches: list[Batch], embedding: torch.Tensor) -> list[float]:
    """Marginal acceptance of each step over all batches."""
    sums = [[0, 0] for _ in range(STEPS)]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for batch in batches:
            for total, (right, counted) in zip(sums, run(drafter, batch, embedding)[1], strict=True):
                total[0] += right
                total[1] += counted
    return [right / counted for right, counted in sums]


def save(drafter: Drafter, target: dict, out: Path) -> None:
    """The drafter in bf16, EAGLE/SpecForge names, with the layer ids that the example's story claims."""
    out.mkdir(parents=True, exist_ok=True)
    tensors = {k: v.to(torch.bfloat16).contiguous() for k, v in drafter.named_parameters()}
    allowed = torch.zeros(target["vocab_size"], dtype=torch.bool)
    allowed[drafter.target_ids] = True
    save_file(tensors | {"d2t": drafter.d2t, "t2d": allowed}, out / "model.safetensors", metadata={"format": "pt"})
    keep = ("hidden_act", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    keep += ("rms_norm_eps", "vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")
    config = {"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"} | {k: target[k] for k in keep}
    config |= {
        "rope_theta": target["rope_parameters"]["rope_theta"],
        "num_hidden_layers": 1,
        "draft_vocab_size": DRAFT_VOCABULARY,
    }
    config |= {"tie_word_embeddings": False, "torch_dtype": "bfloat16"}
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [-1, 2, 15], "use_aux_hidden_state": True}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--dump", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)

    target = json.loads((args.target / "config.json").read_text())
    weights = safe_open(args.target / "model.safetensors", "pt")
    train, heldout = load_samples(args.dump / "train"), load_samples(args.dump / "heldout")
    vocabulary = draft_vocabulary(train)
    in_vocabulary = torch.zeros(target["vocab_size"], dtype=torch.bool)
    in_vocabulary[vocabulary] = True
    covered = torch.cat([in_vocabulary[s["input_ids"][s["loss_mask"] == 1]] for s in heldout]).float().mean().item()

    drafter = Drafter(drafter_config(target))
    start_from_target(drafter, weights, target["num_hidden_layers"] - 1, vocabulary)
    embedding = weights.get_tensor("model.embed_tokens.weight")
    head = embedding[vocabulary]  # the target's lm_head is tied
    parameters = sum(p.numel() for p in drafter.parameters())
    tokens = sum(int(s["loss_mask"].sum()) for s in train)
    print(
        f"{len(train)} samples, {tokens} answer tokens, {parameters / 1e6:.1f} M parameters, held-out coverage {covered:.3f}",
        flush=True,
    )

    optimiser = torch.optim.AdamW(drafter.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    total = args.epochs * math.ceil(len(train) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda i: min(1.0, (i + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * min(1.0, i / total)))
    )
    heldout_batches = [Batch(heldout[i : i + BATCH], head, in_vocabulary) for i in range(0, len(heldout), BATCH)]
    history, started = [], time.perf_counter()
    for epoch in range(args.epochs):
        order = torch.randperm(len(train)).tolist()
        for first in range(0, len(order), BATCH):
            batch = Batch([train[i] for i in order[first : first + BATCH]], head, in_vocabulary)
            with torch.autocast("cpu", torch.bfloat16):
                loss, _ = run(drafter, batch, embedding)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(drafter.parameters(), 0.5)
            optimiser.step()
            schedule.step()
            if first // BATCH % 20 == 0:
                print(
                    f"epoch {epoch} batch {first // BATCH} loss {loss.item():.3f} {time.perf_counter() - started:.0f} s",
                    flush=True,
                )
        rates = evaluate(drafter, heldout_batches, embedding)
        history.append({"epoch": epoch + 1, "heldout_marginal": rates, "seconds": round(time.perf_counter() - started)})
        print(f"epoch {epoch + 1}: held-out marginal acceptance {[round(r, 4) for r in rates]}", flush=True)
        save(drafter, target, args.out)
        record = {
            "train_samples": len(train),
            "train_answer_tokens": tokens,
            "heldout_samples": len(heldout),
            "heldout_draft_vocabulary_coverage": covered,
            "parameters": parameters,
            "steps": STEPS,
            "history": history,
        }
        (args.out / "training.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
