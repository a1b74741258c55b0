"""The comparison by hand: one sample or all, the measure, what lies next to a slot's best boundary."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from figures import closed  # noqa: F401
from identify_fakes import TinyTarget, dump, random_texts

from eaglelab.explore import Live
from eaglelab.explore.heatmap import SlotBoundaryHeatmap
from eaglelab.identify import identify
from eaglelab.wiring import FINAL, Wiring


@pytest.fixture(scope="module")
def target():
    return TinyTarget()


@pytest.fixture(scope="module")
def samples(target):
    made = dump(target, random_texts(), [2, 4, FINAL])
    made[1] = replace(made[1], slots=(2 * made[1].slots[0], *made[1].slots[1:]))
    return made


@pytest.fixture(scope="module")
def found(samples, target):
    return identify(samples, target)


def explorer(found, claimed=None):
    return SlotBoundaryHeatmap(SimpleNamespace(identification=found, claimed=None if claimed is None else Wiring.of(claimed)))


def words(markup):
    return " ".join(re.sub("<[^>]+>", " ", markup).split())


def alt(markup):
    return re.search(r'alt="([^"]*)"', markup)[1]


def rows(markup):
    """The table's rows: boundary, what it is, numbers."""
    return [words(line) for line in re.findall(r"<tr>(.*?)</tr>", markup.partition("<tbody>")[2])]


def test_the_figure_is_of_the_sample_and_measure_asked_for(found):
    live = Live(explorer(found), strict=True)
    assert alt(live.output.value).endswith("Relative error of each slot to each boundary, median over 3 samples.")
    live.controls["measure"].value = "cosine"
    live.controls["sample"].value = 2
    assert alt(live.output.value) == (
        "Slots 1, 2 hold boundaries 4 and final; slot 0 cannot be told. Cosine of each slot to each boundary, in data_1.pt."
    )
    live.controls["measure"].value = "norm_ratio"
    assert "Norm ratio of each slot" in alt(live.output.value)


def test_the_table_is_of_the_slot_and_sample_asked_for(found):
    live = Live(explorer(found, [0, None, None]), strict=True)
    first, second, *_ = table = rows(live.output.value)
    assert first.startswith("2 nearest")  # in all but one sample
    assert " – 1 1" in first  # noqa: RUF001 - no margin of the best; cosine and norm ratio are 1
    assert "runner-up" in second
    assert [line for line in table if line.startswith("0 (embedding)") and "claimed" in line]
    live.controls["sample"].value = 2
    assert re.search(
        r"^2 .* 1 2$", next(line for line in rows(live.output.value) if line.startswith("2 "))
    )  # twice as long, same direction
    assert "held by" not in "".join(rows(live.output.value))
    live.controls["sample"].value = 1
    assert rows(live.output.value)[0].startswith("2 held by the slot")
    live.controls["slot"].value = 2
    assert rows(live.output.value)[0].startswith("final (after the final norm) held by the slot")


def test_claims_can_be_left_out(found):
    live = Live(explorer(found, [None, 0, FINAL]), strict=True)
    assert "; 1 of 2 claims says otherwise" in alt(live.output.value)
    live.controls["claims"].value = False
    assert "claim" not in alt(live.output.value)
    assert Live(explorer(found)).controls["claims"].disabled


def test_the_embedding_alone_and_a_few_boundaries(samples, target):
    few = TinyTarget(up_to=3)
    live = Live(explorer(identify(samples, few)), strict=True)
    assert len(rows(live.output.value)) == 4
    one = TinyTarget(up_to=0)
    live = Live(explorer(identify(samples, one)), strict=True)
    assert len(rows(live.output.value)) == 1
    assert rows(live.output.value)[0].startswith("0 (embedding)")


def test_what_could_not_be_compared_is_a_sentence(target):
    short = dump(target, [torch.tensor([5, 6])], [2])
    live = Live(explorer(identify(short, target)), strict=True)
    assert "Boundaries nearest to slot 0: it could be compared with none" in live.output.value
    assert "median over 0 samples" in alt(live.output.value)
    nan = dump(target, random_texts(1), [2, 4], change=lambda s, x: x * float("nan") if s else x)
    live = Live(explorer(identify(nan, target)), strict=True)
    live.controls["slot"].value = 1
    assert "it could be compared with none" in live.output.value


def test_hostile_names_are_text(target):
    evil = "<script>alert(1)</script>\u202e"
    named = [replace(s, key=evil + s.key, slot_names=(evil, evil + "2")) for s in dump(target, random_texts(), [2, 4])]
    shown = explorer(identify(named, target))
    live = Live(shown, strict=True)
    live.controls["sample"].value = 1
    for markup in (live.output.value, shown.twin()):
        assert "<script" not in markup
        assert "\u202e" not in markup


def test_every_control_has_its_label_and_the_twin_is_one_figure(found):
    live = Live(explorer(found), strict=True)
    assert [c.description for c in live.controls.values()] == ["Measure", "Sample", "Slot in the table", "Box what is claimed"]
    assert [label for label, _ in live.controls["sample"].options] == ["median over 3", "data_0.pt", "data_1.pt", "data_2.pt"]
    twin = explorer(found).twin()
    assert twin.count("<figure") == 1
    assert "<table" not in twin
