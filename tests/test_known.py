"""Known faults of engine versions, each by a case's config, and recordings held against each other."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from case_builder import SGLANG, build_case, draft_config, make_world, write_case

from eaglelab.checks import findings
from eaglelab.checks.lossless import EDITED, STANDARD_ERRORS, at_most, departure_rate, is_plain, word_errors
from eaglelab.engines import known
from eaglelab.engines.conventions import parse_engine
from eaglelab.engines.known import Situation, has_it, known_faults
from eaglelab.engines.launch import parse_launch
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.served import Recording, RecordingWriter, Request
from eaglelab.served.recording import Session
from eaglelab.wiring import FINAL

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
LINE = "python -m sglang.launch_server --model-path m --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
VLLM = 'vllm serve m --speculative-config \'{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}\''
VISION = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "vision_config": {}, "num_hidden_layers": 28, "hidden_size": 3584}
DEEPSEEK = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61, "hidden_size": 7168}
LLAMA = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "hidden_size": 4096, "max_position_embeddings": 131072}
WIDER = {**LLAMA, "hidden_size": 8192}
GPT_OSS = {"architectures": ["GptOssForCausalLM"], "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}


def faults(engine, line=None, **told):
    return {k.row["id"]: k for k in known_faults(Situation(parse_engine(engine), parse_launch(line) if line else None, **told))}


CASES = [
    ("vl_0_5_5", "sglang==0.5.5.post3", LINE, {"target": VISION}, "sglang==0.5.4", {"target": LLAMA}),
    ("vl_spec_v2", "sglang==0.5.6", f"SGLANG_ENABLE_SPEC_V2=1 {LINE}", {"target": VISION}, None, {"target": LLAMA}),
    (
        "fused_sum",
        "sglang==0.5.12",
        f"{LINE} --tp-size 8 --enable-flashinfer-allreduce-fusion",
        {"target": DEEPSEEK},
        "sglang==0.5.14",
        {"target": LLAMA},
    ),
    (
        "gather_group",
        "sglang==0.5.9",
        f"{LINE} --tp-size 16 --dp-size 16 --enable-dp-attention --moe-a2a-backend deepep",
        {"target": DEEPSEEK},
        "sglang==0.5.12",
        {"target": LLAMA},
    ),
    ("returned_states", "sglang==0.5.9", f"{LINE} --enable-return-hidden-states", {}, "sglang==0.5.14", None),
    (
        "disaggregated_width",
        "sglang==0.5.3",
        f"{LINE} --disaggregation-mode prefill",
        {"target": WIDER, "draft_hidden": 6144},
        "sglang==0.5.6",
        {"target": WIDER, "draft_hidden": 8192},
    ),
    (
        "rope_table",
        "sglang==0.5.2",
        f"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1 {LINE}",
        {"target": LLAMA, "drafter": {"max_position_embeddings": 2048}},
        "sglang==0.5.3",
        {"target": LLAMA, "drafter": {"max_position_embeddings": 131072}},
    ),
    ("greedy_hip", "sglang==0.5.17", f"{LINE} --attention-backend aiter", {"temperature": 0.7}, None, {"temperature": 0.0}),
    ("greedy_npu", "sglang==0.5.12", f"{LINE} --device npu", {"temperature": 0.7}, "sglang==0.5.23", {"temperature": 0.0}),
    ("greedy_cpu", "sglang==0.5.23", f"{LINE} --device cpu", {"temperature": 1.0}, None, {"temperature": 0.0}),
    ("other_width", "vllm==0.9.0", VLLM, {"target": WIDER, "draft_hidden": 6144}, "vllm==0.32.0", {"target": WIDER, "draft_hidden": 8192}),
    (
        "rope_table_vllm",
        "vllm==0.24.0",
        f"{VLLM} --max-model-len 8192",
        {"target": LLAMA, "drafter": {"max_position_embeddings": 2048}},
        "vllm==0.32.0",
        {"target": LLAMA, "drafter": {"max_position_embeddings": 8192}},
    ),
    ("pipeline_slots", "vllm==0.22.0", f"{VLLM} --pipeline-parallel-size 2", {}, None, None),
]


@pytest.mark.parametrize(
    ("local", "id_"), [("cpu", "greedy_cpu"), ("cpu.d1234", "greedy_cpu"), ("rocm630", "greedy_hip"), ("cu124", None), ("1", None)]
)
def test_a_build_names_its_device(local, id_):
    assert {i for i in faults(f"sglang==0.5.17+{local}", LINE, temperature=0.7) if i.startswith("greedy")} == ({id_} if id_ else set())


@pytest.mark.parametrize(("id_", "engine", "line", "told", "free", "other"), CASES, ids=[c[0] for c in CASES])
def test_a_fault_is_found_where_version_and_conditions_match_and_nowhere_else(id_, engine, line, told, free, other):
    assert faults(engine, line, **told)[id_].sure is (id_ != "returned_states")  # which matters where something is made of the states alone
    if free is not None:
        assert id_ not in faults(free, line, **told)
    if other is not None:
        assert id_ not in faults(engine, line, **other)
    asked = faults(engine.partition("==")[0], line, **told)[id_]
    assert not asked.sure
    assert any("the version is not given" in o for o in asked.open)
    assert id_ not in faults("sglang==0.5.9" if engine.startswith("vllm") else "vllm==0.11.0", line, **told)


def test_every_row_is_tested_and_whole():
    rows = {row["id"]: row for row in known.table()}
    assert set(rows) == {c[0] for c in CASES} | {"own_tables", "prefix_hits"}
    for row in rows.values():
        assert set(row["needs"]) <= set(known.CONDITIONS)
        assert all(re.search(r"^[\w.-]+/[\w.-]+#\d+$", s) for s in row["source"])
        assert row["title"].startswith("{engine} ")
        assert row["text"].endswith(".")


@pytest.mark.report(thread="sgl-project/SpecForge#310", classes=["F", "G", "L"])
def test_a_version_between_good_and_bad_is_a_question(tmp_path):
    assert has_it({"after": "0.5.4", "from": "0.5.5.post3", "to": "0.5.5.post3"}, "0.5.5") is None
    (tmp_path / "target.json").write_text(json.dumps(VISION))
    sections = {"engine": {"name": "sglang", "version": "0.5.5.post3", "launch": LINE}, "target": {"config": "target.json"}}
    (found,) = findings(Investigation(write_case(tmp_path, sections)), "engine.known")
    assert (found.id, found.status) == ("engine.known.vl_0_5_5", Status.FAIL)
    assert (
        found.title == "SGLang 0.5.5.post3 accepts next to nothing for multimodal targets: it was measured at 1.04 where 0.5.4 reaches 2.20"
    )
    assert "1.037" in found.evidence
    assert "Established in sgl-project/SpecForge#310." in found.evidence
    sections["engine"]["version"] = "0.5.5"
    (asked,) = findings(Investigation(write_case(tmp_path, sections)), "engine.known")
    assert asked.status is Status.CANNOT_TELL
    assert "Not known here: it is known of 0.5.5.post3; nobody looked at 0.5.5." in asked.evidence


@pytest.mark.parametrize(
    ("row", "version", "has"),
    [
        ({"to": "0.5.13", "fixed": "0.5.14"}, "0.5.2", True),
        ({"to": "0.5.13", "fixed": "0.5.14"}, "0.5.13.post1", None),
        ({"to": "0.5.13", "fixed": "0.5.14"}, "0.5.14+cu129", False),
        ({"to": "0.5.23", "open": True}, "0.5.24", None),
        ({"to": "0.9.0"}, "0.9.1", False),
        ({"from": "0.5.6", "to": "0.5.13", "after": "0.5.3"}, "0.5.4", None),
        ({"from": "0.5.6", "to": "0.5.13", "after": "0.5.3"}, "0.5.3", False),
        ({"to": "0.5.13"}, None, None),
    ],
)
def test_versions(row, version, has):
    assert has_it(row, version) is has


def test_the_fusion_that_turns_itself_on_is_a_question_about_the_machine():
    found = faults("sglang==0.5.12", f"{LINE} --tp-size 8", target=DEEPSEEK)["fused_sum"]
    assert not found.sure
    assert "H100" in found.open[0]
    assert not faults("sglang==0.5.12", f"{LINE} --tp-size 8 --enforce-disable-flashinfer-allreduce-fusion", target=DEEPSEEK)
    assert not faults("sglang", f"{LINE} --tp-size 8", target=DEEPSEEK)  # neither version nor machine: no suspicion


@pytest.mark.report(thread="vllm-project/vllm#27732", classes=["B"])
def test_own_tables_are_a_question_of_the_tables():
    assert not faults("vllm==0.11.0", VLLM, target=LLAMA, own_embedding=True)["own_tables"].sure
    assert not faults(
        "vllm==0.11.0", VLLM, target=LLAMA, own_embedding=False, own_head=True, drafter={"draft_vocab_size": 9, "vocab_size": 99}
    )
    assert "own_tables" in faults("vllm==0.11.0", VLLM, own_head=True, drafter={"draft_vocab_size": 99, "vocab_size": 99})
    assert not faults("vllm==0.12.0", VLLM, target=LLAMA, own_embedding=True)
    assert not faults("vllm==0.14.0", VLLM, target=GPT_OSS)["prefix_hits"].sure


def test_rejection_sampling_and_greedy_servers_are_left_alone():
    line = f"{LINE} --attention-backend aiter"
    assert not faults("sglang==0.5.23", f"{line} --speculative-use-rejection-sampling", temperature=0.7)
    assert not faults("sglang==0.5.23", line)["greedy_hip"].sure  # nobody knows whether it is sampled
    assert not faults("sglang==0.5.23", "python -m sglang.launch_server --model-path m --attention-backend aiter", temperature=0.7)


def test_a_recording_says_the_version_where_the_case_does_not(tmp_path):
    (tmp_path / "target.json").write_text(json.dumps(VISION))
    record(tmp_path / "own.jsonl", requests(), engine="sglang==0.5.5.post3")
    sections = {"engine": {"name": "sglang", "launch": LINE, "counters": "own.jsonl"}, "target": {"config": "target.json"}}
    (found,) = findings(Investigation(write_case(tmp_path, sections)), "engine.known")
    assert found.status is Status.FAIL


def test_the_example_meets_none_and_what_cannot_be_read_stops_nothing(tmp_path):
    assert findings(Investigation(EXAMPLE), "engine.known") == []
    (tmp_path / "config.json").write_text("{")
    sections = {"engine": {"name": "sglang", "version": "0.5.5.post3", "launch": LINE}, "target": {"config": "config.json"}}
    assert findings(Investigation(write_case(tmp_path, sections)), "engine.known") == []
    assert findings(Investigation(write_case(tmp_path, {"engine": {"launch": "python x.py --a"}})), "engine.known") == []


# -- recordings against each other --------------------------------------------------------------------------------------------------------

RIGHT, WRONG, STEPS = [1, 3, 5], [-1, 0, 1], 3


def requests(n=12, accepted=(2, 1, 3, 0), length=40, change=None):
    """Answers of `length` tokens. change(i) is the place from which answer i has other tokens."""
    made = []
    for i in range(n):
        answer = [100 + (i * 7 + t) % 50 for t in range(length)]
        place = change(i) if change else None
        if place is not None:
            answer[place:] = [500 + t for t in range(length - place)]
        made.append(
            Request(i, (1, 2, i), tuple(answer), accepted=tuple(accepted[(i + k) % len(accepted)] for k in range(10)) if accepted else None)
        )
    return made


def record(path, made, **session):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    told = {
        "engine": "sglang==0.5.23",
        "num_steps": STEPS,
        "eagle_topk": 1,
        "num_draft_tokens": STEPS + 1,
        "draft_config": draft_config(RIGHT, SGLANG),
    }
    writer = RecordingWriter(path, Session(**told | session))
    for request in made:
        writer.write(request)
    writer.end()
    return path


def recorded_case(tmp_path, own, others):
    """A case without dump: own and others are (requests, session)."""
    (tmp_path / "target.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 7, "hidden_size": 64}))
    record(tmp_path / "own.jsonl", own[0], **own[1])
    for name, (made, session) in others.items():
        record(tmp_path / "others" / f"{name}.jsonl", made, **session)
    engine = {"name": "sglang", "version": "0.5.23", "counters": "own.jsonl", "recordings": "others"}
    return Investigation(write_case(tmp_path, {"engine": engine, "target": {"config": "target.json"}}))


NEWER = {"engine": "sglang==0.5.22"}


def test_golden_counters_of_another_version(tmp_path):
    """1.75 beside 2.50: 0.75 + 1 beside 1.5 + 1 accepted a pass, for every request."""
    low, high = requests(accepted=(1, 0, 2, 0)), requests(accepted=(2, 1, 3, 0))
    (found,) = findings(recorded_case(tmp_path, (low, {}), {"before": (high, NEWER)}), "served.golden")
    assert found.status is Status.FAIL
    own, other = (1 + sum(sum(r.accepted) for r in side) / sum(len(r.accepted) for r in side) for side in (low, high))
    told = found.numbers["recordings"][0]
    assert (told["own"], told["other"]) == (pytest.approx(own), pytest.approx(other))
    assert found.title == f"The server reached {own:.2f}, less than sglang==0.5.22 fed the same for the same 12 prompts: {other:.2f}"
    (turned,) = findings(recorded_case(tmp_path, (high, {}), {"before": (low, NEWER)}), "served.golden")
    assert turned.status is Status.CANNOT_TELL
    (same,) = findings(recorded_case(tmp_path, (high, {}), {"before": (high, NEWER)}), "served.golden")
    assert same.status is Status.PASS


@pytest.mark.parametrize(
    "session",
    [
        {"num_steps": 2, "num_draft_tokens": 3},
        {"temperature": 0.7},
        {"draft_config": draft_config(WRONG, SGLANG)},
        {"eagle_topk": 4, "num_draft_tokens": 8},
    ],
)
def test_what_is_fed_or_drafted_otherwise_is_not_compared(tmp_path, session):
    inv = recorded_case(tmp_path, (requests(accepted=(1, 0, 2, 0)), {}), {"before": (requests(), NEWER | session)})
    (found,) = findings(inv, "served.golden")
    assert found.status is Status.NOT_GIVEN


def test_noise_between_two_versions_is_not_called_a_fault(tmp_path):
    """Counts that differ request by request without a direction."""
    one, other = requests(accepted=(2, 1, 3, 0)), requests(accepted=(1, 2, 0, 3))
    (found,) = findings(recorded_case(tmp_path, (one, {}), {"before": (other, NEWER)}), "served.golden")
    assert found.status is Status.PASS
    assert pytest.approx(3) == STANDARD_ERRORS * 1.96


def test_two_engines_of_the_example_agree():
    (found,) = findings(Investigation(EXAMPLE), "served.golden")
    assert found.status is Status.PASS
    assert found.numbers["recordings"][0]["same_text"] == 48


OFF = {"num_steps": 0, "eagle_topk": None, "num_draft_tokens": None, "draft_config": None}


@pytest.mark.report(thread="SafeAILab/EAGLE#212", classes=["H", "M"])
def test_speculation_that_changes_the_text(tmp_path):
    """Every second answer has other tokens from its first third on."""
    own, plain = requests(change=lambda i: 0 if i % 2 else None), requests(accepted=None)
    (found,) = findings(recorded_case(tmp_path, (own, {}), {"plain": (plain, OFF)}), "served.lossless")
    assert found.status is Status.FAIL
    assert found.title == "Speculation changes the text: 6 of 12 answers differ from those without it"
    assert (found.numbers["edits"], found.numbers["tokens"]) == (6 * 40, 12 * 40)


def test_the_same_text_with_and_without_speculation(tmp_path):
    (found,) = findings(recorded_case(tmp_path, (requests(), {}), {"plain": (requests(accepted=None), OFF)}), "served.lossless")
    assert (found.status, found.title) == (Status.PASS, "12 of 12 answers are the same with and without speculation")
    seldom = requests(change=lambda i: 39 if i == 3 else None)
    (found,) = findings(recorded_case(tmp_path, (seldom, {}), {"plain": (requests(accepted=None), OFF)}), "served.lossless")
    assert found.status is Status.CANNOT_TELL  # as seldom as near-ties, and no lm_head to tell


def test_a_server_without_speculation_is_known_by_its_command_or_its_steps():
    plain = Recording(None, Session(num_steps=0), tuple(requests(2, accepted=None)))
    assert is_plain(plain)
    assert not is_plain(replace(plain, session=Session()))  # nobody says so
    assert is_plain(replace(plain, session=Session(command="python -m sglang.launch_server --model-path m")))
    assert not is_plain(replace(plain, session=Session(command=LINE)))
    assert not is_plain(Recording(None, Session(num_steps=0), tuple(requests(2))))


@pytest.mark.parametrize(
    ("a", "b", "edits"), [("kitten", "sitting", 3), ("flaw", "lawn", 2), ("", "abc", 3), ("abc", "abc", 0), ("ab", "ba", 2)]
)
def test_word_errors_are_levenshteins(a, b, edits):
    """The textbook's distances."""
    one, other = (Recording(None, Session(), (Request(0, (1,), tuple(map(ord, text))),)) for text in (a, b))
    assert word_errors(one, other) == (edits, len(b))


def test_long_answers_take_no_long_time():
    """Answers of 16,384 tokens that share none: the whole product would be hours."""
    one, other = (Recording(None, Session(), tuple(Request(i, (i,), (token,) * 16384) for i in range(2))) for token in (1, 2))
    assert word_errors(one, other) == (2 * EDITED, 2 * EDITED)


HOT = {"temperature": 0.7}


@pytest.mark.report(thread="sgl-project/sglang#39253", classes=["M"])
def test_a_temperature_that_is_ignored(tmp_path):
    inv = recorded_case(tmp_path, (requests(), HOT), {"greedy": (requests(), {})})
    (found,) = findings(inv, "served.sampling")
    assert found.status is Status.FAIL
    assert found.title == "Temperature 0.7 is ignored: 12 of 12 answers are the greedy ones to the end"
    assert found.numbers["chance"] == pytest.approx(2.718281828 ** -(0.03 * 480), rel=1e-6)  # no departure in 480 tokens, 14.4 expected


def test_a_temperature_that_is_honoured(tmp_path):
    inv = recorded_case(tmp_path, (requests(change=lambda i: 3 + i), HOT), {"greedy": (requests(), {})})
    (found,) = findings(inv, "served.sampling")
    assert found.status is Status.PASS
    assert "12 of 12 answers leave the text of greedy" in found.title


def test_one_near_tie_does_not_hide_that_temperature_is_ignored(tmp_path):
    inv = recorded_case(tmp_path, (requests(change=lambda i: 30 if i == 2 else None), HOT), {"greedy": (requests(), {})})
    assert findings(inv, "served.sampling")[0].status is Status.FAIL


@pytest.mark.parametrize(
    ("made", "session", "greedy"),
    [
        (requests(), {"temperature": 0.1}, requests()),  # a low temperature gives greedy text
        (requests(3, length=20), HOT, requests(3, length=20)),  # 60 tokens are too few
        (
            [replace(r, index=i, prompt_token_ids=(1,), token_ids=requests(1, length=40)[0].token_ids) for i, r in enumerate(requests())],
            HOT,
            None,
        ),
    ],
)
def test_what_sampling_may_give_too_is_no_fault(tmp_path, made, session, greedy):
    others = {"greedy": (greedy, {})} if greedy else {"other": (requests(2), HOT)}
    (found,) = findings(recorded_case(tmp_path, (made, session), others), "served.sampling")
    assert found.status is Status.CANNOT_TELL


def test_repeated_prompts_with_other_answers_contradict_greedy_text(tmp_path):
    """Two statistics: the first answers are greedy, the repeated ones are not."""
    again = [replace(r, index=20 + r.index) for r in requests(change=lambda i: 1)]
    (found,) = findings(recorded_case(tmp_path, (requests() + again, HOT), {"greedy": (requests(), {})}), "served.sampling")
    assert found.status is Status.PASS


def test_a_greedy_recording_is_not_asked_about_temperature(tmp_path):
    inv = recorded_case(tmp_path, (requests(), {}), {"greedy": (requests(), NEWER)})
    assert findings(inv, "served.sampling") == findings(inv, "served.lossless") == []


def test_poissons_sum():
    """Tables: P(X <= 2 | 3) = 0.4232, P(X <= 0 | 1) = 0.3679; far out it does not overflow."""
    assert at_most(2, 3.0) == pytest.approx(0.4232, abs=5e-5)
    assert at_most(0, 1.0) == pytest.approx(0.3679, abs=5e-5)
    assert at_most(10, 5000.0) == 0.0
    assert at_most(0, 0.0) == 1.0
    assert 0.4 < at_most(600, 600.0) < 0.6


def test_the_targets_own_departures_are_its_softmax(tmp_path):
    """By transformers' own logits of the same world."""
    import torch
    from transformers import AutoModelForCausalLM

    world = make_world(tmp_path / "world", "llama", 7, seed=3, samples=4, length=24)
    inv = Investigation(build_case(tmp_path / "case", world, slots=[1, 2, 3, 4, 5, 6, FINAL], feed=[1, 3, 5, 6], ids=RIGHT))
    model = AutoModelForCausalLM.from_pretrained(world.folder, dtype=torch.float32).eval()
    expected = []
    for text, prompt in zip(world.texts, world.prompts, strict=True):
        with torch.no_grad():
            logits = model(text[None]).logits[0].double() / 2.0  # [T, V]
        expected.append(1 - logits[prompt - 1 :].softmax(-1).amax(-1))
    assert departure_rate(inv, 2.0) == pytest.approx(float(torch.cat(expected).mean()), abs=1e-4)
