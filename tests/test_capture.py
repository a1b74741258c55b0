"""Capture from a live engine: what the server sends, records or writes becomes a dump, or a reason. The servers here are fakes that answer
in the engines' shapes; engines_cpu runs the real ones."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import requires_cuda
from identify_fakes import TinyTarget, random_texts
from safetensors.torch import save_file

from eaglelab.capture import sglang_hook
from eaglelab.capture.hook_records import assemble, read_records, record_files
from eaglelab.capture.run import capture
from eaglelab.capture.sglang_hook import hook_spec, record
from eaglelab.capture.vllm_extract import read_extracted
from eaglelab.capture.write import CaptureError, CaptureInfo
from eaglelab.dumps import open_dump
from eaglelab.engines.conventions import Engine
from eaglelab.live.prompts import Prompt
from eaglelab.live.server import Generated, Server, ServerError
from eaglelab.wiring import Wiring

N, H = 5, 48
TARGET_CONFIG = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": N, "hidden_size": H}
AUX = {"enable_return_aux_hidden_states": True, "return_aux_hidden_state_layer_ids": [0, 1, 3], "disable_radix_cache": True}
"""Ids 0, 1, 3 are boundaries 1, 2, 4 to SGLang's Llama."""


@pytest.fixture(scope="module")
def target():
    return TinyTarget(N, H)


@pytest.fixture
def prompts():
    return [Prompt(i, tuple(t[:20].tolist()), tuple(t[20:].tolist()), f"data_{i}") for i, t in enumerate(random_texts(3, 40))]


class OpenedTarget:
    """As much of a case as a capture asks for."""

    target_config, draft_config, dump = TARGET_CONFIG, None, None


class Fake(Server):
    """Answers by `states(token ids) -> hidden_states`; raises what `faults` says, one a request."""

    url = "http://test"

    def __init__(self, engine, flags, states, faults=()):
        self.engine, self.flags, self.states, self.faults, self.asked = engine, flags, states, list(faults), []

    def info(self):
        return self.flags

    def settings(self, info, metrics):
        return {"dtype": "float32", "command": "the command", "draft_config": info.get("draft_config")}

    def metrics(self):
        return None

    def close(self):
        pass

    def generate(self, token_ids, max_new_tokens, *, hidden_states=False):
        self.asked.append(len(token_ids))
        if self.faults and self.faults.pop(0):
            raise ServerError("no answer")
        found = self.states(token_ids)
        return Generated((7,), "x", hidden_states=found if hidden_states else None, meta_info={"cached_tokens": 0})


def sglang(states, flags=AUX, faults=()):
    return Fake(Engine("sglang", "0.5.23"), flags, states, faults)


def side_by_side(target, boundaries, ids):
    """[T, K * H] as an engine concatenates them."""
    states = target.states(torch.tensor(ids))
    return torch.cat([states[b] for b in boundaries], dim=-1)


def as_json(states):
    """The prompt's rows, then one for each token said after the first (SGLang 0.5.23)."""
    return json.loads(json.dumps([states.tolist()]))


def run(server, prompts, out, **options):
    return capture(server, prompts, out, case=OpenedTarget(), say=lambda _: None, **options)


# -- SGLang: returned with the answer --------------------------------------------------------------------------------------------------


def test_returned_states_become_a_dump(target, prompts, tmp_path):
    done = run(sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids))), prompts, tmp_path / "captured")
    assert (done.captured, done.info.wiring, done.info.layer_ids) == (3, Wiring((1, 2, 4)), (0, 1, 3))
    dump = open_dump(tmp_path / "captured")
    assert (dump.feed.aux, dump.feed.last) == ((0, 1, 2), None)
    sample = dump.load("sample_00001")
    assert tuple(sample.token_ids.tolist()) == prompts[1].token_ids + prompts[1].answer
    assert sample.loss_mask.tolist() == [0] * 20 + [1] * len(prompts[1].answer)
    for slot, boundary in zip(sample.slots, (1, 2, 4), strict=True):
        assert torch.equal(slot, target.states(sample.token_ids)[boundary])
    assert CaptureInfo.load(tmp_path / "captured").samples["sample_00001"] == "data_1"


def test_values_that_are_bfloat16_are_kept_in_bfloat16(target, prompts, tmp_path):
    run(sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids).bfloat16().float())), prompts[:1], tmp_path / "c")
    sample = open_dump(tmp_path / "c").load("sample_00000")
    assert sample.slots[0].dtype == torch.bfloat16
    assert torch.equal(sample.slots[2], target.states(sample.token_ids)[4].bfloat16())


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"disable_radix_cache": False}, "start the server with --disable-radix-cache"),
        (
            {"chunked_prefill_size": 16},
            "read in chunks of 16, and only the last one is returned; start the server with --chunked-prefill-size -1",
        ),
        ({}, "--disable-radix-cache --chunked-prefill-size -1"),
    ],
)
def test_missing_rows_name_the_flag(target, prompts, tmp_path, flags, expected):
    with pytest.raises(CaptureError) as error:
        run(sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids)[8:]), AUX | flags), prompts, tmp_path / "c")
    assert "nothing was captured of 3 prompts. The first: 32 rows came for 40 tokens" in str(error.value)
    assert expected in str(error.value)


def test_one_short_sample_is_left_out_with_its_reason(target, prompts, tmp_path):
    def states(ids):
        return as_json(side_by_side(target, (1, 2, 4), ids)[8 * (len(ids) == 43) :])

    done = run(sglang(states), prompts, tmp_path / "c")
    assert (done.captured, list(done.skipped)) == (2, [1])
    assert "35 rows came for 43 tokens" in done.summary
    assert "2 of 3 samples captured" in done.summary


def test_the_final_state_alone_is_no_capture(target, prompts, tmp_path):
    with pytest.raises(CaptureError, match="each row has 48 numbers, one state, where 3 were expected"):
        run(sglang(lambda ids: as_json(side_by_side(target, (5,), ids))), prompts, tmp_path / "c")


def test_without_the_targets_config_rows_cannot_be_cut(target, prompts, tmp_path):
    server = sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids)), AUX | {"model_path": "org/model"})
    with pytest.raises(CaptureError, match=r"rows of 144 numbers and no hidden size to cut them by: give the target's config"):
        capture(server, prompts, tmp_path / "c", say=lambda _: None)


def test_the_servers_own_folder_has_the_config_where_it_is_on_this_machine(target, prompts, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(TARGET_CONFIG))
    flags = AUX | {"model_path": str(tmp_path / "model")}
    server = sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids)), flags)
    assert capture(server, prompts, tmp_path / "c", say=lambda _: None).info.wiring == Wiring((1, 2, 4))


def test_another_number_of_slots_than_the_flags_say(target, prompts, tmp_path):
    with pytest.raises(CaptureError, match=r"2 slots came, and by its flags the engine captures 3, \[1, 2, 4\]"):
        run(sglang(lambda ids: as_json(side_by_side(target, (1, 2), ids))), prompts, tmp_path / "c")


def test_a_server_that_returns_nothing_says_how(prompts, tmp_path):
    with pytest.raises(CaptureError, match="this server returns no states: start SGLang with --enable-return-aux-hidden-states"):
        run(sglang(lambda ids: None, {"speculative_algorithm": "EAGLE3"}), prompts, tmp_path / "c")


def test_a_server_that_dies_keeps_what_was_captured(target, prompts, tmp_path):
    many = [Prompt(i, prompts[0].token_ids) for i in range(7)]
    server = sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids)), faults=[0, 1, 0, 1, 1, 1, 0])
    done = run(server, many, tmp_path / "c")
    assert (done.captured, len(server.asked)) == (2, 6)
    assert done.skipped[6] == "not asked: the server had stopped answering"
    assert len(open_dump(tmp_path / "c")) == 2


def test_too_much_json_is_not_asked_for(target, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr("eaglelab.capture.run.MAX_NUMBERS", 3 * H * 41)
    server = sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids)))
    done = run(server, prompts, tmp_path / "c")
    assert server.asked == [40]
    assert "43 rows of 144 numbers are too much to come as JSON" in done.skipped[1]


def test_a_folder_with_files_is_not_written_into(target, prompts, tmp_path):
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(CaptureError, match="is there already and not an empty folder"):
        run(sglang(lambda ids: as_json(side_by_side(target, (1, 2, 4), ids))), prompts, tmp_path)


@pytest.mark.parametrize("text", ["[", "[]", '{"engine": "x"}', '{"engine": "x", "way": "aux", "boundaries": [-3]}'])
def test_a_broken_record_of_a_capture_is_an_error(tmp_path, text):
    (tmp_path / "capture.json").write_text(text)
    with pytest.raises(CaptureError, match="is no record of a capture"):
        CaptureInfo.load(tmp_path)


# -- SGLang: the hook ------------------------------------------------------------------------------------------------------------------


class Engines:
    """The modules that SGLang registers hooks on, run in its order: the target's embedding, then the drafter's embedding and its fc."""

    def __init__(self, config, width, norm=False):
        self.target, self.drafter = torch.nn.Embedding(200, 4), torch.nn.Embedding(200, 4)
        self.fc, self.norm = torch.nn.Linear(width, 4), torch.nn.LayerNorm(width) if norm else None
        of_target, of_drafter = record(config), record(config)  # one factory call a model, as SGLang's register_forward_hooks does
        self.target.register_forward_hook(of_target)
        for module in (self.drafter, self.fc, *([self.norm] if norm else [])):
            module.register_forward_hook(of_drafter)

    def run(self, tokens, states, drafted=0):
        """One pass: `tokens` [T] through the target give `states` [T, K * H]; then drafted steps, which go round fc."""
        self.target(torch.tensor(tokens))
        self.drafter(torch.tensor([*tokens[1:], 9]))
        if self.norm is not None:
            states = self.norm(states)
        self.fc(states)
        for _ in range(drafted):
            self.drafter(torch.tensor([5]))


def config(folder, **more):
    return hook_spec(folder)[0]["config"] | more


def states_of(tokens, width=6):
    """[T, width], another row for every prefix."""
    return torch.tensor([[float(sum(tokens[: i + 1])) + j for j in range(width)] for i in range(len(tokens))])


def read_only(folder):
    (path,) = record_files(folder)
    return read_records(path)


def test_recorded_passes_pair_the_targets_tokens_with_what_fc_receives(tmp_path):
    engines = Engines(config(tmp_path), 6)
    engines.run([3, 4, 5], states_of([3, 4, 5]), drafted=2)
    engines.run([8, 9], states_of([8, 9]).bfloat16().float())
    records = read_only(tmp_path)
    assert [p.tokens for p in records.passes] == [(3, 4, 5), (8, 9)]
    assert torch.equal(records.passes[0].states, states_of([3, 4, 5]))
    assert records.notes == []


def test_with_a_norm_before_fc_the_state_before_it_is_the_record(tmp_path):
    engines = Engines(config(tmp_path), 6, norm=True)
    engines.run([3, 4, 5], states_of([3, 4, 5]))
    (one,) = read_only(tmp_path).passes
    assert torch.equal(one.states, states_of([3, 4, 5]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_dtype_comes_back_bit_for_bit(tmp_path, dtype):
    hook = record(config(tmp_path))
    tokens, states = torch.tensor([1, 2, 3]), torch.randn(3, 10).to(dtype)
    record(config(tmp_path))(None, (tokens,), None)  # the target's
    hook(None, (tokens,), None)
    hook(None, (states,), None)
    (one,) = read_only(tmp_path).passes
    assert one.states.dtype == dtype
    assert torch.equal(one.states, states)


def test_a_text_is_put_together_from_its_prompt_and_its_verify_passes(tmp_path):
    """A chain: each pass holds the root and three drafted tokens, of which as many count as the text goes on with."""
    text = [3, 4, 5, 6, 7, 8, 9, 10, 11]
    whole, other = states_of(text), torch.full((4, 6), -1.0)
    engines = Engines(config(tmp_path), 6)
    engines.run([1, 1], torch.zeros(2, 6))  # a warm-up
    engines.run([3], -whole[:1])  # a health check that begins like the text
    engines.run(text[:4], whole[:4], drafted=2)
    engines.run([7, 8, 99, 98], torch.cat([whole[4:6], other[:2]]), drafted=2)  # one accepted
    engines.run([9, 55, 56, 57], torch.cat([whole[6:7], other[:3]]), drafted=2)  # none
    engines.run([10, 11, 12, 13], torch.cat([whole[7:9], other[:2]]))
    ((states, said),) = assemble(read_only(tmp_path), [text])
    assert torch.equal(states, whole)
    assert said == ""


def test_a_prompt_read_in_chunks_is_whole(tmp_path):
    text = list(range(10, 22))
    engines, whole = Engines(config(tmp_path), 6), states_of(text)
    for first in (0, 5, 10):
        engines.run(text[first : first + 5], whole[first : first + 5])
    ((states, _),) = assemble(read_only(tmp_path), [text])
    assert torch.equal(states, whole)


def test_rows_from_the_cache_and_missing_rows_are_named(tmp_path):
    first, second, third = [3, 4, 5, 6], [3, 4, 7, 8, 9], [60, 61, 62, 63, 64, 65]
    engines = Engines(config(tmp_path), 6)
    engines.run(first, states_of(first))
    engines.run(second[2:], states_of(second)[2:])
    engines.run(third[:3], states_of(third)[:3])
    (_, one), (none, why), (part, said) = assemble(read_only(tmp_path), [first, second, third])
    assert one == ""
    assert none is None
    assert "only its last 3 of 5 tokens were run: the rest came from the cache; start the server with --disable-radix-cache" in why
    assert len(part) == 3
    assert said == "the last 3 of 6 tokens have no rows"


def test_a_cut_record_ends_the_reading_and_is_said(tmp_path):
    engines = Engines(config(tmp_path), 6)
    for i in range(3):
        engines.run([3 + i, 4, 5], states_of([3 + i, 4, 5]))
    (path,) = record_files(tmp_path)
    whole = path.read_bytes()
    for length in range(len(whole) - 8, len(whole) - 150, -7):  # inside the last frame
        path.write_bytes(whole[:length])
        records = read_records(path)
        assert [p.tokens for p in records.passes] == [(3, 4, 5), (4, 4, 5)]
        assert "cut off or damaged at byte" in records.notes[0]
    path.write_bytes(whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])
    assert "cut off or damaged at byte" in read_records(path).notes[0]


def test_a_file_of_something_else_is_refused(tmp_path):
    (tmp_path / "rank0.records").write_bytes(b"PK\x03\x04 some zip file")
    with pytest.raises(CaptureError, match="is no recording of eaglelab's hook"):
        read_only(tmp_path)


def test_a_full_disk_stops_the_recording_and_never_the_server(tmp_path, monkeypatch, capsys):
    engines = Engines(config(tmp_path), 6)
    engines.run([3, 4, 5], states_of([3, 4, 5]))
    recorder = sglang_hook._recorders[str(tmp_path)]
    put, room = recorder._put, [100]

    def full(data):
        room[0] -= len(data)
        if room[0] < 0 and len(data) > 150:
            put(memoryview(data)[:11])  # half a frame reaches the disk
            raise OSError(28, "No space left on device")
        put(data)

    monkeypatch.setattr(recorder, "_put", full)
    engines.run(list(range(9)), states_of(list(range(9))))  # no exception
    engines.run([6, 7], states_of([6, 7]))
    records = read_only(tmp_path)
    assert [p.tokens for p in records.passes] == [(3, 4, 5)]
    assert "No space left on device" in records.notes[0]
    assert "has stopped" in capsys.readouterr().out


def test_the_bound_on_bytes_stops_the_recording(tmp_path):
    engines = Engines(config(tmp_path, max_bytes=2_000), 6)
    for i in range(50):
        engines.run([3 + i, 4, 5], states_of([3 + i, 4, 5]))
    records = read_only(tmp_path)
    assert 1 <= len(records.passes) < 20
    assert "max_bytes = 2,000 reached" in records.notes[0]
    assert records.path.stat().st_size < 3_000


def test_a_folder_that_cannot_be_made_leaves_the_server_alone(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    hook = record(config(tmp_path / "file" / "below"))
    assert hook(None, (torch.tensor([1, 2]),), None) is None
    assert "nothing is recorded" in capsys.readouterr().out


def test_nothing_is_recorded_while_a_graph_is_captured(tmp_path, monkeypatch):
    engines = Engines(config(tmp_path), 6)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    engines.run([3, 4, 5], states_of([3, 4, 5]))
    assert read_only(tmp_path).passes == []


@requires_cuda
def test_the_hook_on_cuda_and_under_graph_capture(tmp_path):
    hook, target = record(config(tmp_path)), record(config(tmp_path))
    tokens, states = torch.tensor([1, 2, 3], device="cuda"), torch.randn(3, 10, device="cuda").bfloat16()
    target(None, (tokens,), None)
    hook(None, (tokens,), None)
    hook(None, (states,), None)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        hook(None, (tokens,), None)
        hook(None, (states * 2,), None)
    graph.replay()
    (one,) = read_only(tmp_path).passes
    assert torch.equal(one.states, states.cpu())


def test_the_hook_changes_no_output(tmp_path):
    fc = torch.nn.Linear(6, 4)
    before = fc(states_of([1, 2]))
    fc.register_forward_hook(record(config(tmp_path)))
    assert torch.equal(fc(states_of([1, 2])), before)


def test_the_copied_file_alone_runs_without_eaglelab(tmp_path):
    (tmp_path / "sglang_hook.py").write_bytes(Path(sglang_hook.__file__).read_bytes())
    code = (
        "import sys, json, torch, sglang_hook\n"
        "spec = sglang_hook.hook_spec('out', factory='sglang_hook:record')\n"
        "hook = sglang_hook.record(spec[0]['config'])\n"
        "assert hook(None, (torch.tensor([1, 2]),), None) is None\n"
        "assert not any(m.startswith('eaglelab') for m in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env=os.environ | {"PYTHONPATH": str(tmp_path)})
    assert len(list((tmp_path / "out").glob("*.records"))) == 1


def test_a_server_with_the_hook_is_captured_through_its_records(target, prompts, tmp_path):
    spec = hook_spec(tmp_path / "records")
    engines = Engines(spec[0]["config"], 3 * H)
    draft = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 0, 1]}}
    flags = {"forward_hooks": spec, "speculative_algorithm": "EAGLE3", "draft_config": draft}
    server = sglang(lambda ids: engines.run(list(ids), side_by_side(target, (0, 1, 2), ids)), flags)
    done = run(server, prompts, tmp_path / "captured")
    assert (done.captured, done.info.way, done.info.wiring) == (3, "hook", Wiring((0, 1, 2)))
    sample = open_dump(tmp_path / "captured").load("sample_00002")
    assert torch.equal(sample.slots[0], target.states(sample.token_ids)[0])
    assert len(sample.token_ids) == 46


@pytest.mark.parametrize(("served", "expected"), [(True, (0, 1, 2)), (False, (1, 2, 4))], ids=["the server's config", "the case's"])
def test_the_served_drafters_config_comes_before_the_cases(target, prompts, tmp_path, served, expected):
    """EAGLE-3 running with --enable-return-hidden-states: the rows are the aux states that the drafter is given."""

    def draft(ids):
        return {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": {"eagle_aux_hidden_state_layer_ids": ids}}

    case = OpenedTarget()
    case.draft_config = draft([0, 1, 3])
    flags = {"speculative_algorithm": "EAGLE3", "return_hidden_states_mode": "full", "draft_config": draft([-1, 0, 1]) if served else None}
    server = sglang(lambda ids: as_json(side_by_side(target, expected, ids)), flags)
    done = capture(server, prompts, tmp_path / "c", case=case, say=lambda _: None)
    assert done.info.wiring == Wiring(expected)
    assert ("cannot be read here: its boundaries are said by the case's" in " ".join(done.notes)) is not served


def test_records_that_are_not_here_say_where_to_look(prompts, tmp_path):
    spec = hook_spec(tmp_path / "elsewhere")
    with pytest.raises(CaptureError, match=r"no recording .* on this machine"):
        run(sglang(lambda ids: None, {"forward_hooks": spec}), prompts, tmp_path / "captured")


# -- vLLM: the connector's files -------------------------------------------------------------------------------------------------------


def vllm(target, folder, boundaries=(1, 2, 4, 5), cut=0, flags=None):
    def write(ids):
        states = target.states(torch.tensor(ids))
        stacked = torch.stack([states[b] for b in boundaries], dim=1)[cut:]  # [T, S, H]
        path = folder / f"cmpl-{len(ids)}-0.safetensors"
        save_file({"hidden_states": stacked, "token_ids": torch.tensor(ids)}, path)
        return str(path)

    return Fake(Engine("vllm", "0.32.0"), flags or {}, write)


def test_files_that_vllm_wrote_become_a_dump(target, prompts, tmp_path):
    (tmp_path / "shared").mkdir()
    done = run(vllm(target, tmp_path / "shared"), prompts, tmp_path / "c", layer_ids=[1, 2, 4, 5])
    assert (done.captured, done.info.wiring) == (3, Wiring((1, 2, 4, 5)))
    dump = open_dump(tmp_path / "c")
    assert (dump.feed.aux, dump.feed.last) == ((0, 1, 2), 3)
    sample = dump.load("sample_00000")
    assert torch.equal(sample.slots[3], target.states(sample.token_ids)[5])
    assert int(sample.loss_mask.sum()) == 20


def test_vllms_ids_are_read_from_its_configuration(target, prompts, tmp_path):
    nested = {"speculative_config": {"draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}}}}
    server = vllm(target, tmp_path, (1, 2), flags={"vllm_config": nested})
    done = run(server, prompts, tmp_path / "c")
    assert done.info.wiring == Wiring((1, 2))


def test_a_vllm_server_that_does_not_extract_says_how(prompts, tmp_path):
    with pytest.raises(CaptureError, match=r"names no file of states.*extract_hidden_states method"):
        run(Fake(Engine("vllm", "0.32.0"), {}, lambda ids: None), prompts, tmp_path / "c")


def test_a_file_on_another_machine_is_said(tmp_path):
    with pytest.raises(CaptureError, match="is on the server's machine"):
        read_extracted(str(tmp_path / "not_here" / "a.safetensors"), [1], wait=0.1)


def test_a_file_of_other_tokens_or_too_few_rows_is_refused(target, tmp_path):
    path = vllm(target, tmp_path).states([3, 4, 5, 6])
    with pytest.raises(CaptureError, match="holds 4 tokens that are not the 3 that were sent"):
        read_extracted(path, [3, 4, 5])
    path = vllm(target, tmp_path, cut=2).states([3, 4, 5, 6])
    with pytest.raises(CaptureError, match="holds 2 rows for 4 tokens"):
        read_extracted(path, [3, 4, 5, 6])


def test_a_file_that_is_still_written_is_waited_for(target, tmp_path):
    path = vllm(target, tmp_path).states([3, 4, 5, 6])
    with open(path + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CaptureError, match=r"was not written within 0[.]2 s"):
            read_extracted(path, [3, 4, 5, 6], wait=0.2)
    assert len(read_extracted(path, [3, 4, 5, 6])) == 4
