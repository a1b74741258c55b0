"""Which deviation reproduces a server: counts made by a sequential drafter with a known fault, and those of real engines."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from case_builder import build_case, make_world
from test_checks_served import RIGHT, STEPS, WRONG, record, session, with_engine
from test_variant_fit import case_of

from eaglelab.case import open_case
from eaglelab.checks import findings
from eaglelab.drafter.model import Flags
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.replay.sequential import SequentialDrafter
from eaglelab.served import RecordingWriter, Request, likelihood
from eaglelab.served.recording import Session
from eaglelab.wiring import FINAL

EXAMPLE = Path(__file__).parents[1] / "data" / "example"


# -- likelihoods against enumeration ---------------------------------------------------------------------------------------------------------


def test_a_histograms_likelihood_is_that_of_its_entries_by_enumeration():
    """Three passes, two outcomes each: every course of events is listed, and each entry's probability added up."""
    predicted, noise = [2, 1, 0], 0.2
    pi = np.array([0.5, 0.3, 0.2])
    chance = [np.eye(3)[v] * (1 - noise) + noise * pi for v in (0, 0, 1)]
    entry = [dict.fromkeys(range(4), 0.0) for _ in range(3)]
    for course in itertools.product(range(3), repeat=3):
        p = math.prod(c[v] for c, v in zip(chance, course, strict=True))
        for i in range(3):
            entry[i][course.count(i)] += p
    for served in ([2, 1, 0], [1, 1, 1], [0, 0, 3], [3, 0, 0]):
        expected = sum(math.log(entry[i][n]) for i, n in enumerate(served)) * 2 / 3
        assert likelihood.of_histogram(np.array(served), np.array(predicted), pi, noise) == pytest.approx(expected)


def test_passes_likelihood_by_hand():
    pi = np.array([0.6, 0.4])
    log = likelihood.of_passes(np.array([0, 1, 1]), np.array([0, 1, 0]), pi, 0.1)
    assert log == pytest.approx(math.log(0.9 + 0.06) + math.log(0.9 + 0.04) + math.log(0.04))


def test_chi_squared_against_the_printed_table():
    for free, quantile in ((1, 3.841), (2, 5.991), (3, 7.815), (5, 11.070), (10, 18.307)):  # Abramowitz & Stegun, table 26.8
        assert likelihood.chi_squared_95(free) == pytest.approx(quantile, abs=0.1)


def test_homogeneity_and_overdispersion_by_hand():
    expected = 2 * sum(n * math.log(n / 15) for n in (10, 20)) * 2
    assert likelihood.homogeneity(np.array([10, 20]), np.array([20, 10])) == pytest.approx(expected)
    assert likelihood.homogeneity(np.array([10, 20, 0]), np.array([100, 200, 0])) == pytest.approx(0)
    assert likelihood.overdispersion([np.array([10, 10])] * 5) == 1.0
    assert likelihood.overdispersion([np.array([20, 0]), np.array([0, 20])]) == pytest.approx(40.0)  # each cell is 10 off 10, one freedom


def test_weights_share_what_is_equal_and_are_never_surer_than_the_requests():
    sure = likelihood.weights(np.array([[-1.0] * 10, [-1.0] * 10, [-9.0] * 10]))
    assert sure == pytest.approx([0.5, 0.5, 0.0], abs=1e-6)
    one_request_decides = likelihood.weights(np.array([[-1.0] * 9 + [-41.0], [-5.0] * 10]))
    assert 0.1 < one_request_decides[0] < 0.9


# -- a tiny world whose server is a sequential drafter -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("variant"), "llama", 7, seed=3, samples=8, length=60)


@pytest.fixture(scope="module")
def case(world, tmp_path_factory):
    """Fed boundaries 2, 4, 6 as trained; the dump holds 2, 4, 6 and the final state."""
    return build_case(tmp_path_factory.mktemp("case"), world, slots=[2, 4, 6, FINAL], ids=RIGHT)


def served_by(inv, world, feed=(2, 4, 6), spoil=lambda states, row: states, vocabulary=None):
    """Accepted counts [passes] of each text, by drafting one token after the other on transformers' own states."""
    counts = []
    for text, states, prompt in zip(world.texts, world.states, world.prompts, strict=True):
        drafting = SequentialDrafter(inv.drafter, inv.embedding)
        drafting.vocabulary = vocabulary or drafting.vocabulary
        rows, fed, t, accepted = [states[b] for b in feed], 0, prompt - 1, []
        while t + 2 + STEPS <= len(text):
            while fed <= t:
                drafting.extend(spoil([s[fed] for s in rows], fed), int(text[fed + 1]))
                fed += 1
            drafted = drafting.draft(STEPS).tokens
            n = next((k for k, token in enumerate(drafted) if t + 2 + k >= len(text) or token != int(text[t + 2 + k])), STEPS)
            accepted.append(n)
            t += n + 1
        counts.append(accepted)
    return counts


def fitted(case, world, counts, told="accepted", ids=RIGHT):
    def say(i):
        return {told: tuple(counts[i]) if told == "accepted" else tuple(np.bincount(counts[i], minlength=STEPS + 1).tolist())}

    record(case / "variant.jsonl", world, say, session(ids))
    inv = with_engine(case, counters=case / "variant.jsonl")
    return inv, {f.id: f for f in findings(inv, "served.variant")}["served.variant"]


def zero(place):
    return lambda states, row: [torch.zeros_like(s) if p == place else s for p, s in enumerate(states)]


FAULTS = {  # how it is served, and the candidate's name
    "swapped": ({"feed": (4, 2, 6)}, "boundaries [4, 2, 6]"),
    "turned round": ({"feed": (6, 4, 2)}, "boundaries [6, 4, 2]"),
    "one layer early": ({"feed": (1, 3, 5)}, "boundaries [1, 3, 5] (each one layer earlier)"),
    "embedding in front": ({"feed": (0, 2, 4)}, "boundaries [0, 2, 4]"),
    "a place zero": ({"spoil": zero(1)}, "zeros in place of boundary 4"),
    "identity map": ({"vocabulary": list(range(40))}, "“identity vocabulary map”"),
}


@pytest.mark.parametrize("told", ["accepted", "histogram"])
@pytest.mark.parametrize("fault", FAULTS)
def test_the_deviation_that_was_served_reproduces_the_counts(case, world, fault, told):
    how, name = FAULTS[fault]
    inv = Investigation(case / "case.toml")
    counts = served_by(inv, world, **how)
    right = served_by(inv, world)
    assert counts != right
    _, found = fitted(case, world, counts, told)
    assert name in found.numbers["alike"], found.title
    assert found.numbers["fits"]
    assert found.status is not Status.PASS


@pytest.mark.parametrize(
    ("drafter", "ignored", "named"),
    [
        ("norm_before_residual", Flags(), "computed as SGLang 0.5.23 does"),  # which ignores the flag
        ("plain", Flags(post_norm_recurrence=True), "“the next step starts from the post-norm state”"),
        ("plain", Flags(skip_final_norm=True), "“no final norm before lm_head”"),
    ],
)
def test_flags_of_a_trained_drafter(tmp_path, drafter, ignored, named):
    """A drafter that was really trained with a flag, served by one that computes another."""
    raw = {"norm_before_residual": True} if drafter == "norm_before_residual" else {}
    inv = case_of(tmp_path, drafter, raw, ("sglang", "0.5.23"))
    writer = RecordingWriter(tmp_path / "r.jsonl", Session(engine="sglang==0.5.23", num_steps=2, eagle_topk=1, num_draft_tokens=3))
    for i, s in enumerate(inv.samples):
        drafting, text, first = SequentialDrafter(inv.drafter, inv.embedding, flags=ignored), s.token_ids, int(s.loss_mask.argmax())
        accepted, t, fed = [], first - 1, 0
        while t + 3 < len(text):
            for row in range(fed, t + 1):
                drafting.extend([slot[row] for slot in s.slots[:3]], int(text[row + 1]))
            fed = t + 1
            drafted = drafting.draft(2).tokens
            n = next((k for k, token in enumerate(drafted) if token != int(text[t + 2 + k])), 2)
            accepted.append(n)
            t += n + 1
        writer.write(Request(i, tuple(text[:first].tolist()), tuple(text[first:].tolist()), sample=s.key, accepted=tuple(accepted)))
    writer.end()
    lines = (tmp_path / "case.toml").read_text().replace("[engine]", f"[engine]\ncounters = {json.dumps(str(tmp_path / 'r.jsonl'))}")
    (tmp_path / "case.toml").write_text(lines)
    found = findings(Investigation(str(tmp_path / "case.toml"), steps=2), "served.variant")[0]
    assert any(named in name for name in found.numbers["alike"]), found.title
    assert found.numbers["fits"]
    assert found.status is Status.FAIL


def test_served_as_trained(case, world):
    inv = Investigation(case / "case.toml")
    for told in ("accepted", "histogram"):
        _, found = fitted(case, world, served_by(inv, world), told)
        assert found.status is Status.PASS
        assert found.numbers["best"].startswith("what the drafter was trained on (boundaries [2, 4, 6])")
        assert found.numbers["as_trained"]
        assert found.numbers["as_config"]


def test_the_configs_wiring_is_named_and_changed(case, world):
    """Ids -1, 0, 1 feed boundaries 0, 1, 2, and the server does just that."""
    inv = Investigation(case / "case.toml")
    _, found = fitted(case, world, served_by(inv, world, feed=(0, 1, 2)), ids=WRONG)
    assert found.status is Status.FAIL
    assert "is reproduced by boundaries [0, 1, 2], which its config names" in found.title
    assert found.next.startswith("The engine does what its config says: change the config.")


def test_no_deviation_fits_what_is_none(case, world):
    """A drafter that is right in every second pass, whatever it is fed."""
    inv = Investigation(case / "case.toml")
    counts = [[n if i % 2 else 0 for i, n in enumerate(mine)] for mine in served_by(inv, world)]
    assert sum(map(sum, counts)) > 30
    _, found = fitted(case, world, counts)
    assert found.status is Status.CANNOT_TELL
    assert found.title.startswith("No deviation reproduces")
    assert not found.numbers["fits"]


def test_two_faults_at_once_are_found_as_a_pair(case, world):
    """Slots swapped, and a place that is zero: neither fits by itself."""
    inv = Investigation(case / "case.toml")
    _, found = fitted(case, world, served_by(inv, world, feed=(4, 2, 6), spoil=zero(2)))
    assert found.numbers["fits"], found.title
    assert any("boundaries [4, 2, 6]" in name and "zeros in place 2 of fc" in name for name in found.numbers["alike"])


def test_few_passes_tell_nothing(case, world):
    inv = Investigation(case / "case.toml")
    counts = [mine[:2] for mine in served_by(inv, world)]
    _, found = fitted(case, world, counts)
    assert found.status is Status.CANNOT_TELL


def test_a_dump_without_a_whole_draft_tells_nothing(case, world, tmp_path):
    """Samples of one to three tokens, which no draft fits into: a server's counts are not called as trained for want of a contradiction."""

    def cut(sample, i):
        n = i % 3 + 1
        states = [h[:n] for h in sample["hidden_states"]]
        return {"input_ids": sample["input_ids"][:n], "hidden_states": states, "loss_mask": torch.ones(n, dtype=torch.long)}

    counts = served_by(Investigation(case / "case.toml"), world)
    short = build_case(tmp_path, world, slots=[2, 4, 6, FINAL], ids=RIGHT, spoil=cut)
    _, found = fitted(short, world, counts)
    assert found.status is Status.CANNOT_TELL
    assert "cannot be told from 0 verify passes" in found.title
    assert found.next == "Longer answers of the dump are needed: a draft is 3 tokens."


def test_an_answer_of_another_text_is_nobodys_training(case, world):
    """Every token of the answers is another: the server's counts exceed what the drafter can on such text."""
    counts = served_by(Investigation(case / "case.toml"), world)
    writer = RecordingWriter(case / "apart.jsonl", session(RIGHT))
    for i, (text, prompt) in enumerate(zip(world.texts, world.prompts, strict=True)):
        answer = [(token + 1) % 40 for token in text[prompt:].tolist()]
        sample = f"rows_{i // 4 * 4}-{i // 4 * 4 + 4}/data_{i}.pt"
        writer.write(Request(i, tuple(text[:prompt].tolist()), tuple(answer), sample=sample, accepted=tuple(counts[i])))
    writer.end()
    found = {f.id: f for f in findings(with_engine(case, counters=case / "apart.jsonl"), "served.variant", "triangle")}
    assert {f.status for f in found.values()} == {Status.CANNOT_TELL}
    assert "a server cannot accept more of one text" in found["triangle"].evidence


def test_which_of_a_servers_accept_lengths_is_of_what(case, world):
    """Requests of another text count in the server's own total alone."""
    counts = served_by(Investigation(case / "case.toml"), world)
    writer = RecordingWriter(case / "total.jsonl", session(RIGHT))
    for i, (text, prompt) in enumerate(zip(world.texts, world.prompts, strict=True)):
        ids, sample = text.tolist(), f"rows_{i // 4 * 4}-{i // 4 * 4 + 4}/data_{i}.pt"
        writer.write(Request(i, tuple(ids[:prompt]), tuple(ids[prompt:]), sample=sample, accepted=tuple(counts[i])))
    writer.write(Request(8, (7, 7, 7), tuple(range(9, 39)), histogram=(200, 0, 0, 0)))
    writer.end()
    inv = with_engine(case, counters=case / "total.jsonl")
    found = {f.id: f for f in findings(inv, "served.expected", "served.variant")}["served.variant"]
    total = inv.served.reached
    assert f"{total.accept_length:.2f} over all its {total.counts.verify_steps:,} verify passes (served.acceptance)" in found.evidence


def test_totals_of_other_text(case, world, tmp_path):
    """vLLM's counters tell positions and no text: the dump's answers stand for it, and the right wiring fits."""
    inv = Investigation(case / "case.toml")
    path = tmp_path / "metrics.txt"
    for feed, status in (((2, 4, 6), Status.PASS), ((6, 4, 2), Status.FAIL)):
        flat = [n for mine in served_by(inv, world, feed=feed) for n in mine]
        lines = [f"vllm:spec_decode_num_drafts_total {len(flat)}", f"vllm:spec_decode_num_draft_tokens_total {STEPS * len(flat)}"]
        lines += [f"vllm:spec_decode_num_accepted_tokens_total {sum(flat)}"]
        lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{k}"}} {sum(n > k for n in flat)}' for k in range(STEPS)]
        path.write_text("\n".join(lines) + "\n")
        other = with_engine(case, counters=path)
        found = {f.id: f for f in findings(other, "served.variant")}["served.variant"]
        assert found.numbers["evidence"] == "totals on other text"
        assert (found.status is Status.PASS) == (status is Status.PASS), found.title
        assert any(c["fits"] for c in found.numbers["candidates"])


def test_a_mean_alone_is_not_enough(case, tmp_path):
    (tmp_path / "info.json").write_text(json.dumps({"internal_states": [{"avg_spec_accept_length": 1.7}], "version": "0.5.23"}))
    found = findings(with_engine(case, counters=tmp_path / "info.json"), "served.variant")
    assert [f.status for f in found] == [Status.NOT_GIVEN]
    assert "acceptance by step" in found[0].title


def test_trees_are_asked_for_as_chains(case, world):
    inv = Investigation(case / "case.toml")
    counts = served_by(inv, world)
    record(case / "tree.jsonl", world, lambda i: {"accepted": tuple(counts[i])}, session(RIGHT, eagle_topk=4, num_draft_tokens=8))
    found = findings(with_engine(case, counters=case / "tree.jsonl"), "served.variant")
    assert [f.status for f in found] == [Status.NOT_GIVEN]
    assert "--speculative-eagle-topk 1" in found[0].next


def test_without_any_server_nothing_is_said(case):
    assert [f.status for f in findings(Investigation(case / "case.toml"), "served.variant", "triangle")] == [Status.NOT_GIVEN] * 2


# -- real engines --------------------------------------------------------------------------------------------------------------------------------


def example(name):
    case = open_case(EXAMPLE / "case.toml")
    path = EXAMPLE / "engine" / name
    return Investigation(replace(case, engine=replace(case.engine, counters=path)), way="sketch")


@pytest.mark.parametrize("name", ["sglang-claimed.jsonl", "vllm-claimed.jsonl"])
def test_the_storys_mistake_reproduces_a_real_server(name):
    """Layer ids -1, 2, 15: the embedding in front. On the dump's own states, without the target."""
    found = findings(example(name), "served.variant")[0]
    assert found.status is Status.FAIL
    assert "is reproduced by boundaries [0, 3, 16], which its config names" in found.title
    assert found.numbers["alike"] == ["boundaries [0, 3, 16], which its config names"]


@pytest.mark.parametrize("name", ["sglang-right.jsonl", "vllm-right.jsonl"])
def test_a_real_server_that_is_fed_as_trained(name):
    inv = example(name)
    found = {f.id: f for f in findings(inv, "served.variant", "triangle")}
    assert found["served.variant"].status is Status.PASS
    assert found["served.variant"].numbers["best"].startswith("what the drafter was trained on")
    assert (found["triangle"].status, found["triangle"].numbers["gap"]) == (Status.PASS, "none")
