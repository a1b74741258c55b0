"""Measured tables of every kind: what is read, what is left out and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelab.served import read_log
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import COLUMNS, Measured, MeasuredTable, merged, read_measured
from eaglelab.timing.setting import Setting
from eaglelab.timing.tables import from_log
from eaglelab.timing.tables.names import column, setting_in
from eaglelab.timing.tables.numbers import number

PUBLISHED = Path(__file__).parent / "published"
HEAD = "batch,steps,topk,draft_tokens,tok_s,accept_length\n"


@pytest.fixture
def read(tmp_path):
    def call(text, name="table.csv", **options):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_measured(path, **options)

    return call


def rows(table):
    return [(m.batch, m.setting.name, m.tok_s, m.accept_length) for m in table.rows]


# -- hand-written tables ------------------------------------------------------------------------------------------------------------------------


def test_the_published_tables():
    table = read_measured(PUBLISHED / "specforge339_qwen3-30b-a3b_2xH100.csv")
    assert (len(table.rows), table.batches, table.notes) == (14, (1, 4, 8, 16, 32, 64), ())
    assert [m.tok_s for m in table.baselines(4)] == [566.21]
    assert rows(table)[11] == (1, "8-8-60", 177.5, 3.2)
    assert list(table.table.columns) == list(COLUMNS)
    assert table.rows[6].source == "specforge339_qwen3-30b-a3b_2xH100.csv, line 8"
    adaptive = read_measured(PUBLISHED / "sglang21599_adaptive.csv")
    assert [m.setting.name for m in adaptive.rows] == ["off", "1-1-2", "3-1-4", "7-1-8"]
    assert not adaptive.rows[0].batch_told
    assert adaptive.rows[0].pass_ms is None
    assert "no batch size" in adaptive.notes[0]
    heads = read_measured(PUBLISHED / "gptoss120b_heads_sglang32334.csv")
    assert [m.accept_length for m in heads.rows] == [2.68, 2.224]
    assert len({m.group for m in heads.rows}) == 2
    assert any("line 4 left out: tok_s is empty" in note for note in heads.notes)


PLAIN = [(1, "off", 88.8, None), (1, "2-1-3", 94.0, 2.05)]


@pytest.mark.parametrize(
    "text",
    [
        "batch,steps,topk,draft_tokens,tok_s,accept_length\n1,0,,,88.8,\n1,2,1,3,94,2.05\n",
        "\ufeffBS;Num Steps;EAGLE topk;ndt;Throughput (tok/s);Acc Len\r\n1;0;0;0;88,8;\r\n1;2;1;3;94,0;2,05\r\n",
        "# made by hand\n\n#running-req\tspeculative_num_steps\tgen throughput (token/s)\ttau\n1\toff\t88.8 tok/s\t-\n1\t2\t94 tok/s\t2.05\n",
        "| concurrency | k | output_throughput | AL |\n|---|--:|---|:-:|\n| 1 | none | 88.8 | n/a |\n| 1 | 2 | **94.0** | 2.05 |\n",
        "kind,batch size,tokens per second,mean acceptance length\nbaseline,1,88.8,1.0\nstatic2,1,94 ± 2,2.05\n",
        "bs,setting,tps,accept_len\n1,off,88.8,\n1,2-1-3,94,2.05\n",
        "bs,num_speculative_tokens,tok_s,accepted_per_pass\n1,0,88.8,\n1,2,94,1.05\n",
        "batch,num_draft_tokens,topk,tok_s,tau\n1,,,88.8,\n1,3,1,94,2.05\n",
    ],
)
def test_tables_as_people_write_them(read, text):
    found = rows(read(text))
    assert [(*row[:3], row[3] and round(row[3], 9)) for row in found] == PLAIN


def test_utf16_and_semicolons_of_a_spreadsheet(read):
    text = "batch;steps;tok_s;accept_length\n1;0;1.012,96;\n1;3;1.500;2,5\n"
    assert rows(read(text.encode("utf-16"))) == [(1, "off", 1012.96, None), (1, "3-1-4", 1500.0, 2.5)]


@pytest.mark.parametrize(
    ("text", "comma", "value"),
    [
        ("1,012.96 tok/s", False, 1012.96),
        ("1,012", False, 1012.0),
        ("1,86", False, 1.86),
        ("1.012,5", True, 1012.5),
        ("1.012", True, 1012.0),
        ("1.86", True, 1.86),
        ("1 012,5", True, 1012.5),
        ("1e3", False, 1000.0),
        ("2.68x", False, 2.68),
        ("", False, None),
        ("N/A", False, None),
        ("-", False, None),
    ],
)
def test_numbers(text, comma, value):
    assert number(text, comma=comma) == value


@pytest.mark.parametrize("text", ["nan", "inf", "abc", "1,2,3", "1.2.3", "76 %", "1e999", True, float("nan"), 10**400])
def test_no_numbers(text):
    with pytest.raises(ValueError, match="is no number"):
        number(text)


@given(st.floats(0.01, 1e6), st.sampled_from(["", " tok/s", "ms"]))
def test_any_number_with_its_unit_reads_back(value, unit):
    assert number(f"{value!r}{unit}") == value
    assert number(f"{value:,.2f}{unit}") == float(f"{value:.2f}")


def test_extra_columns_are_kept_and_places_keep_apart(read):
    table = read("model,hw,draft,bs,steps,tok_s,al,itl ms\na,x,,1,0,100,,9\nb,x,,1,0,50,,9\na,x,d1,1,2,120,2,7\na,x,d2,1,2,130,2,7\n")
    assert table.rows[2].extra["itl ms"] == "7"
    spec = [m for m in table.rows if not m.setting.off]
    assert [m.group for m in spec] == ["model a, hw x, draft d1", "model a, hw x, draft d2"]
    assert all([b.tok_s for b in table.baselines(1, m.place)] == [100.0] for m in spec)


def test_a_baseline_that_names_less_stands_for_all_and_the_one_that_names_most_goes_first():
    def made(tok_s, setting=None, **extra):
        return Measured(1, setting or Setting(0), tok_s, extra=extra)

    spec = made(3.0, Setting(2), model="a", env="x")
    both = MeasuredTable((made(1.0, model="a"), made(2.0, model="a", env="x"), made(4.0, model="a", env="y"), spec))
    assert [m.tok_s for m in both.baselines(1, spec.place)] == [2.0]
    assert [m.tok_s for m in MeasuredTable((made(1.0), spec)).baselines(1, spec.place)] == [1.0]
    assert MeasuredTable((made(1.0, model="b"), spec)).baselines(1, spec.place) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1,3,1,4,0,2", "line 3 left out: tok_s is 0"),
        ("1,3,1,4,-5,2", "line 3 left out: tok_s is -5"),
        ("1,3,1,4,nan,2", "line 3 left out: 'nan' is no number"),
        ("1,3,1,4,fast,2", "line 3 left out: 'fast' is no number"),
        ("0,3,1,4,90,2", "line 3 left out: batch is 0"),
        ("1.5,3,1,4,90,2", "line 3 left out: batch is 1.5"),
        ("-1,3,1,4,90,2", "line 3 left out: batch is -1"),
        ("1,-3,1,4,90,2", "line 3 left out: steps is -3"),
        ("1,3,4,,90,2", "line 3 left out: topk 4 without draft_tokens"),
        ("1,3,,8,90,2", "line 3 left out: 8 draft tokens with 3 steps are no chain's 4"),
        ("1,,,,90,2", "line 3 left out: an accept length of 2 and no steps"),
        ("1,0,,,90,2", "line 3 left out: without speculation by its name, and an accept length of 2"),
        ("1,3,1,4,90", None),
        ("1,3,1,4,1,012.9,2", "line 3 left out: 7 cells under 6 columns; a comma inside a number needs quotes"),
        ("1,3,1,4,90,4.2", "line 3: accept length 4.2 cannot be: a pass of 3-1-4 gives 4 tokens at most"),
        ("1,3,4,8,90,4.2", "line 3: accept length 4.2 cannot be"),
        ("1,3,1,4,90,0.8", "line 3: accept length 0.8 is below 1"),
        ("1,1,1,16,90,1.8", "line 3: 16 draft tokens were asked for; with topk 1 SGLang overrides them with steps + 1 = 2"),
    ],
)
def test_bad_rows_are_notes_and_the_rest_is_read(read, line, said):
    table = read(f"{HEAD}1,0,,,88.8,\n{line}\n1,2,1,3,94,2.05\n")
    assert rows(table)[0] == PLAIN[0]
    assert rows(table)[-1] == PLAIN[1]
    assert (said is None and not table.notes) or any(note.startswith(said) for note in table.notes), table.notes
    if said and "left out" in said:
        assert len(table.rows) == 2


def test_impossible_accept_lengths_are_not_used_and_rounded_ones_are(read):
    table = read(HEAD + "1,3,1,4,90,4.004\n1,3,1,4,90,4.01\n1,1,1,16,54.8,1.8\n")
    assert [m.accept_length for m in table.rows] == [4.004, None, 1.8]
    assert table.rows[2].setting.draft_tokens == 2


def test_no_bonus_adds_one(read):
    text = HEAD + "1,0,,,88.8,\n1,2,1,3,94,1.05\n1,2,1,3,94,0\n"
    table = read(text, no_bonus=True)
    assert [m.accept_length for m in table.rows] == [None, 2.05, 1.0]
    assert any("1 added" in note for note in table.notes)
    assert "`--no-bonus` adds 1" in read(text).notes[-1]


def test_throughput_of_one_request_is_times_batch(read):
    table = read("batch,steps,tok/s/user,al\n8,3,20,2\n")
    assert rows(table) == [(8, "3-1-4", 160.0, 2.0)]
    assert any("times batch" in note for note in table.notes)


def test_what_a_row_does_not_tell_can_be_said(read):
    text = "tok_s,accept_length\n90,2\n"
    with pytest.raises(TimingError, match="an accept length of 2 and no steps"):
        read(text)
    assert rows(read(text, setting=Setting(3), batch=4)) == [(4, "3-1-4", 90.0, 2.0)]
    assert rows(read("tok_s\n90\n", setting=Setting(3), batch=4)) == [(4, "3-1-4", 90.0, None)]
    both = read(HEAD + "1,,,,88.8,\n1,,,,94,2.05\n1,3,,,95,2.2\n", setting=Setting(2))  # an empty place for steps is a baseline's
    assert rows(both) == [*PLAIN, (1, "3-1-4", 95.0, 2.2)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n1,2\n", "no column of throughput. Found the columns a, b; expected batch, steps"),
        (HEAD, "no row that can be used"),
        (HEAD + "1,2,3\n", r"no row that can be used \(line 2 left out: tok_s is empty"),
        (b"PK\x03\x04\0\0", "is binary"),
        ("batch,steps,tok_s,throughput\n1,2,3,4\n", "more than one column of tok_s"),
    ],
)
def test_unusable_tables(read, text, said):
    with pytest.raises(TimingError, match=said):
        read(text)


def test_unusable_paths(tmp_path):
    with pytest.raises(TimingError, match="no such file"):
        read_measured(tmp_path / "nowhere.csv")
    with pytest.raises(TimingError, match=r"a folder without results\.jsonl"):
        read_measured(tmp_path)


def test_a_long_list_of_bad_lines_is_cut(read):
    notes = read(HEAD + "1,3,1,4,x,2\n" * 50 + "1,2,1,3,94,2\n").notes
    assert len(notes) == 21
    assert notes[-1] == "and 30 lines more like these"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300))
def test_whatever_the_bytes(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    for head in (b"", HEAD.encode(), b"{"):
        path.write_bytes(head + content)
        try:
            table = read_measured(path)
        except TimingError:
            continue
        assert table.rows
        assert all(0 < m.tok_s < 1e15 and m.batch > 0 for m in table.rows)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *(
            ("3-1-4", "3-1-4"),
            ("eagle3 3-3-8", "3-3-8"),
            ("static3", "3-1-4"),
            ("K=5", "5-1-6"),
            ("baseline", "off"),
            ("No Speculation", "off"),
        ),
        *(("eagle3", None), ("EAGLE", None), ("adaptive", None), ("llama3", None)),
    ],
)
def test_settings_by_name(name, setting):
    found = setting_in(name)
    assert (found.name if found else None) == setting


def test_a_columns_own_name_stays():
    assert column(" Note ") == "Note"
    assert [column(n) for n in ("--speculative-num-steps", "#running-req", "Throughput (tok/s)", "tok/s", "τ")] == [
        *("steps", "batch", "tok_s", "tok_s", "accept_length")
    ]


# -- benchmarks ---------------------------------------------------------------------------------------------------------------------------------


def lines(*objects):
    return "\n".join(json.dumps(one) for one in objects)


def test_bench_one_batch_server(read):
    one = {"run_name": "3-1-4", "batch_size": 8, "input_len": 1024, "output_len": 16, "latency": 1.5, "input_throughput": 9e3}
    one |= {"output_throughput": 500.0, "overall_throughput": 9e3, "last_ttft": 0.1, "last_gen_throughput": 490.0, "acc_length": 2.5}
    old = {**one, "acc_length": None, "run_name": "default", "model_path": "m"}  # 0.5.3
    steady = {**one, "steady_state_output_throughput": 640.0}
    table = read(lines(one, {**one, "acc_length": -1, "run_name": "default"}, steady), "result.jsonl")
    assert rows(table) == [(8, "3-1-4", 500.0, 2.5), (8, "off", 500.0, None), (8, "3-1-4", 640.0, 2.5)]
    assert any("since its start" in note for note in table.notes)
    assert any("taken as without speculation" in note for note in table.notes)
    assert rows(read(lines(old), "old.jsonl")) == [(8, "off", 500.0, None)]
    assert rows(read(lines(old), "old.jsonl", setting=Setting(3))) == [(8, "off", 500.0, None)]
    assert rows(read(lines({**one, "run_name": "default"}), "o.jsonl", setting=Setting(3))) == [(8, "3-1-4", 500.0, 2.5)]
    with pytest.raises(TimingError, match=r"an accept length of 2\.5 and no steps"):
        read(lines({**one, "run_name": "default"}), "unnamed.jsonl")


def test_bench_serving_of_sglang(read):
    flags = {"model_path": "m", "tp_size": 2, "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": 4}
    flags |= {"speculative_num_draft_tokens": 8, "internal_states": [{"avg_spec_accept_length": 2.2}]}
    one = {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "sharegpt",
        "max_concurrency": 16,
        "output_throughput": 900.0,
        "concurrency": 15.2,
    }
    one |= {"accept_length": 2.2, "server_info": flags, "generated_texts": ["x" * 1000]}
    off = {**one, "accept_length": None, "max_concurrency": None, "server_info": {"model_path": "m", "speculative_algorithm": None}}
    table = read(lines(one, off), "serving.jsonl")
    assert rows(table) == [(16, "3-4-8", 900.0, 2.2), (15, "off", 900.0, None)]
    assert table.rows[0].place == {"model": "m", "tp": "2", "dataset": "sharegpt"}
    assert "generated_texts" not in table.rows[0].extra
    assert any("not of this run alone" in note for note in table.notes)
    assert any("mean number of requests in flight" in note for note in table.notes)


def test_bench_serving_of_vllm(read):
    one = {"backend": "vllm", "model_id": "m", "max_concurrency": 4, "output_throughput": 300.0, "total_token_throughput": 400.0}
    spec = {**one, "spec_decode_acceptance_length": 2.4, "spec_decode_num_drafts": 20, "spec_decode_draft_tokens": 60}
    rates = {"spec_decode_per_position_acceptance_rates": [0.7, 0.4, 0.3]}
    assert rows(read(lines(one, spec, {**spec, **rates}), "v.json")) == [(4, "off", 300.0, None), *[(4, "3-1-4", 300.0, 2.4)] * 2]


def test_specforges_results(read):
    metric = {"latency": 3.0, "output_throughput": 151.33, "accept_length": 2.834, "accuracy": None}
    setting = {"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4, "metrics": [metric], "num_samples": 80}
    none = {
        **setting,
        "steps": 0,
        "topk": 0,
        "num_draft_tokens": 0,
        "metrics": [{**metric, "accept_length": 1.0, "output_throughput": 99.0}],
    }
    content = {
        "model": "d",
        "mtbench": [none, setting],
        "gsm8k": [{**setting, "metrics": [metric, {**metric, "output_throughput": 153.0}]}],
    }
    table = read(json.dumps(content, indent=4), "results_1.jsonl")
    assert rows(table) == [(1, "off", 99.0, None), (1, "3-1-4", 151.33, 2.834), (1, "3-1-4", 151.33, 2.834), (1, "3-1-4", 153.0, 2.834)]
    assert [m.extra["dataset"] for m in table.rows] == ["mtbench", "mtbench", "gsm8k", "gsm8k"]
    assert len(table.baselines(1, table.rows[1].place)) == 1
    assert not table.baselines(1, table.rows[2].place)  # of another text
    skipped = {**setting, "steps": None, "topk": None, "num_draft_tokens": None}
    with pytest.raises(TimingError, match="no steps"):
        read(json.dumps({"model": "d", "mtbench": [skipped]}), "skipped.jsonl")
    assert rows(read(json.dumps({"model": "d", "mtbench": [skipped]}), "s.jsonl", setting=Setting(2)))[0][1] == "2-1-3"


def test_bench_speculative_tells_the_speed_of_one_request(read):
    one = {"batch_size": 4, "steps": 3, "topk": 1, "num_draft_tokens": 4, "acc_length": 2.5, "step_time": 0.02, "speed": 125.0}
    table = read(lines(one, {**one, "steps": 0, "topk": 0, "num_draft_tokens": 0, "acc_length": 1.0, "speed": 60.0}), "output.jsonl")
    assert rows(table) == [(4, "3-1-4", 500.0, 2.5), (4, "off", 240.0, None)]
    assert table.rows[0].pass_ms == pytest.approx(20.0)  # its step time


def test_a_sweeps_folder(tmp_path):
    run = {"batch": 4, "steps": 2, "topk": 1, "draft_tokens": 3, "tok_s": 94.0, "accept_length": 2.05, "source": "sweep", "itl_ms": 11.0}
    off = {**run, "steps": 0, "draft_tokens": 1, "accept_length": None, "tok_s": 88.8, "env": {}}
    failed = {**run, "tok_s": None, "accept_length": None, "error": "the server died"}
    torn = json.dumps(run)[:40]
    (tmp_path / "results.jsonl").write_text(lines(off, {**run, "env": {"NCCL_ALGO": "Ring"}}, failed) + "\n[1]\n" + torn)
    table = read_measured(tmp_path)
    assert rows(table) == [(4, "off", 88.8, None), (4, "2-1-3", 94.0, 2.05)]
    assert table.rows[1].extra["itl_ms"] == 11.0
    assert table.baselines(4, table.rows[1].place) == [table.rows[0]]
    assert sum("left out" in note for note in table.notes) == 3
    assert any("the server died" in note for note in table.notes)


def test_files_together_are_one_table(read):
    one, other = read(HEAD + "1,0,,,88.8,\n1,3,1,4,x,2\n", "a.csv"), read(HEAD + "1,2,1,3,94,2.05\n", "b.csv")
    both = merged([one, other])
    assert rows(both) == PLAIN
    assert both.notes == ("a.csv: line 3 left out: 'x' is no number",)


# -- servers' logs ------------------------------------------------------------------------------------------------------------------------------

STAMP = "[2026-05-01 10:00:{:02d} TP0] "
DECODE = (
    STAMP
    + "Decode batch, #running-req: {}, #token: 100, token usage: 0.01, accept len: {:.2f}, accept rate: 0.50, cuda graph: True, gen throughput (token/s): {:.2f}, #queue-req: 0"
)
PLAIN_DECODE = (
    STAMP
    + "Decode batch, #running-req: {}, #token: 100, token usage: 0.01, cuda graph: True, gen throughput (token/s): {:.2f}, #queue-req: 0"
)
PREFILL = STAMP + "Prefill batch, #new-seq: 1, #new-token: 9, #cached-token: 0, token usage: 0.00, #running-req: 1, #queue-req: 0"
ARGS = "[2026-05-01 09:00:00] server_args=ServerArgs(model_path='m', tp_size=2, speculative_algorithm='EAGLE3', speculative_num_steps=3, speculative_eagle_topk=1, speculative_num_draft_tokens=4)"


def test_a_log_over_time(read):
    text = [ARGS, DECODE.format(1, 4, 9.0, 5.0).replace("9.00", "2.00")]
    text += [DECODE.format(s, 4, 2.0 + s / 100, 100.0 + s) for s in (2, 3, 4)]
    text += [PREFILL.format(5), DECODE.format(6, 4, 2.0, 1.0)]  # behind a prompt: its interval holds a prefill
    text += [DECODE.format(7, 8, 2.0, 1.0), *[DECODE.format(s, 8, 1.5, 180.0) for s in (8, 9, 10)], DECODE.format(11, 2, 2.0, 9.0)]
    table = read("\n".join(text) + "\n", "server.log")
    assert rows(table) == [(4, "3-1-4", 103.0, pytest.approx(2.03)), (8, "3-1-4", 180.0, 1.5)]
    assert table.rows[0].extra["lines"] == 3
    assert table.rows[0].place == {"model": "m", "tp": "2"}
    plain = "\n".join(
        [ARGS.replace("'EAGLE3'", "None").replace("steps=3", "steps=None")] + [PLAIN_DECODE.format(s, 4, 88.8) for s in range(5)]
    )
    off = read(plain, "off.log", setting=Setting(3))  # of logs that do not tell: this one does
    assert rows(off) == [(4, "off", 88.8, None)]
    assert merged([table, off]).baselines(4, table.rows[0].place) == [off.rows[0]]


def test_a_log_that_does_not_tell_its_steps(read, tmp_path):
    text = "\n".join(DECODE.format(s, 1, 2.0, 100.0) for s in range(6))
    with pytest.raises(TimingError, match="does not print the number of steps"):
        read(text, "server.log")
    assert rows(read(text, "server.log", setting=Setting(2))) == [(1, "2-1-3", 100.0, 2.0)]
    with pytest.raises(TimingError, match="adaptive"):
        read(ARGS.replace("model_path", "speculative_adaptive=True, model_path") + "\n" + text, "adaptive.log")
    with pytest.raises(TimingError, match="no line of a running server"):
        read(ARGS, "short.log")


def test_a_real_log():
    log = read_log(Path(__file__).parent / "served_lines" / "sglang-0.5.23.log")
    (row,) = from_log(log).rows
    steady = [r for r in log.rows if r.event == "decode" and r.running == 16]
    assert (row.batch, row.setting.name) == (16, "3-1-4")
    assert row.extra["lines"] == 4
    assert row.tok_s in [pytest.approx((a.tok_s + b.tok_s) / 2) for a in steady for b in steady]


@pytest.mark.parametrize(
    "text",
    [
        "batch  steps  tok_s  accept_length\n1      0      100    -\n1      3      150    2.5\n",
        "batch steps tok_s accept_length\n1 0 100 -\n1 3 150 2.5\n",
        "batch size   num steps   tok/s   accept len\n1   baseline   100 tok/s   n/a\n1   3   150 tok/s   2.5\n",
    ],
)
def test_columns_set_apart_by_spaces(tmp_path, text):
    """As a terminal prints a table, and copied from there."""
    path = tmp_path / "t.txt"
    path.write_text(text)
    rows = read_measured(path).rows
    assert [(m.batch, m.setting.steps, m.tok_s, m.accept_length) for m in rows] == [(1, 0, 100.0, None), (1, 3, 150.0, 2.5)]


def test_columns_that_were_not_understood_are_named_once(read):
    notes = read("batch,steps,tau_mean,fancy,tok_s,model\n1,0,,,90,m\n1,3,2.2,x,110,m\n").notes
    said = "columns that were not understood: tau_mean, fancy; no column of accept_length, topk, draft_tokens was found"
    assert notes == (said,)
    assert read(HEAD.replace("\n", ",fancy\n") + "1,2,1,3,94,2,x\n").notes == ()  # nothing is missing
    assert read("batch,steps,tok_s\n1,3,110\n").notes == ()  # nothing is left over
