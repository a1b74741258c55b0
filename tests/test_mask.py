"""The loss mask against the text: counts, the trainers' rules, and masks that are moved by a token or two."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from trainer_rates import specforge_acc, speculators_acc

from eaglelab.dumps import Sample, open_dump
from eaglelab.dumps.mask import (
    AHEAD,
    around_start,
    end_offsets,
    mask_table,
    spans,
    start_by_header,
    start_by_ids,
)
from eaglelab.plots import mask as plots
from eaglelab.replay.run import SampleOutcome

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
HEADER, END = (1, 520, 9531, 198), 2
"""`<|im_start|>assistant\\n` and `<|im_end|>` by the example's tokenizer, read in its tokenizer.json."""


def sample(ids, mask, key="s"):
    ids = torch.tensor(ids)
    mask = None if mask is None else torch.tensor(mask)
    return Sample(key, ids, (torch.zeros(len(ids), 2),), mask, ("a",))


def moved(one, places):
    """The sample with its mask moved; zeros come in from the side."""
    mask = torch.roll(one.loss_mask, places)
    mask[:places] = 0 if places > 0 else mask[:places]
    if places < 0:
        mask[places:] = 0
    return replace(one, loss_mask=mask)


@pytest.fixture(scope="module")
def shipped():
    return list(open_dump(EXAMPLE / "dump").samples(None))


# -- counts -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "found"),
    [([], []), ([0, 0], []), ([1], [(0, 1)]), ([1, 1, 0, 1], [(0, 2), (3, 4)]), ([0, 1, 1, 0], [(1, 3)]), ([1, 1, 1], [(0, 3)])],
)
def test_spans(mask, found):
    assert spans(torch.tensor(mask, dtype=torch.int64)) == found


def test_mask_table_counts():
    samples = [
        sample([5, 6, 7, 2, 9, 9], [0, 0, 1, 1, 1, 1], "after"),  # 2 ends the turn, two trained tokens behind it
        sample([5, 6, 7, 2], [0, 1, 1, 0], "end not trained"),
        sample([5, 6, 7, 8], [0, 0, 1, 1], "truncated"),
        sample([5, 6], [0, 0], "zero"),
        sample([5, 2], [1, 1], "full"),
        sample([5, 6, 7], None, "unknown"),
    ]
    table = mask_table(samples, [2]).set_index("sample")
    assert table["trained"].tolist()[:5] == [4, 2, 2, 0, 2]
    assert table["share"].tolist()[:5] == pytest.approx([4 / 6, 0.5, 0.5, 0, 1])
    assert table["after_end"].tolist()[:5] == [2, 0, 0, 0, 0]
    assert table["whole_answers"].tolist()[:5] == [1, 1, 0, 0, 1]
    assert table["last_trained"].tolist()[:5] == [True, False, True, False, True]
    assert table["first_trained"].tolist()[:3] == [2, 1, 2]
    assert table.loc["unknown"].drop("tokens").isna().all()
    assert table.loc["zero", ["first_trained"]].isna().all()
    assert mask_table(samples)[["whole_answers", "after_end"]].isna().all().all()  # without known ends


# -- the trainers' rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.report("sgl-project/SpecForge#885", "C")
def test_a_mask_of_one_position_trains_the_prediction_that_the_trainers_code_counts(p):
    """SpecForge's count is right everywhere if rows are right only where they predict x[p + ahead]. speculators' is joint: right up to it."""
    steps, length = 3, 12
    rows, k = np.arange(length), np.arange(steps)[:, None]
    mask, inside, nothing = torch.zeros(length, dtype=torch.int64), rows + k + 1 < length, np.zeros((steps, length))
    mask[p] = 1

    def outcome(right):
        return SampleOutcome("s", rows, inside, right & inside, nothing > 0, nothing, nothing, None, None, None, (0, 0))

    predicted = rows + 2 + k  # [K, R]
    alone = specforge_acc([outcome(predicted == p + AHEAD["specforge"])], [mask])
    assert alone.right == alone.counted == tuple(int(p - k >= 0) for k in range(steps))
    missed = specforge_acc([outcome(predicted != p + AHEAD["specforge"])], [mask])
    assert sum(missed.right) == 0
    joint = speculators_acc([outcome(predicted == p + AHEAD["speculators"])], [mask])[0]
    assert (joint.right[0], joint.counted) == (1, tuple(int(p - 1 - k >= 0) for k in range(steps)))


# -- a mask that is moved -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [-2, -1, 0, 1, 2])
def test_a_moved_mask_of_the_example_is_named_by_its_header(shipped, places):
    start = start_by_header([moved(s, places) for s in shipped], [HEADER])
    assert (start.offset, start.by, start.spans, start.of) == (places, "header", 10, 10)
    assert start.counts == {places: 10}


@pytest.mark.parametrize("places", [-2, -1, 0, 1, 2])
def test_without_a_header_a_moved_mask_is_noticed_and_not_named(shipped, places):
    start = start_by_ids(around_start([moved(s, places) for s in shipped]))
    assert start.offset == (0 if places == 0 else None)
    assert start.by == "ids"
    assert {-2: "first 2 trained", -1: "first 1 trained", 0: "", 1: "1 token(s) that differ", 2: "2 token(s) that differ"}[
        places
    ] in start.remark


@pytest.mark.parametrize("places", [1, 2])
def test_the_targets_own_text_names_a_late_mask(shipped, places):
    """The example's answers are the target's own greedy text: what it says is the next token inside the answer, and here not in the prompt."""

    def own(samples, positions):
        first = [int(s.loss_mask.argmax()) - places for s in samples]
        return [torch.where(at + 1 >= a, s.token_ids[at + 1], -1) for s, at, a in zip(samples, positions, first, strict=True)]

    def never_before(samples, positions):
        first = [int(s.loss_mask.argmax()) for s in samples]
        return [torch.where(at + 1 >= a, s.token_ids[at + 1], -1) for s, at, a in zip(samples, positions, first, strict=True)]

    late = [moved(s, places) for s in shipped]
    assert start_by_ids(around_start(late, own)).offset == places
    assert start_by_ids(around_start(late, never_before)).offset is None  # varied, and not the target's own: a prompt


def test_what_only_looks_moved_is_not_called_so(shipped):
    whole = start_by_header([moved(s, -len(HEADER)) for s in shipped], [HEADER])
    assert (whole.offset, whole.remark) == (0, "the whole header trains too")
    # a think marker between the template's header and all masks: a longer header
    think = [sample([*range(10 + i, 14 + i), *HEADER, 77, 78, 30 + i, 40 + i], [0] * 10 + [1, 1], str(i)) for i in range(5)]
    found = start_by_header(think, [HEADER])
    assert found.offset == 0
    assert "the same 2 tokens stand between" in found.remark
    one = start_by_header(think[:1], [HEADER])  # one sample cannot say what is the same in all, nor that all are late
    assert (one.offset, one.place) == (None, None)
    assert "too few spans" in one.remark
    assert (whole.place, found.place) == (-len(HEADER), 0)
    assert start_by_ids(around_start(think)).offset == 0


def test_one_span_near_a_header_does_not_speak_for_all(shipped):
    late = [moved(shipped[0], 1), *(replace(s, token_ids=s.token_ids + 50) for s in shipped[1:])]  # the others have no such header
    start = start_by_header(late, [HEADER])
    assert (start.offset, start.spans, start.of) == (None, 1, 10)


def test_spans_that_start_at_different_places_are_undecided(shipped):
    start = start_by_header([moved(s, i % 3) for i, s in enumerate(shipped)], [HEADER])
    assert (start.offset, start.by) == (None, "header")
    assert start.counts == {0: 4, 1: 3, 2: 3}
    few = start_by_header([moved(s, int(i == 0)) for i, s in enumerate(shipped)], [HEADER])
    assert (few.offset, few.spans, few.counts) == (0, 9, {0: 9, 1: 1})


def test_nothing_to_hold_on_to(shipped):
    assert start_by_header(shipped, [(7, 7, 7)]).by == ""
    assert start_by_header(shipped, [()]).by == ""
    assert start_by_ids(around_start(shipped[:3])).by == ""  # too few
    assert start_by_ids(around_start([replace(s, loss_mask=None) for s in shipped])).by == ""
    assert start_by_ids(around_start([])).by == ""
    varied = [sample(list(range(20 * i, 20 * i + 12)), [0] * 6 + [1] * 6) for i in range(6)]
    assert start_by_ids(around_start(varied)).by == ""


def test_a_flickering_mask_is_bounded():
    flicker = sample(list(range(20_000)), [i % 2 for i in range(20_000)])
    assert int(around_start([flicker])["n"].max()) == 64
    assert mask_table([flicker])["spans"].item() == 10_000


def test_where_spans_end(shipped):
    assert end_offsets(shipped, [END]) == {None: 8, 0: 2}
    assert end_offsets([moved(s, -1) for s in shipped], [END]) == {None: 8, -1: 2}
    two = sample([5, 6, 2, 8, 7, 2, 9], [0, 1, 1, 0, 1, 1, 1])
    assert end_offsets([two], [2]) == {0: 1, 1: 1}


def test_the_figure_shows_what_the_table_says(shipped):
    def text(samples, positions):
        return [s.token_ids[at + 1] for s, at in zip(samples, positions, strict=True)]

    ax = plots.around_start(around_start(shipped, text), "a title")
    heights = {round(bar.get_x() + 0.35): bar.get_height() for bar in ax.patches}
    assert (heights[-1], heights[0]) == (1.0, 0.3)  # the header's end; 3 of 10 answers begin alike
    assert ax.lines[0].get_ydata().tolist() == [1.0] * 12
    assert ax.get_xlabel() == "place from the first trained token of 10 spans"
    assert "the mask starts" in [t.get_text() for t in ax.get_legend().get_texts()]
    assert not plots.around_start(around_start([]), "nothing").patches
