"""Metrics of trainers and engines: logs as they are printed, one definition, what may be compared, and the same number out of a replay.

Printed lines are made of the projects' own format strings (named in eaglelab/metrics/reader.py) or of public issues. The counting is held
against the trainers' formulas written out on logits, with their own shifts and paddings (EAGLE cnets.py, AngelSlim eagle3_trainer.py,
ModelOpt hf_eagle.py, speculators 0.3 core.py); what their code itself returns is in tests/test_drafter_oracles.py.
"""

import gzip
import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from case_builder import build_case, make_world
from hypothesis import given, settings
from hypothesis import strategies as st

from eaglelab.acceptance import StepCounts, accept_length_from_conditional, accept_length_from_draft_rate
from eaglelab.checks import findings
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.metrics import MetricsError, comparable, define, definitions, read_metrics
from eaglelab.metrics.definitions import KINDS, OUTSIDE, table
from eaglelab.replay.run import SampleOutcome
from eaglelab.replay.trainers import trainer_counts
from eaglelab.wiring import FINAL

RICH = (
    "\x1b[36m[12:00:01]\x1b[0m INFO     train/loss_0=1.234, train/full_acc_0=0.512,      trainer.py:587\n"
    "                    train/cond_acc_0=0.512, train/full_acc_1=0.301, epoch=0,\n"
    "                    lr=1.00e-04, global_step=120\n"
    "[12:09:01] INFO     val/full_acc_0_epoch=0.600, val/full_acc_1_epoch=0.400, epoch=0\n"
)
VLLM = (
    "(APIServer pid=2236552) INFO 09-09 11:51:35 [metrics.py:96] SpecDecoding metrics: Draft acceptance rate: 88.8%, Mean acceptance length: 5.44, "
    "Accepted throughput: 4.37 tokens/s, Drafted throughput: 4.92 tokens/s, Accepted: 262 tokens, Drafted: 295 tokens, "
    "Per-position acceptance rate: 0.983, 0.949, 0.915, 0.881, 0.712\n"  # vllm-project/vllm pull request 24127
)
SGLANG = (
    "[2025-11-19 15:25:25 TP0] Decode batch, #running-req: 1, #token: 353, token usage: 0.00, accept len: 2.17, accept rate: 0.54, "
    "cuda graph: True, gen throughput (token/s): 41.10, #queue-req: 0\n"
)


def read(tmp_path, text, framework=None, version=None, name="train.log"):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_metrics(file, framework, version)


def values(reported):
    return {(r.name, r.step, r.split): r.value for r in reported.rows}


# -- the table ----------------------------------------------------------------------------------------------------------------------


def test_every_definition_says_what_it_is_and_where_it_was_read():
    for d in definitions():
        assert d.source in table()["sources"]
        assert d.kind in KINDS
        assert d.outside in OUTSIDE
        assert d.fed in ("text", "own")
        assert d.averaged in ("counts", "batches")
        assert d.over in ("rows", "passes")
        assert d.read
        assert d.in_words
        assert all(d.step_of(n.replace("{k}", "3")) == (3 if "{k}" in n else -1) for n in d.names)


@pytest.mark.parametrize(
    ("name", "source", "version", "expected"),
    [
        ("acc_2", "specforge", "0.2.0", [("marginal", 0, "wrong", "text", "counts")]),
        ("acc_2", "specforge", "0.1.0", [("marginal", 0, "wrong", "text", "batches"), ("marginal", 0, "dropped", "text", "batches")]),
        ("acceptance_rate_0", "specforge", "0.2.0", [("overlap", 0, "dropped", "text", "batches")]),
        ("full_acc_0", "speculators", "0.9.0", [("joint", 1, "unseen", "text", "counts")]),
        ("full_acc_0_epoch", "speculators", "0.6.0.2", [("joint", 1, "unseen", "own", "counts")]),
        ("cond_acc_1", "speculators", "0.3.0", [("conditional", 1, "unseen", "own", "batches")]),
        ("acc_6", "eagle", None, [("marginal", 0, "wrong", "text", "batches")]),
        ("train_acc/parallel_0_step_1", "modelopt-vllm", None, [("marginal", 1, "unseen", "text", "batches")]),
        ("full_acc_0", "specforge", "0.2.0", []),
    ],
)
def test_a_name_means_what_its_framework_means_at_that_version(name, source, version, expected):
    found, _ = define(name, source, version)
    assert [(d.kind, d.mask, d.outside, d.fed, d.averaged) for d in found] == expected


# -- reading ------------------------------------------------------------------------------------------------------------------------


def test_specforge_console_lines_and_its_evaluation(tmp_path):
    text = (
        "step 50: {'acc_0': 0.5, 'acc_1': 0.25, 'ploss_0': 2.5, 'acceptance_rate_0': 0.41, 'loss': 3.1, 'perf/data_wait_time_s': 0.1}\n"
        "step 100: {'acc_0': 0.6, 'acc_1': 0.3, 'loss': 2.9}\n"
        "step 100: {'eval/avg_acc': 0.7, 'eval/per_position_acc': [0.7, 0.5], 'eval/simulated_acc_len': 1.05}\n"
    )
    got = read(tmp_path, text, "specforge", "0.2.0")
    assert values(got) == {
        ("acc_0", 0, "train"): 0.6,
        ("acc_1", 1, "train"): 0.3,
        ("ploss_0", 0, "train"): 2.5,
        ("acceptance_rate_0", 0, "train"): 0.41,
        ("loss", -1, "train"): 2.9,
        ("eval/avg_acc", -1, "eval"): 0.7,
        ("eval/per_position_acc_0", 0, "eval"): 0.7,
        ("eval/per_position_acc_1", 1, "eval"): 0.5,
        ("eval/simulated_acc_len", -1, "eval"): 1.05,
    }
    first = next(r for r in got.rows if r.name == "acc_0")
    assert (first.at, first.seen, first.recent) == ("step 100", 2, pytest.approx(0.55))
    length = got.accept_length()  # a0 + a0 a1 = 0.7 + 0.35, and the bonus token
    assert length.value == pytest.approx(2.05)
    assert length.approximate
    assert "a product of marginals is another number" in length.how


def test_eagles_prints_and_an_old_progress_bar(tmp_path):
    text = (
        "Training Epoch 0:   6%|███   | 155/2484 [09:06<2:14:55,  3.48s/it, loss=1.50, acc=0.52, time=3.46s]\r"
        "Train Epoch [3/10], position 0,  Acc: 0.75\nTrain Epoch [3/10], position 1,  Acc: 0.60\n"
        "Train Epoch [3/10], position 0, pLoss: 1.20\nTest Epoch [3/10], position 0,  Acc: 0.70\n"
    )
    got = read(tmp_path, text, "eagle")
    assert values(got)[("train/epoch_acc_1", 1, "train")] == 0.60
    assert values(got)[("test/epoch_acc_0", 0, "eval")] == 0.70
    assert next(r for r in got.rows if r.name == "train/epoch_acc_0").at == "epoch 3"
    assert next(r for r in got.rows if r.name == "train/epoch_acc_0").decimals == 2
    assert got.unknown == ("acc",)  # the mean over steps is SpecForge's
    assert values(read(tmp_path, text, "specforge", "0.1.0"))[("acc", -1, "train")] == 0.52


def test_speculators_records_wrapped_by_the_console(tmp_path):
    got = read(tmp_path, RICH, "speculators", "0.9.0")
    assert values(got) == {
        ("train/loss_0", 0, "train"): 1.234,
        ("train/full_acc_0", 0, "train"): 0.512,
        ("train/full_acc_1", 1, "train"): 0.301,
        ("train/cond_acc_0", 0, "train"): 0.512,
        ("val/full_acc_0_epoch", 0, "eval"): 0.6,
        ("val/full_acc_1_epoch", 1, "eval"): 0.4,
    }
    assert {r.at for r in got.rows if r.split == "train"} == {"step 120"}
    assert got.accept_length().value == pytest.approx(2.0)  # 1 + 0.6 + 0.4
    assert not got.accept_length().approximate
    assert got.accept_length("train").value == pytest.approx(1.813)


@pytest.mark.parametrize("prefix", ["", "[rank0]: ", "0: ", "[default0]:", "2026-08-01 10:00:00,123 - INFO - "])
def test_transformers_dicts_with_and_without_quotes(tmp_path, prefix):
    text = prefix + "{'loss': 2.1, 'train/acc_0': 0.512, 'train/acc_1': '0.301', 'learning_rate': 1e-05, 'epoch': 0.03}\n"
    got = read(tmp_path, text, "angelslim")
    assert values(got) == {("loss", -1, "train"): 2.1, ("train/acc_0", 0, "train"): 0.512, ("train/acc_1", 1, "train"): 0.301}
    assert got.rows[0].at == "epoch 0.03"


def test_modelopt(tmp_path):
    text = (
        "Step 100 Training Acc: [0.5123, 0.3012]\nStep 100 Estimated Training AR: 1.6666\nStep 200 AR: 2.1000\n"
        "{'loss': 3.1, 'train_acc/parallel_0_step_0': 0.5123, 'estimated_training_ar': 1.6666, 'epoch': 0.5}\n"
    )
    got = read(tmp_path, text, "modelopt")
    assert values(got)[("train_acc_1", 1, "train")] == 0.3012
    assert values(got)[("train_acc/parallel_0_step_0", 0, "train")] == 0.5123
    estimated = got.accept_length("train")  # 1 + a0 + a0 a1, as their own estimate says
    assert estimated.value == pytest.approx(1.6666, abs=1e-4)
    assert estimated.approximate
    assert (got.accept_length().value, got.accept_length().approximate) == (2.1, False)


def test_vllms_line_agrees_with_itself(tmp_path):
    got = read(tmp_path, VLLM, "vllm", "0.11.0")
    assert got.accept_length().value == 5.44
    assert got.accept_length().how == "mean_acceptance_length as counted"
    joint = [r.value for r in got.rates("joint", "served")]
    assert 1 + sum(joint) == pytest.approx(1 + 262 / 59, abs=0.005)  # 295 drafted in passes of 5
    share = next(r.value for r in got.rows if r.name == "draft_acceptance_rate")
    assert accept_length_from_draft_rate(share, 5) == pytest.approx(5.44, abs=0.005)


def test_vllm_without_its_version_may_or_may_not_count_the_bonus(tmp_path):
    """Before 0.9 the printed mean left it out (pull request 17908); the per-position rates do not care."""
    assert "joint rates" in read(tmp_path, VLLM, "vllm").accept_length().how
    old = read(tmp_path, "SpecDecoding metrics: Mean acceptance length: 1.33, Accepted: 10 tokens\n", "vllm", "0.8.5")
    assert old.accept_length().value == pytest.approx(2.33)
    unsaid = read(tmp_path, "SpecDecoding metrics: Mean acceptance length: 1.33, Accepted: 10 tokens\n", "vllm").accept_length()
    assert unsaid.value is None
    assert "depends on the version" in unsaid.how


def test_sglangs_rate_cannot_be_turned_without_the_draft_tokens(tmp_path):
    """The story's 19 %: two formulas, and neither is an accept length without the draft tokens in force."""
    assert read(tmp_path, SGLANG, "sglang").accept_length().value == 2.17
    rate = "Decode batch, #running-req: 1, accept rate: 0.19, cuda graph: True\n"
    assert read(tmp_path, rate, "sglang", "0.5.5").accept_length().value is None
    assert "without the number of draft tokens" in read(tmp_path, rate, "sglang", "0.5.5").accept_length().how
    assert "the formula changed" in read(tmp_path, rate, "sglang").accept_length(num_draft_tokens=16).how
    assert read(tmp_path, rate, "sglang", "0.5.5").accept_length(num_draft_tokens=16).value == pytest.approx(3.04)
    assert read(tmp_path, rate, "sglang", "0.5.23").accept_length(num_draft_tokens=16).value == pytest.approx(3.85)
    half = "Decode batch, accept rate: 0.54,\n"  # an October 2025 log: accept length 2.17 with 4 draft tokens
    assert read(tmp_path, half, "sglang", "0.5.4").accept_length(num_draft_tokens=4).value == pytest.approx(2.17, abs=0.02)


def test_two_draft_tokens_and_an_accept_length_of_1_8(tmp_path):
    """The story's other number: one drafted token a pass, so that accept length 1.8 is a drafter right 80 % of the time."""
    text = "Decode batch, accept rate: 0.80,\n"
    assert read(tmp_path, text, "sglang", "0.5.23").accept_length(num_draft_tokens=2).value == pytest.approx(1.8)


def test_eagle_1s_chain_is_joint(tmp_path):
    """SafeAILab/EAGLE issue 191: a user took these for the paper's n-alpha, which are conditional."""
    printed = [0.7011205932523408, 0.3695069132237691, 0.20591324651566492, 0.12545586495531533, 0.08118215044928648]
    text = "".join(f"{{'test/{k}_acc': {v}}}\n" for k, v in enumerate(printed))
    got = read(tmp_path, text, "eagle")
    assert [r.kind for r in got.rows] == ["joint"] * 5
    assert got.accept_length().value == pytest.approx(1 + sum(printed))
    ratios = [printed[0], *(b / a for a, b in pairwise(printed))]
    assert accept_length_from_conditional(ratios) == pytest.approx(got.accept_length().value)


def test_json_lines_a_history_and_a_table(tmp_path):
    lines = '{"train": {"full_acc_0": 0.5}, "global_step": 3}\n{"val": {"full_acc_0_epoch": 0.6}, "_step": 9}\n{"val": {"full_acc'
    got = read(tmp_path, lines, "speculators", "0.9.0", "metrics.jsonl")
    assert values(got) == {("train/full_acc_0", 0, "train"): 0.5, ("val/full_acc_0_epoch", 0, "eval"): 0.6}
    assert [r.at for r in got.rows] == ["step 9", "step 3"]
    history = {"log_history": [{"step": 10, "train_acc/parallel_0_step_0": 0.4}, {"step": 20, "train_acc/parallel_0_step_0": 0.5}]}
    got = read(tmp_path, json.dumps(history, indent=2), "modelopt", name="trainer_state.json")
    assert (got.rows[0].value, got.rows[0].at, got.rows[0].seen) == (0.5, "step 20", 2)
    exported = '"Step","my run - train/acc_0","my run - train/acc_0__MIN"\n"10","0.5","0.4"\n"20","0.6","0.5"\n"30","",""\n'
    got = read(tmp_path, exported, "eagle", name="wandb.csv")
    assert values(got) == {("train/acc_0", 0, "train"): 0.6}
    assert got.rows[0].at == "step 20"


def test_unknown_names_and_numbers_that_are_none_are_listed(tmp_path):
    text = "train/full_acc_0=0.5, train/my_accuracy=0.9, train/full_acc_1=nan, lr=0.1, accelerate=1, train/tau_sim=1.2\n"
    got = read(tmp_path, text, "speculators", "0.9.0")
    assert got.unknown == ("train/my_accuracy", "train/tau_sim")
    assert got.not_finite == {"train/full_acc_1": 1}
    assert len(read(tmp_path, "".join(f"acc{i}x=0.5\n" for i in range(1000))).unknown) == 100


@pytest.mark.parametrize(
    ("text", "framework", "name", "value", "decimals"),
    [
        ("Train Epoch [1/10], position 0,  Acc: 83.10%\n", "eagle", "train/epoch_acc_0", 0.831, 4),
        ("Step 100 Training Acc: [51.2%]\nStep 100 Training Acc: [51.2, 30.1]%\n", "modelopt", "train_acc_0", 0.512, 3),
        ("accept len: 2.17, accept rate: 54%\n", "sglang", "accept_rate", 0.54, None),
        ("step 5: acc_0 = 51.2 %\n", "specforge", "acc_0", 0.512, 3),
        ("{'acc_0': tensor(0.5100, device='cuda:0'), 'acc_1': tensor([0.3])}\n", "specforge", "acc_0", 0.51, 4),
        ("{'acc_0': np.float64(0.5)}\n", "specforge", "acc_0", 0.5, 1),
        ("train_acc=[tensor(0.5), np.float32(0.25)]\n", "modelopt", "train_acc_0", 0.5, 1),
        ("acc_0: 1.\nacc_1: 0.", "specforge", "acc_0", 1.0, None),
    ],
)
def test_numbers_as_they_are_dressed(tmp_path, text, framework, name, value, decimals):
    got = read(tmp_path, text, framework).rows
    assert [(r.value, r.decimals) for r in got if r.name == name] == [(pytest.approx(value), decimals)]


def test_a_rate_outside_0_to_1_is_listed_and_not_used(tmp_path):
    got = read(tmp_path, "acc_0: 0.5\nacc_0: 83.1\nacc_0: -0.1\nsimulated_acc_len: 1.7\n", "specforge")
    assert values(got)["acc_0", 0, "train"] == 0.5
    assert len(got.rows) == 2
    assert got.no_rate == got.to_json()["no_rate"] == {"acc_0": 2}


@pytest.mark.parametrize("text", ["step 1: acc_0: 0.5\nstep 2: acc_0: 0.", '{"acc_0": 0.5}\n{"acc_0": 0.', "acc_0=0.5\nacc_0=7."])
def test_a_log_cut_in_a_number_ends_before_it(tmp_path, text):
    got = read(tmp_path, text, "specforge")
    assert [(r.value, r.seen) for r in got.rows] == [(0.5, 1)]
    assert got.no_rate == {}


def test_several_runs_in_one_table_are_refused_by_name(tmp_path):
    table = '"Step","good run - train/acc_0","good run - train/acc_0__MIN","bad run - train/acc_0"\n"10","0.5","0.4","0.1"\n'
    with pytest.raises(MetricsError, match=r"wandb.csv holds 2 runs \(good run, bad run\), expected one"):
        read(tmp_path, table, "eagle", name="wandb.csv")
    steps = '"Step","my run - _step","my run - train/acc_0"\n"10","10","0.5"\n'
    assert values(read(tmp_path, steps, "eagle", name="wandb.csv")) == {("train/acc_0", 0, "train"): 0.5}


@pytest.mark.parametrize(
    "line",
    [
        "[rank{r}]: step {s}: acc_0: {v}",
        "[Rank {r}] step {s} acc_0={v}",
        '{{"rank": {r}, "step": {s}, "acc_0": {v}}}',
        "DP{r} TP0 step {s} acc_0: {v}",
    ],
)
def test_ranks_that_print_into_one_log_are_averaged(tmp_path, line):
    said = [(0, 1, 0.1), (1, 1, 0.2), (1, 2, 0.6), (0, 2, 0.4)]
    (row,) = read(tmp_path, "\n".join(line.format(r=r, s=s, v=v) for r, s, v in said), "specforge").rows
    assert (row.value, row.at) == (0.5, "step 2, the mean of 2 ranks")
    one = read(tmp_path, "\n".join(line.format(r=0, s=s, v=v) for _, s, v in said), "specforge").rows
    assert (one[0].value, one[0].at) == (0.4, "step 2")


def test_packed_logs_and_other_encodings_have_their_own_words(tmp_path):
    with pytest.raises(MetricsError, match=r"train.log is packed with gzip, .* unpack it first"):
        read(tmp_path, gzip.compress(b"acc_0: 0.5"))
    for codec in ("utf-16", "utf-16-be"):
        with pytest.raises(MetricsError, match="is UTF-16"):
            read(tmp_path, ("\ufeff" if codec != "utf-16" else "").encode(codec) + "acc_0: 0.5".encode(codec))


def test_what_cannot_be_read_says_why(tmp_path):
    with pytest.raises(MetricsError, match=r"gone.log: expected the log of a training run .* got nothing there"):
        read_metrics(tmp_path / "gone.log")
    with pytest.raises(MetricsError, match="got a folder"):
        read_metrics(tmp_path)
    with pytest.raises(MetricsError, match="no metrics of 'hf' are known here, only those of angelslim, eagle"):
        read(tmp_path, "", "hf")
    empty = read(tmp_path, "").accept_length()
    assert (empty.value, "nothing was printed" in empty.how) == (None, True)


@settings(max_examples=60, deadline=None)
@given(junk=st.binary(max_size=400), cut=st.integers(0, len(RICH)), name=st.sampled_from(["a.log", "a.json", "a.jsonl", "a.csv"]))
def test_any_bytes_are_survived(junk, cut, name, tmp_path_factory):
    text = RICH.encode()[:cut] + junk + RICH.encode()[cut:]
    if text[:2] in (b"\xff\xfe", b"\xfe\xff", b"\x1f\x8b"):  # another encoding, which is refused by name
        with pytest.raises(MetricsError, match=r"UTF-16|gzip"):
            read(tmp_path_factory.getbasetemp(), text, None, None, name)
        return
    got = read(tmp_path_factory.getbasetemp(), text, None, None, name)
    assert all(np.isfinite(r.value) for r in got.rows)


@pytest.mark.parametrize(
    "text",
    [
        "acc" * 30000,
        "acc=1" + "1" * 70000 + "x",
        "acc" + " " * 70000 + "=",
        "acc=[" + "1," * 30000,
        "acc='" * 20000,
        '{"acc":' * 30000,
        "step" * 15000 + " acc",
        "SpecDecoding metrics: Per-position acceptance rate: " + "0.5, " * 14000,
        "train/acc_0=0.5" + "\r" * 200000 + "\0" * 200000,
    ],
)
def test_long_lines_cost_no_more_than_their_length(text, tmp_path):
    read(tmp_path, text)
    read(tmp_path, text, name="a.json")
    read(tmp_path, text, name="a.csv")


def test_a_log_is_streamed(tmp_path):
    """40 MiB without a line's end, and the number behind it, in little memory."""
    import tracemalloc

    file = tmp_path / "big.log"
    with file.open("wb") as out:
        for _ in range(40):
            out.write(b"x" * 2**20)
        out.write(b"\ntrain/full_acc_0=0.25\n")
    tracemalloc.start()
    got = read_metrics(file, "speculators", "0.9.0")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert values(got) == {("train/full_acc_0", 0, "train"): 0.25}
    assert peak < 12 * 2**20


# -- comparing ----------------------------------------------------------------------------------------------------------------------


def row(tmp_path, text, framework, version=None, step=0):
    return next(r for r in read(tmp_path, text, framework, version).rows if r.step in (step, -1))


def test_what_may_be_compared_and_what_not(tmp_path):
    specforge = [row(tmp_path, "step 1: {'acc_0': 0.7, 'acc_1': 0.5}\n", "specforge", "0.2.0", k) for k in (0, 1)]
    speculators = [row(tmp_path, "val/full_acc_0=0.7, val/full_acc_1=0.5\n", "speculators", "0.9.0", k) for k in (0, 1)]
    eagle = row(tmp_path, "Train Epoch [1/2], position 0,  Acc: 0.70\n", "eagle")
    ok, why = comparable(specforge[1], speculators[1])
    assert not ok
    assert "one is marginal" in why
    assert "the other joint" in why
    ok, why = comparable(specforge[0], speculators[0])  # one thing at step 0, but for the draft vocabulary
    assert not ok
    assert "in SpecForge a right token outside the draft vocabulary counts as wrong, in speculators the target chooses within" in why
    ok, why = comparable(specforge[0], eagle)
    assert ok
    assert why == "one is a mean over batches, the other over tokens"
    assert comparable(specforge[0], specforge[0]) == (True, "")
    assert not comparable(specforge[0], specforge[1])[0]
    joint = next(r for r in read(tmp_path, VLLM, "vllm", "0.11.0").rows if r.kind == "joint" and r.step == 0)
    ok, why = comparable(specforge[0], joint)
    assert ok
    assert "verify passes" in why
    assert not comparable(speculators[0], joint)[0]


def test_lengths_losses_and_open_definitions(tmp_path):
    simulated = row(tmp_path, "step 1: {'eval/simulated_acc_len': 1.05}\n", "specforge", "0.2.0")
    estimated = row(tmp_path, "Step 100 Estimated Training AR: 1.6666\n", "modelopt")
    served = next(r for r in read(tmp_path, SGLANG, "sglang", "0.5.23").rows if r.kind == "accept_length")
    new = next(r for r in read(tmp_path, VLLM, "vllm", "0.11.0").rows if r.kind == "accept_length")
    old = next(r for r in read(tmp_path, VLLM, "vllm", "0.8.5").rows if r.kind == "accept_length")
    assert "not an accept length" in comparable(simulated, served)[1]
    assert "add 1 first" in comparable(simulated, estimated)[1]
    assert "add 1 first" in comparable(old, new)[1]
    assert comparable(served, new) == (True, "")
    losses = [row(tmp_path, "loss=1.0\n", name) for name in ("specforge", "speculators")]
    assert "losses are sums of different terms" in comparable(*losses)[1]
    either = row(tmp_path, "step 1: {'acc_0': 0.7}\n", "specforge", "0.1.0")
    assert "stands for several things" in comparable(either, either)[1]
    rates = [row(tmp_path, "Decode batch, accept rate: 0.5,\n", "sglang", v) for v in ("0.5.4", "0.5.23")]
    assert not comparable(*rates)[0]
    assert "compare accept lengths" in comparable(rates[0], rates[0])[1]


# -- counting again: the trainers' formulas on logits -------------------------------------------------------------------------------

T, V, VD, K = 14, 24, 12, 3


def world_of(seed):
    """Random logits of K steps [K, T, Vd] (row t at step k drafts x[t+2+k]), the target's [T, V], map and mask; and what a replay keeps."""
    g = torch.Generator().manual_seed(seed)
    ids = torch.randperm(V, generator=g)[:VD].sort().values
    target = torch.randn(T, V, generator=g)
    logits = torch.randn(K, T, VD, generator=g)
    for k in range(K):  # right about half of the time
        for t in range(T - 1 - k):
            if torch.rand((), generator=g) < 0.6:
                logits[k, t, target[t + 1 + k, ids].argmax()] += 5
    mask = (torch.rand(T, generator=g) < 0.7).long()
    mask[0], mask[-1] = 1, 1
    return logits, target, ids, mask


def outcome_of(logits, target, ids, inside):
    """The replay's outcome of every row; inside: the target chooses among the draft vocabulary."""
    rows = np.arange(T - 1)
    at = rows + 1 + np.arange(K)[:, None]  # [K, R]
    counted = at < T
    at = np.minimum(at, T - 1)
    drafted = logits[:, : T - 1].argmax(-1)
    wanted = (target[:, ids] if inside else target).argmax(-1)[at]
    said = drafted if inside else ids[drafted]
    outside = np.zeros_like(counted) if inside else counted & ~np.isin(wanted, ids)
    return SampleOutcome(
        key="s",
        rows=rows,
        counted=counted,
        right=counted & (said == wanted).numpy(),
        outside=outside,
        drafted=said.numpy(),
        confidence=np.ones_like(counted, dtype=np.float32),
        p_drafted=None,
        overlap=None,
        walk=None,
        agrees=(0, 0),
    )


def shifted(x, by=1):
    """A row further, zeros at the end: what their `padding(x, left=False)` does."""
    return torch.cat([x[by:], torch.zeros_like(x[:by])])


def eagle_formula(logits, target, ids, mask, last):
    """[(right, the mask's sum, the position mask's sum)] of each step. last: whether the sample's last token may train."""
    mask = mask.clone()
    if not last:
        mask[-1] = 0
    t2d = torch.zeros(V, dtype=torch.bool)
    t2d[ids] = True
    target, counts = shifted(target), []
    for k in range(K):
        position = t2d[target.argmax(-1)] * mask
        # A row beyond the text is all zeros on both sides in their batch; it is wrong here, as a real drafter's is.
        real = torch.arange(T) < T - 1 - k
        counts.append(
            (
                int(((logits[k].argmax(-1) == target[:, ids].argmax(-1)) & real).mul(position).sum()),
                int(mask.sum()),
                int(position[real].sum()),
            )
        )
        target, mask = shifted(target), shifted(mask)
    return counts


@pytest.mark.parametrize("seed", range(8))
def test_eagles_specforges_and_angelslims_accuracy(seed):
    logits, target, ids, mask = world_of(seed)
    outcome = outcome_of(logits, target, ids, inside=False)
    assert outcome.outside.any()
    said = eagle_formula(logits, target, ids, mask, last=False)
    for source, version in (("eagle", None), ("specforge", "0.2.0")):
        ours = trainer_counts(define("acc_0", source, version)[0][0], outcome, mask)
        assert list(zip(ours.right, ours.counted, strict=True)) == [(right, n) for right, n, _ in said]
    ours = trainer_counts(define("acc_0", "angelslim")[0][0], outcome, mask)
    assert list(zip(ours.right, ours.counted, strict=True)) == [(r, n) for r, n, _ in eagle_formula(logits, target, ids, mask, last=True)]
    dropped = trainer_counts(define("acc_0", "specforge", "0.1.0")[0][1], outcome, mask)
    assert list(zip(dropped.right, dropped.counted, strict=True)) == [(right, n) for right, _, n in said]


@pytest.mark.parametrize("seed", range(8))
def test_modelopts_accuracy(seed):
    """Their row q at step k is a chain that started at q - k: logits[:, k:-1] against targets[:, 1 + k:], the mask with the targets."""
    logits, target, ids, mask = world_of(seed)
    ours = trainer_counts(define("train_acc_0", "modelopt")[0][0], outcome_of(logits, target, ids, inside=True), mask)
    predicted = target[:, ids].argmax(-1)
    for k in range(K):
        rolled = torch.roll(logits[k], k, 0)  # [T, Vd]
        valid = mask[1 + k :].bool()
        correct = (predicted[1 + k :] == rolled[k:-1].argmax(-1)) & valid
        assert (ours.right[k], ours.counted[k]) == (int(correct.sum()), int(valid.sum()))


@pytest.mark.parametrize("seed", range(8))
def test_speculators_accuracies_of_every_version(seed):
    """x0's row dropped, then align_for_step and an accuracy that runs on from step to step."""
    logits, target, ids, mask = world_of(seed)
    outcome = outcome_of(logits, target, ids, inside=True)
    full, cond = (trainer_counts(define(n, "speculators", "0.9.0")[0][0], outcome, mask) for n in ("full_acc_0", "cond_acc_0"))
    assert full == trainer_counts(define("full_acc_0", "speculators", "0.3.0")[0][0], outcome, mask)
    targets, own = target[1:, ids].argmax(-1), mask[1:].bool()
    alive = own.clone()
    for k in range(K):
        rows = T - 1 - k
        right = logits[k, :rows].argmax(-1) == targets[k:]
        counted = int(alive[:rows].sum())
        alive = alive[:rows] & right
        assert (full.right[k], full.counted[k]) == (int((alive & own[k:]).sum()), int(own[k:].sum()))
        assert (cond.right[k], cond.counted[k]) == (full.right[k], counted)


def test_losses_and_engines_are_not_counted_again():
    outcome = outcome_of(*world_of(0)[:3], inside=False)
    for name, source in (("loss", "specforge"), ("per_position_acceptance_rate_0", "vllm"), ("simulated_acc_len", "specforge")):
        with pytest.raises(ValueError, match="cannot be counted in a replay"):
            trainer_counts(define(name, source)[0][0], outcome, torch.ones(T))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=K, max_size=K), min_size=1, max_size=40))
def test_joint_never_passes_marginal_and_both_lengths_agree(rows):
    right = np.array(rows).T  # [K, R]
    joint = np.logical_and.accumulate(right, axis=0).sum(1)
    n = right.shape[1]
    counts = StepCounts((n,) * K, tuple(int(x) for x in right.sum(1)), (0,) * K, n, tuple(int(x) for x in joint))
    assert all(counts.joint_rate(k) <= counts.marginal(k) for k in range(K))
    chain = [counts.conditional(k) or 0.0 for k in range(K)]
    assert accept_length_from_conditional(chain) == pytest.approx(counts.accept_length)
    assert counts.accept_length == pytest.approx(1 + np.logical_and.accumulate(right, axis=0).sum(0).mean())


# -- the finding --------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    root = tmp_path_factory.mktemp("metrics")
    world = make_world(root, "llama", 6, seed=3)
    return build_case(root / "case", world, slots=[1, 3, 5, FINAL], ids=[0, 2, 4])


RANKED = {}


def look(case, log, framework, version, split=None, **options):
    """The findings of a log that is put beside the case."""
    (case / "train.log").write_text(log)
    text = (case / "case.toml").read_text().split("\n[training]")[0].replace('split = "train"\n', "").replace('split = "heldout"\n', "")
    text = text.replace("[dump]\n", f'[dump]\nsplit = "{split}"\n' if split else "[dump]\n")
    named = f'framework = "{framework}"\n' + (f'version = "{version}"\n' if version else "") if framework else ""
    (case / "case.toml").write_text(f'{text}\n[training]\n{named}metrics = "train.log"\n')
    inv = Investigation(str(case), steps=1, **options)
    if not options:  # the ranking of all feeds is none of a log's business: run once
        inv.__dict__.update(RANKED)
    found = {f.id: f for f in findings(inv, "training.metric")}
    RANKED.update({} if options else {k: v for k, v in inv.__dict__.items() if k in ("replays", "judge", "feeds")})
    return found


def specforge_log(case, shift=0.0):
    """A log that says what the drafter does, moved by `shift`."""
    found = look(case, "step 1: {'acc_0': 0.5}\n", "specforge", "0.2.0")["training.metric"].numbers["steps"][0]["again"][0]["rate"]
    return f"step 1: {{'acc_0': {found + shift:.4f}}}\n", found


def test_what_the_trainer_printed_is_reached(case):
    log, rate = specforge_log(case)
    found = look(case, log, "specforge", "0.2.0", "train")
    metric = found["training.metric"]
    assert metric.status is Status.PASS
    assert metric.title == f"The trainer printed acc_0 = {rate:.1%}; by its own definition the replay gives {rate:.1%}"
    assert "In this project's definition: marginal" in metric.evidence
    assert "tokens in 8 of 8 samples (95 % interval by sample" in metric.evidence
    assert found["training.reported"].status is Status.PASS
    ours = metric.numbers["ours"]["steps"][0]
    assert ours["n"] != metric.numbers["steps"][0]["again"][0]["counted"]  # l[t+1+k] against l[t+k]


@pytest.mark.parametrize(
    ("log", "framework", "split", "status", "word"),
    [
        ("step 1: {'acc_0': 0.95}\n", "specforge", "train", Status.FAIL, "outside the interval"),
        ("step 1: {'acc_0': 0.60}\n", "specforge", "train", Status.FAIL, "outside the interval"),
        ("step 1: {'acc_0': 0.95}\n", "specforge", "heldout", Status.CANNOT_TELL, "printed on train, counted on eval"),
        ("step 1: {'acc_0': 0.95}\n", "specforge", None, Status.CANNOT_TELL, "same split is not said"),
        ("acc_0=0.95\n", None, "train", Status.CANNOT_TELL, "stand for several things"),
        ("step 1: {'acc_0': 0.83, 'acc_1': 0.9}\n", "specforge", "train", Status.FAIL, "Step 1 falls to less than half"),
        ("step 1: {'loss': 0.83}\n", "specforge", "train", Status.CANNOT_TELL, ""),
    ],
)
def test_what_the_trainer_printed_is_not_reached(case, log, framework, split, status, word):
    metric = look(case, log, framework, "0.2.0" if framework else None, split)["training.metric"]
    assert (metric.status, word in metric.evidence) == (status, True), metric.evidence
    assert metric.next


@pytest.mark.parametrize(
    ("log", "framework", "version"),
    [
        ("train/full_acc_0={:.3f}, global_step=5\n", "speculators", "0.9.0"),
        ("Step 5 Training Acc: [{:.4f}]\n", "modelopt", None),
        ("Train Epoch [1/1], position 0,  Acc: {:.2f}\n", "eagle", None),
        ("{{'train/acc_0': {:.3f}, 'epoch': 1.0}}\n", "angelslim", None),
    ],
)
def test_every_trainers_own_number_is_reached_by_its_own_rule(case, log, framework, version):
    first = look(case, log.format(0.5), framework, version, "train")["training.metric"]
    rate = first.numbers["steps"][0]["again"][0]["rate"]
    assert look(case, log.format(rate), framework, version, "train")["training.metric"].status is Status.PASS


def test_the_target_within_the_draft_vocabulary_is_another_number(case):
    """8 of 48 tokens cannot be drafted: SpecForge counts them as wrong, speculators lets the target choose among the others."""
    rates = [
        look(case, log, name, version)["training.metric"].numbers["steps"][0]["again"][0]
        for log, name, version in (("acc_0=0.5\n", "specforge", "0.2.0"), ("full_acc_0=0.5\n", "speculators", "0.9.0"))
    ]
    assert rates[0]["rate"] != pytest.approx(rates[1]["rate"], abs=0.002)


def test_a_version_with_two_definitions_is_held_against_both(case):
    """SpecForge 0.1.0: the rows outside the draft vocabulary were dropped from some commit on."""
    log = "step 1: {{'eval/acc_0': {:.4f}}}\n"
    both = look(case, log.format(0.6), "specforge", "0.1.0", "heldout")["training.metric"]
    assert both.status is Status.FAIL
    assert "by the nearest of its definitions" in both.title
    wrong, dropped = (a["rate"] for a in both.numbers["steps"][0]["again"])
    assert wrong < dropped
    for rate in (wrong, dropped):
        assert look(case, log.format(rate), "specforge", "0.1.0", "heldout")["training.metric"].status is Status.PASS
    assert look(case, log.format(dropped), "specforge", "0.2.0", "heldout")["training.metric"].status is Status.FAIL


def test_few_samples_tell_nothing(case):
    metric = look(case, "step 1: {'acc_0': 0.95}\n", "specforge", "0.2.0", "train", max_samples=3)["training.metric"]
    assert metric.status is Status.CANNOT_TELL
    assert metric.next == "3 samples say little about the next: read more of them."


def test_a_log_with_nans_fails_and_one_without_sense_says_so(case):
    found = look(case, "step 1: {'acc_0': 0.83, 'acc_1': nan, 'my_acc': 0.4}\n", "specforge", "0.2.0", "train")["training.reported"]
    assert found.status is Status.FAIL
    assert "Printed as NaN or infinite: acc_1" in found.evidence
    assert "Not understood: my_acc" in found.evidence
    found = look(case, "hello\n", "specforge", "0.2.0", "train")
    assert found["training.reported"].status is Status.CANNOT_TELL
    assert found["training.metric"].title == "The trainer's log holds no accuracy that a replay can count again"


def test_without_a_log_the_finding_says_how_to_get_one(case):
    (case / "case.toml").write_text((case / "case.toml").read_text().split("\n[training]")[0])
    (found,) = findings(Investigation(str(case)), "training.metric")
    assert found.status is Status.NOT_GIVEN
    assert found.title == "Does the drafter reach what its trainer printed? Not given: the trainer's metrics"
    assert "`[training] metrics` names the trainer's log" in found.next
