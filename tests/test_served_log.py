"""Logs of servers: real lines of every era, and no number out of half a line."""

import gzip
import io
import json
import random
from datetime import datetime
from pathlib import Path

import pytest

from eaglelab.metrics.definitions import define
from eaglelab.served import LogError, ServedCounts, read_log, sglang_log
from eaglelab.served.lines import LONGEST, Line, LineReader
from eaglelab.served.log import _Reading
from eaglelab.served.rates import rate_formula

LINES = Path(__file__).with_name("served_lines")

# Lines of the engines' releases: as users published them, or written by the release's own format string (named at the right).
OLD = "[2025-02-11 14:50:38 TP0] Decode batch. #running-req: 3, #token: 1234, token usage: 0.05, accept len: 2.31, gen throughput (token/s): 87.95, #queue-req: 12"
V053 = "[2025-10-02 08:00:01 DP1 TP4 EP4] Decode batch. #running-req: 16, #full token: 77, full token usage: 0.05, #swa token: 8, swa token usage: 0.01, accept len: 2.17, cuda graph: True, gen throughput (token/s): 1203.41, #queue-req: 0, "
V054 = "[2025-10-14 10:00:00] Decode batch [1234], #running-req: 1, #token: 23128, token usage: 0.11, accept len: 2.17, accept rate: 0.54, cuda graph: True, gen throughput (token/s): 54.17, #queue-req: 0, "
V059 = "[2026-02-01 09:10:11.123 DP0 PP1 TP2] Decode batch, #running-req: 2, #token: 33, token usage: 0.00, accept len: 3.04, accept rate: 0.76, pre-allocated usage: 0.00, #prealloc-req: 0, #transfer-req: 0, #retracted-req: 0, npu graph: False, gen throughput (token/s): 78.20, #queue-req: 10"
HYBRID = "[2026-09-30 08:30:35] Decode batch, #running-req: 9, #full token: 11584, full token usage: 0.01, mamba num: 36, mamba usage: 0.60, accept len: 3.04, accept rate: 0.68, cuda graph: True, gen throughput (token/s): 22.40, #queue-req: 1"
RAY = "\x1b[36m(CommandActor pid=105447)\x1b[0m [2026-10-06 11:01:01 TP0 EP0] Decode batch, #running-req: 13, #full token: 8704, full token usage: 0.00, #swa token: 3712, swa token usage: 0.01, accept len: 3.19, accept rate: 0.31, cuda graph: True, gen throughput (token/s): 0.50, #queue-req: 2"
CAPPED = "[2026-11-01 00:00:00] Decode batch, #running-req: 4, #token: 9, token usage: 0.00, accept len: 2.50, accept rate: 0.50, cap len: 3.20, block accept len: 2.70, cuda graph: True, gen throughput (token/s): 10.00, #queue-req: 0, est. decode TFLOPS/s (per GPU): 1.20, est. read BW (GB/s per GPU): 3.00, est. write BW (GB/s per GPU): 0.10, fwd occupancy: 88.10%"
PLAIN = "[2026-03-02 14:44:11 TP0] Decode batch, #running-req: 1, #token: 73, token usage: 0.00, cuda graph: True, gen throughput (token/s): 78.20, #queue-req: 0"
PREFILL = "[2026-09-30 08:30:15] Prefill batch, #new-seq: 1, #new-token: 64, #cached-token: 128, full token usage: 0.00, mamba usage: 0.05, #running-req: 5, #queue-req: 7, #pending-token: 0, cuda graph: False, input throughput (token/s): 7.34"
PREFILL_OLD = "[2025-02-11 14:50:30 TP0] Prefill batch. #new-seq: 2, #new-token: 35, #cached-token: 3, cache hit rate: 12.00%, token usage: 0.00, #running-req: 1, #queue-req: 4"
V1 = "(APIServer pid=1) INFO 06-01 22:01:02 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.31, Accepted throughput: 1.70 tokens/s, Drafted throughput: 2.60 tokens/s, Accepted: 17 tokens, Drafted: 26 tokens, Per-position acceptance rate: 0.769, 0.538, Avg Draft acceptance rate: 65.4%"
V1_08 = "INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Draft acceptance rate: 38.8%, Mean acceptance length: 2.16, Accepted: 150 tokens, Drafted: 387 tokens, Per-position acceptance rate: 0.543, 0.357, 0.264"
V1_085 = V1_08.replace("length: 2.16", "length: 1.16")  # vLLM until 0.8.5: the same counts, the bonus token left out
V1_081 = "INFO 04-02 18:03:41 [metrics.py:53] SpecDecoding metrics: Draft acceptance rate: nan%, Accepted: 0 tokens, Drafted: 0 tokens"
ENGINE = "(APIServer pid=1) INFO 06-01 22:01:02 [loggers.py:271] Engine 003: Avg prompt throughput: 908.0 tokens/s, Avg generation throughput: 26.9 tokens/s, Running: 11 reqs, Waiting: 2 reqs, GPU KV cache usage: 0.4%, Prefix cache hit rate: 31.9%"
V0 = "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: Draft acceptance rate: 0.642, System efficiency: 0.598, Number of speculative tokens: 3, Number of accepted tokens: 8547, Number of draft tokens: 13311, Number of emitted tokens: 10616."
V0_ENGINE = "INFO 08-27 15:21:10 metrics.py:406] Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 75.3 tokens/s, Running: 6 reqs, Swapped: 0 reqs, Pending: 1 reqs, GPU KV cache usage: 9.2%, CPU KV cache usage: 0.0%."
KNOWN = [OLD, V053, V054, V059, HYBRID, RAY, CAPPED, PLAIN, PREFILL, PREFILL_OLD, V1, V1_08, V1_085, V1_081, ENGINE, V0, V0_ENGINE]
NUMBERS = ("running", "queue", "accept_length", "joint", "accept_rate", "verify_steps", "accepted", "proposed", "tok_s", "prompt_tok_s")
NUMBERS += ("graph", "new_tokens", "cached_tokens", "num_steps", "time")


def read(tmp_path, *lines, name="server.log", **knobs):
    path = tmp_path / name
    path.write_bytes("\n".join(lines).encode() + b"\n")
    return read_log(path, **knobs)


def only(tmp_path, line, **knobs):
    (row,) = read(tmp_path, line, **knobs).rows
    return row


def has(row, **expected):
    got = {name: getattr(row, name) for name in expected}
    assert got == {k: pytest.approx(v) if isinstance(v, float) else v for k, v in expected.items()}


# -- SGLang's lines ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (OLD, {"running": 3, "queue": 12, "accept_length": 2.31, "accept_rate": None, "graph": None, "tok_s": 87.95, "rank": "TP0"}),
        (V053, {"running": 16, "queue": 0, "accept_length": 2.17, "graph": True, "tok_s": 1203.41, "rank": "DP1 TP4 EP4"}),
        (V054, {"accept_length": 2.17, "accept_rate": 0.54, "rate_definition": "length_share", "queue": 0, "rank": ""}),
        (V059, {"accept_length": 3.04, "accept_rate": 0.76, "graph": False, "queue": 10, "rank": "DP0 PP1 TP2"}),
        (HYBRID, {"accept_length": 3.04, "accept_rate": 0.68, "rate_definition": "accepted_share", "tok_s": 22.4, "queue": 1}),
        (RAY, {"running": 13, "accept_length": 3.19, "rank": "TP0 EP0", "queue": 2}),
        (CAPPED, {"accept_length": 2.5, "accept_rate": 0.5, "tok_s": 10.0, "queue": 0}),
        (PLAIN, {"accept_length": None, "tok_s": 78.2, "graph": True}),
        (PREFILL, {"new_tokens": 64, "cached_tokens": 128, "running": 5, "queue": 7, "graph": False, "prompt_tok_s": 7.34, "tok_s": None}),
        (PREFILL_OLD, {"new_tokens": 35, "cached_tokens": 3, "running": 1, "queue": 4, "graph": None, "prompt_tok_s": None}),
    ],
)
def test_sglang_lines_of_every_era(tmp_path, line, expected):
    row = only(tmp_path, line)
    assert (row.engine, row.event, row.line) == ("sglang", "prefill" if "Prefill" in line else "decode", 1)
    has(row, **expected)


def test_times_are_those_of_the_server(tmp_path):
    assert only(tmp_path, V059).time == datetime(2026, 2, 1, 9, 10, 11, 123000)
    assert only(tmp_path, "2025-09-02T12:00:00.123456789Z stdout F " + PLAIN).time == datetime(2026, 3, 2, 14, 44, 11)
    assert only(tmp_path, PLAIN.replace("2026-03-02", "2026-13-02")).time is None  # no such month
    assert only(tmp_path, PLAIN.replace("2026-03-02 ", "")).time is None  # SGLang 0.3 printed the time of day alone
    assert only(tmp_path, V1).time == datetime(2000, 6, 1, 22, 1, 2)  # vLLM prints no year


def test_docker_and_json_loggers_are_unpacked(tmp_path):
    has(only(tmp_path, json.dumps({"log": V054 + "\n", "stream": "stderr"})), accept_length=2.17, queue=0)
    has(only(tmp_path, json.dumps({"level": "info", "message": V1})), accepted=17)


# -- which formula printed the rate ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pairs", "knobs", "kind", "tokens"),
    [
        ([(2.17, 0.54)], {"num_draft_tokens": 4}, "length_share", 4),  # 2.17 / 4
        ([(2.17, 0.39)], {"num_draft_tokens": 4}, "accepted_share", 4),  # 1.17 / 3
        ([(2.17, 0.54)], {}, "length_share", 4),
        ([(2.17, 0.39)], {}, "accepted_share", 4),
        ([(3.05, 0.68), (3.00, 0.67), (3.17, 0.72)], {}, "accepted_share", 4),  # a published log of three MTP steps
        ([(1.80, 0.90)], {"num_draft_tokens": 2}, "length_share", 2),
        ([(1.00, 0.00)], {}, None, None),  # nothing accepted: (1 - 1) / 3, or 1 / 256
        ([(1.00, 0.00)], {"version": "0.5.23"}, "accepted_share", None),
        ([(1.00, 0.25)], {}, "length_share", 4),
        ([(4.00, 1.00)], {}, None, 4),  # all accepted: both say 1
        ([(4.00, 1.00)], {"version": "0.5.9"}, "length_share", 4),
        ([(2.17, 0.39)], {"version": "0.5.9"}, None, None),  # contradicts the version
        ([(2.17, 0.54)], {"num_draft_tokens": 16}, None, 16),  # neither
        ([(2.17, 0.54)], {"num_draft_tokens": 16, "steps": 3}, "length_share", 16),  # a tree, until 0.5.5.post2: / (steps + 1)
        ([(2.0, 0.5), (2.0, 0.1)], {"version": "0.5.23"}, "accepted_share", None),  # steps that change
    ],
)
@pytest.mark.report("sgl-project/sglang#3883", "FH")
@pytest.mark.report("sgl-project/sglang#13212", "FH")
def test_the_rates_formula_is_decided_by_arithmetic(pairs, knobs, kind, tokens):
    formula = rate_formula(pairs, **knobs)
    assert formula.kind == kind
    if kind is not None or "num_draft_tokens" in knobs:
        assert formula.num_draft_tokens == tokens


@pytest.mark.parametrize("steps", range(1, 9))
@pytest.mark.parametrize("new", [False, True])
def test_enough_lines_always_tell(steps, new):
    """Counts of passes turned into both numbers by the engines' own formulas, as they round."""
    rng = random.Random(steps)
    pairs = []
    for _ in range(60):
        passes = rng.randrange(40, 640)
        correct = rng.randrange(0, passes * steps)
        length = (correct + passes) / passes
        rate = correct / (passes * steps) if new else (correct + passes) / (passes * (steps + 1))
        pairs.append((float(f"{length:.2f}"), float(f"{rate:.2f}")))
    formula = rate_formula(pairs)
    assert (formula.kind, formula.num_draft_tokens) == ("accepted_share" if new else "length_share", steps + 1)


@pytest.mark.parametrize(
    ("version", "kind"),
    [("0.5.5", "length_share"), ("0.5.10.post1", "length_share"), ("0.5.11", "accepted_share"), ("0.5.23", "accepted_share")],
)
def test_the_turning_point_is_the_wheels(version, kind):
    assert [d.kind for d in define("accept_rate", "sglang", version)[0]] == [kind]


# -- vLLM's lines ------------------------------------------------------------------------------------------------------------------------------


def test_vllms_line_gives_back_its_counts(tmp_path):
    has(
        only(tmp_path, V1),
        event="interval",
        engine="vllm",
        accept_length=2.31,
        accepted=17,
        proposed=26,
        verify_steps=13,
        joint=(0.769, 0.538),
        accept_rate=0.654,
    )
    log = read(tmp_path, V1)
    assert log.accept_length().counts == ServedCounts(13, 17, (10, 7))
    assert log.accept_length().exact


@pytest.mark.parametrize("line", [V1_08, V1_085])
@pytest.mark.report("SafeAILab/EAGLE#132", "H")
def test_a_length_without_the_bonus_token_is_known_by_its_own_numbers(tmp_path, line):
    row = only(tmp_path, line)
    has(row, accept_length=2.16, verify_steps=129, accepted=150, joint=(0.543, 0.357, 0.264), accept_rate=0.388)
    assert ("1 added" in row.accept_definition) == (line is V1_085)


def test_a_length_alone_goes_by_the_version_or_not_at_all(tmp_path):
    line = "INFO 06-06 14:20:34 [metrics.py:86] SpecDecoding metrics: Mean acceptance length: 1.50, Avg Draft acceptance rate: 10.0%"
    assert only(tmp_path, line).accept_length is None
    assert only(tmp_path, line, engine="vllm==0.32.0").accept_length == 1.5
    assert only(tmp_path, line, engine="vllm==0.8.5.post1").accept_length == 2.5


def test_nothing_drafted_is_no_length(tmp_path):
    has(only(tmp_path, V1_081), accept_length=None, accepted=0, proposed=0, accept_rate=None)
    assert read(tmp_path, V1_081).accept_length().value is None


def test_throughput_and_speculation_of_one_moment_are_one_row(tmp_path):
    row = only(tmp_path, "\n".join([ENGINE, V1]))
    has(row, rank="Engine 003", running=11, queue=2, tok_s=26.9, prompt_tok_s=908.0, accept_length=2.31, line=1)
    assert len(read(tmp_path, ENGINE, V1.replace("22:01:02", "22:01:12")).rows) == 2


def test_v0_counts_since_the_start_and_tokens_behind_a_rejected_one(tmp_path):
    row = only(tmp_path, V0)
    has(row, event="total", num_steps=3, proposed=13311, verify_steps=4437, accepted=10616 - 4437, accept_length=10616 / 4437)
    assert row.accept_length == pytest.approx(0.598 * 4, abs=0.003)  # its own system efficiency
    has(only(tmp_path, V0_ENGINE), running=6, queue=1, tok_s=75.3, event="interval")
    none = "Speculative metrics: Draft acceptance rate: 0.000, System efficiency: 0.250, Number of speculative tokens: 3, Number of accepted tokens: 0, Number of draft tokens: 483, Number of emitted tokens: 161."
    has(only(tmp_path, none), accept_length=1.0, accepted=0, verify_steps=161)


# -- real runs ---------------------------------------------------------------------------------------------------------------------------------


def test_vllms_whole_log_adds_up_to_its_answers():
    log = read_log(LINES / "vllm-0.32.0.log")
    length = log.accept_length()
    assert length.counts == ServedCounts(2335, 1981, (1134, 559, 288))  # what the answers themselves told
    assert length.exact
    assert length.interval[0] < 1 + 1981 / 2335 < length.interval[1]
    assert not log.not_understood
    assert log.engine == "vllm"
    args = log.server_args
    assert (args["version"], args["algorithm"], args["num_steps"], args["model"]) == ("0.32.0", "eagle3", 3, "data/example/target")
    assert args["draft_model"].endswith("vllm-right")


def test_sglangs_log_comes_near_its_answers_and_says_that_it_is_no_count():
    log = read_log(LINES / "sglang-0.5.23.log")
    length = log.accept_length()
    assert length.counts is None
    assert not length.exact
    assert length.value == pytest.approx(1 + 1981 / 2335, abs=0.02)
    assert length.interval[0] < 1 + 1981 / 2335 < length.interval[1]
    assert (length.lines, length.left_out, length.weight) == (16, 1, "requests running")
    assert not log.not_understood
    assert log.formulas[0].kind == "accepted_share"
    assert log.formulas[0].num_draft_tokens == 4
    expected = {"num_steps": 3, "eagle_topk": 1, "num_draft_tokens": 4, "algorithm": "EAGLE3", "model": "data/example/target"}
    assert {k: log.server_args[k] for k in expected} == expected
    assert log.server_args["given"]["max_total_tokens"] == 16384
    table = log.table
    assert list(table.event.unique()) == ["start", "prefill", "decode"]
    assert (str(table.running.dtype), str(table.accept_length.dtype), str(table.graph.dtype)) == ("Int64", "float64", "boolean")
    assert set(table.graph.dropna()) == {False}
    assert table.time.is_monotonic_increasing


def test_without_the_start_nor_flags_the_lines_alone_tell_the_draft_tokens(tmp_path):
    lines = [line for line in (LINES / "sglang-0.5.23.log").read_text().splitlines() if "Decode batch" in line]
    log = read(tmp_path, *lines)
    assert (log.formulas[0].kind, log.formulas[0].num_draft_tokens) == ("accepted_share", 4)
    assert log.accept_length().left_out == 0  # no start seen: no warm-up either
    assert read(tmp_path, *lines, engine="sglang==0.5.9").formulas[0].kind is None  # another version must have run


# -- starts ------------------------------------------------------------------------------------------------------------------------------------

ARGS = "[2025-10-14 09:00:00] server_args=ServerArgs(model_path='/m/it\\'s', tokenizer_path='/m', speculative_algorithm='EAGLE3', speculative_draft_model_path=\"/d\", speculative_num_steps={steps}, speculative_eagle_topk=1, speculative_num_draft_tokens={tokens}, dtype='bfloat16')"


def test_restarts_are_kept_apart(tmp_path):
    one, two = ARGS.format(steps=3, tokens=4), ARGS.format(steps=7, tokens=8)
    later = [V054.replace("2.17", "3.04").replace("0.54", f"{rate:.2f}") for rate in (0.38, 0.38, 0.38)]
    log = read(tmp_path, one, V054, V054, two, *later)
    assert [row.event for row in log.rows] == ["start", "decode", "decode", "restart", "decode", "decode", "decode"]
    assert list(log.table.start) == [0, 0, 0, 1, 1, 1, 1]
    assert log.server_args["num_draft_tokens"] == 8
    assert log.starts[0].settings["model"] == "/m/it's"
    assert log.starts[0].settings["draft_model"] == "/d"
    assert (log.formulas[0].num_draft_tokens, log.formulas[1].num_draft_tokens) == (4, 8)
    last, first = log.accept_length(), log.accept_length(start=0)
    assert (last.value, last.lines, first.value, first.lines) == (pytest.approx(3.04), 2, pytest.approx(2.17), 1)
    assert any("2 starts" in note for note in last.notes)
    assert len(read(tmp_path, one, one, V054).starts) == 1  # two nodes of one server


def test_flags_in_force_go_before_those_asked_for(tmp_path):
    """The story's override: 16 draft tokens asked for, one step leaves 2."""
    line = V054.replace("2.17", "1.80").replace("0.54", "0.90")
    log = read(tmp_path, ARGS.format(steps=1, tokens=2), line, line, num_draft_tokens=16)
    assert (log.formulas[0].kind, log.formulas[0].num_draft_tokens) == ("length_share", 2)
    assert read(tmp_path, line, num_draft_tokens=16).formulas[0].kind is None


def test_ranks_may_be_interleaved(tmp_path):
    ranks = [V054.replace("10:00:00", f"10:00:00 DP{r}").replace("2.17", f"{2 + r / 2:.2f}") for r in (0, 1)]
    log = read(tmp_path, ARGS.format(steps=3, tokens=4), *ranks * 3)
    assert set(log.table["rank"]) == {"", "DP0", "DP1"}
    assert log.accept_length().value == pytest.approx(2.25)
    assert log.accept_length().left_out == 2
    glued = read(tmp_path, ranks[0][:90] + ranks[1])
    assert [(row.rank, row.accept_length) for row in glued.rows] == [("DP0", None), ("DP1", 2.5)]


@pytest.mark.parametrize(
    ("line", "settings"),
    [
        ("INFO 04-22 10:00:00 [api_server.py:1043] vLLM API server version 0.8.4", {"version": "0.8.4"}),
        (
            "INFO 11-05 10:00:00 llm_engine.py:237] Initializing an LLM engine (v0.6.3.post1) with config: model='m', speculative_config=SpeculativeConfig(draft_model='d', num_spec_tokens=4), tokenizer='m'",
            {"version": "0.6.3.post1", "model": "m", "draft_model": "d", "num_steps": 4},
        ),
        (
            "INFO 11-05 10:00:00 [u.py:1] non-default args: {'model': 'm', 'speculative_config': {'model': 'd', 'method': 'eagle3', 'num_speculative_tokens': 5}, 'port': 1}",
            {"model": "m", "draft_model": "d", "algorithm": "eagle3", "num_steps": 5},
        ),
    ],
)
def test_vllms_starts(tmp_path, line, settings):
    assert read(tmp_path, line).server_args == {"engine": "vllm", **settings}


@pytest.mark.parametrize(
    "line", [ARGS.format(steps=16, tokens=17), "[2026-01-01 00:00:00] server_args={'speculative_num_steps': 16, 'a': 1}"]
)
def test_half_a_start_gives_no_half_number(tmp_path, line):
    for end in range(len(line)):
        (tmp_path / "cut.log").write_text(line[:end])
        assert read_log(tmp_path / "cut.log").server_args.get("num_steps") in (None, 16)


# -- benchmarks --------------------------------------------------------------------------------------------------------------------------------

SERVING = """============ Serving Benchmark Result ============
Backend:                                 sglang
Successful requests:                     16
Output token throughput (tok/s):         213.40
Concurrency:                             7.90
Accept length:                           2.17
----------------End-to-End Latency----------------
Mean E2E Latency (ms):                   1520.12
==================================================
"""
ONE_BATCH = f"""batch size: 4
input_len: 1024
output_len: 256
latency: 3.21 s
input throughput: 9000.10 tok/s
output throughput: 401.22 tok/s
last_ttft: 0.40 s
last generation throughput: 399.01 tok/s
acc_length: 2.90{" "}
cache hit rate: 0.1200
"""
VLLM_SERVING = """============ Serving Benchmark Result ============
Successful requests:                     10
Output token throughput (tok/s):         99.10
---------------Speculative Decoding---------------
Acceptance rate (%):                     46.67
Acceptance length:                       2.40
Drafts:                                  20
Draft tokens:                            60
Accepted tokens:                         28
Per-position acceptance (%):
  Position 0:                            70.00
  Position 1:                            40.00
  Position 2:                            30.00
==================================================
"""
OFFLINE = """--------------------------------------------------
total_num_output_tokens: 16990
num_drafts: 4816
num_draft_tokens: 33712
num_accepted_tokens: 12208
mean acceptance length: 3.53
--------------------------------------------------
acceptance at token 0: 0.74
acceptance at token 1: 0.54
acceptance at token 2: 0.41
acceptance at token 3: 0.31
acceptance at token 4: 0.23
acceptance at token 5: 0.17
acceptance at token 6: 0.13
"""
SPECFORGE = """==================================================
mtbench Evaluation Results
==================================================
Number of questions: 80
Average Latency: 61.210 s
Average Output throughput: 151.330 token/s
Average Accept length: 2.834
==================================================
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SERVING, {"engine": "sglang", "accept_length": 2.17, "tok_s": 213.4}),
        (ONE_BATCH, {"engine": "sglang", "accept_length": 2.9, "tok_s": 401.22, "running": 4}),
        (
            VLLM_SERVING,
            {"engine": "vllm", "accept_length": 2.4, "verify_steps": 20, "accepted": 28, "proposed": 60, "joint": (0.7, 0.4, 0.3)},
        ),
        (OFFLINE, {"engine": "vllm", "accept_length": 3.53, "verify_steps": 4816, "accepted": 12208}),
        (SPECFORGE, {"engine": "specforge", "accept_length": 2.834, "tok_s": 151.33}),
    ],
)
def test_what_benchmarks_print(tmp_path, text, expected):
    row = only(tmp_path, text)
    assert row.event == "total"
    has(row, **expected)
    if row.joint is not None:
        assert len(row.joint) == row.proposed // row.verify_steps


def test_an_offline_summary_without_the_bonus_token(tmp_path):
    row = only(tmp_path, OFFLINE.replace("length: 3.53", "length: 2.53"))
    has(row, accept_length=3.53, verify_steps=4816)
    assert "1 added" in row.accept_definition
    assert not read(tmp_path, OFFLINE.replace("num_drafts: 4816", "num_drafts: 0")).rows  # nothing was drafted


def test_what_benchmarks_save(tmp_path):
    serving = {
        "generated_texts": ["x" * 100_000],
        "tag": "a",
        "output_throughput": 213.4,
        "accept_length": 2.17,
        "server_info": {"accept_length": 9.0},
    }
    none = {"run_name": "b", "batch_size": 8, "output_throughput": 88.8, "acc_length": -1}
    vllm = {
        "spec_decode_acceptance_length": 2.4,
        "spec_decode_num_drafts": 20,
        "spec_decode_draft_tokens": 60,
        "spec_decode_accepted_tokens": 28,
        "spec_decode_acceptance_rate": 46.67,
        "spec_decode_per_position_acceptance_rates": [0.7, 0.4, 0.3],
        "output_throughput": 99.1,
    }
    log = read(tmp_path, *(json.dumps(one) for one in (serving, none, vllm)), name="bench.jsonl")
    assert [(row.engine, row.accept_length, row.tok_s) for row in log.rows] == [("sglang", 2.17, 213.4), ("vllm", 2.4, 99.1)]
    assert log.accept_length().counts == ServedCounts(20, 28, (14, 8, 6))
    metric = {"latency": 3.0, "output_throughput": 151.33, "accept_length": 2.834, "accuracy": None}
    setting = {"batch_size": 1, "steps": 3, "topk": 1, "num_draft_tokens": 4, "metrics": [metric], "num_samples": 80}
    path = tmp_path / "results_1.jsonl"
    path.write_text(json.dumps({"model": "d", "mtbench": [setting], "gsm8k": [{**setting, "steps": 5, "num_draft_tokens": 6}]}, indent=4))
    log = read_log(path)
    assert list(zip(log.table["rank"], log.table.num_steps, log.table.num_draft_tokens, strict=True)) == [
        ("mtbench", 3, 4),
        ("gsm8k", 5, 6),
    ]
    assert log.rows[0].engine == "specforge"
    assert "first token" in log.rows[0].accept_definition


# -- broken files ------------------------------------------------------------------------------------------------------------------------------


def numbers(rows):
    """Times to the second: a wrong byte may cost the milliseconds."""
    found = [{name: getattr(row, name) for name in NUMBERS} for row in rows]
    return [{**one, "time": one["time"] and one["time"].replace(microsecond=0)} for one in found]


@pytest.mark.parametrize("line", KNOWN)
def test_no_number_comes_out_of_half_a_line(line):
    full = parsed(line, whole=True)
    assert full
    other = PLAIN
    for end in range(len(line)):
        for rows in (parsed(line[:end], whole=False), parsed(line[:end] + other, whole=True)[:-1]):
            assert len(rows) <= len(full)
            for got, said in zip(numbers(rows), numbers(full), strict=False):
                assert {k: v for k, v in got.items() if v is not None and v != said[k]} == {}
        last = parsed(line[:end] + other, whole=True)[-1]
        assert (last.tok_s, last.queue, last.rank) == (78.2, 0, "TP0")  # a line glued on keeps its own


def parsed(text, whole):
    return rows_of(text.encode() + b"\n" * whole)


def rows_of(content):
    """What `read_log` finds in a file of this content, without the disk."""
    reader, reading = LineReader("server.log"), _Reading(None, None, None)
    for line in reader._split(io.BytesIO(content)):
        reading.take(line)
    return reading.log(reader).rows


@pytest.mark.parametrize("line", KNOWN)
def test_a_wrong_byte_costs_numbers_and_makes_none(line):
    """Every byte in turn becomes something that is no digit."""
    rng = random.Random(7)
    raw = line.encode()
    (full,) = numbers(rows_of(raw + b"\n"))
    made = []
    for at in range(len(raw)):
        byte = rng.choice([b for b in range(256) if not 48 <= b <= 57])
        made.append(raw[:at] + bytes([byte]) + raw[at + 1 :])
    for content in made:
        for got in numbers(rows_of(content + b"\n")):
            wrong = {k for k, v in got.items() if v is not None and v != full[k]}
            assert not wrong, content


@pytest.mark.parametrize("text", [SERVING, ONE_BATCH, VLLM_SERVING, OFFLINE, SPECFORGE])
def test_half_a_summary_gives_no_half_number(tmp_path, text):
    full = only(tmp_path, text)
    for end in range(len(text)):
        for row in rows_of(text[:end].encode()):
            for name in ("accept_length", "tok_s", "verify_steps", "accepted", "proposed", "running", "accept_rate", "joint"):
                assert getattr(row, name) in (None, getattr(full, name)), (text[:end], name)


def test_noise_does_no_harm(tmp_path):
    rng = random.Random(1)
    everything = "\n".join([*KNOWN, ARGS, SERVING, OFFLINE, VLLM_SERVING]).encode()
    path = tmp_path / "noise.log"
    for _ in range(100):
        content = bytearray(everything)
        for _ in range(rng.randrange(1, 200)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content[: rng.randrange(len(content))])
        log = read_log(path)
        assert len(log.table) == len(log.rows)
        log.accept_length()


def test_a_cut_last_number_is_not_read(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(V054 + "\n" + V054[: V054.index("accept len: 2.") + len("accept len: 2.")])
    log = read_log(path)
    assert [row.accept_length for row in log.rows] == [2.17, None]
    assert log.not_understood == {"cut": 1}


def test_windows_and_old_line_ends_colours_and_zeros(tmp_path):
    path = tmp_path / "server.log"
    path.write_bytes(
        b"\0" * 100_000 + b"\r\n".join([V054.encode(), b"\x1b[32m" + V059.encode() + b"\x1b[0m"]) + b"\r" + PLAIN.encode() + b"\n"
    )
    assert [row.tok_s for row in read_log(path).rows] == [54.17, 78.2, 78.2]
    path.write_bytes(V054.encode().replace(b"#queue-req: 0", b"#queue-req: 1\x00\x00\x00") + b"\n")
    assert [row.queue for row in read_log(path).rows] == [None]


def test_huge_lines_are_bounded(tmp_path):
    path = tmp_path / "server.log"
    path.write_text(V054 + "x" * (5 * 2**20) + "\n" + V059 + "\n" + "y" * (LONGEST + 1) + "\n")
    log = read_log(path)
    assert [row.accept_length for row in log.rows] == [2.17, 3.04]
    assert log.not_understood == {"long": 2}
    assert log.lines == 3
    assert log.rows[1].line == 2


def test_packed_logs_are_read_as_far_as_they_go(tmp_path):
    path = tmp_path / "server.log.1.gz"
    packed = gzip.compress("\n".join([V054] * 2000).encode())
    path.write_bytes(packed)
    assert len(read_log(path).rows) == 2000
    path.write_bytes(packed[:-20])
    assert "ends early" in read_log(path).notes[0]
    path.write_bytes(packed[: len(packed) // 2] + b"\xff" * 50)
    assert "ends early or is damaged" in read_log(path).notes[0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: p.mkdir(), "a folder"),
        (lambda p: None, "nothing there"),
        (lambda p: p.write_bytes(V054.encode("utf-16")), "UTF-16"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path, make, text):
    path = tmp_path / "server.log"
    make(path)
    with pytest.raises(LogError, match=text):
        read_log(path)


def test_an_empty_or_foreign_log_is_an_empty_table(tmp_path):
    for lines in ([""], ["INFO: hello", "accept len: 2.17", "draft", "acceptance at token 0: 0.5"]):
        log = read(tmp_path, *lines)
        assert log.table.empty
        assert log.engine is None
        assert log.server_args == {}
        assert log.accept_length().value is None
        assert "no line" in log.accept_length().notes[0]


def test_lines_below_one_are_counted_not_used(tmp_path):
    log = read(tmp_path, V054.replace("2.17", "0.00"))
    assert log.not_understood == {"impossible": 1}
    assert log.rows[0].accept_length is None


def test_line_numbers_and_blocks(tmp_path):
    """Lines across the reader's blocks, \\r\\n split between two of them."""
    path = tmp_path / "a.log"
    lines = [f"{i} " + "z" * (i % 977) for i in range(9000)]
    path.write_bytes("\r\n".join(lines).encode())
    got = list(LineReader(path))
    assert [line.text for line in got] == lines
    assert [line.number for line in got] == list(range(1, 9001))
    assert [line.whole for line in got][-2:] == [True, False]


def test_a_prefill_line_that_ends_early_gives_no_half_number():
    whole = "[2026-01-01 00:00:00] Prefill batch, #new-seq: 1, #new-token: 128, #cached-token: 64, token usage: 0.01, #running-req: 12, #queue-req: 3"
    read = sglang_log.parse(Line(1, whole, True))[0]
    assert (read.new_tokens, read.cached_tokens, read.running, read.queue) == (128, 64, 12, 3)
    for end in range(whole.index("#new-seq") + 1, whole.index("#queue-req: ") + 11):
        for row in sglang_log.parse(Line(1, whole[:end], True)):
            assert row.new_tokens in (None, 128)
            assert row.cached_tokens in (None, 64)
            assert row.running in (None, 12)
