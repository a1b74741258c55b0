"""The parts of `eaglelab sweep` that start nothing: plan, command lines, steady state, choice, folder."""

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest
from case_builder import build_case, make_world
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelab.acceptance import accept_length_from_joint
from eaglelab.engines.launch import parse_launch
from eaglelab.investigation import Investigation
from eaglelab.live.prompts import Prompt
from eaglelab.timing.acceptance import Expected, ReplayedAcceptance
from eaglelab.timing.cost import cost_rows
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import Measured, MeasuredTable
from eaglelab.timing.setting import Setting
from eaglelab.timing.sweep import run as runs
from eaglelab.timing.sweep import store as stores
from eaglelab.timing.sweep.choose import choose, gains, setting_of
from eaglelab.timing.sweep.command import Template, parse_axis, parse_flags
from eaglelab.timing.sweep.machine import accelerated
from eaglelab.timing.sweep.measure import asked, numbers, run_batch, same_text, steady
from eaglelab.timing.sweep.plan import NOISE, Knowledge, auto_settings, decide, parse_settings
from eaglelab.timing.sweep.run import Options, Sweep, on_cpu, ordered, run_name, variants
from eaglelab.timing.sweep.served import served_less
from eaglelab.timing.sweep.servers import SettingFailed
from eaglelab.timing.sweep.store import DiskFull, Store, append
from eaglelab.timing.sweep.streaming import Answer, _SGLangChunks, _VLLMChunks
from eaglelab.wiring import FINAL

OFF = Setting(0)
LINE = "python -m sglang.launch_server --model-path m --tp-size 2 --speculative-algorithm EAGLE3 --speculative-draft-model-path d --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --disable-radix-cache"
VLLM = """vllm serve m --dtype bfloat16 --speculative-config '{"method": "eagle3", "model": "d", "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1}' --max-model-len 1024"""


# -- the plan: closed forms --------------------------------------------------------------------------------------------------------


def law(joint, per_token, per_step):
    """(accept length, r) of any setting that drafts chains with this joint acceptance, in closed form."""
    return lambda s: (accept_length_from_joint(joint[: s.steps]), 1 + per_token * (s.verified - 1) + per_step * s.steps)


def rows_of(law, chosen, batch=1, base=100.0):
    found = [Measured(batch, OFF, base)]
    for s in chosen:
        length, r = law(s)
        found.append(Measured(batch, s, base * length / r, length))
    return found


def joint_at(joint, chosen):
    return {s: joint[s.steps - 1] for s in chosen}


falling = st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7).map(lambda p: sorted(p, reverse=True))


@settings(max_examples=60, deadline=None)
@given(falling, st.floats(0, 0.5), st.floats(0.01, 0.5), st.sets(st.integers(1, 7), max_size=4), st.booleans())
def test_the_truth_lies_within_the_bounds(joint, per_token, per_step, steps, told):
    """Whatever was measured of a monotone cost and a falling joint acceptance, every other chain's speedup lies between its bounds."""
    truth, chosen = law(joint, per_token, per_step), [Setting(k) for k in steps]
    known = Knowledge(rows_of(truth, chosen), joint=joint_at(joint, chosen) if told else {})
    for k in range(1, 8):
        low, high = known.bounds(1, Setting(k))
        length, r = truth(Setting(k))
        assert low <= length / r + 1e-9
        assert length / r <= high + 1e-9


@settings(max_examples=60, deadline=None)
@given(falling, st.floats(0, 0.5), st.floats(0.01, 0.5))
def test_pruning_never_loses_the_best(joint, per_token, per_step):
    truth = law(joint, per_token, per_step)
    speed = {s: truth(s)[0] / truth(s)[1] for s in map(Setting, range(1, 8))}
    done = swept(truth, joint, list(speed))
    best = max([1.0, *speed.values()])
    assert max([1.0, *(speed[s] for s in done)]) >= best - 1e-9


def swept(truth, joint, candidates):
    """The settings that an adaptive sweep measures."""
    done = []
    for s in ordered(candidates)[1:]:
        known = Knowledge(rows_of(truth, done), joint=joint_at(joint, done))
        if decide(s, [1], known, asked_for=False, engine="sglang").tried:
            done.append(s)
    return done


def test_it_stops_going_up_where_nothing_can_be_won():
    """Joint 0.6, 0.1, 0.02, 0, …; a cycle costs 1 + 0.2 a step. 1: 1.6/1.2 = 1.33; 2: 1.7/1.4 = 1.21; 3 can at most be (1.7*1.05 + 0.115) / (1.4*0.95)."""
    joint = (0.6, 0.1, 0.02, 0, 0, 0, 0)
    truth = law(joint, 0.0, 0.2)
    assert [s.steps for s in swept(truth, joint, [Setting(k) for k in range(1, 8)])] == [1, 2, 3]
    known = Knowledge(rows_of(truth, [Setting(1), Setting(2)]), joint={Setting(1): 0.6, Setting(2): 0.1})
    high = known.bounds(1, Setting(3))[1]
    assert high == pytest.approx((1.7 * 1.05 + 0.1 * 1.05 + 0.01) / (1.4 * (1 - NOISE)))
    known = Knowledge(rows_of(truth, [Setting(1), Setting(2), Setting(3)]), joint=joint_at(joint, [Setting(1), Setting(2), Setting(3)]))
    left = decide(Setting(4), [1], known, asked_for=False, engine="sglang")
    assert not left.tried
    assert "at most 1.21x at batch 1" in left.reason
    assert "1-1-2 reached 1.33x" in left.reason


def test_a_poor_drafter_gets_no_server_and_a_good_one_does():
    poor = Knowledge(accept=lambda s: Expected(1.005, 1.0, 1.006, "hand"))
    found = decide(Setting(5), [1, 8], poor, asked_for=False, engine="sglang")
    assert not found.tried
    assert "where off is 1" in found.reason
    good = decide(Setting(5), [1, 8], Knowledge(accept=lambda s: Expected(2.5, 2.4, 2.6, "hand")), asked_for=False, engine="sglang")
    assert good.tried
    assert good.bounds[8][1] == pytest.approx(2.6 * 1.03 / 1.05)
    assert decide(Setting(5), [1], poor, asked_for=True, engine="sglang").reason == "asked for"


def test_a_setting_that_could_win_at_one_batch_size_is_tried():
    slow, fast = law((0.9, 0.01, 0), 4.0, 0.0), law((0.9, 0.8, 0.7), 0.01, 0.01)
    rows = rows_of(slow, [Setting(1)], batch=64) + rows_of(fast, [Setting(1)], batch=1)
    found = decide(Setting(2), [1, 64], Knowledge(rows), asked_for=False, engine="sglang")
    assert found.tried
    assert "batch 1" in found.reason


def test_a_replay_that_a_server_beats_is_no_bound():
    known = Knowledge(rows_of(law((0.9, 0.8, 0.7), 0.05, 0.01), [Setting(1)]), accept=lambda s: Expected(1.1, 1.05, 1.15, "hand"))
    assert known.beaten(1)
    assert known.accept_bounds(1, Setting(2))[1] > 2.5
    held = Knowledge(rows_of(law((0.1, 0.08, 0.07), 0.05, 0.01), [Setting(1)]), accept=lambda s: Expected(1.1, 1.05, 1.15, "hand"))
    assert held.accept_bounds(1, Setting(2))[1] == pytest.approx(1.15 * 1.03)


def test_a_replay_of_one_sample_has_no_interval_and_bounds_nothing():
    known = Knowledge(accept=lambda s: Expected(1.01, 1.01, 1.01, "one sample"))
    assert known.accept_bounds(1, Setting(3)) == (1.0, 4.0)
    found = decide(Setting(3), [1], known, asked_for=False, engine="sglang")
    assert found.tried
    assert found.to_json()["accept_length"] == {"value": 1.01, "low": None, "high": None}


def test_repeats_that_differ_loosen_what_they_bound():
    """Off at 80 and 100, a chain of one at 90 and 120, accept length 1.5: a cycle cost 1.5 * 80 / 120 = 1 to 1.5 * 100 / 90 = 1.667 plain steps."""
    rows = [Measured(1, OFF, 80.0), Measured(1, OFF, 100.0), Measured(1, Setting(1), 90.0, 1.5), Measured(1, Setting(1), 120.0, 1.5)]
    low, high = Knowledge(rows).costs(1)[Setting(1)]
    assert (low, high) == (pytest.approx(1.0 * (1 - NOISE)), pytest.approx(1.5 * 100 / 90 * (1 + NOISE)))
    assert Knowledge(rows).speedups(1) == {Setting(1): pytest.approx(105 / 90)}


def test_trees_are_bounded_by_what_is_smaller_and_vllm_has_none():
    truth = law((0.5, 0.3, 0.1), 0.3, 0.1)
    known = Knowledge(rows_of(truth, [Setting(3)]))
    low, _ = known.cost_bounds(1, Setting(3, 4, 8))
    assert low == pytest.approx(truth(Setting(3))[1] * (1 - NOISE))
    assert known.cost_bounds(1, Setting(2, 4, 8))[0] == 1.02  # 3 steps are not within 2
    assert not decide(Setting(3, 4, 8), [1], known, asked_for=True, engine="vllm").tried
    assert all(s.chain for s in auto_settings("vllm"))
    assert any(not s.chain for s in auto_settings("sglang"))


def test_a_bound_says_where_it_comes_from():
    """The replay's 1.6 and 3 %: 1.648. A cycle of one step costs 1.01 plain ones at least; by a table that measured 2 at batch 4, 2 * 0.85 = 1.7."""
    known = Knowledge(before=rows_of(law((0.5,), 1.0, 0.0), [Setting(1)], batch=4), accept=lambda s: Expected(1.5, 1.4, 1.6, "hand"))
    at = lambda batch, **more: decide(Setting(1), [batch], known, asked_for=False, engine="sglang", **more)  # noqa: E731
    assert (
        at(16).reason
        == "could reach 1.63x at batch 16 (accept length at most 1.65, the replay's and 3%, a cycle costs at least 1.01 plain steps: nothing is measured at batch 16)"
    )
    assert at(4).reason == (
        "at most 0.97x at batch 4 (accept length at most 1.65, the replay's and 3%, a cycle costs at least 1.70 plain steps: 1-1-2's in `[timing] table`, less what noise may be), where off is 1"
    )
    known.own = rows_of(law((0.5,), 1.0, 0.0), [Setting(1)], batch=4)
    assert "1.90 plain steps: 1-1-2's in this sweep" in decide(Setting(2), [4], known, asked_for=False, engine="sglang").reason


def test_no_model_promises_more_than_the_accept_length():
    """1.6 and 3 % over 0.9 = 1.831, whatever another model says; what lies below stays."""
    known = Knowledge(accept=lambda s: Expected(1.5, 1.4, 1.6, "hand"))
    found = decide(Setting(1), [1, 4], known, asked_for=False, engine="sglang", bounds=lambda b, s: (0.5, 3.0 if b == 1 else 1.2))
    assert found.bounds == {1: (0.5, pytest.approx(1.6 * 1.03 / 0.9)), 4: (0.5, 1.2)}
    assert (
        found.reason
        == "could reach 1.83x at batch 1 (accept length at most 1.65, the replay's and 3%, and no cycle costs less than 0.9 plain steps)"
    )


def test_a_cpu_gets_no_tree_of_32_nodes_unless_it_is_named():
    wide = Setting(5, 8, 32)
    at = lambda **more: decide(wide, [1], Knowledge(), engine="sglang", **more)  # noqa: E731
    assert at(asked_for=False).tried
    assert at(asked_for=True, cpu="it is one").tried
    left = at(asked_for=False, cpu="it is one")
    assert (left.tried, left.reason) == (False, "32 nodes a pass are too many for a CPU (it is one); --settings 5-8-32 has it")
    assert decide(Setting(5, 4, 8), [1], Knowledge(), asked_for=False, engine="sglang", cpu="it is one").tried


def test_what_is_a_cpu(tmp_path, monkeypatch):
    assert not accelerated(tmp_path)
    (tmp_path / "nvidia0").touch()
    assert accelerated(tmp_path)
    for there in (True, False):
        monkeypatch.setattr(runs, "accelerated", lambda there=there: there)
        assert on_cpu(template(LINE + " --device cpu")) == "the launch line says --device cpu"
        assert on_cpu(template(LINE + " --device cuda")) == ""
        assert bool(on_cpu(template(LINE))) is not there


def test_an_earlier_table_bounds_costs_but_is_nothing_to_beat():
    known = Knowledge(before=rows_of(law((0.5, 0.3, 0.1), 1.0, 0.0), [Setting(1)]))
    assert known.cost_bounds(1, Setting(2))[0] == pytest.approx(2 * 0.85)
    assert known.best(1) == (OFF, 1.0)


def test_the_plan_of_a_case_is_bounded_by_its_replay(tmp_path):
    """The accept lengths are those of `ReplayedAcceptance`; where it fails, one note, and nothing is bounded."""
    world = make_world(tmp_path, "llama", 6, seed=3)
    build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[1, 3, 5])
    chosen = [Setting(2), Setting(2, 2, 5)]
    sweep = Sweep(Investigation(str(tmp_path)), template(LINE), Options(settings=(OFF, *chosen)))
    accept = sweep.acceptance()
    own = ReplayedAcceptance(Investigation(str(tmp_path)))
    assert [accept(s) for s in chosen] == [own(s) for s in chosen]
    assert accept(Setting(2)).low < accept(Setting(2)).high
    assert not sweep.notes
    for file in tmp_path.glob("**/*.safetensors"):
        file.write_bytes(b"")
    broken = Sweep(Investigation(str(tmp_path)), template(LINE), Options(settings=(OFF, *chosen)))
    assert broken.acceptance()(Setting(2)) is None
    assert "No replayed accept length of 2-1-3" in broken.notes[0]


EXAMPLE = Path(__file__).parents[1] / "data/example"


def test_a_server_that_reached_less_than_the_replay_is_warned_of(tmp_path, monkeypatch):
    """The example's server counted 1.11 with 3-1-4; its config feeds [0, 3, 16], and the dump's feed is another."""
    asked = []

    def accept(s):
        asked.append(s)
        return Expected(1.8, 1.61, 1.99, "hand")

    inv = Investigation(str(EXAMPLE))
    said = served_less(inv, accept, "sglang")
    assert set(asked) == {Setting(3)}  # what was served
    assert (
        "predicts 1.80 (1.61 to 1.99) for 3-1-4. The case's server reached 1.11 with it (engine/sglang-claimed.jsonl, 48 requests)" in said
    )
    assert "SGLang 0.5.23 feeds boundaries [0, 3, 16]" in said
    assert "feeds boundaries" not in served_less(inv, accept, "vllm")
    for low in (1.1, 1.2):  # within the interval, or as near to it as servers are
        assert served_less(inv, lambda s, low=low: Expected(1.3, low, 1.5, "hand"), "sglang") == ""
    assert served_less(inv, lambda s: Expected(1.8, 1.8, 1.8, "one sample"), "sglang") == ""
    assert served_less(inv, lambda s: None, "sglang") == ""
    (tmp_path / "case.toml").write_text('[engine]\nname = "sglang"\ncounters = "broken.jsonl"\n')
    (tmp_path / "broken.jsonl").write_text("{")
    assert served_less(Investigation(str(tmp_path)), accept, "sglang") == ""
    monkeypatch.setattr(runs, "ReplayedAcceptance", lambda inv: accept)
    sweep = Sweep(inv, template(LINE), Options())
    assert sweep.plan().notes.count(said) == 1


def test_settings_as_they_are_written():
    assert parse_settings("auto") is None
    assert parse_settings("3,off,2-1-3,5-4-8,3") == (OFF, Setting(3), Setting(2), Setting(5, 4, 8))
    for text, said in (
        ("x", "expected off, STEPS"),
        ("1.5", "one or three numbers"),
        ("99999", "at most four digits"),
        ("", "names no setting"),
        (" , ", "names no setting"),
        ("3-1", "one or three"),
        ("3-1-16", "verifies 4 tokens"),
        ("1-4-8", "2 to 5 nodes"),
        ("-1", "expected"),
    ):
        with pytest.raises(TimingError, match=said):
            parse_settings(text)


# -- command lines -----------------------------------------------------------------------------------------------------------------


def template(text, **options):
    return Template.read(text, folder=Path(), **options)


@pytest.mark.parametrize("s", [Setting(1), Setting(5), Setting(5, 4, 8)])
def test_a_launch_line_keeps_all_that_is_not_about_speculation(s):
    command = template(LINE).command(s, 4321)
    found = parse_launch(command.line)
    assert (found.num_steps, found.eagle_topk, found.num_draft_tokens) == (s.steps, s.topk, s.draft_tokens)
    kept = {k: v for k, v in parse_launch(LINE).given.items() if not k.startswith("speculative_num") and k != "speculative_eagle_topk"}
    assert kept.items() <= found.given.items()
    assert (found.given["port"], found.given["host"], command.url) == ("4321", "127.0.0.1", "http://127.0.0.1:4321")


def test_off_is_the_line_without_speculation():
    found = parse_launch(template(LINE + " --speculative-attention-mode decode").command(OFF, 1).line)
    assert found.given == {"model_path": "m", "tp_size": "2", "disable_radix_cache": True, "port": "1", "host": "127.0.0.1"}
    off = parse_launch(template(f"{VLLM} --per-request-spec-decode-metrics detailed").command(OFF, 1).line)  # refused without speculation
    assert off.given == {"dtype": "bfloat16", "max_model_len": "1024", "port": "1", "host": "127.0.0.1"}
    assert off.settings == {}


def test_vllms_own_spellings_become_one_config():
    found = parse_launch(template(VLLM).command(Setting(5), 1).line)
    assert found.settings == {"method": "eagle3", "model": "d", "num_speculative_tokens": 5, "draft_tensor_parallel_size": 1}
    dotted = "vllm serve m --spec-method eagle3 --spec-model d --spec-tokens 2 --disable-log-stats"
    found = parse_launch(template(dotted).command(Setting(4), 1).line)
    assert found.settings == {"method": "eagle3", "model": "d", "num_speculative_tokens": 4}
    assert "disable_log_stats" not in found.given
    with pytest.raises(TimingError, match="vLLM drafts chains"):
        template(VLLM).command(Setting(3, 4, 8), 1)


def test_a_line_without_speculation_gets_the_cases_drafter():
    bare = "python -m sglang.launch_server --model-path m"
    found = parse_launch(template(bare, drafter=Path("dr")).command(Setting(2), 1).line)
    assert (found.algorithm, found.given["speculative_draft_model_path"], found.num_draft_tokens) == ("EAGLE3", "dr", 3)
    assert "EAGLE3" not in template(bare).command(OFF, 1).line
    with pytest.raises(TimingError, match="no drafter is named"):
        template(bare).command(Setting(2), 1)


def test_a_template_keeps_its_text():
    text = "cd /x && A=1 ./serve.sh --port {port} {speculative} # {other}"
    made = template(text, engine="sglang", drafter=Path("d"))
    assert made.command(OFF, 7).line == "cd /x && A=1 ./serve.sh --port 7  # {other}"
    assert "--speculative-num-steps 2 --speculative-eagle-topk 1 --speculative-num-draft-tokens 3" in made.command(Setting(2), 7).line
    assert template("./serve.sh {steps} {topk} {draft_tokens} {port}", engine="vllm").command(OFF, 7).line == "./serve.sh 0 1 0 7"
    config = """vllm serve m --port {port} --speculative-config '{"model": "d", "num_speculative_tokens": {steps}}'"""
    assert parse_launch(template(config).command(Setting(4), 9).line).num_steps == 4
    assert "speculative" not in template(config).command(OFF, 9).line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "launch line is empty"),
        ("./serve.sh", "names no server of SGLang or vLLM"),
        ("./serve.sh {steps}", "where the port goes"),
        ("ssh host vllm serve m", "through ssh, on another machine"),
        ("docker run vllm/vllm-openai --model m", "put {port} where they are mapped"),
        ("docker run -d -p {port}:8000 vllm/vllm-openai --model m {speculative}", "in the background"),
        ("sgl.Engine(model_path='m')", "a call in Python"),
    ],
)
def test_lines_that_cannot_be_swept_say_why(line, said):
    with pytest.raises(TimingError, match=said):
        template(line)


def test_the_lines_own_port_and_keys():
    made = template(LINE + " --port 30000 --host 0.0.0.0 --api-key sk-hidden")
    command = made.command(Setting(1), 5)
    assert (made.own_port, command.port, command.host, made.api_key) == (30000, 30000, "127.0.0.1", "sk-hidden")
    assert "sk-hidden" in command.line
    assert "sk-hidden" not in command.shown + made.shown


def test_axes():
    assert parse_axis("NCCL_ALGO=Ring,Tree") == ("NCCL_ALGO", ("Ring", "Tree"))
    assert parse_flags("--disable-custom-all-reduce") == ("--disable-custom-all-reduce",)
    for bad in ("x", "1A=2", "=3"):
        with pytest.raises(TimingError, match="expected NAME=VALUE"):
            parse_axis(bad)
    with pytest.raises(TimingError, match="--settings chooses"):
        parse_flags("--speculative-num-steps 3")
    with pytest.raises(TimingError, match="expected a flag"):
        parse_flags("word")
    with pytest.raises(TimingError, match="the launch line sets it itself"):
        template(f"NCCL_ALGO=Ring {LINE}").check_environment(["NCCL_ALGO"])
    found = variants(Options(environment=(("A", ("1", "2")), ("B", ("x",))), flags=(("--f",),)))
    assert [v.name for v in found] == ["A=1 B=x", "A=1 B=x --f", "A=2 B=x", "A=2 B=x --f"]
    names = {run_name(Setting(2), v) for v in found}
    assert len(names) == 4
    assert all("/" not in n and " " not in n for n in names)


# -- measuring ---------------------------------------------------------------------------------------------------------------------


def answer(prompt, start, *ends, sent=None):
    """ends: (time, tokens so far)."""
    return Answer(prompt, start - 0.5 if sent is None else sent, ((start, 1), *ends), None, "")


def test_the_steady_state_in_closed_form():
    """Two streams of 10 and 20 tokens a second, together between 2 and 4 s: 2 s, 20 + 40 tokens."""
    slow = answer(0, 1.0, *((1 + i, 1 + 10 * i) for i in range(1, 4)))  # 1 to 4 s
    quick = answer(1, 2.0, *((2 + i, 1 + 20 * i) for i in range(1, 5)))  # 2 to 6 s
    assert steady([slow, quick], 2) == (pytest.approx(60.0), pytest.approx(2.0))
    assert steady([slow], 1) == (pytest.approx(30.0), pytest.approx(3.0))
    assert steady([slow, quick], 3) == (0.0, 0.0)
    assert steady([slow, answer(1, 9.0, (10.0, 9))], 2) == (0.0, 0.0)


def test_a_chunk_across_the_edge_counts_by_its_time():
    first, second = answer(0, 0.0, (4.0, 41)), answer(1, 1.0, (3.0, 21))
    assert steady([first, second], 2) == (pytest.approx(20 + 20), pytest.approx(2.0))


def test_a_stream_that_goes_on_with_the_next_prompt_leaves_its_prefill_out():
    one, two = answer(0, 0.0, (1.0, 11)), answer(1, 3.0, (4.0, 11), sent=1.0)
    other = answer(2, 0.0, *((i, 1 + 10 * i) for i in range(1, 5)))
    assert steady([one, two, other], 2) == (pytest.approx(40.0), pytest.approx(2.0))


def test_too_little_of_a_steady_state_is_said():
    from eaglelab.timing.sweep.measure import Batch

    found = numbers(Batch(2, (answer(0, 0.0, (1.0, 11)), answer(1, 0.9, (2.0, 12))), None, None, None))
    assert found["tok_s_of"] == "whole"
    assert found["tok_s"] == pytest.approx(23 / 2.5)
    assert found["itl_ms"] == pytest.approx(100.0)
    assert found["ttft_ms"] == pytest.approx(500.0)
    long = numbers(Batch(1, (answer(0, 0.0, (1.0, 11)),), None, None, None))
    assert (long["tok_s_of"], long["tok_s"]) == ("steady", pytest.approx(10.0))


def test_every_stream_has_at_least_two_requests():
    prompts = [Prompt(i, (1,)) for i in range(3)]
    assert [p.index for p in asked(prompts, 1, None)] == [0, 1, 2]
    assert [p.index for p in asked(prompts, 4, None)] == [0, 1, 2, 0, 1, 2, 0, 1]
    assert len(asked(prompts, 1, 2)) == 2


def chunks(kind, *lines):
    found = kind("here")
    for i, line in enumerate(lines):
        found.take(float(i), (line if isinstance(line, str) else json.dumps(line)).encode())
    return found


def test_streams_of_sglang_cumulative_and_incremental():
    def part(ids, tokens, **meta):
        return {"text": "x", "output_ids": ids, "meta_info": {"prompt_tokens": 9, "completion_tokens": tokens, **meta}}

    end = {"finish_reason": {"type": "stop"}, "spec_verify_ct": 2, "spec_correct_drafts_histogram": [1, 1]}
    whole = chunks(_SGLangChunks, part([1], 1), part([1, 2, 3], 3), part([1, 2, 3, 4], 4, **end))
    pieces = chunks(_SGLangChunks, part([1], 1), part([2, 3], 3), part([4], 4, **end))
    for found in (whole.answer(0, 0.0), pieces.answer(0, 0.0)):
        assert found.token_ids == (1, 2, 3, 4)
        assert found.arrivals == ((0.0, 1), (1.0, 3), (2.0, 4))
        assert (found.counts.verify_steps, found.counts.accepted, found.finish_reason) == (2, 1, "stop")
    assert len(whole.lines) == 1
    one = chunks(_SGLangChunks, part([1, 2], 2)).answer(3, 0.0)
    assert (one.token_ids, one.later) == ((1, 2), 0)
    for line, said in (
        ({"error": {"message": "too \x1b long"}}, "the server says .*too"),
        ("<html>", "no JSON object"),
        (part([], 0), "no tokens"),
        (part([1], 1, finish_reason={"type": "abort", "message": "memory"}), "gave the request up"),
    ):
        with pytest.raises(SettingFailed, match=said):
            chunks(_SGLangChunks, line).answer(0, 0.0)


def test_streams_of_vllm():
    def part(ids, tokens, reason=None):
        return {
            "choices": [{"text": "x", "token_ids": ids, "finish_reason": reason}],
            "usage": {"prompt_tokens": 3, "completion_tokens": tokens},
        }

    told = {
        "choices": [],
        "usage": {"completion_tokens": 3},
        "metrics": {"speculative_decoding": {"per_step_accepted": [1], "num_spec_steps": 1}},
    }
    found = chunks(_VLLMChunks, part([5], 1), part([6, 7], 3, "length"), told).answer(0, 0.0)
    assert (found.token_ids, found.finish_reason, found.counts.accepted, found.verify_steps) == ((5, 6, 7), "length", 1, 1)
    without = chunks(_VLLMChunks, part(None, 1), part(None, 3, "stop")).answer(0, 0.0)
    assert (without.token_ids, without.text, without.counts) == (None, "xx", None)


def test_the_same_text():
    ours = [Answer(0, 0, ((1.0, 2),), (1, 2), ""), Answer(1, 0, ((1.0, 2),), (1, 3), ""), Answer(9, 0, ((1.0, 1),), (1,), "")]
    assert same_text(ours, {0: {"token_ids": [1, 2]}, 1: {"token_ids": [1, 2]}}) == [1, 2]
    assert same_text(ours, {}) is None
    texts = [Answer(i, 0, ((1.0, 2),), None, text) for i, text in enumerate("ab")]  # without tokens
    assert same_text(texts, {i: {"token_ids": [1, 2], "text": "a"} for i in range(2)}) == [1, 2]
    assert same_text(texts, {0: {"token_ids": [1, 2]}}) is None


def test_a_request_that_fails_ends_the_others(monkeypatch):
    class Client:
        closed = threading.Event()

        def ask(self, prompt, token_ids, bound):
            if prompt == 1:
                raise SettingFailed("broken")
            if not self.closed.wait(10):
                pytest.fail("was not cut off")
            raise SettingFailed("cut off")

        def close(self):
            self.closed.set()

    start = time.monotonic()
    with pytest.raises(SettingFailed, match="broken"):
        run_batch(Client(), [Prompt(i, (1,)) for i in range(6)], 3, 8)
    assert time.monotonic() - start < 5


# -- choosing ----------------------------------------------------------------------------------------------------------------------


def row(setting, tok_s, length=None, repeat=0, batch=1, spread=0.0, n=8, of="steady"):
    """Requests of 100 tokens, whose times differ by `spread` from prompt to prompt, in each setting another way."""
    turn = [(-1) ** (i + setting.steps * (i // 2)) for i in range(n)]
    requests = [[i, 100, 100 / tok_s * (1 + spread * turn[i])] for i in range(n)]
    told = {"tokens": 100 * n, "seconds": 100 * n / tok_s, "tok_s": tok_s}
    plain = {"batch": batch, "repeat": repeat, "tok_s_of": of, "steady": told if of == "steady" else {**told, "tok_s": None}, "whole": told}
    return {**setting.to_json(), **plain, "accept_length": length, "requests": n, "same_text": None, "by_request": requests, "tok_s": tok_s}


def test_the_storys_sweep():
    """94 against 88.8 tok/s is 1.059; 54.8 tok/s at accept length 1.8 costs r = 1.8 * 88.8 / 54.8 = 2.917 plain steps a cycle."""
    found = choose([row(OFF, 88.8), row(Setting(2), 94.0, 1.9), row(Setting(1), 54.8, 1.8)], "")[0]
    assert found.best == "2-1-3"
    assert found.gain.gain == pytest.approx(1.0586, abs=1e-4)
    assert next(g for g in found.gains if g.setting == Setting(1)).r == pytest.approx(2.9168, abs=1e-4)
    assert next(g for g in found.gains if g.setting == Setting(2)).r == pytest.approx(1.9 * 88.8 / 94)


def test_noise_is_no_gain_and_a_loss_is_off():
    assert choose([row(OFF, 100, spread=0.2), row(Setting(1), 103, 1.5, spread=0.2)], "")[0].best == "cannot tell"
    lost = choose([row(OFF, 100), row(Setting(1), 80, 1.5), row(Setting(2), 60, 1.6)], "")[0]
    assert (lost.best, lost.gain.setting) == ("off", OFF)
    assert "0.80x" in lost.text
    close = choose([row(OFF, 100), row(Setting(1), 150, 1.5, spread=0.1), row(Setting(2), 152, 1.6, spread=0.1)], "")[0]
    assert (close.best, close.as_good) == ("2-1-3", ("1-1-2",))


def test_a_noisy_leader_hides_no_sure_gain():
    """Off at 89 to 91 and 3-1-4 at 109 to 111: 1.22x beyond doubt. 2-1-3 at 100 and 130 leads with 1.28x, and two repeats that far apart tell nothing."""
    rows = [row(OFF, s, repeat=i) for i, s in enumerate((90, 89, 91))] + [row(Setting(3), s, 1.7, i) for i, s in enumerate((110, 111, 109))]
    rows += [row(Setting(2), s, 1.6, i) for i, s in enumerate((100, 130))]
    found = choose(rows, "")[0]
    assert (found.best, found.as_good, found.gain.setting) == ("3-1-4", ("2-1-3",), Setting(3))
    assert found.gain.gain == pytest.approx(110 / 90)
    assert found.text.startswith("3-1-4: 1.22x of off (1.1")
    assert "is faster than off; 2-1-3 1.28x (0." in found.text
    assert found.text.endswith("may be better, which cannot be told")
    more = choose([*rows, row(Setting(1), 109, 1.4), row(Setting(1), 109.5, 1.4, 1)], "")[0]
    assert more.as_good == ("1-1-2", "2-1-3")
    assert more.text.endswith("2-1-3 1.28x (0.24 to 6.71) may be better, which cannot be told; 1-1-2 cannot be told from it")
    alone = choose([r for r in rows if r["steps"] != 3], "")[0]
    assert (alone.best, alone.gain.setting) == ("cannot tell", Setting(2))


def test_without_a_baseline_or_with_too_few_requests_nothing_is_told():
    assert choose([row(Setting(1), 150, 1.5)], "")[0].best == "cannot tell"
    assert choose([row(OFF, 150)], "")[0].best == "cannot tell"
    few = choose([row(OFF, 100, n=3), row(Setting(1), 150, 1.5, n=3)], "")[0]
    assert few.best == "cannot tell"
    assert "more prompts or repeats" in few.text


def test_a_gain_above_the_accept_length_is_no_gain():
    """Measured so on a machine that something else had left between the two runs: 1.445 and 4.451 tok/s at accept length 1.514."""
    found = choose([row(OFF, 1.445), row(Setting(1), 4.451, 1.514)], "")[0]
    assert found.best == "cannot tell"
    assert "3.08x of off at accept length 1.51 would make a cycle cheaper than a plain step (r = 0.49)" in found.text
    assert choose([row(OFF, 100), row(Setting(1), 150, 1.5)], "")[0].best == "1-1-2"


def test_repeats_widen_the_interval_that_requests_give():
    steady_rows = [row(OFF, 100, repeat=r) for r in range(3)] + [row(Setting(1), s, 1.5, r) for r, s in enumerate((110, 150, 190))]
    gain = next(g for g in gains(steady_rows) if not g.setting.off)
    assert (gain.gain, gain.spread) == (pytest.approx(1.5), (110, 190))
    assert gain.low < 1 < gain.high
    two = gains(
        [row(OFF, s, repeat=r) for r, s in enumerate((5.44, 8.55))] + [row(Setting(1), s, 1.5, r) for r, s in enumerate((8.9, 9.1))]
    )[1]
    assert two.low < 1 < two.high  # two repeats of a noisy baseline are enough to doubt
    # `eaglelab cost` on the same runs: the same gain and the same width
    (cost,) = cost_rows(MeasuredTable(tuple(Measured(1, setting_of(r), r["tok_s"], r["accept_length"]) for r in steady_rows)))
    assert (gain.gain, gain.r) == (cost.speedup, cost.r)
    assert gain.high / gain.low == pytest.approx(cost.speedup_interval[1] / cost.speedup_interval[0])
    whole = gains([row(OFF, 100), row(Setting(1), 120, 1.5, of="whole")])
    assert {g.of for g in whole} == {"whole"}


# -- the store ---------------------------------------------------------------------------------------------------------------------

ABOUT = {"launch": "l", "engine": "sglang", "prompts": {"sha256": "1"}, "max_new_tokens": 8, "requests": None}


def test_a_torn_last_line_is_mended(tmp_path):
    with Store(tmp_path).held(ABOUT) as store:
        store.result({"a": 1})
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes() + b'{"a": 2, "b"')
    with Store(tmp_path).held(ABOUT) as store:
        assert store.rows == [{"a": 1}]
        assert "was cut off" in store.notes[0]
        store.result({"a": 3})
    path.write_bytes(path.read_bytes()[:-1])  # whole but for its end
    with Store(tmp_path).held(ABOUT) as store:
        assert store.rows == [{"a": 1}, {"a": 3}]
    path.write_bytes(path.read_bytes() + b"\xff\n")
    with Store(tmp_path).held(ABOUT) as store:
        assert (len(store.rows), store.notes) == (2, ["results.jsonl: 1 lines are no JSON objects and are left out"])


@pytest.mark.parametrize(("key", "value"), [("launch", "m"), ("prompts", {"sha256": "2"}), ("max_new_tokens", 9), ("requests", 4)])
def test_a_folder_of_another_sweep_is_refused(tmp_path, key, value):
    with Store(tmp_path).held(ABOUT):
        pass
    with pytest.raises(TimingError, match=f"another {key}: .* --out DIR"), Store(tmp_path).held(ABOUT | {key: value}):
        pass


@pytest.mark.parametrize("key", ["command", "machine"])
def test_another_drafter_or_machine_is_another_sweep(tmp_path, key):
    with Store(tmp_path).held(ABOUT):  # of before these were told
        pass
    for value in ("one", "one"):
        with Store(tmp_path).held(ABOUT | {key: value}):
            pass
    with pytest.raises(TimingError, match=f'another {key}: "one", now "two"'), Store(tmp_path).held(ABOUT | {key: "two"}):
        pass


def test_folders_that_cannot_be_used(tmp_path):
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(TimingError, match=r"no sweep\.json"), Store(tmp_path).held(ABOUT):
        pass
    (tmp_path / "sweep.json").write_text("[1]")
    with pytest.raises(TimingError, match="no JSON object"), Store(tmp_path).held(ABOUT):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(TimingError, match="cannot be used as a folder"), Store(tmp_path / "file").held(ABOUT):
        pass
    with (
        Store(tmp_path / "new").held(ABOUT),
        pytest.raises(TimingError, match="in use by another sweep"),
        Store(tmp_path / "new").held(ABOUT),
    ):
        pass


@pytest.mark.parametrize("where", ["write", "fsync"])
def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch, where):
    path = tmp_path / "results.jsonl"
    append(path, b'{"a": 1}\n')
    write = os.write

    def full(file, content=b""):
        if where == "write" and len(content) > 4:
            return write(file, bytes(content)[:4])  # a part still fits
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stores.os, where, full)
    with pytest.raises(DiskFull, match=r"no space is left .* What was measured before is kept"):
        append(path, b'{"a": 2}\n')
    monkeypatch.undo()
    assert path.read_bytes() == b'{"a": 1}\n'
