"""`eaglelab live` on a whole tiny case: the contract server writes what the case's target would, counted as a real walk through it goes."""

import json
import re
from dataclasses import replace

import pytest
from case_builder import build_case, make_world
from contract_server import KEY, STEPS, ContractServer

from eaglelab.case import open_case
from eaglelab.cli import main
from eaglelab.investigation import Investigation
from eaglelab.live import report
from eaglelab.live.report import default_out
from eaglelab.live.rise import rise
from eaglelab.live.run import record
from eaglelab.served import Recording

SLOTS = [2, 3, 5, "final"]


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), samples=6)


@pytest.fixture(scope="module")
def case(world, tmp_path_factory):
    return build_case(tmp_path_factory.mktemp("case"), world, slots=SLOTS, ids=[1, 2, 4])  # SGLang captures Llama's id + 1


@pytest.fixture
def contract(world):
    """Writes on along each text, as its target does."""

    def answer(prompt):
        text = next(t.tolist() for t in world.texts if t[: len(prompt)].tolist() == prompt)
        return text[len(prompt) :]

    with ContractServer("sglang", answer) as server:
        info = server.info
        server.info = lambda: info() | {"speculative_draft_model_path": "somewhere/on/the/server"}
        yield server


def live(capsys, *words):
    code = main(["live", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def document(capsys, *words):
    code, out, _ = live(capsys, *words, "--json")
    return code, json.loads(out)


def test_the_whole_way(case, contract, world, capsys, tmp_path):
    code, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl")
    assert code == 0
    assert (told["asked"], told["answered"], told["stopped"], told["failures"]) == (6, 6, None, [])
    assert told["session"]["engine"] == "sglang==0.5.23"
    assert told["text"]["diagnosis"] == "identical"
    assert told["served"]["counts"]["verify_steps"] == len(contract.accepted)
    assert told["served"]["counts"]["accepted"] == sum(contract.accepted)
    assert told["served"]["accept_length"] == pytest.approx(1 + sum(contract.accepted) / len(contract.accepted))
    assert told["counters"]["verify_steps"] == told["counters"]["requests_verify_steps"] == len(contract.accepted)
    assert "nobody else" in told["counters"]["notes"][0]
    fed = told["replayed"]["the case's config"]
    assert fed["wiring"] == [2, 3, 5]
    assert fed["requests"] == 6
    assert fed["served"] == pytest.approx(told["served"]["accept_length"])
    assert fed["equal"] is False  # the pretended drafter is another one
    assert list(told["replayed"]) == ["the case's config"]  # which is what the dump holds
    assert sum(len(a["input_ids"]) for a in contract.asked) == sum(world.prompts)


def test_a_config_that_the_server_itself_tells_is_called_its_own(case, contract, capsys, tmp_path):
    info = contract.info() | {"speculative_draft_model_path": str(open_case(case).drafter.path)}
    contract.info = lambda: info
    _, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl")
    assert list(told["replayed"]) == ["the server's config"]


def test_the_text_output_says_the_same(case, contract, capsys, tmp_path):
    code, out, err = live(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--max-samples", 3)
    assert code == 0
    assert "SGLang 0.5.23" in err
    assert "3 of 3 prompts of the dump (3 of 6 samples) answered, 0 failed" in out
    assert "3 of 3 answers are identical to the expected ones: the same target" in out
    assert re.search(r"Served accept length \d\.\d{3}, \d+ drafts accepted in \d+ verify passes", out)
    assert re.search(r"Replayed, boundaries \[2, 3, 5\] .*predicted, \d\.\d{3} served, 3 requests, the same text", out)


def test_a_server_that_drafts_as_the_replay_does_is_found_equal(case, contract, world, capsys, tmp_path):
    """The walks of one run's prediction are what the server counts in the next."""
    words = [case, "--url", contract.url, "--out"]
    document(capsys, *words, tmp_path / "one.jsonl", "--no-replay")
    recording = Recording.load(tmp_path / "one.jsonl")
    walks = {r.request.prompt_token_ids: r.walk for r in Investigation(case).served.predicted(recording).prediction.requests}
    assert len(walks) == 6
    contract.counted = lambda prompt, tokens: [*walks[tuple(prompt)].accepted, *[0] * walks[tuple(prompt)].cut]
    for engine in ("sglang", "vllm"):
        contract.engine = engine
        code, told = document(capsys, *words, tmp_path / f"{engine}.jsonl", "--engine", engine)
        fed = next(f for f in told["replayed"].values() if f["wiring"] == [2, 3, 5])  # vLLM reads the same ids as other boundaries
        assert (code, fed["equal"], fed["requests"]) == (0, True, 6)
        assert fed["verify_steps"]["compared"] == sum(len(w.accepted) for w in walks.values())
        if engine == "vllm":  # tells every step
            assert fed["verify_steps"]["differing"] == 0


def test_another_target_is_told_by_its_own_logits(case, contract, capsys, tmp_path):
    right = contract.answer
    contract.answer = lambda prompt: [(t + 1) % 48 if i >= 10 else t for i, t in enumerate(right(prompt))]
    code, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl")
    assert code == 0
    assert told["text"]["identical"] == 0
    assert told["text"]["diagnosis"] == "other target"  # the case's lm_head prefers the dump's token everywhere
    assert {row["position"] for row in told["text"]["requests"]} == {10}
    assert told["replayed"]["the case's config"]["requests"] == 6  # predicted up to there


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_the_servers_template_is_held_against_the_prompts(case, contract, world, engine, capsys, tmp_path):
    contract.engine = engine
    first, last = world.texts[0][:1].tolist(), world.texts[0][world.prompts[0] - 2 : world.prompts[0]].tolist()
    contract.template = (first, last)
    _, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay")
    prompts = [t[:n].tolist() for t, n in zip(world.texts, world.prompts, strict=True)]
    found = told["template"]
    assert (found["head"], found["tail"]) == (first, last)
    assert found["begin"] == sum(p[:1] == first for p in prompts)
    assert found["end"] == sum(p[-2:] == last for p in prompts)
    assert "prompts do not end with the 2 tokens that the server's chat template writes before an answer" in found["text"]
    contract.template = ([], [])
    _, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay")
    assert told["template"]["text"] == "the server's chat template writes what stands around the questions of all 6 prompts"


def test_other_traffic_is_seen_and_kept_out(case, contract, capsys, tmp_path):
    generate = contract.generate

    def busy(body, engine):
        contract.accepted += [1, 2]  # somebody else's
        return generate(body, engine)

    contract.generate = busy
    _, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay")
    counters = told["counters"]
    assert counters["verify_steps"] == counters["requests_verify_steps"] + 12
    assert "12 more than these requests': other requests were served meanwhile" in counters["notes"][0]
    assert told["served"]["counts"]["verify_steps"] == counters["requests_verify_steps"]
    assert (told["replayed"], told["without_replay"]) == ({}, "not asked for")


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_counters_that_are_reset_meanwhile_are_said(case, contract, engine, capsys, tmp_path):
    contract.engine = engine
    generate, asked = contract.generate, []

    def restarted(body, engine):
        asked.append(1)
        if len(asked) == 4:
            contract.reset_counters()
        return generate(body, engine)

    contract.accepted = [3] * 500  # of its life before
    contract.tokens = 2000
    contract.generate = restarted
    _, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay", "--concurrency", 1)
    notes = " ".join(told["counters"]["notes"])
    assert "restart" in notes
    assert "fewer than these requests'" in notes


def test_vllms_counters_give_the_acceptance_where_requests_tell_nothing(case, contract, capsys, tmp_path):
    contract.engine, contract.detailed = "vllm", False
    code, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay")
    assert code == 0
    assert told["served"]["counts"]["verify_steps"] == len(contract.accepted)
    assert told["served"]["accept_length"] == pytest.approx(1 + sum(contract.accepted) / len(contract.accepted))
    assert told["counters"]["requests_verify_steps"] is None


def test_ctrl_c_and_no_answer_are_said(case, contract, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "record", lambda *a, **k: replace(record(*a, **k), stopped="interrupted"))
    _, out, _ = live(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl")
    assert "Not replayed: interrupted" in out
    contract.faults.extend(["400"] * 6)
    code, out, _ = live(capsys, case, "--url", contract.url, "--out", tmp_path / "none.jsonl")
    assert code == 2
    assert "Served acceptance: not told. No request was answered" in out
    assert "Served accept length" not in out


def test_a_server_without_a_drafter_tells_no_acceptance(case, contract, capsys, tmp_path):
    contract.engine, contract.detailed, contract.metrics = "vllm", False, False
    code, out, _ = live(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay")
    assert code == 0
    assert "Served acceptance: not told." in out
    assert "was the server started with a drafter?" in out


def test_a_server_that_dies_exits_2_and_the_same_command_ends_it(case, contract, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("eaglelab.live.http.BACKOFF", 0.01)
    contract.dies_after = 2
    words = [case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--concurrency", 1, "--no-replay", "--max-samples", 6]
    monkeypatch.setattr("eaglelab.live.http.ATTEMPTS", 1)
    code, out, _ = live(capsys, *words)
    assert code == 2
    assert "Stopped: the last 4 requests got no answer" in out
    assert "the same command goes on with the rest" in out
    assert len(Recording.load(tmp_path / "r.jsonl").requests) == 2
    contract.dies_after = None
    contract.reset_counters()
    contract.start()
    code, told = document(capsys, *words)
    assert (code, told["asked"], told["answered"]) == (0, 4, 6)
    assert "1 part(s) of the run ended without a last scrape" in " ".join(told["counters"]["notes"])


def test_the_key_comes_from_the_environment_and_goes_nowhere(case, contract, capsys, tmp_path, monkeypatch):
    contract.key = KEY
    words = [case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay"]
    code, out, err = live(capsys, *words)
    assert code == 2
    assert "401: it wants a key" in out + err
    monkeypatch.setenv("EAGLELAB_API_KEY", KEY)
    code, out, err = live(capsys, *words, "--json")
    assert code == 0
    assert KEY not in out + err + (tmp_path / "r.jsonl").read_text()
    code, out, err = live(capsys, *words, "--api-key-env", "ABSENT")
    assert code == 2
    assert "no such variable" in err


def test_a_server_that_hands_out_no_states_is_told_how(case, contract, capsys, tmp_path):
    code, _, err = live(capsys, case, "--url", contract.url, "--capture", tmp_path / "captured")
    assert code == 2
    assert "capture" in err
    assert not contract.asked


def test_without_a_server_or_its_name(case, capsys):
    code, _, err = live(capsys, case)
    assert code == 2
    assert "give --url http://localhost:30000" in err


def test_recordings_in_the_case_are_numbered_and_gone_on_with(case, contract, capsys):
    contract.faults.extend(["400"])
    words = [case, "--url", contract.url, "--no-replay", "--max-samples", 2, "--concurrency", 1]
    _, one = document(capsys, *words)
    assert one["recording"].endswith("served/sglang-0.5.23-1.jsonl")
    _, two = document(capsys, *words)
    assert two["recording"].endswith("served/sglang-0.5.23-2.jsonl")
    path = case / "served" / "sglang-0.5.23-2.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))  # cut off
    _, again = document(capsys, *words)
    assert again["recording"] == two["recording"]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    _, more = document(capsys, case, *words[1:-4], "--max-samples", 4)
    assert more["recording"] == two["recording"]
    assert more["asked"] == 3  # the end and one answer were cut off
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    _, other = document(capsys, *words, "--max-new-tokens", 3)  # of another run: not gone on with
    assert other["recording"].endswith("-3.jsonl")


def test_other_prompts_than_the_dumps(case, contract, world, capsys, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"token_ids": world.texts[0][:5].tolist()}) + "\n")
    code, told = document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--prompts", file, "--max-new-tokens", 9)
    assert code == 0
    assert told["text"]["diagnosis"] == "not compared"
    assert told["session"]["max_new_tokens"] == 9
    assert told["replayed"]["the case's config"]["requests"] == 1  # found in the dump by its tokens


def test_steps_of_the_server_are_those_replayed(case, contract, capsys, tmp_path):
    document(capsys, case, "--url", contract.url, "--out", tmp_path / "r.jsonl", "--no-replay")
    recording = Recording.load(tmp_path / "r.jsonl")
    assert recording.session.num_steps == STEPS
    assert rise(recording).own == len(contract.accepted)
    assert default_out(tmp_path, type("S", (), {"engine": "vllm==0.32.0"})(), ()).name == "vllm-0.32.0-1.jsonl"
