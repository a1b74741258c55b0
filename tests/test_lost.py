"""Where acceptance is lost: closed forms on hand-made outcomes, drafters that really cannot learn a class, and odd input."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from figures import closed, drawn, title  # noqa: F401 - closed closes what a test drew
from hypothesis import given, settings
from hypothesis import strategies as st
from lost_rows import drawn_rows, trained_case
from tiny_drafters import tiny_drafter, tiny_embedding, tiny_sample
from trained_drafters import PROMPT, V, trained, walks

from eaglelab.checks import findings
from eaglelab.dumps import Sample
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation
from eaglelab.lost import LostCase, Rows, TokenClass, class_costs, costly_tokens, reliability, thresholds, token_classes
from eaglelab.lost.classes import (
    CJK,
    DIGITS,
    FENCE,
    FIRST_DRAFTED,
    MARKS,
    OUTSIDE,
    PART,
    RUN,
    SCRIPT,
    SPACE,
    WORD,
    in_code,
    kind_of,
    raw_text,
)
from eaglelab.lost.classes import _repeated as repeated
from eaglelab.lost.confidence import off_by
from eaglelab.lost.costly import _Path as Path
from eaglelab.plots import lost as plots
from eaglelab.replay import Judge, Variant, replay
from eaglelab.replay.walk import walk_sample


def replayed(drafter, samples, embedding, steps=2):
    """(rows, the replay they are of)."""
    judge = Judge()
    result = replay(drafter, samples, embedding, [Variant((0, 1, 2))], judge=judge, steps=steps)[0]
    return Rows.of(result, samples, judge.answers(samples)), result


# -- what a class costs ---------------------------------------------------------------------------------------------------------------


def test_the_cost_of_a_class_that_is_never_right_in_closed_form():
    """Every third token is of the class and never right, all others are: a = 1, so the accept length would be K + 1."""
    rows = drawn_rows(6, 42, 2, lambda s, t, k: ((t + k) % 3 > 0) * 1.0)
    third = TokenClass("third", "kind", (rows.row + np.arange(2)[:, None]) % 3 == 0)
    table = class_costs(rows, [third, TokenClass("rest", "kind", ~third.member)]).set_index("class")
    assert table.loc["third", "marginal"] == 0
    assert table.loc["third", "others"] == 1
    length = 1 + rows.joint.sum() / rows.complete.sum()
    assert length == pytest.approx(2)  # 0, 2 and 1 accepted in turn
    assert table.loc["third", "gain"] == pytest.approx(3 - 2)
    assert table.loc["rest", "gain"] == pytest.approx(1 - 2)
    assert table["lost"].to_dict() == pytest.approx({"third": 2 / 3 + 1 / 3, "rest": 0.0})


def test_the_cost_of_a_class_among_independent_outcomes():
    """A share of 0.3 right at 0.2, the rest at 0.8: the others alone give 1 + q + q^2, all together 1 + m + m^2 with m = 0.62."""
    wanted = (np.random.default_rng(1).random((40, 500, 2)) < 0.3).astype(int)
    rows = drawn_rows(40, 500, 2, lambda s, t, k: np.where(wanted == 1, 0.2, 0.8), wanted)
    row = class_costs(rows, [TokenClass("hard", "kind", rows.wanted == 1)]).iloc[0]
    assert row["gain"] == pytest.approx(0.8 + 0.64 - 0.62 - 0.62**2, abs=0.02)
    assert row["low"] < 0.8 + 0.64 - 0.62 - 0.62**2 < row["high"]
    assert row["high"] - row["low"] < 0.05
    assert row["told"]
    assert row["n"] == int((rows.wanted[0] == 1).sum())


def test_chance_is_seldom_called_a_cost():
    """Ten classes without any effect over samples that differ in difficulty: one is told in about 2.5 % of draws (upper side of 95 % for all)."""
    told = 0
    for seed in range(120):
        draws = np.random.default_rng(1000 + seed)
        level = draws.beta(4, 4, 12)
        wanted = draws.integers(0, 10, (12, 80, 2))
        rows = drawn_rows(12, 80, 2, lambda s, t, k, level=level: level[s], wanted, seed)
        told += class_costs(rows, [TokenClass(str(c), "kind", rows.wanted == c) for c in range(10)])["told"].any()
    assert told <= 9  # 3 expected; 10 or more have a chance of 0.1 %


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 9), st.integers(1, 12), st.integers(1, 4), st.integers(0, 999))
def test_kinds_share_the_loss_and_the_order_of_samples_does_not_matter(samples, length, steps, seed):
    wanted = np.random.default_rng(seed).integers(0, 4, (samples, length, steps))
    rows = drawn_rows(samples, length, steps, lambda s, t, k: 0.6 + 0 * s, wanted, seed)
    table = class_costs(rows, [TokenClass(str(c), "kind", rows.wanted == c) for c in range(4)])
    accept = 1 + rows.joint.sum() / rows.complete.sum()
    assert table["lost"].sum() == pytest.approx(steps + 1 - accept)
    order = np.random.default_rng(seed).permutation(samples)
    mixed = np.concatenate([np.flatnonzero(rows.sample == i) for i in order])
    again = Rows(np.argsort(order)[rows.sample[mixed]], rows.row[mixed], rows.start[mixed], *(getattr(rows, n)[:, mixed] for n in (
        "wanted", "counted", "right", "outside", "drafted", "confidence")), rows.keys)  # fmt: skip
    other = class_costs(again, [TokenClass(str(c), "kind", again.wanted == c) for c in range(4)])
    keys = ["n", "share", "samples", "marginal", "others", "accept_length", "lost", "gain"]
    pd.testing.assert_frame_equal(table.set_index("class")[keys].sort_index(), other.set_index("class")[keys].sort_index())


def test_few_samples_and_few_tokens_are_not_judged():
    rows = drawn_rows(3, 100, 2, lambda s, t, k: (t + k) % 2.0)
    table = class_costs(rows, [TokenClass("half", "kind", (rows.row + np.arange(2)[:, None]) % 2 == 0)])
    assert not table["told"].any()
    assert np.isinf(table["high"]).all()
    empty = class_costs(rows.select(np.zeros(300, dtype=bool)), [])
    assert list(empty.columns) == list(table.columns)


# -- which class a token is of --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        *(("12", DIGITS), (" 3.14", DIGITS), ("x2", WORD), (" the", WORD), ("Ünter", WORD), ("привет", SCRIPT), ("مرحبا", SCRIPT)),
        *(
            ("漢字", CJK),
            ("カタ", CJK),
            ("한국", CJK),
            ("。", CJK),
            ("{", MARKS),
            (" ->", MARKS),
            ("…", MARKS),
            ("\n\n", SPACE),
            ("   ", SPACE),
        ),
        *(("", PART), ("\ufffd", PART), ("\x00", MARKS)),
    ],
)
def test_kinds_by_text(text, kind):
    assert kind_of(text) == kind


def test_code_is_what_stands_between_fences_however_they_are_cut():
    said = ["Say", ":\n", "``", "`py", "\n", "x = 1", "\n`", "``", "\n", "done", FENCE, "open"]
    assert in_code(said).tolist() == [False, False, False, True, True, True, True, False, False, False, True, True]
    assert not in_code([]).any()


class SentencePieces:
    """Decodes a single token without its leading space, as SentencePiece does."""

    def decode(self, ids, **options):
        return ["word", "in"][ids[0]]

    def convert_ids_to_tokens(self, token):
        return ["\u2581word", "in"][token]


def test_the_leading_space_of_a_single_token_is_kept():
    assert [raw_text(SentencePieces(), i) for i in (0, 1, 7)] == [" word", "in", ""]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_repeated_runs_against_a_search_of_the_text(ids):
    """The text's own next token is the right one: a run ends there if the same four tokens stand earlier."""
    n = len(ids)
    sample = Sample("s", torch.tensor(ids), (), None, ())
    wanted = np.array([[*ids[1:], -1]])  # after position p
    ones = np.ones((1, n - 1), dtype=bool)
    part = wanted[:, 1:]
    rows = Rows(
        np.zeros(n - 1, int), np.arange(n - 1), np.zeros(n - 1, int), part, ones & (part >= 0), ones, ~ones, part, 0.5 * ones, ("s",)
    )
    found = repeated(rows, sample, 0)
    for p in range(1, n - 1):
        run = ids[p + 2 - RUN : p + 2]
        before = [ids[i : i + RUN] for i in range(p + 2 - RUN)]
        assert found[p] == (p + 2 >= RUN and run in before), p


def test_first_tokens_and_ids_alone():
    drafter, embedding = tiny_drafter(), tiny_embedding()
    samples = [tiny_sample(f"s{i}", 30, 6 + i, i) for i in range(5)]
    rows, result = replayed(drafter, samples, embedding)
    found = {c.name: c for c in token_classes(rows, samples)}
    assert rows.row[found[FIRST_DRAFTED].member[0]].tolist() == [5, 6, 7, 8, 9]  # the last row of each prompt
    later = found["the answer's tokens 3 to 5"].member[0]
    assert rows.by_sample(later).tolist() == [3, 3, 3, 3, 3]
    outside = found[OUTSIDE].member
    assert np.array_equal(outside[0].sum(), result.counts.out_of_vocabulary[0])
    assert not any(c.group == "kind" for c in found.values())
    with pytest.raises(ValueError, match="they must be the same"):
        Rows.of(result, samples[:2], Judge().answers(samples[:2]))


def test_an_unknown_mask_has_no_first_tokens_and_no_walk():
    samples = [Sample(s.key, s.token_ids, s.slots, None, s.slot_names) for s in (tiny_sample(f"s{i}", 20, 5, i) for i in range(5))]
    rows, _ = replayed(tiny_drafter(), samples, tiny_embedding())
    assert FIRST_DRAFTED not in {c.name for c in token_classes(rows, samples)}
    assert costly_tokens(rows, samples).empty


# -- tokens, confidence ---------------------------------------------------------------------------------------------------------------


def test_the_costliest_token_by_a_walk_that_can_be_counted():
    """K = 3, and every third token of the answer is a 7 that is always drafted wrongly. The walk starts at rows 3, 5, 8, 11, 14, 17 and each pass
    ends at a 7; were they right, it would start at rows 3, 7, 11, 15."""
    ids = torch.tensor([1, 2, 3, 4] + [5, 6, 7] * 6 + [9])
    sample = Sample("s", ids, (), (torch.arange(23) >= 4).long(), ())
    rows = np.arange(3, 19)
    wanted = ids.numpy()[rows + 2 + np.arange(3)[:, None]]
    ones, zeros = np.ones(wanted.shape, dtype=bool), np.zeros(len(rows), dtype=int)
    table = Rows(zeros, rows, zeros + 4, wanted, ones, wanted != 7, ~ones, np.where(wanted == 7, 0, wanted), 0.5 * ones, ("s",))
    found = costly_tokens(table, [sample])
    assert found["token"].tolist() == [7]
    assert found.loc[0, ["stops", "lost", "saved", "drafted", "times", "position"]].tolist() == [6, 2 + 5 * 1, 6 - 4, 0, 6, 6]


def test_the_path_is_the_walk():
    drafter, embedding = tiny_drafter(), tiny_embedding()
    samples = [tiny_sample(f"s{i}", 40, 5 + i, i) for i in range(4)]
    samples[3].loss_mask[20:23] = 0  # two answers
    rows, result = replayed(drafter, samples, embedding)
    for i, (sample, outcome) in enumerate(zip(samples, result.outcomes, strict=True)):
        right = np.random.default_rng(i).random(outcome.right.shape) < 0.6
        path = Path(rows.select(rows.sample == i), sample.loss_mask)
        assert tuple(n for _, n in path.passes(right)) == walk_sample(outcome.rows, outcome.counted, right, sample.loss_mask)


def test_confidence_in_bins_and_what_a_threshold_saves():
    rows = drawn_rows(8, 200, 2, lambda s, t, k: np.where(t % 2 == 0, 0.9, 0.3))
    sure = np.where(rows.row % 2 == 0, 0.9, 0.3) * np.ones((2, 1))
    rows = Rows(**{**vars(rows), "confidence": sure})
    table = reliability(rows)
    assert table["n"].sum() == rows.reached.sum()
    assert table["right"].tolist() == pytest.approx([0.3, 0.9], abs=0.04)
    assert off_by(table) < 0.03
    saving = thresholds(rows, (0.5,))
    assert saving["drafted"].tolist() == [2, 1]
    assert saving.loc[1, "saved"] == 0.5
    assert saving.loc[1, "accept_length"] == pytest.approx(1 + (0.9 + 0.81) / 2, abs=0.04)


# -- drafters that were really trained ------------------------------------------------------------------------------------------------


class Words:
    """Ids 0 to 3 are digits, all others words."""

    def decode(self, ids, **options):
        return f" {ids[0]}" if ids[0] < 4 else f" w{chr(97 + ids[0])}"

    def convert_ids_to_tokens(self, token):
        return self.decode([token])

    def get_added_vocab(self):
        return {}


def with_random_digits(samples, seed=5):
    """The texts with ids 0 to 3 drawn anew; the states still tell the way, so that all other tokens can be learnt."""
    g, made = torch.Generator().manual_seed(seed), []
    for s in samples:
        drawn_ids = torch.randint(0, 4, s.token_ids.shape, generator=g)
        made.append(Sample(s.key, torch.where(s.token_ids < 4, drawn_ids, s.token_ids), s.slots, s.loss_mask, s.slot_names))
    return made


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A case whose drafter could not learn the digits."""
    samples, embedding = walks(16)
    samples = with_random_digits(samples)
    drafter = trained(samples[:8], embedding, updates=120)
    return trained_case(tmp_path_factory.mktemp("digits"), drafter, samples[8:], embedding)


def test_a_class_that_cannot_be_learnt_is_named(digits, monkeypatch):
    monkeypatch.setattr(LostCase, "tokenizer", Words())
    (found,) = findings(Investigation(str(digits), steps=2), "lost.classes")
    assert found.status is Status.PASS
    assert found.title.startswith("Most acceptance is lost at one class of tokens: digits.")
    by_name = {c["class"]: c for c in found.numbers["classes"]}
    assert by_name["digits"]["marginal"] < 0.5 < 0.8 < by_name["digits"]["others"]
    assert "Train on more" in found.next
    json.dumps(found.to_json(), allow_nan=False)


def test_without_a_tokenizer_ids_alone_are_sorted(digits):
    inv = Investigation(str(digits), steps=2)
    (found,) = findings(inv, "lost.classes")
    assert "only the classes that token ids tell" in found.evidence
    (named,) = findings(inv, "lost.tokens")
    assert "#" in named.title
    assert set(inv.lost.costly["token_id"]) & {0, 1, 2, 3}


def test_without_a_mask_the_costliest_tokens_are_not_given(digits, tmp_path):
    shutil.copytree(digits, tmp_path / "case")
    for file in (tmp_path / "case").rglob("data_*.pt"):
        data = torch.load(file, weights_only=True)
        torch.save({k: v for k, v in data.items() if k != "loss_mask"}, file)
    (found,) = findings(Investigation(str(tmp_path / "case"), steps=2), "lost.tokens")
    assert found.status is Status.NOT_GIVEN
    assert "a loss mask" in found.title


def test_one_sample_tells_no_class(digits):
    (found,) = findings(Investigation(str(digits), steps=2, max_samples=1), "lost.classes")
    assert found.status is Status.CANNOT_TELL


def test_a_drafter_that_knows_nothing_is_not_asked_where(tmp_path):
    samples, embedding = walks(6)
    case = trained_case(tmp_path, trained(samples, embedding, updates=0), samples, embedding)
    inv = Investigation(str(case), steps=2)
    for name in ("lost.classes", "lost.steps", "lost.tokens", "lost.confidence", "context.knee"):
        assert [f.status for f in findings(inv, name)] == [Status.NOT_APPLICABLE], name


@pytest.mark.parametrize("steps", [1, 2])
def test_steps_collapse_only_where_they_were_not_trained(tmp_path, steps):
    samples, embedding = walks(16)
    case = trained_case(tmp_path, trained(samples[:8], embedding, updates=120, steps=steps), samples[8:], embedding)
    (found,) = findings(Investigation(str(case), steps=2), "lost.steps")
    assert found.numbers["collapse"] is (steps == 1), found.title
    assert (found.status is Status.PASS) is (steps == 2)


def test_a_collapse_by_the_other_recurrence_is_named(tmp_path):
    """Trained on its normed state, with a config that says the state before the norm."""
    samples, embedding = walks(16)
    drafter = trained(samples[:8], embedding, updates=150, norm_output=True)
    case = trained_case(tmp_path, drafter, samples[8:], embedding)
    (found,) = findings(Investigation(str(case), steps=2), "lost.steps")
    assert found.numbers["collapse"], found.title
    assert found.status is Status.FAIL
    assert "post-norm state" in found.numbers["fits_better"]


def test_the_first_drafted_token_fails_only_where_the_trainer_never_trains_it(tmp_path, monkeypatch):
    """The state of the last prompt row is noise, so that the answer's token 2 is drafted wrongly in each of 24 samples."""
    samples, embedding = walks(32)
    drafter, g = trained(samples[:8], embedding, updates=120), torch.Generator().manual_seed(1)
    for s in samples[8:]:
        for slot in s.slots[:3]:
            slot[PROMPT - 1] = 30 * torch.randn(slot.shape[1], generator=g)
    inv = Investigation(str(trained_case(tmp_path, drafter, samples[8:], embedding)), steps=2)
    (found,) = findings(inv, "lost.classes")
    assert "one class of tokens: the answer's token 2." in found.title
    assert found.status is Status.PASS  # nothing says how it was trained
    rule = Finding("text.first_token", "", Status.PASS, numbers={"framework": "specforge", "first_trained": {"SpecForge": 3}})
    monkeypatch.setattr("eaglelab.checks.text.first_token", lambda inv: iter([rule]))
    (found,) = findings(inv, "lost.classes")
    assert found.status is Status.FAIL
    assert "Extend the loss mask" in found.next


def test_a_drafter_of_nan_is_sure_of_nothing():
    rows = drawn_rows(6, 20, 2, lambda s, t, k: 0.5 + 0 * t)
    rows = Rows(**{**vars(rows), "confidence": np.full((2, 120), np.nan)})
    assert reliability(rows)["confidence"].tolist() == [0.0]
    assert thresholds(rows)["saved"].tolist()[1:] == [1.0] * 10


# -- figures --------------------------------------------------------------------------------------------------------------------------


def test_figures_say_what_the_data_say():
    wanted = (np.random.default_rng(1).random((8, 200, 2)) < 0.3).astype(int)
    rows = drawn_rows(8, 200, 2, lambda s, t, k: np.where(wanted == 1, 0.2, 0.8), wanted)
    costs = class_costs(rows, [TokenClass("digits", "kind", rows.wanted == 1), TokenClass("words", "kind", rows.wanted == 0)])
    worst = costs.set_index("class").loc["digits"]
    said = title(drawn(plots.acceptance_by_class(costs)))
    assert said == f"At tokens of the class “digits” it is right in {worst['marginal']:.0%}, at the others in {worst['others']:.0%}"
    assert list(plots.shown_classes(costs)["class"]) == ["digits", "words"]
    assert title(drawn(plots.reliability(reliability(rows)))).startswith("Right more often than it is sure")
    with pytest.raises(ValueError, match="no class has a token"):
        plots.acceptance_by_class(costs.head(0))
    with pytest.raises(ValueError, match="no confidence to show"):
        plots.reliability(reliability(rows).head(0))


def test_vocabulary_constants_hold():
    assert V == 16  # Words() takes ids 0 to 3 for digits


def test_one_drafted_step_has_none_that_could_collapse(digits):
    (found,) = findings(Investigation(str(digits), steps=1), "lost.steps")
    assert found.status is Status.PASS
    assert found.title.startswith("One drafted step has none after it that could collapse")
