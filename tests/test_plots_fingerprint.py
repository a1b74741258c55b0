"""Figures of a fingerprint: what the title says comes from the data, and odd data still draw."""

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from eaglelab.dumps import Sample
from eaglelab.fingerprint import fingerprint
from eaglelab.plots import style
from eaglelab.plots.fingerprint import cosine_between_slots, norm_by_position, norm_by_slot, norm_title


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def make(norms, first=(), tokens=30, key="a.pt"):
    g = torch.Generator().manual_seed(0)
    states = [torch.randn(tokens, 16, generator=g) for _ in norms]
    states = [state / state.norm(dim=1, keepdim=True) * norm for state, norm in zip(states, norms, strict=True)]
    for s, factor in enumerate(first):
        states[s][0] *= factor
    return fingerprint([Sample(key, torch.arange(tokens), tuple(states), None, tuple(f"s{i}" for i in range(len(norms))))])


def title(ax):
    return ax.get_title(loc="left").replace("\n", " ")


def drawn(ax):
    ax.figure.savefig("/dev/null", format="png")
    return ax


def test_titles_say_the_finding():
    fp = make([1.0383, 37.165, 174.3977, 111.3359], first=[1, 12, 3])
    ax = drawn(norm_by_slot(fp.slots, counted=fp.counted))
    assert title(ax) == "Slot norms differ 168-fold; first token 12x its slot's median (slot 1)"
    assert ax.get_yscale() == "log"
    assert "(log)" in ax.get_ylabel()
    assert ax.get_xlabel() == "1 sample, 30 tokens"
    assert title(norm_by_slot(make([2.0, 2.0]).slots)) == "The slots have about one norm"


def test_marks_stand_at_the_data():
    fp = make([2.0, 50.0], first=[30, 1])
    ax = norm_by_slot(fp.slots)
    medians, firsts = (c.get_offsets()[:, 1].tolist() for c in ax.collections)
    assert medians == pytest.approx([2, 50], rel=1e-5)
    assert firsts == pytest.approx([60, 50], rel=1e-5)
    low, high = ax.get_ylim()
    assert low < 2
    assert high > 60


def test_norm_by_position_marks_massive_tokens():
    fp = make([2.0, 50.0], first=[30, 1])
    ax = drawn(norm_by_position(fp.tokens))
    assert title(ax) == "1 massive token at position 0 (over 10x the slot's median)"
    assert len(ax.lines) == 2
    assert ax.collections[0].get_offsets().tolist() == [[0, pytest.approx(60, rel=1e-5)]]
    assert len(ax.collections[1].get_offsets()) == 0
    assert title(norm_by_position(make([2.0, 3.0]).tokens)) == "No massive token: no norm over 10x its slot's median"
    with pytest.raises(ValueError, match=r"no tokens of sample 'b\.pt'; the table has \['a\.pt'\]"):
        norm_by_position(fp.tokens, sample="b.pt")


def test_cosine_heatmap_is_centred_at_zero():
    table = pd.DataFrame([[1, -0.2, 0.7], [-0.2, 1, np.nan], [0.7, np.nan, 1]])
    ax = drawn(cosine_between_slots(table))
    assert title(ax) == "Slots 0 and 2 are the most alike (cosine 0.70)"
    assert ax.images[0].get_clim() == (-1, 1)
    assert [t.get_text() for t in ax.texts] == ["1.00", "-0.20", "0.70", "-0.20", "1.00", "none", "0.70", "none", "1.00"]
    same = pd.DataFrame([[1, 1.0], [1.0, 1]])
    assert title(cosine_between_slots(same)) == "Slots 0 and 1 point the same way"
    assert title(cosine_between_slots(pd.DataFrame([[1.0]]))) == "No two slots to compare"


def test_axes_given_are_the_axes_used():
    _, ax = plt.subplots()
    fp = make([1.0, 5.0])
    assert norm_by_slot(fp.slots, ax=ax) is ax
    assert len(plt.get_fignums()) == 1


def test_bad_slots_and_hostile_names_still_draw():
    zero, nan, fine = torch.zeros(5, 4), torch.full((5, 4), float("nan")), torch.ones(5, 4)
    key = "$x^{$ <script>" + "long" * 40
    fp = fingerprint([Sample(key, torch.arange(5), (zero, nan, fine), None, ("a", "b", "c"))])
    drawn(norm_by_slot(fp.slots))
    ax = drawn(norm_by_position(fp.tokens))
    assert len(ax.get_xlabel()) < 90
    drawn(cosine_between_slots(fp.cosine))
    dead = fingerprint([Sample("z", torch.arange(5), (zero, nan), None, ("a", "b"))])
    assert norm_title(dead.slots) == "No slot has a usable state"
    drawn(norm_by_slot(dead.slots))
    drawn(norm_by_position(dead.tokens))


def test_many_slots_draw():
    fp = make([1.0 + s for s in range(30)])
    drawn(norm_by_slot(fp.slots))
    drawn(norm_by_position(fp.tokens))
    assert not drawn(cosine_between_slots(fp.cosine)).texts  # no room for numbers


def test_a_concept_keeps_its_colour():
    assert len({style.DRAFT, style.VERIFY, style.OTHER, *style.SLOTS}) == 3 + len(style.SLOTS)
    assert [style.slot_color(s, 4) for s in range(4)] == list(style.SLOTS[:4])
    assert style.slot_color(1, 2) == style.slot_color(1, 5)
    assert len({style.slot_color(s, 12) for s in range(12)}) == 12


def test_a_dollar_sign_is_no_formula():
    ax = style.finish(style.axes(None), "costs $5 and $x^{", "a$b", "c$d$")
    drawn(ax)
    assert title(ax) == "costs $5 and $x^{"


def test_a_long_title_leaves_no_single_word_over():
    ax = style.finish(style.axes(None), "word " * 13, "", "")
    first, second = ax.get_title(loc="left").split("\n")
    assert abs(len(first) - len(second)) <= 5
    assert title(style.finish(style.axes(None), "", "", "")) == ""
