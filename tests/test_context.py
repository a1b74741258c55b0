"""How far into a text a drafter holds: falls that are planted, falls that are none, ropes against transformers' own, and a rope that was changed."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import trained_drafters
from case_builder import write_case
from figures import closed, drawn, title  # noqa: F401 - closed closes what a test drew
from hypothesis import given, settings
from hypothesis import strategies as st
from lost_rows import drawn_rows, trained_case
from trained_drafters import trained, walks
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eaglelab.checks import context, findings
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.lost import Rows, by_position, fall
from eaglelab.plots.lost import acceptance_by_position
from eaglelab.replay.walk import AnswerWalk
from eaglelab.served.predict import Prediction, Request, RequestPrediction

# -- falls ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("knee", [64, 200, 320])
def test_a_planted_fall_is_found_where_it_lies(knee):
    rows = drawn_rows(12, 400, 1, lambda s, t, k: np.where(t + 2 >= knee, 0.35, 0.65))
    found = fall(rows)
    assert found.told
    assert abs(found.position - knee) <= 30  # candidates are a dozen positions apart
    assert found.low - 15 <= knee <= found.high + 15
    assert found.before == pytest.approx(0.65, abs=0.04)
    assert found.after == pytest.approx(0.35, abs=0.04)
    assert found.difference[1] < -0.3 < found.difference[2] + 0.05
    said = title(drawn(acceptance_by_position(by_position(rows), found)))
    assert said == f"Step 0 is right in {found.before:.0%} before position {found.position:,} and in {found.after:.0%} from it on"


def uneven(seed, samples=12):
    """Samples of unlike difficulty and length; the long ones are hard throughout. No position matters."""
    draws = np.random.default_rng(seed)
    lengths = np.sort(draws.integers(40, 400, samples))
    level = np.linspace(0.85, 0.25, samples)
    rows = drawn_rows(samples, 400, 1, lambda s, t, k: level[s], seed=seed)
    return rows.select(rows.row < lengths[rows.sample])


def test_long_samples_that_are_harder_are_no_fall():
    told = sum(fall(uneven(seed)).told for seed in range(60))
    assert told <= 8  # 3 expected at 5 %; 9 or more have a chance of 0.3 %


def test_a_rise_is_no_fall():
    found = fall(drawn_rows(12, 300, 1, lambda s, t, k: 0.3 + t / 600))
    assert not found.told


def test_the_order_of_samples_does_not_matter():
    rows = uneven(3)
    order = np.random.default_rng(0).permutation(len(rows.keys))
    other = Rows(**{**vars(rows), "sample": order[rows.sample]})
    pd.testing.assert_frame_equal(by_position(rows), by_position(other))
    one, two = fall(rows), fall(other)
    assert (one.position, one.n, one.samples) == (two.position, two.n, two.samples)
    assert one.difference == pytest.approx(two.difference)


def test_too_few_samples_reach_far_enough():
    assert fall(drawn_rows(4, 300, 1, lambda s, t, k: 0.5 + 0 * t)) is None
    assert fall(drawn_rows(12, 8, 1, lambda s, t, k: 0.5 + 0 * t)) is None
    rows = drawn_rows(6, 50, 1, lambda s, t, k: 0.5 + 0 * t)
    assert fall(rows.select(np.zeros(300, dtype=bool))) is None
    assert title(drawn(acceptance_by_position(by_position(rows), None))) == "Too few long samples to tell whether acceptance falls"
    with pytest.raises(ValueError, match="no position to show"):
        acceptance_by_position(by_position(rows.select(np.zeros(300, dtype=bool))), None)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 8), st.integers(1, 90), st.integers(0, 999))
def test_bins_hold_every_row_once(samples, length, seed):
    rows = drawn_rows(samples, length, 2, lambda s, t, k: 0.5 + 0 * t, seed=seed)
    for since in ("sample", "answer"):
        bins = by_position(rows, since)
        assert bins["n"].sum() == samples * length
        assert (bins["n"] * bins["marginal"]).sum() == pytest.approx(rows.right[0].sum())
        assert (bins["to"].to_numpy()[:-1] <= bins["from"].to_numpy()[1:]).all()
    found = fall(rows)
    if found is not None:
        assert sum(found.n) <= samples * length
        assert found.low <= found.high


# -- ropes: configs alone -------------------------------------------------------------------------------------------------------------

BASE = {"hidden_size": 64, "num_attention_heads": 1, "head_dim": 64, "vocab_size": 64, "max_position_embeddings": 131072}
YARN = {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096}
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 4096}

GEMMA = {
    "rope_parameters": {
        "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
        "full_attention": {"rope_theta": 1e6, "rope_type": "default"},
    }
}
"""A rope for each type of layer."""


def rope_case(root, own, target, **sections):
    draft = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_key_value_heads": 1,
        "intermediate_size": 64,
        "draft_vocab_size": 64,
        "num_hidden_layers": 1,
        "rms_norm_eps": 1e-6,
    }
    root.mkdir(exist_ok=True)
    (root / "draft.json").write_text(json.dumps(BASE | draft | own))
    (root / "target.json").write_text(
        json.dumps(BASE | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 8} | target)
    )
    engine = {"draft_config": "draft.json"} | sections.pop("engine", {})
    return write_case(root, {"engine": engine, "target": {"config": "target.json"}} | sections)


def told_rope(case):
    (found,) = findings(Investigation(str(case)), "context.rope")
    return found


def inv_freq(theta, scaling):
    """transformers' own table."""
    config = LlamaConfig(**BASE, rope_theta=theta, **({} if scaling is None else {"rope_scaling": dict(scaling)}))
    if scaling is None:
        return theta ** (-torch.arange(0, 64, 2).double() / 64)
    return ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")[0].double()


def test_yarn_that_became_llama3(tmp_path):
    """NVIDIA-NeMo's recipe wrote llama3's schedule for a gpt-oss target: base 150000, factor 32, yarn (PR 2399 there). The position from which both
    part follows from transformers' own tables."""
    found = told_rope(rope_case(tmp_path, {"rope_theta": 150000, "rope_scaling": LLAMA3}, {"rope_theta": 150000, "rope_scaling": YARN}))
    apart = float((inv_freq(150000.0, LLAMA3) - inv_freq(150000.0, YARN)).abs().max())
    assert found.status is Status.CANNOT_TELL
    assert found.numbers["keys"] == {"rope_type": ["llama3", "yarn"]}
    assert found.numbers["position"] == pytest.approx(0.1 / apart, abs=1)
    assert "rope_type llama3 instead of yarn" in found.title


@pytest.mark.parametrize(
    ("own", "target", "status", "said"),
    [
        ({"rope_theta": 5e5}, {"rope_theta": 5e5}, Status.PASS, "as the target does (theta 500000, default)"),
        ({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}, {"rope_theta": 5e5}, Status.PASS, "as the target does"),
        ({}, {"rope_theta": 5e5}, Status.CANNOT_TELL, "rope_theta 10000 instead of 500000"),
        ({"rope_theta": 1e6}, {"rope_theta": 5e5}, Status.CANNOT_TELL, "rope_theta 1e+06 instead of 500000"),
        (
            {"rope_theta": 5e5, "rope_scaling": LLAMA3 | {"factor": 8.0}},
            {"rope_theta": 5e5, "rope_scaling": LLAMA3},
            Status.CANNOT_TELL,
            "factor 8 instead of 32",
        ),
        ({"rope_theta": 5e5}, {"rope_theta": 5e5, "rope_scaling": YARN}, Status.CANNOT_TELL, "factor absent instead of 32"),
        ({"rope_theta": 1e4}, GEMMA, Status.PASS, "as the target does (theta 10000"),
        ({"rope_theta": 1e6}, GEMMA, Status.PASS, "as the target does (theta 1e+06"),
        ({"rope_theta": 5e5}, GEMMA, Status.CANNOT_TELL, "rope_theta 500000 instead of 1e+06"),
        ({"rope_theta": 1e4}, {"rope_theta": 1e6, "rope_local_base_freq": 1e4}, Status.PASS, "as the target does (theta 10000"),
        ({"rope_theta": 5e5, "max_position_embeddings": 2048}, {"rope_theta": 5e5}, Status.PASS, "as the target does"),
        (
            {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear"}},
            {"rope_theta": 5e5},
            Status.CANNOT_TELL,
            "rope_type linear instead of default",
        ),
    ],
)
def test_ropes_of_two_configs(tmp_path, own, target, status, said):
    found = told_rope(rope_case(tmp_path, own, target))
    assert found.status is status, found.title
    assert said in found.title
    json.dumps(found.to_json(), allow_nan=False)


def test_a_rope_that_is_no_number_is_an_error_that_says_so(tmp_path):
    found = told_rope(rope_case(tmp_path, {"rope_theta": "many"}, {"rope_theta": 5e5}))
    assert found.status is Status.CANNOT_TELL
    assert "rope_theta is 'many', expected a positive number" in found.evidence


def test_without_configs_it_is_not_given(tmp_path):
    assert told_rope(write_case(tmp_path, {"engine": {"name": "sglang", "version": "0.5.23"}})).status is Status.NOT_GIVEN


def test_served_texts_beyond_the_drafters_positions(tmp_path):
    lines = [
        {"kind": "session", "format": 1, "engine": "sglang==0.5.23", "num_steps": 3},
        {"kind": "request", "index": 0, "prompt_token_ids": [1] * 1500, "token_ids": [2] * 900},
    ]
    case = rope_case(tmp_path, {"rope_theta": 5e5, "max_position_embeddings": 2048}, {"rope_theta": 5e5}, engine={"counters": "run.jsonl"})
    (case / "run.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    found = told_rope(case)
    assert found.status is Status.CANNOT_TELL
    assert "its positions end at 2,048 and texts of 2,400 tokens were served" in found.title


def test_the_config_check_leaves_the_rope_to_this_one(tmp_path):
    case = rope_case(tmp_path, {}, {"rope_theta": 5e5}, engine={"name": "sglang", "version": "0.5.23"})
    assert "config.rope" not in {f.id for f in findings(Investigation(str(case)), "config")}


# -- ropes: a drafter that was trained with another -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learnt(request):
    """(drafter trained with theta 10000 on texts of 96 tokens, eight others, embedding)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trained_drafters, "LENGTH", 96)
        samples, embedding = walks(16)
        return trained(samples[:8], embedding, updates=80, max_position_embeddings=512), samples[8:], embedding


def test_the_rope_that_it_was_trained_with_is_passed(learnt, tmp_path):
    inv = Investigation(str(trained_case(tmp_path, *learnt, target_theta=10000.0)), steps=2)
    assert inv.own_replay.counts.marginal(0) > 0.9
    assert [f.status for f in findings(inv, "context.rope", "context.knee")] == [Status.PASS, Status.PASS]
    assert findings(inv, "context.rope_fit") == []  # one rope: nothing to compare


def test_a_rope_changed_after_training_is_named_with_what_to_write(learnt, tmp_path):
    inv = Investigation(str(trained_case(tmp_path, *learnt, theta=30.0, target_theta=10000.0)), steps=2)
    rope, fit = findings(inv, "context.rope", "context.rope_fit")
    assert rope.status is Status.CANNOT_TELL  # a config alone does not say what it was trained with
    assert fit.status is Status.FAIL, fit.title
    assert fit.title == "The drafter fits the target's rope better than the one in its config"
    assert fit.numbers["best"]["rope_theta"] == 10000.0
    assert "rope_theta 10000" in fit.next


def test_a_rope_of_its_own_is_no_fault(learnt, tmp_path):
    """Trained with 10000 beside a target with 30: its own fits better."""
    inv = Investigation(str(trained_case(tmp_path, *learnt, target_theta=30.0)), steps=2)
    (fit,) = findings(inv, "context.rope_fit")
    assert fit.status is Status.PASS, fit.title


def test_a_fall_behind_the_drafters_positions_is_named(learnt, tmp_path):
    """From row 48 on the states are noise, and the drafter's positions end at 48."""
    drafter, samples, embedding = learnt
    g = torch.Generator().manual_seed(0)
    for s in samples:
        for slot in s.slots[:3]:
            slot[46:] = torch.randn(slot[46:].shape, generator=g)
    case = trained_case(tmp_path, drafter, samples, embedding, target_theta=10000.0, max_position_embeddings=48)
    (found,) = findings(Investigation(str(case), steps=2), "context.knee")
    assert found.status is Status.FAIL, found.title
    assert found.title.endswith("the drafter's positions end at 48")
    assert abs(found.numbers["fall"]["position"] - 48) <= 5
    long = trained_case(tmp_path / "long", drafter, samples, embedding, target_theta=10000.0)
    (found,) = findings(Investigation(str(long), steps=2), "context.knee")
    assert found.status is Status.CANNOT_TELL
    assert "nothing in the configs says why" in found.title
    (found,) = findings(Investigation(str(long), steps=2, max_samples=4), "context.knee")
    assert found.status is Status.CANNOT_TELL
    assert "fewer than 5 samples" in found.title


# -- the server along an answer -------------------------------------------------------------------------------------------------------


class Served:
    """A recording and its prediction, as `ServedCase` has them."""

    def __init__(self, requests):
        self.recording = type("Recording", (), {"requests": [r.request for r in requests]})()
        self._found = Prediction(tuple(requests), 3, 1, 4, ())

    def predicted(self, recording):
        return type("Predicted", (), {"prediction": self._found})()


def requests(served_late, n=8, passes=40, seed=0):
    """Predicted 1.5 accepted a pass throughout; served so in the first half, and `served_late` in the second."""
    draws, made = np.random.default_rng(seed), []
    for i in range(n):
        walk = draws.integers(0, 4, passes)
        told = np.where(
            np.arange(passes) < passes // 2, walk, np.minimum(walk, draws.poisson(served_late, passes)) if served_late else walk
        )
        request = Request(i, (1,), tuple(range(9)), accepted=tuple(map(int, told)))
        made.append(RequestPrediction(i, AnswerWalk(tuple(map(int, walk)), passes, False), request, False, None, None))
    return made


def along(requests):
    return list(context.served_position(type("Inv", (), {"served": Served(requests)})()))


def test_a_server_that_falls_along_an_answer():
    (found,) = along(requests(0.5))
    assert found.status is Status.FAIL
    assert found.numbers["served"][1] < found.numbers["served"][0]
    assert found.numbers["predicted"] == pytest.approx([2.5, 2.5], abs=0.2)
    json.dumps(found.to_json(), allow_nan=False)


def test_a_server_as_predicted_or_of_few_requests_is_not_named():
    assert along(requests(None)) == []
    assert along(requests(0.5, n=3)) == []
    assert along(requests(0.5, passes=3)) == []
    assert along([]) == []
