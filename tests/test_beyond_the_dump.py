"""An engine that feeds boundaries which the dump does not hold: the target computes them, and the replay says what they cost."""

import json
import shutil

import pytest
import torch
from test_example import EXAMPLE, check, example_without, needs_target, status

from eaglelab.case import open_case
from eaglelab.investigation import Investigation


@needs_target
def test_all_three_one_layer_off_is_told_by_value_and_by_replay(capsys, tmp_path):
    """The commonest silent fault: a drafter trained on outputs of layers, served with ids that mean inputs."""
    case = example_without(tmp_path, "log =", "counters =", "recordings =")  # of a server with another config
    (case / "target").symlink_to(EXAMPLE / "target")
    config = json.loads((case / "drafter" / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 14, 26]
    (case / "drafter" / "config.json").write_text(json.dumps(config))
    code, result = check(capsys, case)
    assert code == 1
    assert result["wiring"]["engine"] == [2, 15, 27]
    assert status(result, "wiring.match") == status(result, "replay.engine") == "fail"
    assert (result["verdict"]["stage"], result["verdict"]["confidence"]) == ("wiring", "sure")
    numbers = next(f for f in result["findings"] if f["id"] == "replay.engine")["evidence"]["numbers"]
    first = [numbers[feed]["steps"][0]["marginal"] for feed in ("dump_feed", "engine_feed")]
    assert first[0] - 0.2 < first[1] < first[0] - 0.03  # costs some, by far not all: a log alone would not show it


@needs_target
def test_the_states_that_are_added_are_the_targets_own(tmp_path):
    from transformers import AutoModelForCausalLM

    case = example_without(tmp_path)
    (case / "target").symlink_to(EXAMPLE / "target")
    config = json.loads((case / "drafter" / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 15, 26]
    (case / "drafter" / "config.json").write_text(json.dumps(config))
    for extra in list((case / "dump").rglob("data_*.pt"))[1:]:
        extra.unlink()
    inv = Investigation(open_case(case))
    sample = inv.replay_samples[0]
    assert sample.slot_names[4:] == ("the target's boundary 2", "the target's boundary 27")  # 16 is in the dump
    model = AutoModelForCausalLM.from_pretrained(EXAMPLE / "target", dtype=torch.bfloat16)
    with torch.no_grad():
        states = model.model(sample.token_ids[None], output_hidden_states=True).hidden_states
    for slot, boundary in ((4, 2), (5, 27)):
        error = (sample.slots[slot].float() - states[boundary][0].float()).norm(dim=-1) / states[boundary][0].float().norm(dim=-1)
        assert error.median() == pytest.approx(0, abs=0.01)
    shutil.rmtree(case)
