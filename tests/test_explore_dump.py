"""The dump browser: what it shows is what the files hold, and only the sample asked for is read."""

import re

import ipywidgets as widgets
import pytest
import torch
from case_builder import write_case
from text_fakes import conversation, make_tokenizer, talk_case

from eaglelab.dumps import DumpError, Sample
from eaglelab.dumps.summary import summarise
from eaglelab.explore import Live
from eaglelab.explore.dump_browser import DumpBrowser
from eaglelab.explore.frame import MOST_LISTED
from eaglelab.explore.mask_strip import mask_strip
from eaglelab.investigation import Investigation, NotGiven

EVIL = "<script>alert(1)</script>\u202egnp.exe\x07"


class Speaker:
    """A tokenizer whose every token says the same."""

    def __init__(self, said):
        self.said = said

    def decode(self, ids, **_options):
        return self.said


def words(markup):
    return " ".join(re.sub("<[^>]+>", " ", markup).split())


def opened(root, samples):
    """An investigation of samples as they are saved: name -> what the file holds."""
    for name, held in samples.items():
        path = root / "dump" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(held, path) if isinstance(held, dict) else path.write_bytes(held)
    return Investigation(str(write_case(root, {"dump": {"path": "dump"}})))


def plain(tokens=6, slots=2, width=4, mask=None, start=0.0):
    states = [start + torch.arange(tokens * width).reshape(tokens, width).float() + 100 * s for s in range(slots)]
    held = {"input_ids": torch.arange(tokens), "hidden_states": states}
    return held if mask is None else held | {"loss_mask": torch.tensor(mask)}


def test_values_tokens_and_mask_are_those_of_the_file(tmp_path):
    tokenizer = make_tokenizer()
    ids, mask = conversation(tokenizer, "Tea?", "Yes, tea.")
    live = Live(DumpBrowser(Investigation(str(talk_case(tmp_path, [(ids, mask)], tokenizer)))), strict=True)
    start = mask.index(1)
    assert live.controls["first"].value == start - 2
    live.controls["slot"].value = 3  # slot 2
    live.controls["rows"].value = 3
    live.controls["channel"].value = 5
    live.controls["values"].value = 2
    state = torch.load(tmp_path / "dump" / "data_0.pt")["hidden_states"][2][start, 5:7]
    row = f"{start} {ids[start]} Y yes 2 {state[0]:.4g} {state[1]:.4g}"
    assert row in words(live.output.value)
    assert f"{start - 1} {ids[start - 1]} ⏎ no 2" in words(live.output.value)
    assert f"T = {len(ids)} tokens, {sum(mask)} trained in 1 span" in live.output.value
    text = words(live.output.value).replace(" ", "")
    assert "assistant⏎⟦Yes,tea.<|im_end|>".replace("<", "&lt;").replace(">", "&gt;") in text
    assert text.count("⟧") == 2  # the text's and the legend's
    assert "dump" not in live.error.value


def test_a_slot_in_one_line():
    slot = torch.tensor([[1.0, 2.0], [3.0, float("nan")], [0.0, 0.0], [float("inf"), -6.0]])
    found = summarise(slot)
    kept = torch.tensor([1.0, 2.0, 3.0, 0.0, 0.0, -6.0])
    assert (found.shape, found.rows, found.nan, found.inf, found.zero_rows) == ((4, 2), 4, 1, 1, 1)
    assert (found.least, found.greatest, found.mean) == (-6, 3, pytest.approx(float(kept.mean())))
    assert found.std == pytest.approx(float(kept.std(correction=0)))
    assert found.flags == "NaN! (1 value); Inf! (1 value); 1 zero row"
    nothing = summarise(torch.full((2, 3), float("nan"), dtype=torch.bfloat16))
    assert nothing.nan == 6
    assert nothing.mean != nothing.mean
    assert summarise(torch.ones(2, 3).to(torch.float8_e4m3fn)).mean == 1
    assert summarise(torch.empty(0, 3)).rows == 0


def test_of_a_large_slot_rows_spread_evenly_are_read():
    slot = torch.arange(1000.0)[:, None].expand(-1, 8).contiguous()
    found = summarise(slot, most=80)
    assert (found.rows, found.least, found.greatest) == (10, 0, 999)
    assert found.mean == pytest.approx(499.5, rel=0.01)


def test_jumps_go_from_span_to_span_and_say_when_there_is_none(tmp_path):
    inv = opened(
        tmp_path,
        {"data_0.pt": plain(20, mask=[0] * 5 + [1, 1] + [0] * 6 + [1] + [0] * 6), "data_1.pt": plain(mask=[0] * 6), "data_2.pt": plain()},
    )
    live = Live(DumpBrowser(inv))
    live.controls["first"].value = 0
    live.buttons["Next trained span"].click()
    assert live.controls["first"].value == 3
    live.buttons["Next trained span"].click()
    assert live.controls["first"].value == 11
    live.buttons["Next trained span"].click()
    assert "no trained span starts after row 13: the last of 2 starts at 13" in live.error.value
    live.buttons["Jump to the mask's start"].click()
    assert (live.controls["first"].value, live.error.value) == (3, "")
    live.controls["sample"].value = 1
    assert live.controls["first"].max == 5
    live.buttons["Jump to the mask's start"].click()
    assert "data_1.pt trains no token: its loss mask holds no 1" in live.error.value
    live.controls["sample"].value = 2
    assert "no loss mask: what trains is not known" in live.output.value
    assert "not known" in live.output.value
    live.buttons["Next trained span"].click()
    assert "data_2.pt stores no loss mask" in live.error.value


def test_a_sample_that_cannot_be_read_is_a_sentence_and_the_next_one_is_shown(tmp_path):
    live = Live(DumpBrowser(opened(tmp_path, {"data_0.pt": plain(), "data_1.pt": b"no zip", "data_2.pt": plain(start=50.0)})))
    before = live.output.value
    live.controls["sample"].value = 1
    assert "data_1.pt" in live.error.value
    assert live.output.value == before
    assert "el-explore-stale" in live.output._dom_classes
    live.controls["sample"].value = 2
    assert live.error.value == ""
    assert "el-explore-stale" not in live.output._dom_classes
    assert "data_2.pt" in live.output.value


def test_samples_of_other_shapes_are_shown_as_they_are(tmp_path):
    odd = plain()
    odd["hidden_states"] = [torch.ones(4, 4), torch.ones(6, 3)]
    samples = {"data_0.pt": plain(slots=3), "data_1.pt": plain(slots=3), "data_2.pt": odd, "data_3.pt": plain()}
    live = Live(DumpBrowser(opened(tmp_path, samples)))
    live.controls["sample"].value = 2
    assert "lengths differ" in live.output.value
    assert "[4, 4]" in live.output.value
    assert "[6, 3]" in live.output.value
    live.controls["slot"].value = 3
    assert "data_2.pt has 2 slots, so there is no slot 2: choose another one" in live.error.value
    live.controls["sample"].value = 0
    assert live.error.value == ""


@pytest.mark.parametrize("slots", [2, 30])
def test_dumps_with_few_slots_and_with_many(tmp_path, slots):
    live = Live(DumpBrowser(opened(tmp_path, {"data_0.pt": plain(slots=slots)})), strict=True)
    assert len(live.controls["slot"].options) == slots + 1
    assert ("The 30 slots" in live.output.value) == (slots == 30)


def test_an_eagle_1_dump(tmp_path):
    held = {"input_ids": torch.arange(5), "hidden_state": torch.ones(5, 4), "loss_mask": torch.tensor([0, 0, 1, 1, 1])}
    live = Live(DumpBrowser(opened(tmp_path, {"data_0.ckpt": held})), strict=True)
    assert "3 trained in 1 span" in live.output.value
    assert "hidden_state" in live.output.value


def test_nan_rows_are_named_in_the_table_and_flagged(tmp_path):
    held = plain()
    held["hidden_states"][1][0] = torch.tensor([float("nan"), float("inf"), -float("inf"), 1.0])
    live = Live(DumpBrowser(opened(tmp_path, {"data_0.pt": held})), strict=True)
    assert "NaN! (1 value); Inf! (2 values)" in live.output.value
    assert "1 NaN Inf -Inf 1" in words(live.output.value)


def test_of_many_samples_the_number_is_typed_and_one_is_read(tmp_path, monkeypatch):
    count = MOST_LISTED + 50
    inv = opened(tmp_path, {f"data_{i}.pt": plain(start=float(i)) for i in range(count)})
    inv.max_samples = 2
    browser = DumpBrowser(inv)
    live = Live(browser, strict=True)
    assert isinstance(live.controls["sample"], widgets.BoundedIntText)
    assert live.controls["sample"].description == f"Sample (0 to {count - 1})"
    read = []
    browser._read = (lambda inner: lambda key: read.append(key) or inner(key))(inv.dump.read)
    live.controls["sample"].value = 207
    assert set(read) == {"data_207.pt"}
    assert "data_207.pt" in live.output.value
    assert "0 0 #0 not known 0 207 208" in words(live.output.value)


def test_hostile_keys_and_tokens_are_text_and_short(tmp_path):
    name = f"data_0{EVIL.replace('/', '')}{'k' * 150}.pt"
    browser = DumpBrowser(opened(tmp_path, {name: plain(mask=[0, 1, 1, 0, 1, 0])}))
    browser.tokenizer = Speaker(EVIL + "x" * 10_000)
    live = Live(browser, strict=True)
    listed = live.controls["sample"].options[0][0]  # a text for the browser, no markup
    assert len(listed) < 80
    for markup in (live.output.value, browser.twin(), listed):
        assert "<script" not in markup or markup is listed
        assert "\u202e" not in markup
        assert "\x07" not in markup
    assert "10,0" in live.output.value  # the length of the token, in place of its end
    assert len(live.output.value) < 20_000


def test_ids_outside_the_vocabulary_have_their_number(tmp_path):
    held = plain()
    held["input_ids"] = torch.tensor([-1, 2**40, 3, 4, 5, 6])
    browser = DumpBrowser(opened(tmp_path, {"data_0.pt": held}))
    browser.tokenizer = make_tokenizer()
    live = Live(browser, strict=True)
    assert f"#{2**40}" in live.output.value
    assert "#-1" in live.output.value


def test_brackets_say_where_a_span_goes_on():
    sample = Sample("a", torch.arange(200), (torch.zeros(200, 2),), torch.ones(200, dtype=torch.int64), ("h",))
    markup = words(mask_strip(sample, None, 90, 92))
    assert markup.startswith("… ⟦… #66")
    assert "#131 …⟧ …" in markup
    whole = words(mask_strip(sample, None, 0, 200))
    assert whole.startswith("⟦ #0")
    assert "#199 ⟧ Tokens 0 to 199" in whole
    assert "No loss mask" in mask_strip(Sample("a", torch.arange(3), (torch.zeros(3, 2),), None, ("h",)), None, 0, 1)
    assert mask_strip(Sample("a", torch.arange(0), (torch.zeros(0, 2),), None, ("h",)), None, 0, 1) == ""


def test_without_a_dump_or_with_none_that_can_be_read(tmp_path):
    (tmp_path / "t").mkdir()
    with pytest.raises(NotGiven, match="a dump is not given"):
        DumpBrowser(Investigation(str(write_case(tmp_path, {"target": {"path": "t"}}))))
    inv = opened(tmp_path / "x", {"data_0.pt": plain()})
    inv.dump  # noqa: B018 - opened before the file breaks
    (tmp_path / "x" / "dump" / "data_0.pt").write_bytes(b"no zip")
    with pytest.raises(DumpError, match="none of 1 samples could be read"):
        DumpBrowser(inv)


def test_every_control_has_its_label(tmp_path):
    live = Live(DumpBrowser(opened(tmp_path, {"data_0.pt": plain()})), strict=True)
    assert [c.description for c in live.controls.values()] == ["Sample", "Slot", "First row", "Rows", "First channel", "Values"]
