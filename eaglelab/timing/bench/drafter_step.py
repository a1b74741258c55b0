"""The drafter over a filled cache, a batch of requests at once: one draft step, its parts, and the extend over the accepted rows.

After a verify pass an engine runs the drafter over the accepted tokens' states (extend), whose last row drafts the first token; each further
token is one step: K draft tokens cost one extend and K - 1 steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eaglelab.drafter.model import Drafter, Flags, StepOutput
from eaglelab.timing.bench import counts
from eaglelab.timing.bench.attention import folded_attention
from eaglelab.timing.bench.counts import Counts

KeysValues = tuple[Tensor, Tensor]
TABLE_ROWS = 1024
"""Rows of the made-up embedding table: only a few are looked up at a time, whatever its size."""


class BatchDrafter:
    """B requests, each with `context` rows of keys and values in every layer, random unless given."""

    def __init__(
        self, drafter: Drafter, batch: int, context: int, room: int, *, cache: list[KeysValues] | None = None, flags: Flags | None = None
    ) -> None:
        """room: rows that are written behind the context at most (1 for a step). cache: per layer keys [B, kv_heads, context + room, D] and
        values [B, kv_heads, context + room, Dv]."""
        self.drafter, self.batch, self.context, self.room = drafter, batch, context, room
        self.flags = flags or Flags.of(drafter.config)
        self.like = drafter.fc.weight
        options = {"dtype": self.like.dtype, "device": self.like.device}
        heads, key, value = kv_shape(drafter)
        self.cache = cache or [
            tuple(torch.randn(batch, heads, context + room, width, **options) for width in (key, value)) for _ in drafter.stack
        ]
        self._masks: dict[int, Tensor] = {}
        positions = torch.arange(context, context + room, device=self.like.device).repeat(batch)  # [B * room]
        self._rotary = [x.view(batch, room, 1, -1) for x in drafter.rotary(positions, self.like)]  # looked up in engines: not timed

    def layers(self, embeds: Tensor, hidden: Tensor, rows: int = 1) -> Tensor:
        """All decoder layers over `rows` new rows a request, request by request. embeds, hidden: [B * rows, H]. Returns [B * rows, H]."""
        rotary = tuple(x[:, :rows].flatten(0, 1) for x in self._rotary)  # [B * rows, 1, D]
        end = self.context + rows
        for layer, (keys, values) in zip(self.drafter.stack, self.cache, strict=True):
            x, residual = layer.enter(embeds, hidden, self.flags)
            for held, new in zip((keys, values), layer.self_attn.keys_values(x, rotary, self.flags), strict=True):
                held[:, :, self.context : end] = self._by_request(new)
            queries = self._by_request(layer.self_attn.queries(x, rotary, self.flags))  # [B, heads, rows, D]
            attended = folded_attention(queries, keys[:, :, :end], values[:, :, :end], self._mask(rows), layer.self_attn.scale)
            hidden, embeds = layer.leave(attended.transpose(1, 2).flatten(0, 1), residual, self.flags), None
        return hidden

    def step(self, embeds: Tensor, hidden: Tensor) -> StepOutput:
        """One draft step of every request. embeds, hidden: [B, H]."""
        return self.drafter.speak(self.layers(embeds, hidden), self.flags)

    def extend(self, embeds: Tensor, states: list[Tensor], rows: int) -> StepOutput:
        """The accepted rows of every request; what their last row says. embeds: [B * rows, H]; states: a slot [B * rows, Ht]."""
        products = [self.drafter.slot_product(place, s, skip_norms=self.flags.skip_fc_norms) for place, s in enumerate(states)]
        fused = self.drafter.fuse(products, states, skip_norms=self.flags.skip_fc_norms)
        hidden = self.layers(embeds, fused, rows)
        return self.drafter.speak(hidden.unflatten(0, (self.batch, rows))[:, -1], self.flags)

    def tokens(self, output: StepOutput) -> Tensor:
        """[B] int64: each request's most likely token, by its id in the target's vocabulary."""
        drafted = output.logits.argmax(-1)
        return drafted + self.drafter.d2t[drafted]

    def _by_request(self, x: Tensor) -> Tensor:
        """[B * rows, heads, D] -> [B, heads, rows, D]."""
        return x.unflatten(0, (self.batch, -1)).transpose(1, 2)

    def _mask(self, rows: int) -> Tensor | None:
        """[1, 1, rows, context + rows]: which rows each new one sees; None for a single one, which sees all."""
        if rows == 1:
            return None
        if rows not in self._masks:
            seen = torch.ones(rows, self.context + rows, dtype=torch.bool, device=self.like.device)
            self._masks[rows] = seen.tril(self.context)[None, None]
        return self._masks[rows]


class DrafterCalls:
    """The calls to time, on made-up states and tokens."""

    def __init__(self, drafter: Drafter, batch: int, context: int, room: int) -> None:
        self.run = BatchDrafter(drafter, batch, context, room)
        config, like = drafter.config, drafter.fc.weight
        options = {"dtype": like.dtype, "device": like.device}
        self._table = torch.randn(TABLE_ROWS, config.hidden_size, **options)
        self._ids = torch.randint(TABLE_ROWS, (batch * room,), device=like.device)
        self._hidden = torch.randn(batch, config.hidden_size, **options)  # [B, H]
        self._states = [torch.randn(batch * room, config.target_hidden_size, **options) for _ in range(config.num_slots)]

    def step(self) -> Tensor:
        return self.run.tokens(self.run.step(self._table[self._ids[: self.run.batch]], self._hidden))

    def layer(self) -> Tensor:
        return self.run.layers(self._table[self._ids[: self.run.batch]], self._hidden)

    def head(self) -> Tensor:
        """The final norm, lm_head and the choice of the token."""
        return self.run.tokens(self.run.drafter.speak(self._hidden, self.run.flags))

    def extend(self, rows: int) -> Tensor:
        count = self.run.batch * rows
        return self.run.tokens(self.run.extend(self._table[self._ids[:count]], [s[:count] for s in self._states], rows))


def kv_shape(drafter: Drafter) -> tuple[int, int, int]:
    """Key heads, channels of a key, channels of a value, as they are cached here: an MLA layer's per head, not its latent."""
    config = drafter.config
    return config.num_key_value_heads, config.head_dim, config.latent.value if config.latent else config.head_dim


def step_counts(drafter: Drafter, batch: int, context: int) -> dict[str, Counts]:
    """Of one draft step: `layer`, `head` and both together, `step`."""
    layer = _stack(drafter, batch, context, 1)
    head = _head(drafter, batch)
    return {"layer": layer, "head": head, "step": layer + head}


def extend_counts(drafter: Drafter, batch: int, context: int, rows: int) -> Counts:
    """Of the extend over `rows` rows a request: fc, the layers, and the head of the last row."""
    fused = [p for n, p in drafter.named_parameters() if n.startswith(("fc.", "fc_norm.", "input_norm."))]
    return _weights(fused, batch * rows) + _stack(drafter, batch, context, rows) + _head(drafter, batch)


def _stack(drafter: Drafter, batch: int, context: int, rows: int) -> Counts:
    inside = [p for layer in drafter.stack for p in layer.parameters()]
    one = counts.attention(batch, context, rows, drafter.config.num_attention_heads, kv_shape(drafter), drafter.fc.weight.element_size())
    return _weights(inside, batch * rows) + Counts(len(drafter.stack) * one.bytes, len(drafter.stack) * one.flops)


def _head(drafter: Drafter, batch: int) -> Counts:
    weight = drafter.lm_head.weight
    return _weights([weight, drafter.norm.weight], batch) + counts.logits(batch, len(weight), weight.element_size())


def _weights(parameters: list[Tensor], tokens: int) -> Counts:
    in_matrices = sum(p.numel() for p in parameters if p.ndim > 1)
    return counts.weights(sum(p.numel() * p.element_size() for p in parameters), in_matrices, tokens)
