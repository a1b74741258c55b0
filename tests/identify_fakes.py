"""A tiny target for identify's tests: transformers' own Llama, and dumps cut out of its states."""

import torch
from transformers import LlamaConfig, LlamaModel

from eaglelab.dumps import Sample
from eaglelab.wiring import FINAL


class TinyTarget:
    """A random Llama behind the interface of a forward source. States come from hooks, so boundary N is before the final norm."""

    path = "tiny"

    def __init__(self, num_layers=5, hidden_size=48, vocab_size=200, seed=0, up_to=None, spread=0.35):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=vocab_size, hidden_size=hidden_size, intermediate_size=2 * hidden_size, num_hidden_layers=num_layers,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, attn_implementation="eager",
        )  # fmt: skip
        self.model = LlamaModel(config).eval()
        for name, weight in self.model.named_parameters():
            scale = 1.0 if "embed" in name else spread / hidden_size**0.5
            torch.nn.init.normal_(
                weight, 1.0 if "norm" in name else 0.0, 0.3 if "norm" in name else 4 * scale if weight.ndim > 1 else scale
            )
        self.num_layers, self.hidden_size, self.up_to = num_layers, hidden_size, up_to

    @torch.no_grad()
    def states(self, token_ids):
        """{boundary: [T, H]} of one text."""
        kept = {}
        hooks = [
            layer.register_forward_hook(lambda m, i, o, b=b: kept.__setitem__(b, (o[0] if isinstance(o, tuple) else o)[0]))
            for b, layer in enumerate(self.model.layers, 1)
        ]
        kept[0] = self.model.embed_tokens(token_ids)
        kept[FINAL] = self.model(token_ids[None]).last_hidden_state[0]
        for hook in hooks:
            hook.remove()
        assert torch.allclose(self.model.norm(kept[self.num_layers]), kept[FINAL], atol=1e-5)
        return kept

    def visit(self, token_ids, visit):
        per_text = [self.states(ids) for ids in token_ids]
        last = self.num_layers if self.up_to is None else self.up_to
        for b in [*range(last + 1), *([FINAL] if self.up_to is None else [])]:
            visit(b, [states[b] for states in per_text])


def random_texts(count=3, length=48, vocab_size=200, seed=0, prefix=0):
    """Token ids of `count` texts, the first `prefix` tokens the same."""
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(3, vocab_size, (length + 3 * i,), generator=generator) for i in range(count)]
    return [torch.cat([texts[0][:prefix], text[prefix:]]) for text in texts]


def dump(target, texts, boundaries, dtype=torch.float32, change=lambda s, states: states):
    """Samples whose slots hold `boundaries`; `change(slot, states)` may spoil a slot."""
    samples = []
    for i, ids in enumerate(texts):
        states = target.states(ids)
        slots = tuple(change(s, states[b].clone()).to(dtype) for s, b in enumerate(boundaries))
        samples.append(Sample(f"data_{i}.pt", ids, slots, None, tuple(f"hidden_states[{s}]" for s in range(len(slots)))))
    return samples
