"""Checks of the served side: what was reached, whether the replay predicts it, the text, the flags, the log."""

import json
import math
import random
import subprocess
import sys
from pathlib import Path

import pytest
from case_builder import SGLANG, build_case, draft_config, make_world

from eaglelab.acceptance import ratio_interval, ratios_apart
from eaglelab.checks import findings, run_checks
from eaglelab.cli import main
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.served import RecordingWriter, Request, over_time
from eaglelab.served.recording import Session
from eaglelab.verdict import verdict
from eaglelab.wiring import FINAL, Wiring

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
RIGHT, WRONG = [1, 3, 5], [-1, 0, 1]
"""Layer ids k are boundary k + 1 to SGLang on Llama: RIGHT feeds 2, 4, 6, on which the drafter was trained; WRONG feeds 0, 1, 2."""
LAUNCH = "python -m sglang.launch_server --speculative-algorithm EAGLE3 --speculative-num-steps {} --speculative-eagle-topk 1 --speculative-num-draft-tokens {}"
STEPS = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("served"), "llama", 7, seed=3, samples=8, length=40)


@pytest.fixture(scope="module")
def cases(world, tmp_path_factory):
    """Two cases by name, whose engine feeds what the drafter was trained on, and other layers."""
    made = {}
    for name, ids in (("right", RIGHT), ("wrong", WRONG)):
        root = tmp_path_factory.mktemp(name)
        made[name] = build_case(root, world, slots=[1, 2, 3, 4, 5, 6, FINAL], feed=[1, 3, 5, 6], ids=ids)
    return made


def session(ids, **changes):
    known = {"engine": "sglang==0.5.23", "num_steps": STEPS, "eagle_topk": 1, "num_draft_tokens": STEPS + 1}
    return Session(**known | {"draft_config": draft_config(ids, SGLANG)} | changes)


def record(path, world, answered, said=None):
    """A recording of the world's own texts. answered(i) gives what the engine told of request i: `accepted` or `histogram`."""
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, said)
    for i, text in enumerate(world.texts):
        prompt, answer = text[: world.prompts[i]].tolist(), text[world.prompts[i] :].tolist()
        sample = f"rows_{i // 4 * 4}-{i // 4 * 4 + 4}/data_{i}.pt"
        writer.write(Request(i, tuple(prompt), tuple(answer), sample=sample, **answered(i)))
    writer.end()


def with_engine(case, **keys):
    """An investigation of the case with further keys in `[engine]`."""
    lines = [line for line in (case / "case.toml").read_text().splitlines() if not line.startswith(tuple(f"{k} =" for k in keys))]
    at = lines.index("[engine]") + 1
    copy = case / "served.toml"
    copy.write_text("\n".join([*lines[:at], *(f"{k} = {json.dumps(str(v))}" for k, v in keys.items()), *lines[at:]]))
    return Investigation(copy)


def walks(case, world, ids):
    """What a greedy engine fed by `ids` accepts in each pass of each text, by the replay of the case."""
    record(case / "blank.jsonl", world, lambda i: {"accepted": ()}, session(ids))
    inv = with_engine(case, counters=case / "blank.jsonl")
    return [r.walk.accepted for r in inv.served.predicted(inv.recording).prediction.requests]


@pytest.fixture(scope="module")
def walked(cases, world):
    return {name: walks(cases["right"], world, ids) for name, ids in (("right", RIGHT), ("wrong", WRONG))}


def by_id(inv, *ids):
    return {f.id: f for f in findings(inv, *ids)}


def expected(case, world, accepted, ids):
    record(case / "served.jsonl", world, lambda i: {"accepted": tuple(accepted[i])}, session(ids))
    return with_engine(case, counters=case / "served.jsonl")


# -- served beside predicted -------------------------------------------------------------------------------------------------------------


def test_the_two_wirings_differ_in_this_world(walked):
    lengths = {name: 1 + sum(map(sum, w)) / sum(map(len, w)) for name, w in walked.items()}
    assert lengths["right"] > lengths["wrong"] + 0.2


def test_served_as_the_right_wiring_predicts(cases, world, walked):
    inv = expected(cases["right"], world, walked["right"], RIGHT)
    found = by_id(inv, "served.expected")["served.expected"]
    assert found.status is Status.PASS
    assert "as predicted for boundaries [2, 4, 6]" in found.title
    assert "the right wiring" not in found.title
    assert found.numbers["fed"]["difference"][0] == 0
    passes = sum(map(len, walked["right"]))
    assert f"Pass by pass, {passes:,} of {passes:,} accepted what the walk accepts." in found.evidence


def test_served_as_the_wrong_wiring_predicts_confirms_the_verdict(cases, world, walked):
    inv = expected(cases["wrong"], world, walked["wrong"], WRONG)
    every = list(run_checks(inv))
    found = next(f for f in every if f.id == "served.expected")
    assert found.status is Status.FAIL  # a poor number is no good news because it was predicted
    assert "as predicted for boundaries [0, 1, 2]" in found.title
    assert "; the right wiring [2, 4, 6] predicts " in found.title
    assert (
        found.next
        == "The engine does what its config says: change the config. The finding wiring.match (`eaglelab check`, page 03) names the ids."
    )
    said = verdict(every, inv)
    assert (said.stage, said.confidence) == ("wiring", "sure")
    assert f"The server's own counters confirm it: {found.title}." in said.text


def test_a_server_below_its_prediction_is_an_engines_fault(cases, world, walked):
    inv = expected(cases["right"], world, [[n if j % 4 == 0 else 0 for j, n in enumerate(w)] for w in walked["right"]], RIGHT)
    every = list(run_checks(inv))
    found = next(f for f in every if f.id == "served.expected")
    assert found.status is Status.FAIL
    assert "the replay of boundaries [2, 4, 6] predicts" in found.title
    assert found.next.startswith("The server was fed or computes something else")
    said = verdict(every, inv)
    assert (said.stage, said.confidence) == ("engine", "likely")
    assert found.title in said.text


def test_a_server_that_read_another_config_is_told_from_a_slow_one(cases, world, walked):
    """The case's config is wrong and the server reaches what the right one would: never `sure` against that."""
    inv = expected(cases["wrong"], world, walked["right"], WRONG)
    every = list(run_checks(inv))
    found = next(f for f in every if f.id == "served.expected")
    assert found.status is Status.FAIL
    assert "what the right wiring [2, 4, 6] predicts" in found.title
    assert found.numbers["as_right"]
    said = verdict(every, inv)
    assert (said.stage, said.confidence, said.changes) == ("wiring", "likely", ())
    assert said.text.startswith(
        "Wiring: The server seems to feed the right wiring already, and the case to name another config than the one served:"
    )
    assert "Set eagle" not in said.text
    assert "`[engine] draft_config`" in said.text


def test_a_recording_of_another_config_than_the_cases_is_said_first(cases, world, walked):
    inv = expected(cases["wrong"], world, walked["right"], RIGHT)
    every = list(run_checks(inv))
    status = {f.id: f.status for f in every}
    assert (status["served.flags"], status["served.expected"]) == (Status.FAIL, Status.PASS)
    said = verdict(every, inv)
    assert (said.stage, said.confidence, said.changes) == ("wiring", "likely", ())
    assert said.text.startswith(
        "Wiring: The case names another config than the one served: the config in the recording feeds boundaries [2, 4, 6], on which the drafter was trained."
    )


def test_a_wrong_config_that_was_served_in_place_of_the_cases_fails(cases, world, walked):
    inv = expected(cases["right"], world, walked["wrong"], WRONG)
    found = by_id(inv, "served.expected")["served.expected"]
    assert found.status is Status.FAIL
    assert found.next == "Serve the case's config: this server read another one (see served.flags)."


def test_a_server_above_its_prediction_is_another_server(cases, world, walked):
    inv = expected(cases["right"], world, [[STEPS] * len(w) for w in walked["wrong"]], WRONG)
    found = by_id(inv, "served.expected")["served.expected"]
    assert found.status is Status.FAIL
    assert "fed something that fits better" in found.next or found.numbers["as_right"]


def test_histograms_are_held_against_the_walk(cases, world, walked):
    tables = [[w.count(n) for n in range(STEPS + 1)] for w in walked["right"]]
    record(cases["right"] / "h.jsonl", world, lambda i: {"histogram": tuple(tables[i])}, session(RIGHT))
    found = by_id(with_engine(cases["right"], counters="h.jsonl"), "served.expected")["served.expected"]
    assert found.status is Status.PASS
    assert "requests have the walk's own histogram" in found.evidence


def test_the_pass_that_an_answers_end_cuts_is_counted_on_neither_side(cases, world):
    """An engine counts one pass more than the walk where the text ends within a draft; a histogram holds it without saying which."""
    case = cases["right"]
    record(case / "blank.jsonl", world, lambda i: {"accepted": ()}, session(RIGHT))
    inv = with_engine(case, counters=case / "blank.jsonl")
    answers = [r.walk for r in inv.served.predicted(inv.recording).prediction.requests]
    assert any(w.cut for w in answers)
    told = [[*w.accepted, *[STEPS] * w.cut] for w in answers]
    record(case / "h.jsonl", world, lambda i: {"histogram": tuple(told[i].count(n) for n in range(STEPS + 1))}, session(RIGHT))
    found = by_id(with_engine(case, counters="h.jsonl"), "served.expected")["served.expected"]
    assert found.numbers["fed"]["difference"] == [0, 0, 0]
    assert "served less predicted 0.000 (95 % by request 0.000 to 0.000)" in found.evidence


def test_nothing_missing_when_the_server_reaches_what_the_right_wiring_predicts(cases, world, walked):
    inv = expected(cases["right"], world, walked["right"], RIGHT)
    said = verdict(list(run_checks(inv)), inv)
    assert said.stage == "none found"
    assert "nothing is lost on the way to the server" in said.text


def metrics(accepted, passes):
    """vLLM's counters as Prometheus text."""
    names = {"num_drafts": passes, "num_draft_tokens": passes * STEPS, "num_accepted_tokens": accepted}
    return "".join(f'vllm:spec_decode_{n}_total{{engine="0",model_name="m"}} {float(v)}\n' for n, v in names.items())


def test_totals_are_compared_with_a_range_on_other_text(cases, walked, tmp_path):
    def told(case, accepted):
        path, passes = tmp_path / "answers.jsonl", sum(map(len, walked["right"]))
        path.write_text(json.dumps({"meta_info": {"spec_verify_ct": passes, "spec_num_correct_drafts": accepted, "completion_tokens": 99}}))
        return by_id(with_engine(cases[case], counters=path), "served.expected")["served.expected"]

    near, far = told("right", sum(map(sum, walked["right"]))), told("right", 0)
    assert near.status is Status.PASS
    assert "Predicted on the dump's answers, not on the text that was served" in near.evidence
    assert far.status is Status.CANNOT_TELL
    assert "on other text that may be" in far.title
    assert far.next.startswith("Compare on the same text: `eaglelab live CASE --url")
    already = told("wrong", sum(map(sum, walked["right"])))
    assert already.status is Status.CANNOT_TELL
    assert already.numbers["as_right"]
    assert "about what the dump's feed predicts" in already.title


def test_a_log_that_contradicts_the_cases_wiring_makes_no_sure_verdict(cases, walked, tmp_path):
    """The case's config is wrong and the log's length is the right wiring's: the ids may be right already where it matters."""
    near, length = noisy(), 1 + sum(map(sum, walked["right"])) / sum(map(len, walked["right"]))
    inv = with_engine(cases["wrong"], log=written(tmp_path, *(decode(i * 10, near(length)) for i in range(30))))
    said = verdict(list(run_checks(inv)), inv)
    assert (said.stage, said.confidence, said.changes) == ("wiring", "likely", ())
    assert said.text.startswith("Wiring: The server seems to feed the right wiring already")


GAUGES = """sglang:spec_accept_length{model_name="m",tp_rank="0"} 1.75
sglang:spec_num_steps{model_name="m",tp_rank="0"} 3.0
"""
CALLS = """sglang:generation_tokens_total{model_name="m"} 180.0
sglang:spec_verify_calls_total{model_name="m"} 100.0
"""
META = {"id": "a", "completion_tokens": 99, "spec_verify_ct": 60}
SOURCES = {
    "vllm": (metrics(80, 100), 1.8, 100, "vLLM counted in 100 verify passes: accept length 1.80"),
    "vllm-twice": (metrics(20, 50) + metrics(80, 100), 1 + 60 / 50, 50, "vLLM counted in 50 verify passes: accept length 2.20"),
    "sglang-gauge": (GAUGES, 1.75, None, "SGLang 0.5.23 told in told.txt: accept length 1.75"),
    "sglang-calls": (GAUGES + CALLS, 1.8, None, "SGLang 0.5.23 told in told.txt: accept length 1.80"),
    "server-info": (
        json.dumps(
            {"version": "0.5.23", "internal_states": [{"avg_spec_accept_length": 1.85, "speculative_num_steps": 3}], "model_path": "m"}
        ),
        *(1.85, None, "SGLang 0.5.23 told in told.txt: accept length 1.85"),
    ),
    "answers": (
        "\n".join(json.dumps({"meta_info": META | {"id": i, "spec_correct_drafts_histogram": [30, 20, 10]}}) for i in "ab"),
        *(1 + 40 / 60, 120, "SGLang 0.5.23 counted in 120 verify passes: accept length 1.67"),
    ),
    "old-answers": (
        json.dumps([{"meta_info": META | {"spec_accept_token_num": 39}}]),
        *(1.65, 60, "SGLang 0.5.23 counted in 60 verify passes: accept length 1.65"),
    ),
    "oldest-answers": (json.dumps([{"meta_info": META}]), 99 / 60, None, "SGLang 0.5.23 told in told.txt: accept length 1.65"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_of_counters_is_checked_to_the_end(cases, tmp_path, capsys, name):
    text, length, passes, title = SOURCES[name]
    (tmp_path / "told.txt").write_text(text)
    with_engine(cases["right"], counters=tmp_path / "told.txt")
    code = main(["check", str(cases["right"] / "served.toml"), "--json"])
    result = json.loads(capsys.readouterr().out)
    found = {f["id"]: f for f in result["findings"]}
    reached, numbers = found["served.acceptance"], found["served.acceptance"]["evidence"]["numbers"]
    assert code in (0, 1, 3)
    assert reached["status"] == "pass"
    assert reached["title"].replace(f"{tmp_path.name}/", "") == title
    assert numbers["accept_length"] == pytest.approx(length)
    assert (numbers["counts"] or {}).get("verify_steps") == passes
    assert (found["served.flags"]["status"] == "fail") == name.startswith("vllm")  # the case names SGLang
    assert found["served.expected"]["status"] in ("pass", "cannot_tell")
    assert Investigation(cases["right"] / "served.toml").served.sources()["accept_length"].tolist() == pytest.approx([length])


def test_another_engines_log_is_no_sign_of_the_cases_engine(cases, tmp_path):
    line = (
        "INFO 03-01 10:00:{:02} [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.80, Accepted throughput: 8.00 tokens/s, Drafted throughput: "
        "30.00 tokens/s, Accepted: 80 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.500, 0.200, 0.100, Avg Draft acceptance rate: 26.7%"
    )
    start = "INFO 03-01 09:59:00 [core.py:58] Initializing a V1 LLM engine (v0.11.0) with config: model='m'"
    inv = with_engine(cases["right"], log=written(tmp_path, start, *(line.format(i) for i in range(8))))
    found = by_id(inv, "served.acceptance", "served.flags", "served.expected")
    assert found["served.acceptance"].title == "vLLM 0.11.0 counted in 800 verify passes: accept length 1.80"
    assert found["served.flags"].status is Status.FAIL
    assert "engine = vllm==0.11.0, not sglang==0.5.23" in found["served.flags"].title
    assert found["served.expected"].status is Status.CANNOT_TELL
    assert "the case names SGLang 0.5.23: what was fed is not known" in found["served.expected"].title


def test_a_check_that_breaks_is_a_finding_and_the_rest_still_runs(cases, monkeypatch):
    monkeypatch.delenv("EAGLELAB_RAISE")
    monkeypatch.setattr("eaglelab.served_case.ServedCase.reached", property(lambda self: None.joint))
    inv = with_engine(cases["right"], log=cases["right"] / "case.toml")
    found = {f.id: f for f in run_checks(inv, costs=("config", "log"))}
    broken = found["served.acceptance"]
    assert broken.status is Status.CANNOT_TELL
    assert broken.title.endswith("the check itself broke ('NoneType' object has no attribute 'joint')")
    assert broken.evidence.startswith(
        "AttributeError: 'NoneType' object has no attribute 'joint' (in <lambda>, test_checks_served.py line "
    )
    assert broken.next.startswith("Please report this")
    assert "served.log" in found
    monkeypatch.setenv("EAGLELAB_RAISE", "1")
    with pytest.raises(AttributeError):
        findings(inv, "served.acceptance")


def test_the_other_recordings_are_predicted_each_by_its_own_config(cases, world, walked):
    folder = cases["right"] / "recordings"
    folder.mkdir(exist_ok=True)
    for name, ids in (("a", RIGHT), ("b", WRONG)):
        record(folder / f"{name}.jsonl", world, lambda i, w=walked["right" if ids is RIGHT else "wrong"]: {"accepted": w[i]}, session(ids))
    record(folder / "c.jsonl", world, lambda i: {"accepted": (1, 1)}, session([9, 10, 11]))  # beyond this target's layers
    (folder / "d.jsonl").write_text("no recording\n")
    side = with_engine(cases["right"], recordings=folder).served
    lengths, joint = side.compared
    assert lengths["recording"].tolist() == ["a", "b", "c"]
    assert lengths["right"].tolist() == [True, False, False]
    assert lengths["predicted"][:2].tolist() == lengths["served"][:2].tolist()
    assert lengths["predicted"].isna()[2]
    assert lengths["note"][2].startswith("not predicted:")
    assert set(joint["recording"]) == {"a", "b"}
    assert (joint["served"] == joint["predicted"]).all()
    assert len(side.unreadable) == 1
    assert "d.jsonl" in side.unreadable[0]


def test_the_step_chart_shows_the_cases_own_recording_and_its_right_counterpart(cases, world, walked):
    folder, case = cases["wrong"] / "others", cases["wrong"]
    folder.mkdir()
    record(case / "own.jsonl", world, lambda i: {"accepted": walked["wrong"][i]}, session(WRONG))
    for name, ids, said in (
        ("a", RIGHT, {"num_steps": 2, "num_draft_tokens": 3}),
        ("b", RIGHT, {"engine": "sglang==0.5.22"}),
        ("c", RIGHT, {}),
        ("d", WRONG, {}),
    ):
        record(
            folder / f"{name}.jsonl",
            world,
            lambda i, ids=ids: {"accepted": walked["right" if ids is RIGHT else "wrong"][i]},
            session(ids, **said),
        )
    side = with_engine(case, counters=case / "own.jsonl", recordings=folder).served
    assert set(side.compared[1]["recording"]) == {"own", "a", "b", "c", "d"}
    assert list(dict.fromkeys(side.joint["recording"])) == ["own", "c"]


def page(case, **names):
    """Notebook 05's cells, run one after the other, and what they printed."""
    cells = json.loads((EXAMPLE.parents[1] / "notebooks" / "05_served_acceptance.ipynb").read_text())["cells"]
    known = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), known)
            if "parameters" in cell["metadata"]["tags"]:
                known |= {"case": str(case), "device": "cpu", **names}


def test_the_page_answers_first_and_runs_on_every_kind_of_case(cases, world, walked, tmp_path, capsys):
    expected(cases["wrong"], world, walked["wrong"], WRONG)
    page(cases["wrong"] / "served.toml")
    said = capsys.readouterr().out
    first = next(line for line in said.splitlines() if line.startswith(("pass:", "fail:", "cannot_tell:")))
    assert first.startswith("fail: SGLang 0.5.23 reached 1.")
    assert "as predicted for boundaries [0, 1, 2]" in first
    assert "[figure: Served and predicted acceptance are the same at every step" in said
    (tmp_path / "metrics.txt").write_text(metrics(80, 100))
    with_engine(cases["right"], counters=tmp_path / "metrics.txt")
    page(cases["right"] / "served.toml")
    said = capsys.readouterr().out
    assert "pass: vLLM counted in 100 verify passes: accept length 1.80" in said
    assert "not given: a recording" in said
    page(cases["right"] / "case.toml")  # no server at all
    assert "not_given: Which accept length did the server reach?" in capsys.readouterr().out


def spoken(case, world, change):
    """The world's prompts with answers that were changed."""
    path = case / "text.jsonl"
    path.unlink(missing_ok=True)
    writer = RecordingWriter(path, session(RIGHT))
    for i, text in enumerate(world.texts):
        prompt, answer = text[: world.prompts[i]].tolist(), change(text[world.prompts[i] :].tolist())
        sample = f"rows_{i // 4 * 4}-{i // 4 * 4 + 4}/data_{i}.pt"
        writer.write(Request(i, tuple(prompt), tuple(answer), sample=sample, accepted=(1,)))
    return by_id(with_engine(case, counters=path), "served.text")["served.text"]


def test_the_dumps_own_text_is_told(cases, world):
    same = spoken(cases["right"], world, lambda answer: answer)
    assert (same.status, same.title) == (Status.PASS, "The server writes the dump's text: 8 of 8 answers are the same to the end")


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("near-ties", Status.PASS, "but for near-ties"),
        ("other target", Status.FAIL, "other text than the target that the case names"),
        ("other text", Status.NOT_APPLICABLE, "not the target's own greedy text"),
        ("cannot tell", Status.CANNOT_TELL, "cannot be told"),
    ],
)
@pytest.mark.report("SafeAILab/EAGLE#79", "C")
def test_what_other_text_means(cases, world, monkeypatch, kind, status, words):
    monkeypatch.setattr("eaglelab.live.compare.TextComparison.diagnosis", (kind, "said"))
    found = spoken(cases["right"], world, lambda answer: [(t + 7) % 48 for t in answer])
    assert (found.status, words in found.title) == (status, True)
    assert found.title.endswith(": 0 of 8 answers are the same to the end")


# -- what was reached, and with which flags ----------------------------------------------------------------------------------------------


def test_without_a_server_one_finding_says_how_to_get_it(cases):
    inv = Investigation(cases["right"])
    found = findings(inv, "served.acceptance", "served.flags", "served.log", "served.parity", "served.text", "served.expected")
    assert [(f.id, f.status) for f in found] == [("served.acceptance", Status.NOT_GIVEN)]
    assert "`eaglelab live CASE --url http://localhost:30000` sends the dump's own prompts" in found[0].next


def test_never_and_always_are_faults(cases, world):
    for accepted, words in (
        (0, "accepted no drafted token in 80 verify passes"),
        (STEPS, "accepted every drafted token in 80 verify passes"),
    ):
        record(cases["right"] / "n.jsonl", world, lambda i, n=accepted: {"accepted": (n,) * 10}, session(RIGHT))
        found = by_id(with_engine(cases["right"], counters="n.jsonl"), "served.acceptance")["served.acceptance"]
        assert found.status is Status.FAIL
        assert words in found.title


def test_counts_make_the_rates(cases, world):
    record(cases["right"] / "n.jsonl", world, lambda i: {"histogram": (6, 2, 1, 1)}, session(RIGHT))
    found = by_id(with_engine(cases["right"], counters="n.jsonl"), "served.acceptance")["served.acceptance"]
    assert found.numbers["accept_length"] == pytest.approx(1.7)
    assert "Joint acceptance: step 0 40.0%, step 1 20.0%, step 2 10.0%." in found.evidence
    assert found.numbers["interval"] == pytest.approx((1.7, 1.7))


@pytest.mark.parametrize(
    ("asked", "ran", "status", "words"),
    [
        ((3, 4), {}, "pass", "runs with the case's settings"),
        ((5, 6), {}, "fail", "num_steps = 3, not 5; num_draft_tokens = 4, not 6"),
        ((1, 16), {"num_steps": 1, "num_draft_tokens": 2}, "pass", "runs with the case's settings"),  # as `flags` says of the line
        ((1, 16), {"num_steps": 1, "num_draft_tokens": 16}, "fail", "num_draft_tokens = 16, not 2"),
        ((3, 4), {"engine": "sglang==0.5.9"}, "fail", "engine = sglang==0.5.9, not sglang==0.5.23"),
        ((3, 4), {"draft_config": draft_config(WRONG, SGLANG)}, "fail", "boundaries = [0, 1, 2], not [2, 4, 6]"),
    ],
)
def test_what_runs_is_held_against_what_was_asked(cases, world, asked, ran, status, words):
    record(cases["right"] / "f.jsonl", world, lambda i: {"accepted": (1,)}, session(RIGHT, **ran))
    inv = with_engine(cases["right"], counters="f.jsonl", launch=LAUNCH.format(*asked))
    found = by_id(inv, "served.flags")["served.flags"]
    assert found.status == status
    assert words in found.title


def test_steps_come_from_the_recording_where_no_launch_line_says(cases, world):
    record(cases["right"] / "k.jsonl", world, lambda i: {"accepted": (1,)}, session(RIGHT, num_steps=5, num_draft_tokens=6))
    assert with_engine(cases["right"], counters="k.jsonl").steps == 5
    assert with_engine(cases["right"], counters="k.jsonl", launch=LAUNCH.format(2, 3)).steps == 2
    (cases["right"] / "broken.jsonl").write_text('{"kind": "session", "engine": 1\n')
    inv = with_engine(cases["right"], counters="broken.jsonl")
    assert inv.steps == 3  # and the finding says why
    assert by_id(inv, "served.acceptance")["served.acceptance"].status is Status.CANNOT_TELL


# -- the log -----------------------------------------------------------------------------------------------------------------------------

ARGS = (
    "server_args=ServerArgs(model_path='m', device='{}', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)"
)


def decode(second, length, running=4, graph=True, rank=""):
    clock = f"{10 + second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    return (
        f"[2026-03-01 {clock}{rank}] Decode batch, #running-req: {running}, #token: 900, token usage: 0.01, accept len: {length:.2f}, "
        f"accept rate: {(length - 1) / 3:.2f}, cuda graph: {graph}, gen throughput (token/s): 100.00, #queue-req: 0"
    )


def written(tmp_path, *lines):
    (tmp_path / "server.log").write_text("\n".join(lines) + "\n")
    return tmp_path / "server.log"


def noisy(seed=0):
    rng = random.Random(seed)
    return lambda mean: mean + rng.uniform(-0.1, 0.1)


def logged(cases, path):
    return by_id(with_engine(cases["right"], log=path), "served.acceptance", "served.log", "served.flags")


def test_a_log_alone_tells_a_mean_and_says_so(cases, tmp_path):
    near = noisy()
    found = logged(
        cases, written(tmp_path, f"[2026-03-01 10:00:00] {ARGS.format('cuda')}", *(decode(i * 10, near(1.8)) for i in range(30)))
    )
    assert found["served.acceptance"].title.startswith("SGLang 0.5.23 told in ")
    assert ", 29 lines: accept length 1.8" in found["served.acceptance"].title
    assert "mean of the lines' accept lengths" in found["served.acceptance"].evidence
    assert found["served.log"].status is Status.PASS
    assert found["served.log.graphs"].title == "Every decode line ran as a captured graph"
    assert set(found) == {"served.acceptance", "served.flags", "served.log", "served.log.graphs"}
    assert found["served.flags"].numbers["ran"] == {"engine": "sglang", "num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4}


@pytest.mark.report("SafeAILab/EAGLE#298", "E")
def test_graphs_off_above_a_batch_are_told_with_the_batch(cases, tmp_path):
    """A public report: slower than without speculation at 8 requests, `cuda graph: False`, with --cuda-graph-max-bs 2 on the line."""
    near = noisy()
    lines = [decode(i * 10, near(1.8), running=2 if i < 10 else 8, graph=i < 10) for i in range(20)]
    found = logged(cases, written(tmp_path, *lines))["served.log.graphs"]
    assert found.status is Status.FAIL
    assert found.title == "10 of 20 decode lines ran without a captured graph, at 8 to 8 running requests"
    assert found.evidence == "The largest batch with a graph had 2 requests."
    assert "--cuda-graph-max-bs" in found.next


def test_graphs_off_on_a_cpu_are_no_fault(cases, tmp_path):
    lines = [f"[2026-03-01 10:00:00] {ARGS.format('cpu')}", *(decode(i * 10, 1.7 + i % 3 / 10, graph=False) for i in range(20))]
    found = logged(cases, written(tmp_path, *lines))["served.log.graphs"]
    assert (found.status, found.title) == (Status.PASS, "20 of 20 decode lines ran without a graph, on a CPU")


def test_an_accept_length_that_never_moves_is_simulated(cases, tmp_path):
    found = logged(cases, written(tmp_path, *(decode(i * 10, 2.8) for i in range(30))))["served.log.constant"]
    assert found.status is Status.FAIL
    assert "SGLANG_SIMULATE_ACC_LEN" in found.next


@pytest.mark.parametrize(("starts", "status"), [(1, Status.CANNOT_TELL), (3, Status.FAIL)])
@pytest.mark.report("vllm-project/vllm#41838", "G")
def test_a_sawtooth_over_restarts_is_a_fault_and_one_fall_may_be_the_traffic(cases, tmp_path, starts, status):
    """A public report of accept lengths that decay with uptime: prefix blocks hashed before they were written."""
    near, lines = noisy(), []
    for start in range(starts):
        lines.append(f"[2026-03-01 {10 + start}:00:00] {ARGS.format('cuda')}")
        lines += [decode(start * 3600 + i * 10, near(2.4 - 0.02 * i)) for i in range(30)]
    found = logged(cases, written(tmp_path, *lines))["served.log.trend"]
    assert found.status is status
    assert len(found.numbers["starts"]) == starts
    assert found.title.startswith("The accept length falls with uptime: 2.")


def test_steady_noise_falls_for_nobody():
    for seed in range(40):
        near, rows = noisy(seed), []
        for _ in range(30):
            rows.append({"event": "decode", "accept_length": near(1.8), "start": 0, "rank": "", "running": 4, "graph": True})
        assert not any(over_time.fell(c) for c in over_time.trends(frame(rows)))


def frame(rows):
    import pandas as pd

    return pd.DataFrame(rows)


def test_ranks_that_differ_are_told(cases, tmp_path):
    near = noisy()
    lines = [decode(i, near(1.9 if i % 2 else 1.2), rank=f" DP{i % 2} TP0") for i in range(60)]
    found = logged(cases, written(tmp_path, *lines))["served.log.ranks"]
    assert found.status is Status.CANNOT_TELL
    assert found.title.startswith("The ranks differ: DP1 TP0 reaches 1.")


def test_a_log_without_speculation_cannot_tell(cases, tmp_path):
    line = "[2026-03-01 10:00:00] Decode batch, #running-req: 1, #token: 9, token usage: 0.01, cuda graph: True, gen throughput (token/s): 9.00, #queue-req: 0"
    found = by_id(with_engine(cases["right"], log=written(tmp_path, line)), "served.acceptance", "served.log", "served.expected")
    assert found["served.acceptance"].status is Status.NOT_GIVEN
    assert found["served.log"].status is Status.CANNOT_TELL
    assert "served.expected" not in found


# -- sources that contradict each other, and recordings that no walk predicts ----------------------------------------------------------------


def test_the_log_of_another_run_than_the_counters_is_told(cases, world, walked, tmp_path):
    near = noisy()
    path = written(tmp_path, *(decode(i * 10, near(3.4)) for i in range(30)))
    record(cases["right"] / "counted.jsonl", world, lambda i: {"accepted": tuple(walked["right"][i])}, session(RIGHT))
    inv = with_engine(cases["right"], counters=cases["right"] / "counted.jsonl", log=path)
    found = by_id(inv, "served.log")["served.log.counters"]
    assert found.status is Status.CANNOT_TELL
    assert found.title.startswith("The log is of another run than the counters: 3.4")
    assert verdict(list(run_checks(inv)), inv).confidence != "sure"


def test_a_server_outside_what_any_wiring_predicts_is_no_healthy_one(cases, tmp_path):
    """On other text than the dump's: no fault is shown, and none is denied."""
    near = noisy()
    inv = with_engine(cases["right"], log=written(tmp_path, *(decode(i * 10, near(1.01)) for i in range(30))))
    every = list(run_checks(inv))
    assert next(f for f in every if f.id == "served.expected").numbers["outside"]
    said = verdict(every, inv)
    assert (said.stage, said.confidence) == ("cannot tell", "cannot tell")
    assert "on other text that may be" in said.text


def test_another_engines_counters_confirm_nothing(cases, world, walked):
    record(
        cases["wrong"] / "vllm.jsonl", world, lambda i: {"accepted": tuple(walked["wrong"][i])}, session([0, 1, 2], engine="vllm==0.32.0")
    )
    inv = with_engine(cases["wrong"], counters=cases["wrong"] / "vllm.jsonl")
    assert "confirm it" not in verdict(list(run_checks(inv)), inv).text


def test_a_sampled_recording_is_not_predicted(cases, world, walked):
    record(cases["right"] / "hot.jsonl", world, lambda i: {"accepted": tuple(walked["right"][i])}, session(RIGHT, temperature=0.7))
    found = by_id(with_engine(cases["right"], counters=cases["right"] / "hot.jsonl"), "served.expected")["served.expected"]
    assert (found.status, found.title.split(",")[0]) == (Status.CANNOT_TELL, "The recording was sampled at temperature 0.7")


def test_more_accepted_than_the_assumed_steps_is_not_predicted(cases, world):
    unsaid = session(RIGHT, num_steps=None, eagle_topk=None, num_draft_tokens=None)
    record(cases["right"] / "unsaid.jsonl", world, lambda i: {"accepted": (9, 0, 1)}, unsaid)
    inv = with_engine(cases["right"], counters=cases["right"] / "unsaid.jsonl")
    found = by_id(inv, "served.expected")["served.expected"]
    assert found.status is Status.NOT_GIVEN
    assert "how many steps the recording's server drafted (9 were accepted" in found.title


def test_what_a_recording_lacks_is_said(cases, world, walked):
    path = cases["right"] / "cut.jsonl"
    record(path, world, lambda i: {"accepted": tuple(walked["right"][i])}, session(RIGHT))
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + '\n{"kind": "requ')
    found = by_id(with_engine(cases["right"], counters=path), "served.acceptance")["served.acceptance"]
    assert "1 lines were cut off or damaged" in found.evidence
    assert "The recording was not ended." in found.evidence


# -- the difference of two ratios --------------------------------------------------------------------------------------------------------


def test_the_difference_from_a_constant_ratio_is_the_intervals_own():
    parts, wholes = [3.0, 5.0, 9.0, 4.0, 8.0], [10.0, 12.0, 20.0, 9.0, 14.0]
    gap, low, high = ratios_apart(list(zip(parts, wholes, strict=True)), [(0.0, w) for w in wholes])
    assert gap == pytest.approx(sum(parts) / sum(wholes))
    assert (low, high) == pytest.approx(ratio_interval(parts, wholes))


def test_paired_samples_that_are_alike_leave_no_interval():
    one = [(3.0, 10.0), (9.0, 12.0), (1.0, 20.0)]
    assert ratios_apart(one, one) == (0.0, 0.0, 0.0)
    assert ratios_apart(one[:1], one[:1])[1:] == (-math.inf, math.inf)


# -- cheap -------------------------------------------------------------------------------------------------------------------------------


def test_counters_and_logs_need_no_torch(cases, world, tmp_path):
    record(cases["right"] / "cheap.jsonl", world, lambda i: {"accepted": (1, 0)}, session(RIGHT))
    near = noisy()
    with_engine(cases["right"], counters="cheap.jsonl", log=written(tmp_path, *(decode(i, near(1.8)) for i in range(30))))
    code = (
        "import sys; from eaglelab.cli import main; main(['check', sys.argv[1], '--cheap', '--json']);"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules or 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, cases["right"] / "served.toml"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ids = {f["id"] for f in json.loads(done.stdout)["findings"]}
    assert {"served.acceptance", "served.flags", "served.log"} <= ids
    assert "served.expected" not in ids


def test_the_examples_server_is_told_by_counters_and_log():
    inv = Investigation(EXAMPLE)
    found = by_id(inv, "served.acceptance", "served.flags", "served.log")
    title = "SGLang 0.5.23 counted in 3,874 verify passes: accept length 1.11, barely more than the 1.00 of no drafter at all"
    assert found["served.acceptance"].title == title
    assert {f.status for f in found.values()} == {Status.PASS}
    assert inv.served.log.accept_length().value == pytest.approx(inv.served.reached.accept_length, abs=0.02)
    assert set(inv.served.recordings) >= {"sglang-claimed", "sglang-right", "vllm-claimed", "vllm-right", "vllm-right-k5"}
    assert inv.served.wiring_of(inv.served.recordings["vllm-right"]).wiring == Wiring((3, 16, 28))
