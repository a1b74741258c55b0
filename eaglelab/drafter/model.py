"""The EAGLE-3 drafter in plain torch, over packed rows: one matrix holds the rows of several samples, one after the other.

    h  = fc(concat of the aux states)                                   # norm_before_fc, fc_norm: normed first
    x  = concat(input_layernorm(embedding of the token), hidden_norm(h))
    r  = h, or hidden_norm(h) with norm_before_residual
    h' = r + o_proj(attention(x));  h'' = h' + mlp(post_attention_layernorm(h'))
                                                                        # further layers: plain decoder layers of width H
    logits = lm_head(norm(h''));  the next step's h is h'', or norm(h'') with norm_output

Same mathematics in EAGLE, SpecForge, AngelSlim, speculators, vLLM and SGLang, up to the flags. Checked against the
trainers' own code in tests/test_drafter_oracles.py and against a sequential drafter in tests/test_replay_sequential.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.layers import DraftLayer
from eaglelab.drafter.parts import Flags, RMSNorm, Rotary

LOGIT_BYTES = 64 * 2**20
"""Draft logits of one block of rows, in float32."""


@dataclass(frozen=True)
class StepOutput:
    """What one drafted step leaves behind for R rows."""

    carried: Tensor
    """[R, H] the state that the next step starts from."""
    spoken: Tensor
    """[R, H] the state that lm_head reads."""
    lm_head: nn.Linear

    @cached_property
    def logits(self) -> Tensor:
        """[R, Vd] over the draft vocabulary, all rows at once: 170 MB for 1,300 rows and 32,000 tokens. See `blocks`."""
        return self.lm_head(self.spoken)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """(rows, their logits [r, Vd]) in blocks of bounded memory; none is kept."""
        size = max(16, LOGIT_BYTES // (4 * self.lm_head.out_features))
        for first in range(0, len(self.spoken), size):
            part = slice(first, min(first + size, len(self.spoken)))
            yield part, self.lm_head(self.spoken[part])


class Drafter(nn.Module):
    """The draft model without its embedding table: embedding rows come in from outside (most checkpoints carry none)."""

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        with torch.device("cpu"):  # its tables are computed, not loaded: never on the meta device
            self.rotary = Rotary(config)
        fused = config.num_slots * config.target_hidden_size
        self.fc = nn.Linear(fused, config.hidden_size, bias=config.fc_bias)
        if config.norm_before_fc:
            self.input_norm = RMSNorm(fused, config.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(config.target_hidden_size, config.rms_norm_eps) for _ in range(config.num_slots))
        self.midlayer = DraftLayer(config)
        if config.num_layers > 1:
            self.layers = nn.ModuleDict({str(i): DraftLayer(config, first=False) for i in range(1, config.num_layers)})
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocab_size, bias=False)
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))

    def slot_product(self, place: int, states: Tensor, *, skip_norms: bool = False) -> Tensor:
        """One slot's part of the fused input: its (normed) states through its columns of fc. states: [R, Ht] -> [R, H].

        Without the scale of `norm_before_fc`, which depends on all slots of a row: see `fuse`. skip_norms: `Flags.skip_fc_norms`.
        """
        width = self.config.target_hidden_size
        columns = slice(place * width, (place + 1) * width)
        if self.config.fc_norm and not skip_norms:
            states = self.fc_norm[place](states)
        if self.config.norm_before_fc and not skip_norms:
            states = states * self.input_norm.weight[columns]
        return F.linear(states, self.fc.weight[:, columns])

    def fuse(self, products: list[Tensor], states: list[Tensor], *, skip_norms: bool = False) -> Tensor:
        """The drafter's first hidden state, [R, H], from each slot's product [R, H] and (for `norm_before_fc`) its states [R, Ht]."""
        fused = products[0].float()  # [R, H]
        for product in products[1:]:
            fused = fused + product
        if self.config.norm_before_fc and not skip_norms:
            square = sum(s.float().pow(2).sum(-1, keepdim=True) for s in states)  # [R, 1]
            fused = fused * torch.rsqrt(square / self.fc.in_features + self.input_norm.eps)
        if self.fc.bias is not None:
            fused = fused + self.fc.bias.float()
        return fused.to(products[0].dtype)

    def speak(self, hidden: Tensor, flags: Flags) -> StepOutput:
        """hidden: [R, H], the layer's output -> what lm_head reads and the state for the next step."""
        normed = self.norm(hidden)
        spoken = hidden if flags.skip_final_norm else normed
        return StepOutput(normed if flags.post_norm_recurrence else hidden, spoken, self.lm_head)

    @property
    def stack(self) -> list[DraftLayer]:
        """The decoder layers in order: `midlayer`, then `layers.1`, `layers.2`, ..."""
        return [self.midlayer, *(self.layers.values() if self.config.num_layers > 1 else ())]

    @property
    def target_ids(self) -> Tensor:
        """[Vd] int64: the target's token id of each draft id (d2t holds offsets)."""
        return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)
