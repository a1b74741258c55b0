"""The live client against a server that answers as the engines do, and as broken ones do."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from contract_server import KEY, ContractServer, accepted_of, histogram_of, recorded

from eaglelab.dumps import Sample
from eaglelab.engines.conventions import Engine
from eaglelab.live.compare import compare_text, same_answer
from eaglelab.live.connect import connect
from eaglelab.live.http import Http, parse_url
from eaglelab.live.local import served_config
from eaglelab.live.prompts import Prompt, PromptError, dump_prompts, file_prompts
from eaglelab.live.run import record
from eaglelab.live.secrets import command_without_secrets, without_secrets
from eaglelab.live.server import ServerError
from eaglelab.served import Recording, RecordingError, ServedCounts

FAST = {"timeout": 5.0, "attempts": 3, "backoff": 0.01}
ANSWER = tuple(range(100, 120))
PROMPTS = tuple(Prompt(i, (1, 2, i + 3), ANSWER, f"data_{i}.pt") for i in range(6))


@pytest.fixture(params=["sglang", "vllm"])
def contract(request):
    with ContractServer(request.param) as server:
        yield server


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


# -- which engine ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("sglang", Engine("sglang", "0.5.23")),
        ("sglang-0.5.9", Engine("sglang", "0.5.9")),
        ("sglang-0.5.3", Engine("sglang", "0.5.3")),
        ("vllm", Engine("vllm", "0.32.0")),
        ("vllm-0.9.0", Engine("vllm", "0.9.0")),
    ],
)
def test_the_engine_and_its_version_are_found(engine, told):
    with ContractServer(engine) as server:
        assert connect(server.url, **FAST).engine == told
        assert connect(server.url + "/v1/", engine=told.name, **FAST).url == server.url


def test_nothing_listens():
    with pytest.raises(ServerError, match=r"nothing listens at 127\.0\.0\.1:\d+: is the server up") as error:
        connect(f"http://127.0.0.1:{free_port()}", **FAST)
    assert error.value.transient


def test_the_environments_proxy_is_not_used_and_said(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    with ContractServer() as server:
        assert connect(server.url, **FAST).engine.name == "sglang"
    with pytest.raises(ServerError, match="http_proxy of the environment is not used"):
        connect(f"http://127.0.0.1:{free_port()}", **FAST)


def test_a_web_server_is_no_engine():
    with ContractServer("html") as server, pytest.raises(ServerError, match=r"neither SGLang .* nor vLLM"):
        connect(server.url, **FAST)


@pytest.mark.parametrize(("engine", "forced"), [("sglang", "vllm"), ("vllm", "sglang")])
def test_the_other_engine_by_force_is_told(engine, forced):
    with ContractServer(engine) as server, pytest.raises(ServerError, match="answers, but it is no"):
        connect(server.url, engine=forced, **FAST)


@pytest.mark.parametrize("given", [None, "another"])
def test_a_key_is_asked_for_and_never_shown(contract, given):
    contract.key = KEY
    with pytest.raises(ServerError, match=r"401: it wants a key.*EAGLELAB_API_KEY") as error:
        connect(contract.url, key=given, **FAST)
    assert "another" not in str(error.value).replace("or another one", "")


@pytest.mark.parametrize("key", ["", "two words", "line\n", "schlüssel"])
def test_a_key_that_is_none_is_refused_without_being_shown(key):
    with pytest.raises(ServerError, match="API key") as error:
        Http("http://localhost:1", key=key)
    assert not key or key not in str(error.value)


def test_plain_http_where_tls_is_expected_is_said(contract):
    with pytest.raises(ServerError, match=r"does not speak TLS.*http:// rather than https://"):
        connect(contract.url.replace("http:", "https:"), **FAST)


def raw_server(reply):
    """A socket that sends some bytes to whoever connects."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connection.recv(4096)
            connection.sendall(reply)
            connection.close()

    threading.Thread(target=serve, daemon=True).start()
    return listener


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "does not speak HTTP"),
        (b"", "the connection broke"),
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "407 .*a proxy stands before the server"),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "403: it wants a key"),
        (b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n", "HTTPException"),
    ],
)
def test_what_speaks_something_else_is_told(reply, said):
    listener = raw_server(reply)
    try:
        with pytest.raises(ServerError, match=said):
            connect(f"127.0.0.1:{listener.getsockname()[1]}", **FAST)
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("localhost:30000", "http://localhost:30000"),
        (" http://Host:8000/v1/ ", "http://host:8000"),
        ("https://h/engine/v1", "https://h/engine"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_urls_are_taken_as_people_write_them(url, base):
    assert parse_url(url)[0] == base


@pytest.mark.parametrize("url", ["", "ftp://h", "http://h:99999", "http://h:x", "http://h/?a=1", "http://a b", "http://h\n", "http://"])
def test_what_is_no_url_is_said(url):
    if url == "http://h\n":
        assert parse_url(url)[0] == "http://h"
        return
    with pytest.raises(ServerError, match=r"--url .* expected one like"):
        parse_url(url)


def test_a_url_with_a_password_is_refused_without_showing_it():
    with pytest.raises(ServerError, match="EAGLELAB_API_KEY") as error:
        parse_url("http://me:hidden@host")
    assert "hidden" not in str(error.value)


# -- one answer --------------------------------------------------------------------------------------------------------------------


def test_the_recorded_answers_are_read(contract):
    """The engines' own numbers for one real request: 47 verify passes, 48 accepted drafts, [21, 13, 4, 9]."""
    real = "sglang-0.5.23-generate.json" if contract.engine == "sglang" else "vllm-0.32.0-completions.json"
    answer = recorded(real)
    contract.generate = lambda body, engine: answer
    got = connect(contract.url, **FAST).generate([1, 2], 96)
    assert len(got.token_ids) == 96
    assert got.token_ids[:3] == (2122, 359, 800)
    assert got.histogram == (21, 13, 4, 9)
    assert got.verify_steps == 47
    assert got.finish_reason == "length"
    assert got.text.startswith("There are many misconceptions")
    counts = ServedCounts.from_histogram(got.histogram)
    assert (counts.accepted, counts.accept_length) == (48, 1 + 48 / 47)
    if contract.engine == "vllm":
        assert got.accepted[:6] == (3, 0, 3, 3, 3, 1)
        assert ServedCounts.from_accepted(got.accepted) == counts


def test_greedy_is_asked_for_whatever_the_servers_defaults(contract):
    connect(contract.url, **FAST).generate([5, 6], 7)
    body = contract.asked[0]
    sampling = body["sampling_params"] if contract.engine == "sglang" else body
    assert sampling["temperature"] == 0
    assert sampling["repetition_penalty"] == 1
    assert [5, 6] in (body.get("input_ids"), body.get("prompt"))
    assert 7 in (sampling.get("max_new_tokens"), sampling.get("max_tokens"))
    assert contract.engine == "sglang" or body["return_token_ids"]


def test_old_names_and_absent_counts():
    with ContractServer("sglang-0.5.9") as server:
        got = connect(server.url, **FAST).generate([1], 20)
        assert got.histogram == tuple(histogram_of(accepted_of(20)))
    with ContractServer("sglang-0.5.3") as server:
        got = connect(server.url, **FAST).generate([1], 20)
        assert (got.histogram, got.verify_steps) == (None, len(accepted_of(20)))
    with ContractServer("vllm-0.9.0") as server:
        got = connect(server.url, **FAST).generate([1], 4)
        assert (got.token_ids, got.text, got.accepted) == (None, "100 101 102 103", None)


def test_settings_of_the_server(contract):
    server = connect(contract.url, **FAST)
    settings = server.settings(server.info(), server.metrics())
    assert settings["num_steps"] == 3
    assert settings["num_draft_tokens"] == 4
    assert settings["eagle_topk"] == 1
    if contract.engine == "sglang":
        assert settings["dtype"] == "float32"
        assert settings["command"].startswith("python -m sglang.launch_server --model-path")


def test_without_metrics_there_are_none(contract):
    contract.metrics = False
    assert connect(contract.url, **FAST).metrics() is None


@pytest.mark.parametrize("fault", ["503", "429", "502", "reset", "truncated", "abort"])
def test_a_passing_fault_is_tried_again(contract, fault):
    contract.faults.extend([fault] * (1 if fault == "abort" else 2))
    server = connect(contract.url, **FAST)
    if fault == "abort":  # an answer that came, and says that the server gave up: the next run asks again
        with pytest.raises(ServerError, match="gave the request up") as error:
            server.generate([1], 8)
        assert error.value.transient
        return
    assert server.generate([1], 8).token_ids == ANSWER[:8]
    assert len(contract.asked) == 3


@pytest.mark.parametrize(
    ("fault", "said", "tries"),
    [
        ("503", "answers 503: .*the server says 503", 3),
        ("reset", "the connection broke before the whole answer was there", 3),
        ("truncated", r"the connection broke .*IncompleteRead", 3),
        ("html", "answers 502 with a page of HTML", 3),
        ("500", "answers 500: .*the server says 500", 1),
        ("400", "answers 400", 1),
        ("404", "answers 404: no such path here", 1),
        ("redirect", "answers 307 and points to http://127.0.0.1:9/elsewhere, which is not followed", 1),
        ("invalid", "answers no JSON, expected a JSON object", 1),
        ("no keys", "the answer holds answer, expected", 1),
        ("NaN", "expected a list of token ids", 1),
        ("negative", "expected a list of token ids", 1),
        ("other engine", "Is it an? (SGLang|vLLM) server", 1),
        ("hang", "took longer than 0.5 s", 1),
        ("drip", "took longer than 0.5 s", 1),
        ("huge", "sends more than 1,000,000 bytes", 1),
    ],
)
def test_a_fault_that_stays_says_what_it_is(contract, fault, said, tries):
    server = connect(contract.url, **{**FAST, "timeout": 0.5}, max_bytes=1_000_000)
    contract.faults.extend([fault] * 3)
    start = time.monotonic()
    with pytest.raises(ServerError, match=said) as error:
        server.generate([1], 8)
    assert len(contract.asked) == tries
    assert time.monotonic() - start < 4
    assert "\x1b" not in str(error.value)


def test_odd_values_beside_the_answer_are_not_taken(contract):
    contract.faults.extend(["NaN beside", "odd counts"])
    server = connect(contract.url, **FAST)
    first, second = server.generate([1], 8), server.generate([1], 8)
    assert first.token_ids == second.token_ids == ANSWER[:8]
    assert "NaN" not in json.dumps(first.meta_info)
    if contract.engine == "sglang":
        assert second.histogram is None
        assert second.verify_steps == len(accepted_of(8))


def test_metrics_that_fail_cost_no_answer(contract, tmp_path):
    contract.prometheus = lambda: (_ for _ in ()).throw(OSError)  # the connection breaks
    with pytest.raises(ServerError, match="connection broke"):
        connect(contract.url, **FAST).metrics()
    del contract.prometheus
    contract.metrics = False
    recording = record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl").recording
    assert len(recording.requests) == 6
    assert [s.metrics for s in recording.scrapes] == [None, None]


def test_waiting_requests_are_cut_off_by_close(contract):
    contract.faults.append("hang")
    server = connect(contract.url, **FAST)
    threading.Timer(0.2, server.close).start()
    start = time.monotonic()
    with pytest.raises(ServerError, match="was cut off"):
        server.generate([1], 8)
    assert time.monotonic() - start < 2


# -- secrets -----------------------------------------------------------------------------------------------------------------------


def test_keys_are_left_out_and_nothing_else():
    info = {"api_key": "s3", "speculative_num_draft_tokens": 4, "bos_token": "<s>", "nested": [{"admin_api_key": "s3", "tp_size": 1}]}
    told = without_secrets(info | {"launch_command": "x --api-key s3 --speculative-num-draft-tokens 4 --hf-token=s3 --port 1"})
    assert "s3" not in json.dumps(told)
    assert told["speculative_num_draft_tokens"] == 4
    assert told["bos_token"] == "<s>"
    assert told["launch_command"] == "x --api-key *** --speculative-num-draft-tokens 4 --hf-token=*** --port 1"
    assert command_without_secrets("vllm serve m --api-key 's 3' b c --port 1") == "vllm serve m --api-key *** --port 1"


def test_the_key_is_in_no_recording(contract, tmp_path):
    contract.key = KEY
    contract.faults.append("401")
    record(connect(contract.url, key=KEY, **FAST), PROMPTS, tmp_path / "r.jsonl")
    assert KEY not in (tmp_path / "r.jsonl").read_text()
    assert len(Recording.load(tmp_path / "r.jsonl").failures) == 1


def test_a_key_that_the_server_echoes_is_shown_nowhere(contract, tmp_path):
    server = connect(contract.url, key=KEY, **FAST)
    http = server._http
    ask = http._read
    http._read = lambda response, where: (
        ask(response, where).replace(b'"', f'"{KEY} '.encode(), 1) if response.status != 200 else ask(response, where)
    )
    contract.faults.append("400")
    with pytest.raises(ServerError) as error:
        server.generate([1, 2], 3)
    assert KEY not in str(error.value)
    http._read = lambda response, where: json.dumps(
        {"text": f"you sent {KEY}", "output_ids": [1], "choices": [{"text": KEY}], "meta_info": {"x": KEY}}
    ).encode()
    answer = server.generate([1, 2], 3)
    assert KEY not in f"{answer.text} {answer.meta_info}"
    assert "***" in answer.text


@pytest.mark.parametrize("name", ["token", "Authorization", "bearer", "secret", "password", "HF_TOKEN", "WANDB_API_KEY", "MY_KEY"])
def test_names_of_secrets(name):
    assert without_secrets({name: "s3cret"}) == {name: "***"}


def test_secrets_in_commands_and_headers():
    line = "HF_TOKEN=s3cret env X_KEY='s3 cret' python -m x --token s3cret --bos-token <s> -H 'Authorization: Bearer s3cret'"
    assert (
        command_without_secrets(line) == "HF_TOKEN=*** env X_KEY=*** python -m x --token *** --bos-token <s> -H 'Authorization: Bearer ***'"
    )
    assert without_secrets({"pad_token": "<p>", "token_ids": [1], "NUM_KEYS": 2}) == {"pad_token": "<p>", "token_ids": [1], "NUM_KEYS": 2}


def test_a_relative_drafter_is_found_from_the_servers_own_folder(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "config.json").write_text('{"architectures": ["LlamaForCausalLMEagle3"]}')
    code = "import socket; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        port = int(run.stdout.readline())
        found = served_config("d", f"http://127.0.0.1:{port}")
        other = served_config("e", f"http://127.0.0.1:{port}")
        run.stdin.close()
    assert found == {"architectures": ["LlamaForCausalLMEagle3"]}
    assert other is None
    assert served_config("d", "http://10.0.0.1:1") is None


# -- prompts -----------------------------------------------------------------------------------------------------------------------


def sample(key, mask, ids=None):
    ids = torch.arange(len(mask)) if ids is None else ids
    return Sample(key, ids, (torch.zeros(len(mask), 2),), None if mask is None else torch.tensor(mask), ("a",))


def test_the_dumps_prompt_is_what_stands_before_the_first_answer():
    found = dump_prompts([sample("a", [0, 0, 1, 1, 0]), sample("b", [0, 1, 0, 0, 1, 1]), sample("c", [1, 1])])
    assert found.prompts == (Prompt(0, (0, 1), (2, 3), "a"), Prompt(1, (0,), (1,), "b"))
    assert "1 of 3 samples have no mask, or train from the first token" in found.notes[0]
    assert "1 of 3 samples hold several answers" in found.notes[1]


def test_a_dump_without_prompts_says_so():
    bare = replace(sample("a", [0, 1]), loss_mask=None)
    with pytest.raises(PromptError, match=r"none of 1 samples of the dump has a prompt.*--prompts"):
        dump_prompts([bare])


def test_prompts_of_a_file(tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"token_ids": [1, 2], "key": "k"}\n{"input_ids": [3]}\n')
    assert file_prompts(file).prompts == (Prompt(0, (1, 2), None, "k"), Prompt(1, (3,), None, "line 2"))
    file.write_text('{"token_ids": []}\n')
    with pytest.raises(PromptError, match="holds no token ids"):
        file_prompts(file)
    with pytest.raises(PromptError, match="no such file"):
        file_prompts(tmp_path / "absent.jsonl")


def test_a_recordings_prompts_bring_its_answers_along(contract, tmp_path):
    record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl")
    again = file_prompts(tmp_path / "r.jsonl").prompts
    assert [(p.token_ids, p.answer, p.sample) for p in again] == [(p.token_ids, ANSWER, p.sample) for p in PROMPTS]


# -- the run -----------------------------------------------------------------------------------------------------------------------


def test_a_whole_run(contract, tmp_path):
    contract.answer = lambda prompt: [prompt[2] + k for k in range(20)]
    done = record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl", concurrency=3)
    recording = done.recording
    assert (done.asked, done.stopped, recording.ended, recording.failures) == (6, None, True, ())
    assert [r.token_ids[0] for r in recording.requests] == [3, 4, 5, 6, 7, 8]  # each answer with its own prompt
    assert recording.counts == ServedCounts.from_accepted(accepted_of(20) * 6, 3)
    assert recording.session.num_steps == 3
    assert recording.session.server_info["version"] == str(recording.session.engine).split("==")[1]
    assert [s.when for s in recording.scrapes] == ["before", "after"]
    assert all("spec_" in s.metrics for s in recording.scrapes)


def test_an_answer_is_as_long_as_the_dumps_within_the_bound(contract, tmp_path):
    prompts = [Prompt(0, (1,), ANSWER[:5]), Prompt(1, (1,), ANSWER), Prompt(2, (1,))]
    recording = record(connect(contract.url, **FAST), prompts, tmp_path / "r.jsonl", max_new_tokens=8).recording
    assert [len(r.token_ids) for r in recording.requests] == [5, 8, 8]


@pytest.mark.parametrize("fault", ["400", "500", "invalid", "NaN", "other engine"])
def test_one_request_that_fails_costs_itself_alone(contract, fault, tmp_path):
    contract.faults.extend(["503", fault])  # the first request passes at its second attempt
    done = record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl", concurrency=1)
    assert done.stopped is None
    assert len(done.recording.requests) == 5
    again = record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl")
    assert (again.asked, len(again.recording.requests), again.recording.failures) == (1, 6, ())


def test_a_server_that_dies_stops_the_run_and_its_return_goes_on_with_it(contract, tmp_path):
    contract.dies_after = 2
    server = connect(contract.url, **FAST)
    done = record(server, PROMPTS, tmp_path / "r.jsonl", concurrency=1, stop_after=3)
    assert done.stopped.startswith("the last 3 requests got no answer: ")
    assert len(done.recording.requests) == 2
    assert not done.recording.ended
    contract.dies_after = None
    contract.reset_counters()
    contract.start()
    asked = len(contract.asked)
    again = record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl", concurrency=2)
    assert (again.asked, again.stopped, again.recording.ended) == (4, None, True)
    assert len(contract.asked) - asked == 4
    assert again.recording.counts == ServedCounts.from_accepted(accepted_of(20) * 6, 3)
    third = record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl")
    assert third.asked == 0


@pytest.fixture
def interruptible():
    """A job that a shell starts in the background ignores Ctrl-C, and so would the test."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_keeps_what_is_there(contract, tmp_path, interruptible):
    contract.faults.extend(["hang", "hang"])
    server = connect(contract.url, **FAST)
    main = threading.main_thread().ident
    threading.Timer(0.4, signal.pthread_kill, (main, signal.SIGINT)).start()
    start = time.monotonic()
    done = record(server, PROMPTS, tmp_path / "r.jsonl", concurrency=2)
    assert done.stopped == "interrupted"
    assert time.monotonic() - start < 2.5
    again = record(connect(contract.url, **FAST), PROMPTS, tmp_path / "r.jsonl")
    assert len(again.recording.requests) == 6


KILLED = """
import sys, time
from pathlib import Path
from eaglelab.live.connect import connect
from eaglelab.live.prompts import Prompt
from eaglelab.live.run import record
server = connect(sys.argv[1])
generate = server.generate
def slow(*args, **kwargs):
    time.sleep(0.05)
    return generate(*args, **kwargs)
server.generate = slow
record(server, [Prompt(i, (1, 2, i), tuple(range(100, 120))) for i in range(200)], Path(sys.argv[2]), concurrency=2)
"""


def test_a_killed_run_loses_nothing_that_was_answered(contract, tmp_path):
    file = tmp_path / "r.jsonl"
    run = subprocess.Popen([sys.executable, "-c", KILLED, contract.url, str(file)], env={**os.environ, "PYTHONPATH": str(Path.cwd())})
    try:
        deadline = time.monotonic() + 60
        while not (file.exists() and file.read_bytes().count(b'"kind": "request"') >= 5) and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        run.kill()
        run.wait()
    before = Recording.load(file)
    assert len(before.requests) >= 5
    assert before.cut_lines <= 1
    prompts = [Prompt(i, (1, 2, i), ANSWER) for i in range(200)]
    asked = len(contract.asked)
    again = record(connect(contract.url, **FAST), prompts, file, concurrency=4)
    assert again.asked == 200 - len(before.requests)
    assert len(contract.asked) - asked == again.asked
    assert len(again.recording.requests) == 200


@pytest.mark.parametrize(("first", "bound", "said"), [(1, None, "holds other prompts"), (0, 7, "max_new_tokens None, now 7")])
def test_another_run_does_not_go_on_with_the_file(contract, tmp_path, first, bound, said):
    server, file = connect(contract.url, **FAST), tmp_path / "r.jsonl"
    record(server, PROMPTS, file)
    prompts = [replace(p, index=i) for i, p in enumerate(PROMPTS[first:])]
    with pytest.raises(RecordingError, match=said):
        record(server, prompts, file, max_new_tokens=bound)


def test_other_steps_or_another_engine_do_not_go_on_with_the_file(tmp_path):
    file = tmp_path / "r.jsonl"
    with ContractServer("sglang") as server:
        record(connect(server.url, **FAST), PROMPTS, file)
        told = server.info()
        server.info = lambda: told | {"speculative_num_steps": 5}
        with pytest.raises(RecordingError, match="num_steps 3, now 5"):
            record(connect(server.url, **FAST), PROMPTS, file)
    with ContractServer("vllm") as server, pytest.raises(RecordingError, match=r"recorded with engine sglang==0.5.23, now vllm==0.32.0"):
        record(connect(server.url, **FAST), PROMPTS, file)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("speculative_draft_model_path", "/m/other", r"drafter \(speculative_draft_model_path\) .*, now /m/other"),
        ("speculative_draft_model_path", None, r"drafter .*, now None"),
        ("model_path", "/m/other", r"target \(model_path\) .*, now /m/other"),
        ("dtype", "float16", "dtype .*, now float16"),
        ("launch_command", "--model-path a --tp 2", "command .*--tp 1, now .*--tp 2"),
    ],
)
def test_another_server_does_not_go_on_with_the_file(tmp_path, key, value, said):
    file = tmp_path / "r.jsonl"
    with ContractServer("sglang") as server:
        told = server.info() | {"dtype": "bfloat16", "launch_command": "--model-path a --port 1 --tp 1"}
        server.info = lambda: told
        record(connect(server.url, **FAST), PROMPTS[:2], file)
        server.info = lambda: told | {"launch_command": "--model-path a --port 2 --tp 1"}  # the same server at another port
        record(connect(server.url, **FAST), PROMPTS, file)
        server.info = lambda: told | {key: value}
        with pytest.raises(RecordingError, match=said):
            record(connect(server.url, **FAST), PROMPTS, file)
    assert len(Recording.load(file).requests) == len(PROMPTS)


def test_more_prompts_go_on_wherever_the_first_ones_now_stand(contract, tmp_path):
    server, file = connect(contract.url, **FAST), tmp_path / "r.jsonl"
    first = [replace(PROMPTS[i], index=place) for place, i in enumerate((1, 3))]
    record(server, first, file)
    again = record(server, PROMPTS, file)
    assert (again.asked, len(again.recording.requests)) == (4, 6)
    assert {r.index: r.prompt_token_ids for r in again.recording.requests} == {p.index: p.token_ids for p in again.prompts}
    assert [p.token_ids for p in again.prompts] == [p.token_ids for p in PROMPTS]


# -- the text ----------------------------------------------------------------------------------------------------------------------


def compared(answers, tmp_path, gap=None, expected=ANSWER):
    """Requests whose answers are given, against one expected answer."""
    with ContractServer("vllm", lambda prompt: list(answers[prompt[1]])) as server:
        prompts = [Prompt(i, (9, i), tuple(expected)) for i in range(len(answers))]
        return compare_text(record(connect(server.url, **FAST), prompts, tmp_path / "r.jsonl").recording, prompts, gap=gap)


def test_identical_text(tmp_path):
    found = compared([ANSWER, ANSWER], tmp_path)
    assert (found.identical, found.rate) == (2, 0.0)
    assert found.diagnosis[0] == "identical"


def test_the_first_differing_token_is_shown(tmp_path):
    found = compared([ANSWER, (*ANSWER[:12], 7, *ANSWER[13:])], tmp_path)
    row = found.table.iloc[1]
    assert (row["same"], row["position"], row["ours"], row["theirs"]) == (False, 12, "#112", "#7")
    assert row["before"] == "#106 #107 #108 #109 #110 #111"
    assert found.rate == 1 / (20 + 13)
    assert found.diagnosis[0] == "cannot tell"


def test_another_text_from_the_first_token_on(tmp_path):
    found = compared([(7,) * 20, (8,) * 20, ANSWER], tmp_path)
    assert found.diagnosis[0] == "other text"
    assert "2 differ at the very first token" in found.diagnosis[1]


LONG = tuple(range(1000, 1100))


@pytest.mark.parametrize(
    ("gaps", "kind"),
    [
        ([0.01, -0.02], "near-ties"),
        ([None, None], "cannot tell"),
        ([3.0, 4.0], "other target"),
        ([-3.0, -4.0], "other text"),
        ([3, -4], "cannot tell"),
    ],
)
def test_late_differences_are_judged_by_the_targets_own_logits(tmp_path, gaps, kind):
    answers = [(*LONG[:60], 7, *LONG[61:])] * 2
    found = compared(answers, tmp_path, gap=lambda request, *_: gaps[request.index], expected=LONG)
    assert found.diagnosis[0] == kind
    assert 0.01 < found.rate < 0.02


@pytest.mark.parametrize(
    ("served", "finish", "same"),
    [
        (ANSWER, "length", True),
        (ANSWER[:8], "length", True),  # bounded
        (ANSWER[:19], "stop", True),  # the template's line end, which the mask trains
        (ANSWER[:12], "stop", False),  # the target ended its turn
        ((*ANSWER, 5), "stop", True),
        ((5,), "length", False),
    ],
)
def test_an_answer_is_the_expected_one_as_far_as_it_was_asked_for(served, finish, same):
    assert same_answer(ANSWER, served, finish) is same
