"""Norms by hand: the stretch, slot and scale asked for, and the target's own norms where they are had without a forward."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from case_builder import write_case
from figures import closed, drawn, title  # noqa: F401
from identify_fakes import TinyTarget, dump, random_texts

from eaglelab.dumps import Sample
from eaglelab.explore import Live
from eaglelab.explore.norms import NormFingerprint, boundary_norms
from eaglelab.fingerprint import fingerprint
from eaglelab.identify import identify
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.plots.fingerprint import norm_by_position
from eaglelab.target.sketch import make_sketch


def sample(norms, key="a.pt"):
    """norms: [T][S], the norm of each state."""
    values = torch.tensor(norms)  # [T, S]
    slots = tuple(torch.nn.functional.pad(values[:, s : s + 1], (0, 3)) for s in range(values.shape[1]))
    return Sample(key, torch.arange(len(norms)), slots, None, tuple(f"h{s}" for s in range(values.shape[1])))


def investigated(samples, **known):
    """What the explorer asks of an investigation."""
    case = SimpleNamespace(target=SimpleNamespace(sketch=known.pop("sketch", None)))
    return SimpleNamespace(case=case, fingerprint=fingerprint(samples), lost=SimpleNamespace(tokenizer=None), **known)


def words(markup):
    return " ".join(re.sub("<[^>]+>", " ", markup).split())


@pytest.fixture
def live():
    rows = [[50.0, 2.0]] + [[1.0, 2.0]] * 8 + [[3.0, 2.0]]
    return Live(NormFingerprint(investigated([sample(rows), sample(rows[:4], "b.pt")])), strict=True)


def test_the_tokens_that_stand_out_in_the_stretch_and_slot(live):
    assert "0 #0 0 50 50 9 #9 0 3 3" in words(live.output.value)
    live.controls["first"].value = 1
    assert "9 #9 0 3 3" in words(live.output.value)
    assert "0 #0 0 50" not in words(live.output.value)
    live.controls["slot"].value = 2
    assert "1 #1 1 2 1" in words(live.output.value)
    assert "#9 0 3 3" not in words(live.output.value)


def test_the_ends_of_the_stretch_never_cross_and_fit_the_sample(live):
    live.controls["last"].value = 4
    live.controls["first"].value = 7
    assert live.controls["last"].value == 7
    live.controls["last"].value = 2
    assert live.controls["first"].value == 2
    live.controls["sample"].value = 1
    assert [live.controls[n].value for n in ("first", "last")] == [0, 3]
    live.buttons["Leave the first token out"].click()
    assert live.controls["first"].value == 1
    assert "No massive token" in live.output.value


def test_log_or_linear_and_which_lines_are_drawn():
    table = fingerprint([sample([[50.0, 2.0], [1.0, 2.0], [4.0, 2.0]])]).tokens
    assert drawn(norm_by_position(table)).get_yscale() == "log"
    ax = drawn(norm_by_position(table[table["slot"] == 0], log=False))
    assert ax.get_yscale() == "linear"
    assert ax.lines[0].get_ydata() == pytest.approx([50, 1, 4])
    assert ax.get_ylabel() == "L2 norm of a state"


def test_the_targets_norms_stand_behind_with_their_numbers():
    table = fingerprint([sample([[1.0, 100.0]] * 5)]).tokens
    behind = pd.DataFrame({"boundary": [0, 1, 2, 3, "final"], "norm": [0.1, 2.0, 2.01, 30.0, np.nan]})
    ax = drawn(norm_by_position(table, behind=behind))
    grey = next(c for c in ax.collections if type(c).__name__ == "LineCollection")
    assert sorted(path.vertices[0, 1] for path in grey.get_paths()) == pytest.approx([2.0, 2.01, 30.0])  # what the axis spans
    assert [t.get_text() for t in ax.texts] == ["1", "3"]  # 2 would lie on 1


def test_a_long_line_keeps_its_peaks():
    rows = [[1.0]] * 20_000
    rows[7_777] = [9.0]
    ax = drawn(norm_by_position(fingerprint([sample(rows)]).tokens))
    x, y = ax.lines[0].get_data()
    assert len(x) <= 2000
    assert y[list(x).index(7_777)] == 9


def test_boundary_norms_come_from_the_sketch_or_a_comparison_made_already(tmp_path):
    target, texts = TinyTarget(), random_texts(length=30)
    samples = dump(target, texts, [2, 4])
    states = [target.states(ids) for ids in texts]
    path = make_sketch(target, texts, rows=20).save(tmp_path / "sketch.safetensors")
    table, said = boundary_norms(investigated(samples, sketch=path))
    wanted = np.median(np.concatenate([s[3][1:20].norm(dim=-1).numpy() for s in states]))
    assert table.set_index("boundary").loc[3, "norm"] == pytest.approx(wanted, rel=1e-4)
    assert said.endswith("by its sketch, median over 57 tokens of 3 texts")
    found = identify(samples, target)
    table, said = boundary_norms(investigated(samples, identification=found))
    assert table["boundary"].tolist() == list(found.boundaries)
    assert table.set_index("boundary").loc[3, "norm"] == pytest.approx(wanted, rel=0.05)
    assert "3 samples compared" in said


def test_without_them_it_is_said_how_to_get_them(live):
    assert live.controls["boundaries"].disabled
    assert "Not given:" in live.output.value
    assert "the norms of the target&#x27;s own boundaries" in live.output.value
    assert "eaglelab sketch TARGET --dump DUMP" in words(live.output.value)


def test_a_sketch_that_cannot_be_read_is_a_sentence(tmp_path):
    (tmp_path / "s.safetensors").write_bytes(b"no sketch")
    live = Live(NormFingerprint(investigated([sample([[1.0], [2.0]])], sketch=tmp_path / "s.safetensors")), strict=True)
    assert "truncated or not a safetensors file" in live.output.value


def test_nan_and_zero_states_are_counted(live):
    rows = [[1.0, 1.0], [float("nan"), 0.0], [2.0, 1.0]]
    live = Live(NormFingerprint(investigated([sample(rows)])), strict=True)
    assert "Of 6 states 1 hold NaN or Inf and 1 are all zero: left out of the lines." in live.output.value
    dead = Live(NormFingerprint(investigated([sample([[float("nan")], [0.0]])])), strict=True)
    assert "Tokens that stand out most: no usable state here" in dead.output.value


def test_hostile_names_are_text_and_the_twin_needs_no_script():
    evil = "<script>alert(1)</script>\u202e" + "k" * 400
    explorer = NormFingerprint(investigated([sample([[1.0], [2.0]], evil)]))
    for markup in (explorer.twin(), Live(explorer, strict=True).output.value):
        assert "<script" not in markup
        assert "\u202e" not in markup
    assert explorer.twin().count("<figure") == 1


def test_without_a_dump(tmp_path):
    (tmp_path / "t").mkdir()
    with pytest.raises(NotGiven, match="a dump is not given"):
        NormFingerprint(Investigation(str(write_case(tmp_path, {"target": {"path": "t"}}))))


def test_every_control_has_its_label(live):
    labels = [c.description for c in live.controls.values()]
    assert labels == ["Sample", "Slot", "From token", "to token", "Scale", "Target's boundaries behind"]
