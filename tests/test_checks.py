"""Each check on small whole cases: every status, the words for what is absent, and how a fault reaches the verdict."""

import json
import shlex

import pytest
import torch
from case_builder import build_case, draft_config, drafter_tensors, dump_sample, make_world, write_case, write_drafter
from safetensors.torch import load_file, save_file

from eaglelab.checks import CHECKS, run_checks, wirings
from eaglelab.cli import main
from eaglelab.engines.wiring_report import engine_wiring
from eaglelab.findings import Status, exit_code
from eaglelab.investigation import Investigation
from eaglelab.verdict import verdict
from eaglelab.wiring import FINAL

SLOTS, IDS = [1, 3, 5, FINAL], [0, 2, 4]
PASS, FAIL, CANNOT_TELL, NOT_GIVEN = Status.PASS, Status.FAIL, Status.CANNOT_TELL, Status.NOT_GIVEN


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("world"), "llama", 6, seed=3)


def look(case, **options):
    """(findings by id, verdict, investigation)."""
    inv = Investigation(str(case), **options)
    findings = list(run_checks(inv))
    return {f.id: f for f in findings}, verdict(findings, inv), inv


def built(path, world, **options):
    return build_case(path, world, **({"slots": SLOTS, "ids": IDS} | options))


def edit_config(case, **changes):
    file = case / "drafter" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def edit_tensors(case, change):
    file = case / "drafter" / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


# -- absent inputs ------------------------------------------------------------------------------------------------------------------


def test_two_configs_a_launch_line_and_an_engine_are_enough(world, tmp_path):
    """No dump, no weights: the boundaries fed come out, and every other check says what it would need."""
    (tmp_path / "served.json").write_text(json.dumps(draft_config([-1, 2, 4])))
    launch = "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 --speculative-draft-model-path d "
    launch += "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6"
    engine = {"version": "0.5.23", "name": "sglang", "launch": launch, "draft_config": "served.json"}
    case = write_case(tmp_path, {"target": {"config": world.folder / "config.json"}, "engine": engine})
    by_id, said, inv = look(case)
    assert by_id["wiring.engine"].title == "SGLang 0.5.23 feeds boundaries [0, 3, 5] with served.json"
    assert by_id["wiring.engine"].status is PASS
    absent = {i: f for i, f in by_id.items() if f.status is NOT_GIVEN}
    served = {c.id for c in CHECKS if c.id.startswith("served.")} - {
        "served.acceptance",
        "served.variant",
    }  # one finding says that nothing served is given
    told = {"wiring.engine", "wiring.versions", "config", "context.rope", "wiring.claims", "flags", "engine.known", "dump.images"}
    assert set(absent) == {c.id for c in CHECKS} - told - served
    assert "[dump] path" in absent["dump.health"].next
    assert absent["dump.health"].title == "Are the dump's files whole? Not given: a dump"
    assert "[drafter] path" in absent["drafter.complete"].next
    assert exit_code(by_id.values()) == 0
    assert said.stage == "cannot tell"
    assert "[dump] path" in said.text
    assert inv.steps == 5
    assert wirings(inv, by_id.values()) == {"dump": None, "drafter": None, "engine": [0, 3, 5]}


def test_a_claim_alone_has_nothing_to_be_held_against(tmp_path):
    case = write_case(tmp_path, {}, [{"slot": 0, "text": "embed"}])
    by_id, said, _ = look(case)
    assert by_id["wiring.claims.slot0"].status is NOT_GIVEN
    assert by_id["wiring.engine"].status is NOT_GIVEN
    assert "the engine and the drafter's config and the target's config not given" in by_id["wiring.engine"].title
    assert said.stage == "cannot tell"


def test_without_embedding_rows_the_replay_is_not_given(world, tmp_path):
    case = built(tmp_path, world, target="none", drafter={}, dump={})
    file = case / "case.toml"
    file.write_text(file.read_text().replace('embed = "rows.safetensors"\n', ""))
    by_id, said, _ = look(case)
    replayed = [f for i, f in by_id.items() if i.startswith("replay.")]
    assert {f.status for f in replayed} == {NOT_GIVEN}
    assert all("Not given: embedding rows" in f.title and "`[drafter] embed`" in f.next for f in replayed)
    assert by_id["wiring.dump"].status is NOT_GIVEN
    assert said.stage == "cannot tell"


# -- a case with nothing wrong, and the exit codes -----------------------------------------------------------------------------------


UNGIVEN = ("text.", "drafter.vocabulary.other", "training.", "served.", "timing.", "cost.", "flags", "errors", "triangle")
"""Checks of inputs that the tiny case does not have."""


def test_nothing_wrong_is_said_to_be_so(world, tmp_path):
    by_id, said, inv = look(built(tmp_path, world))
    assert by_id.pop("lost.steps").numbers["collapse"]  # the tiny drafter is made for step 0 alone
    assert {f.status for i, f in by_id.items() if not i.startswith(UNGIVEN)} <= {PASS, Status.NOT_APPLICABLE}
    assert {f.status for i, f in by_id.items() if i.startswith("text.")} == {PASS, NOT_GIVEN}  # the tiny target has no tokenizer
    assert {f.status for i, f in by_id.items() if i.startswith(("timing.", "cost.", "flags"))} == {NOT_GIVEN}
    assert exit_code(by_id.values()) == 0
    assert (said.stage, said.confidence) == ("none found", "likely")  # since it collapses
    assert by_id["replay.expected"].title in said.text
    assert by_id["drafter.vocabulary.coverage"].numbers["coverage"] == pytest.approx(40 / 48, abs=0.03)
    names = inv.replays[0].table["variant"].tolist()
    assert len(names) == len(set(names)) >= 24  # every ordered choice of 3 out of 4 slots, each once


def test_exit_codes_follow_the_worst_finding(world, tmp_path):
    assert exit_code(look(built(tmp_path / "a", world, ids=[-1, 0, 2]))[0].values()) == 1
    assert exit_code(look(built(tmp_path / "b", world), max_samples=1)[0].values()) == 3


# -- the dump -----------------------------------------------------------------------------------------------------------------------


def nan_slot(sample, i):
    sample["hidden_states"][1][:] = float("nan")


def late_slot(sample, i):
    state = sample["hidden_states"][1]
    sample["hidden_states"][1] = torch.cat([state[:1], state[:-1]])


def test_a_slot_of_nan_is_the_dumps_fault_alone(world, tmp_path):
    by_id, said, _ = look(built(tmp_path, world, spoil=nan_slot))
    assert by_id["dump.health"].status is FAIL
    assert "NaN or Inf (8)" in by_id["dump.health"].title
    assert by_id["wiring.anomalies"].title == "The dump's states are faulty: slot 1 NaN or infinite"
    assert by_id["wiring.match"].status is CANNOT_TELL  # what was never compared is not refuted
    assert said.stage == "dump"
    assert "slot 1 NaN or infinite" in said.text


def test_a_slot_one_row_late_reaches_the_verdict(world, tmp_path):
    by_id, said, _ = look(built(tmp_path, world, spoil=late_slot))
    assert by_id["wiring.anomalies"].numbers["anomalies"][0]["kind"] == "shifted"
    assert by_id["wiring.dump"].numbers["wiring"] == [1, None, 5, FINAL]
    assert (said.stage, said.changes) == ("dump", ())


def test_rows_of_another_sample_reach_the_verdict(world, tmp_path):
    def swapped(sample, i):
        other = dump_sample(world, (i + 1) % 8, SLOTS)["hidden_states"]
        sample["hidden_states"] = [torch.cat([h, h])[: len(sample["input_ids"])] for h in other]

    by_id, said, _ = look(built(tmp_path, world, spoil=swapped))
    assert "swapped rows" in by_id["wiring.anomalies"].title
    assert by_id["dump.last_state"].status is CANNOT_TELL
    assert said.stage == "dump"


def test_one_bad_file_is_a_side_remark(world, tmp_path):
    def wide(sample, i):
        if i == 2:
            sample["hidden_states"] = [torch.cat([h, h], 1) for h in sample["hidden_states"]]

    by_id, said, _ = look(built(tmp_path, world, spoil=wide))
    assert by_id["dump.health"].status is FAIL
    assert "1 with errors" in by_id["dump.health"].title
    assert said.stage == "none found"
    assert "Some files are bad" in said.text


def test_a_mask_of_zeros_and_an_unknown_mask_differ(world, tmp_path):
    def zeros(sample, i):
        sample["loss_mask"][:] = 0

    def unknown(sample, i):
        sample["loss_mask"] = None

    by_id, said, _ = look(built(tmp_path / "zeros", world, spoil=zeros))
    assert "no response tokens (8)" in by_id["dump.health"].title
    assert "the loss mask is all zeros" in by_id["replay.works"].evidence
    assert by_id["replay.order"].title.endswith("the reason given at replay.works")
    assert by_id["dump.last_state"].next == "Mend the loss mask, or read more samples."
    assert said.stage == "dump"
    by_id, said, _ = look(built(tmp_path / "unknown", world, spoil=unknown))
    assert by_id["replay.works"].status is PASS
    assert "The loss mask is unknown" in by_id["replay.works"].evidence
    assert by_id["replay.expected"].status is CANNOT_TELL
    assert (said.stage, said.confidence) == ("none found", "likely")


def test_the_last_state_may_lie_anywhere_but_must_be_one(world, tmp_path):
    by_id, said, _ = look(built(tmp_path / "first", world, slots=[FINAL, 1, 3, 5], feed=[1, 2, 3, 0]))
    assert said.stage == "none found"
    by_id, said, _ = look(built(tmp_path / "middle", world, slots=[1, 3, 5, 4]))
    assert by_id["dump.last_state"].status is FAIL
    assert "not boundary 6 or the state after the final norm" in by_id["dump.last_state"].title
    assert "config.final_norm" not in by_id
    assert said.stage == "dump"


def test_a_dump_with_fewer_slots_than_fc_takes_is_not_the_drafters(world, tmp_path):
    def one_lost(sample, i):
        del sample["hidden_states"][1]

    by_id, said, _ = look(built(tmp_path, world, spoil=one_lost, dump={"feed": None}))
    assert by_id["dump.feed"].title == "The dump holds 2 slots beside the last state, and the drafter's fc takes 3"
    assert (by_id["dump.feed"].status, by_id["wiring.match"].status) == (FAIL, CANNOT_TELL)
    assert said.stage == "dump"
    assert said.changes == ()


def test_a_feed_that_is_not_there_or_does_not_fit_fc(world, tmp_path):
    by_id, said, _ = look(built(tmp_path / "fit", world, dump={"feed": [0, 1, 3]}))
    assert "dump.feed" not in by_id  # the slots are there, and the case names too few of them
    assert by_id["wiring.match"].status is CANNOT_TELL
    assert "the dump feeds 2 slots [0, 1] and the drafter's fc takes 3" in by_id["wiring.match"].evidence
    assert said.changes == ()  # no advice to serve two slots to an fc of three
    by_id, _, _ = look(built(tmp_path / "out", world, dump={"feed": [0, 1, 2, 9]}))
    assert "names slots that are not there, expected slots 0..3" in by_id["dump.health"].evidence
    by_id, said, _ = look(built(tmp_path / "same", world, feed=[0, 0, 0, 3]))
    assert "A boundary is wanted twice" in by_id["wiring.match"].next
    assert said.changes == ()


# -- the drafter --------------------------------------------------------------------------------------------------------------------


def test_a_missing_tensor_is_named_and_sure(world, tmp_path):
    case = built(tmp_path, world)
    edit_tensors(case, lambda t: t.pop("midlayer.hidden_norm.weight"))
    by_id, said, _ = look(case)
    assert by_id["drafter.complete"].status is FAIL
    assert "missing midlayer.hidden_norm.weight" in by_id["drafter.complete"].title
    assert by_id["wiring.match"].status is PASS  # the rest goes on
    assert (said.stage, said.confidence) == ("training", "sure")


def test_a_vocabulary_map_out_of_range_is_a_fault(world, tmp_path):
    case = built(tmp_path, world)
    edit_tensors(case, lambda t: t.update(d2t=t["d2t"] + 100))
    by_id, said, _ = look(case)
    assert by_id["drafter.vocabulary"].status is FAIL
    assert "outside the target's vocabulary (0..47)" in by_id["drafter.vocabulary"].evidence
    assert (said.stage, said.confidence) == ("training", "sure")


def test_a_lost_vocabulary_map_is_a_fault(world, tmp_path):
    case = built(tmp_path, world)
    edit_tensors(case, lambda t: t.update(d2t=torch.zeros_like(t["d2t"])))
    by_id, _, _ = look(case)
    assert by_id["drafter.vocabulary"].status is FAIL
    assert "d2t is all zeros" in by_id["drafter.vocabulary"].evidence


def test_the_whole_vocabulary_needs_no_map(world, tmp_path):
    case = built(tmp_path, world, drafter={"draft_vocab": 48}, config={"draft_vocab_size": 48})
    edit_tensors(case, lambda t: (t.pop("d2t"), t.pop("t2d")))
    by_id, said, _ = look(case)
    assert by_id["drafter.vocabulary"].status is Status.NOT_APPLICABLE
    assert said.stage == "none found"


def test_a_drafter_that_knows_nothing_does_not_work(world, tmp_path):
    case = built(tmp_path, world)
    edit_tensors(case, lambda t: t["lm_head.weight"].copy_(t["lm_head.weight"].roll(7, 0)))
    by_id, said, _ = look(case)
    assert by_id["replay.works"].status is FAIL
    assert said.stage == "training"


def test_a_drafter_of_another_width_brings_its_own_embedding(world, tmp_path):
    """hidden_size 128 on a target of 64: its own table is taken, and the target's rows are not forced on it."""
    case = built(tmp_path, world, target="none")
    small, wide = drafter_tensors(world, SLOTS[:3]), {}
    for name, tensor in small.items():
        if name == "fc.weight":
            wide[name] = torch.cat([tensor, torch.zeros_like(tensor)])
        elif tensor.ndim == 1 and "norm" in name:
            wide[name] = torch.ones(128)
        elif "_proj" in name and "down" not in name and "o_proj" not in name:
            wide[name] = torch.zeros(len(tensor), 2 * tensor.shape[1])
        elif "down" in name or "o_proj" in name:
            wide[name] = torch.zeros(128, tensor.shape[1])
        elif name == "lm_head.weight":
            wide[name] = torch.cat([tensor, torch.zeros_like(tensor)], 1)
        else:
            wide[name] = tensor
    wide["embed_tokens.weight"] = torch.randn(48, 128)
    write_drafter(case / "drafter", wide, draft_config(IDS, hidden_size=128, target_hidden_size=64))
    file = case / "case.toml"
    file.write_text(file.read_text().replace('embed = "rows.safetensors"\n', ""))
    by_id, _, inv = look(case)
    assert inv.embedding.source == "the drafter's own embedding table"
    assert by_id["replay.works"].status is PASS
    assert by_id["wiring.dump"].status is NOT_GIVEN  # rows of another width say nothing of the target's embedding


# -- trainers and flags -------------------------------------------------------------------------------------------------------------


def test_the_replay_finds_the_residual_that_the_config_denies(world, tmp_path):
    by_id, said, _ = look(built(tmp_path, world, drafter={"residual_sign": True}))
    assert by_id["replay.choices"].status is FAIL
    assert "residual after hidden_norm" in by_id["replay.choices"].title
    assert said.stage == "training"
    assert "residual after hidden_norm" in said.text


def test_an_old_trainer_forced_the_residual_and_sglang_ignores_it(world, tmp_path):
    trained = {"framework": "speculators", "version": "0.3.0"}
    case = built(tmp_path, world, config={"norm_before_residual": False}, drafter={"residual_sign": True}, training=trained)
    by_id, said, _ = look(case)
    assert by_id["config.training_residual"].status is FAIL
    assert by_id["replay.choices"].status is FAIL
    assert (said.stage, said.confidence) == ("training", "sure")  # the trainer's habit and the replay agree


def test_a_final_normed_state_for_a_trainer_that_norms_again(world, tmp_path):
    trained = {"framework": "speculators", "version": "0.5.0"}
    by_id, said, _ = look(built(tmp_path, world, config={"norm_before_residual": False}, training=trained))
    assert by_id["config.final_norm"].status is FAIL
    assert "normed twice" in by_id["config.final_norm"].title
    assert by_id["replay.targets"].status is PASS  # this drafter was trained on the target's own choice
    assert said.stage == "none found"
    assert "mend the dump before the next training" in said.text
    right = built(tmp_path / "n", world, slots=[1, 3, 5, 6], config={"norm_before_residual": False}, training=trained)
    by_id, said, _ = look(right)
    assert "config.final_norm" not in by_id
    assert said.stage == "none found"


# -- the engine ---------------------------------------------------------------------------------------------------------------------


def test_an_unknown_engine_stops_only_what_needs_it(world, tmp_path):
    by_id, _, _ = look(built(tmp_path, world, engine=("tensorrt", "1.0")))
    assert by_id["wiring.engine"].status is CANNOT_TELL
    assert "unknown engine 'tensorrt'" in by_id["wiring.engine"].title
    assert by_id["replay.works"].status is PASS
    assert by_id["replay.order"].status is PASS
    assert by_id["dump.last_state"].status is PASS
    assert by_id["replay.engine"].status is CANNOT_TELL


def test_too_few_layers_for_the_ids(world, tmp_path):
    config = json.loads((world.folder / "config.json").read_text()) | {"num_hidden_layers": 3}
    case = built(tmp_path, world, target="sketch")
    (case / "target-config.json").write_text(json.dumps(config))
    by_id, said, _ = look(case)
    assert by_id["wiring.engine"].status is FAIL
    assert "id 4 (boundary 5) is outside 0..3" in by_id["wiring.engine"].evidence
    assert "see wiring.match" in by_id["wiring.engine"].next
    assert "wiring" in said.stage


def test_states_switched_off_need_more_than_ids(world, tmp_path):
    """`use_aux_hidden_state: false` hides the ids; the changes must switch it back on as well."""
    case = built(tmp_path, world, config={"num_aux_hidden_states": 3})
    edit_config(case, eagle_config={"use_aux_hidden_state": False})
    by_id, said, _ = look(case)
    mine = {c.key: c.value for c in said.changes if c.engine == "sglang==0.5.23"}
    assert mine == {"eagle_config.use_aux_hidden_state": True, "eagle_config.eagle_aux_hidden_state_layer_ids": IDS}
    assert "it feeds 1 slots and the drafter's fc takes 3" in by_id["replay.engine"].title


@pytest.mark.parametrize("slots", [[1, 4, FINAL], [1, 2, 4, 5, FINAL]])
def test_drafters_of_two_and_four_slots(slots, world, tmp_path):
    by_id, said, _ = look(build_case(tmp_path, world, slots=slots, ids=[b - 1 for b in slots[:-1]]))
    assert said.stage == "none found"
    assert by_id["replay.order"].status is PASS


def test_steps_beyond_the_answers(world, tmp_path):
    def short(sample, i):
        for key in ("input_ids", "loss_mask"):
            sample[key] = sample[key][:8].clone()
        sample["hidden_states"] = [h[:8].clone() for h in sample["hidden_states"]]

    case = built(tmp_path, world, spoil=short, ids=[-1, 0, 2])
    by_id, said, _ = look(case, steps=7)
    assert by_id["replay.expected"].title == "No answer in the samples is long enough for all steps"
    served = by_id["replay.engine"]
    assert "length not known instead of not known" in served.title or "no slot of the dump holds" in served.title
    assert said.stage == "wiring"


def test_the_next_step_is_a_command_that_works(world, tmp_path, monkeypatch, capsys):
    """What wiring.match says to run, run word for word in the case's folder, writes a config that feeds what the dump holds."""
    case = built(tmp_path / "a case", world, ids=[-1, 0, 2], target="sketch")
    by_id, said, inv = look(case)
    command = by_id["wiring.match"].next.split("`")[1]
    assert command in said.text
    monkeypatch.chdir(case)
    assert main(shlex.split(command)[1:]) == 0
    written = json.loads((case / "drafter" / "config.sglang-0.5.23.json").read_text())
    assert engine_wiring(written, inv.target_config, inv.engine).wiring == inv.dump_wiring.select([0, 1, 2])


# -- claims -------------------------------------------------------------------------------------------------------------------------


def test_a_wrong_claim_on_a_right_config_is_no_fault(world, tmp_path):
    claims = [{"slot": 0, "text": "embed"}, {"slot": 0, "text": "layer1"}, {"slot": 9, "text": "final"}, {"slot": 2, "text": "aux"}]
    by_id, said, _ = look(built(tmp_path, world, claims=claims))
    assert by_id["wiring.claims.slot0"].status is FAIL
    assert by_id["wiring.claims.slot0.2"].status is PASS
    assert by_id["wiring.claims.slot9"].title == "There is no slot 9: the dump has 4 slots, 0 to 3"
    assert by_id["wiring.claims"].title == "1 claim names no boundary: nothing to compare"
    assert said.stage == "none found"
    assert by_id["wiring.claims.slot0"].title in said.text


def test_another_target_refutes_no_claim(world, tmp_path_factory, tmp_path):
    """Nothing of the dump fits: the target is another one, and neither claim nor wiring is called wrong for that."""
    other = make_world(tmp_path_factory.mktemp("other"), "llama", 6, seed=99)
    claims = [{"slot": 1, "text": "layer3"}]
    by_id, said, _ = look(_with_target(tmp_path, world, other, claims))
    assert by_id["wiring.dump"].status is CANNOT_TELL
    assert by_id["wiring.claims.slot1"].status is CANNOT_TELL
    assert by_id["wiring.match"].status is CANNOT_TELL
    assert "wiring.anomalies" not in by_id
    assert "wiring" not in said.stage


def _with_target(path, world, other, claims):
    case = built(path, world, claims=claims)
    file = case / "case.toml"
    file.write_text(file.read_text().replace(str(world.folder), str(other.folder)))
    return case
