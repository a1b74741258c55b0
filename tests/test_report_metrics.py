"""Public reports of numbers that were taken for others, of what they cost, and of training against serving."""

import json

import pytest
from case_builder import write_case

from eaglelab.acceptance import Walk, accept_length_from_conditional, accept_length_from_joint
from eaglelab.checks import findings
from eaglelab.cli import main
from eaglelab.investigation import Investigation
from eaglelab.metrics import read_metrics
from eaglelab.served.published import published, published_for
from eaglelab.timing.cost import cost_rows, two_numbers
from eaglelab.timing.measured import read_measured


@pytest.mark.report("SafeAILab/EAGLE#132", "H")
def test_the_bonus_token_makes_one(tmp_path):
    """A user's 2.3 accepted tokens a pass are an accept length of 3.3; vLLM's line before 0.9 printed the number without the bonus."""
    assert Walk(verify_steps=1000, accepted=2300).accept_length == pytest.approx(3.3)
    line = "SpecDecoding metrics: Mean acceptance length: 2.30\n"
    lengths = {}
    for version in ("0.8.5", "0.11.0"):
        (tmp_path / "log").write_text(line)
        lengths[version] = read_metrics(tmp_path / "log", "vllm", version).accept_length().value
    assert lengths == {"0.8.5": pytest.approx(3.3), "0.11.0": pytest.approx(2.3)}


@pytest.mark.report("SafeAILab/EAGLE#143", "H")
@pytest.mark.report("SafeAILab/EAGLE#101", "H")
@pytest.mark.report("sgl-project/SpecForge#113", "D")
def test_what_is_usual_for_a_target():
    """Nobody has a table: ours is of public threads, and a target is found by the numbers of its config."""
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 28, "hidden_size": 3584, "vocab_size": 152064}
    assert {(p.target, p.accept_length) for p in published_for(qwen2)} == {("Qwen2-7B", 2.14), ("Qwen2.5-7B", 1.94)}
    llama = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256}
    (lmsys,) = published_for(llama)  # a user's own head reached 2.695 on the same setting
    assert (lmsys.accept_length, lmsys.setting, "2.695" in lmsys.drafter) == (3.115, "3-8-10", True)
    assert published_for(llama | {"vocab_size": 32000}) == []  # Vicuna's shape otherwise
    assert published_for(qwen2 | {"hidden_size": 3585}) == published_for({}) == published_for(None) == []
    assert all("#" in p.thread and p.accept_length > 1 for p in published())
    maverick = next(p for p in published() if p.target == "Llama-4 Maverick")
    assert maverick.accept_length == pytest.approx(accept_length_from_joint([0.71, 0.48, 0.34]), abs=0.005)  # vllm-project/vllm#25961
    moe = next(p for p in published() if p.target == "Qwen3-30B-A3B")
    assert moe.accept_length == pytest.approx(accept_length_from_joint([0.5858, 0.2991, 0.1491, 0.0790, 0.0423]), abs=0.005)


@pytest.mark.report("sgl-project/sglang#11948", "EH")
@pytest.mark.parametrize(("length", "tok_s"), [(1.57, 165.0), (2.17, 189.0)])
def test_a_speedup_over_a_slow_baseline_says_nothing_of_milliseconds(length, tok_s, capsys):
    """A paper's 4.4 is over another engine's baseline: the pass's own time and the baseline's stand side by side."""
    for baseline in (100.0, 150.0):
        told = two_numbers(tok_s, length, baseline)
        assert told.pass_ms == pytest.approx(1000 * length / tok_s)  # 9.5 and 11.5 ms, whatever it is held against
        assert told.speedup == pytest.approx(tok_s / baseline)
        assert told.break_even == pytest.approx(length * baseline / tok_s)
        assert main(["cost", "--numbers", str(tok_s), str(length), str(baseline)]) == 0
        said = capsys.readouterr().out
        assert f"({1000 * length / tok_s:.4g} ms against {1000 / baseline:.4g} ms)" in said


@pytest.mark.report("Tencent/AngelSlim#9", "EX")
def test_130_tokens_a_second_become_60(tmp_path):
    """6-10-32 on Qwen3-30B-A3B, numbers from a loop in PyTorch: whatever the accept length is, it must more than double to break even."""
    (tmp_path / "runs.csv").write_text("batch,steps,topk,draft_tokens,tok_s,accept_length\n1,0,0,0,130,\n1,6,10,32,60,2.0\n")
    (row,) = [r for r in cost_rows(read_measured(tmp_path / "runs.csv")) if not r.measured.setting.off]
    assert row.measured.setting.name == "6-10-32"
    assert row.speedup == pytest.approx(60 / 130)
    assert row.break_even == pytest.approx(2.0 * 130 / 60)


@pytest.mark.report("SafeAILab/EAGLE#264", "X")
def test_an_accuracy_of_0_89_at_seven_steps_is_5_5(tmp_path):
    """One sample, overfitted: the chain gives 5.5, the servers 1.5."""
    closed = (1 - 0.89**8) / (1 - 0.89)
    assert accept_length_from_conditional([0.89] * 7) == pytest.approx(closed)
    assert closed == pytest.approx(5.5, abs=0.02)
    (tmp_path / "train.log").write_text("".join(f"Train Epoch [40/40], position {k}, Acc: 0.89\n" for k in range(7)))
    found = {
        f.id: f
        for f in findings(
            Investigation(str(write_case(tmp_path, {"training": {"metrics": "train.log", "framework": "eagle"}}))), "training.metric"
        )
    }
    assert "as an accept length: about 5.51" in found["training.reported"].title


@pytest.mark.report("NickL77/BaldEagle#17", "HX")
def test_top_k_accuracy_is_no_acceptance(tmp_path):
    """90 % of top-k, served 1.2: no accept length is made of a name that nobody defines."""
    (tmp_path / "train.jsonl").write_text(json.dumps({"step": 1000, "eval/top_3_acc": 0.90, "eval/top_k_accuracy": 0.9}) + "\n")
    found = {
        f.id: f for f in findings(Investigation(str(write_case(tmp_path, {"training": {"metrics": "train.jsonl"}}))), "training.metric")
    }
    reported = found["training.reported"]
    assert reported.numbers["accept_length"] is None or reported.numbers["accept_length"].get("value") is None
    assert "top_3_acc" in f"{reported.title} {reported.evidence}"
