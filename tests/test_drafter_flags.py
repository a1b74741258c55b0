"""What an engine leaves out because it does not know a key: the flag over whole weights equals a drafter that never had the part."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_drafters import tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.drafter.model import Drafter, Flags
from eaglelab.replay import Variant, replay

BASE = Variant((0, 1, 2))
PARTS = {
    "skip_fc_norms, one norm": ({"norm_before_fc": True}, {"norm_before_fc": False}, Flags(skip_fc_norms=True)),
    "skip_fc_norms, a norm a slot": ({"fc_norm": True}, {"fc_norm": False}, Flags(skip_fc_norms=True)),
    "skip_qk_norm": ({"layer_type": "qwen3"}, {"layer_type": "llama"}, Flags(skip_qk_norm=True)),
    "skip_attention_bias": ({"attention_bias": True}, {"attention_bias": False}, Flags(skip_attention_bias=True)),
}


def confidences(drafter, *variants):
    """[K, R] of each variant."""
    samples = [tiny_sample("a", 23, 5, seed=3), tiny_sample("b", 17, 2, seed=4)]
    results = replay(drafter, samples, tiny_embedding(), variants)
    return [np.concatenate([o.confidence for o in r.outcomes], axis=1) for r in results]


@pytest.mark.parametrize(("has", "lacks", "flags"), PARTS.values(), ids=PARTS.keys())
def test_a_part_left_out_is_a_drafter_without_it(has, lacks, flags):
    whole = tiny_drafter(**has)
    if flags.skip_attention_bias:
        whole.midlayer.self_attn.o_proj.bias.zero_()  # SGLang keeps this one
    without = Drafter(replace(whole.config, **lacks)).eval()
    dropped = without.load_state_dict(whole.state_dict(), strict=False)
    assert not dropped.missing_keys
    assert dropped.unexpected_keys  # the part is there to be left out
    own, skipped, again = confidences(whole, BASE, replace(BASE, flags=flags), BASE)
    np.testing.assert_allclose(skipped, confidences(without, BASE)[0], atol=1e-6)
    np.testing.assert_array_equal(own, again)  # the products of both ways are kept apart
    assert np.abs(own - skipped).max() > 0.05


@pytest.mark.parametrize(("has", "lacks", "flags"), PARTS.values(), ids=PARTS.keys())
def test_nothing_to_leave_out_changes_nothing(has, lacks, flags):
    drafter = tiny_drafter()
    own, skipped = confidences(drafter, BASE, replace(BASE, flags=flags))
    np.testing.assert_array_equal(own, skipped)


def test_further_layers_normed_without_their_gain_are_layers_of_gain_one():
    drafter = tiny_drafter(num_layers=2)
    own, skipped = confidences(drafter, BASE, replace(BASE, flags=Flags(skip_further_gain=True)))
    assert np.abs(own - skipped).max() > 0.05
    drafter.stack[1].input_layernorm.weight.fill_(1.0)
    np.testing.assert_array_equal(skipped, confidences(drafter, BASE)[0])
