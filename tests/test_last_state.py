"""Normed or not: by the norm's weight, by lm_head, by both or neither, against what the format implies and what the trainer does."""

import json
from dataclasses import replace

import pytest
import torch
from case_builder import VOCAB, boundary_states, build_case, make_world, one_hot, readout
from safetensors.torch import load_file, save_file
from tiny_drafters import H, V, tiny_sample
from transformers import AutoModelForCausalLM

from eaglelab.checks import findings
from eaglelab.engines.conventions import Engine
from eaglelab.engines.training import Framework, final_norm, norms_last_slot, trainer_of
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.replay.answers import Judge, TargetHead
from eaglelab.replay.last_state import measure_last_state
from eaglelab.target import TensorSource
from eaglelab.target.norms import FinalNorm
from eaglelab.wiring import FINAL


def spoken(kind: str, gain: torch.Tensor, samples: int = 3, length: int = 40, dtype=torch.float32, norm_bias=None):
    """(samples whose last state says their own text, lm_head [V, H]). kind: `final` or `N`, the state after or before the norm of `gain`."""
    g = torch.Generator().manual_seed(5)
    lm_head = torch.randn(V, H, generator=g)
    made = []
    for i in range(samples):
        sample = tiny_sample(f"s{i}", length, 4, seed=i)
        size = torch.exp(0.5 * torch.randn(length, 1, generator=g))  # a residual stream's norm differs from token to token
        before = size * lm_head[sample.token_ids.roll(-1)] / gain.where(gain != 0, 1.0)
        state = before if kind == "N" else FinalNorm(gain)(before)
        made.append(replace(sample, slots=(*sample.slots[:3], state.to(dtype))))
    return made, lm_head


GAIN = torch.exp(1.5 * torch.randn(H, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("kind", ["final", "N"])
@pytest.mark.parametrize("given", ["both", "norm", "lm_head"])
def test_normed_or_not(kind, given, dtype):
    samples, lm_head = spoken(kind, GAIN, dtype=dtype)
    norm = FinalNorm(GAIN) if given != "lm_head" else None
    found = measure_last_state(samples, 3, norm, lm_head if given != "norm" else None)
    if given == "lm_head":  # its scale changes no argmax: what is right as it is may need the norm all the same
        assert (found.normed, found.ground, found.test) == (None, "", None)
        assert "needs norm.weight" in found.why
        return
    assert found.normed is (kind == "final")
    assert found.ground == ("lm_head" if given == "both" and kind == "N" else "values")
    if given == "both":
        assert found.rate("as it is" if kind == "final" else "normed") > 0.9
        assert {n for _, n in found.right.values()} == {3 * 36}


def test_neither_tensor_tells_nothing():
    samples, _ = spoken("final", GAIN)
    found = measure_last_state(samples, 3, None, None)
    assert (found.normed, found.ground, found.rate("normed")) == (None, "", None)


@pytest.mark.parametrize("kind", ["final", "N"])
def test_a_constant_gain_says_the_same_both_ways_and_the_values_decide(kind):
    samples, lm_head = spoken(kind, torch.full((H,), 2.0))
    found = measure_last_state(samples, 3, FinalNorm(torch.full((H,), 2.0)), lm_head)
    assert found.right["as it is"] == found.right["normed"]
    assert (found.normed, found.ground) == (kind == "final", "values")


def test_channels_without_gain_and_a_gain_stored_less_one():
    gain = GAIN.clone()
    gain[:4] = 0
    samples, lm_head = spoken("final", gain)
    found = measure_last_state(samples, 3, FinalNorm(gain), lm_head)
    assert found.normed
    assert found.test.channels == H - 4
    stored_less_one = measure_last_state(samples, 3, FinalNorm(gain - 1), None)  # Gemma's weight taken for the gain itself
    assert stored_less_one.normed is False


def test_a_layer_norm():
    g = torch.Generator().manual_seed(3)
    norm = FinalNorm(GAIN, torch.randn(H, generator=g), mean_removed=True)
    raw = torch.randn(60, H, generator=g) * 3 + 1
    sample = replace(tiny_sample("a", 60, 4, seed=1), slots=(norm(raw), raw))
    assert measure_last_state([sample], 0, norm, None).normed
    assert measure_last_state([sample], 1, norm, None).normed is False


def test_a_normed_state_times_a_constant_is_taken_as_lm_head_takes_it():
    """muP targets multiply the normed state: no RMS of 1, and lm_head says the text as it is."""
    samples, lm_head = spoken("final", GAIN)
    scaled = [replace(s, slots=(*s.slots[:3], s.slots[3] / 12)) for s in samples]
    found = measure_last_state(scaled, 3, FinalNorm(GAIN), lm_head)
    assert found.test.multiplied
    assert (found.normed, found.ground) == (True, "lm_head")


@pytest.mark.parametrize("constant", [False, True], ids=["a gain", "a constant gain"])
def test_a_normed_state_times_a_constant_alone_is_not_taken_for_one_before_the_norm(constant):
    gain = torch.full((H,), 2.0) if constant else GAIN
    samples, lm_head = spoken("final", gain)
    scaled = [replace(s, slots=(*s.slots[:3], s.slots[3] / 12)) for s in samples]
    found = measure_last_state(scaled, 3, FinalNorm(gain), lm_head if constant else None)
    assert found.test.multiplied
    assert (found.normed, found.ground) == (None, "")
    assert "after a norm, times a constant" in found.why


def twice(samples, norm):
    return [replace(s, slots=(*s.slots[:3], norm(s.slots[3].float()).to(s.slots[3].dtype))) for s in samples]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn], ids=str)
def test_a_state_normed_twice_has_the_same_rms_and_is_told_by_lm_head(dtype):
    samples, lm_head = spoken("final", GAIN)
    doubled = [replace(s, slots=(*s.slots[:3], s.slots[3].to(dtype))) for s in twice(samples, FinalNorm(GAIN))]
    found = measure_last_state(doubled, 3, FinalNorm(GAIN), lm_head)
    assert found.test.normed  # what made it pass
    assert (found.normed, found.twice) == (None, True)
    assert found.rate("without the gain") > 0.9


def test_a_state_that_says_more_when_normed_again_is_never_taken_for_normed():
    """The values are those of a normed state, and lm_head fits the next norm's."""
    samples, lm_head = spoken("final", GAIN)
    states = [FinalNorm(GAIN)(lm_head[s.token_ids.roll(-1)] / GAIN**2) for s in samples]
    made = [replace(s, slots=(*s.slots[:3], h)) for s, h in zip(samples, states, strict=True)]
    found = measure_last_state(made, 3, FinalNorm(GAIN), lm_head)
    assert found.test.normed
    assert found.rate("normed") > found.rate("as it is")
    assert (found.normed, found.twice) == (None, False)


@pytest.mark.parametrize(("gain", "says"), [(0.0, "zero in all of 24"), (torch.nan, "NaN or infinite in 24 of 24")])
def test_a_norm_without_numbers_is_an_error_in_words(gain, says):
    samples, lm_head = spoken("final", GAIN)
    with pytest.raises(ValueError, match=says):
        measure_last_state(samples, 3, FinalNorm(torch.full((H,), gain)), lm_head)


def test_a_state_that_is_neither():
    g = torch.Generator().manual_seed(9)
    noise = [replace(s, slots=(*s.slots[:3], torch.randn(40, H, generator=g))) for s in spoken("N", GAIN)[0]]
    found = measure_last_state(noise, 3, FinalNorm(GAIN), torch.randn(V, H, generator=g))
    assert (found.normed, found.ground) == (False, "values")
    assert max(found.rate("as it is"), found.rate("normed")) < 0.2  # the finding says `cannot tell` by this


def test_rows_with_nan_and_samples_without_trained_tokens():
    samples, lm_head = spoken("final", GAIN)
    samples[0].slots[3][5] = torch.nan
    samples[1] = replace(samples[1], loss_mask=torch.zeros(40, dtype=torch.int64))
    found = measure_last_state(samples, 3, FinalNorm(GAIN), lm_head)
    assert found.normed
    assert found.right["as it is"][1] == 36 - 1 + 36
    untrained = [replace(s, loss_mask=torch.zeros(40, dtype=torch.int64)) for s in samples]
    found = measure_last_state(untrained, 3, FinalNorm(GAIN), lm_head)
    assert (found.normed, found.ground, found.right["normed"]) == (True, "values", (0, 0))
    nothing = [replace(samples[0], slots=(*samples[0].slots[:3], torch.full((40, H), torch.nan)))]
    assert measure_last_state(nothing, 3, FinalNorm(GAIN), lm_head).normed is None


def test_another_targets_norm_is_refused():
    with pytest.raises(ValueError, match="24 wide, the final norm 16"):
        measure_last_state(spoken("final", GAIN)[0], 3, FinalNorm(torch.ones(16)), None)


@pytest.mark.parametrize("kind", ["final", "N"])
def test_the_judge_goes_by_the_same_measurement(kind):
    samples, lm_head = spoken(kind, GAIN, dtype=torch.float8_e4m3fn)
    judge = Judge(3, TargetHead(lm_head, FinalNorm(GAIN)))
    said = judge.answers(samples)
    assert judge.norm_last is (kind == "N")
    assert min(a.agrees[0] / a.agrees[1] for a in said) > 0.9  # the normed state is not rounded to eight bits again


# -- what trainers do with it ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "version", "flagged", "norms"),
    [
        ("speculators", "0.3.0", None, False),
        ("speculators", "0.4.0", None, True),
        ("speculators", None, None, True),
        ("specforge", "0.2.0", None, False),
        ("angelslim", None, None, False),
        ("modelopt", None, None, False),
        ("modelopt", None, "N", True),
        ("modelopt", None, "final", False),
    ],
)
def test_who_norms_the_last_slot(name, version, flagged, norms):
    framework = Framework(Engine(name, version), told=True)
    assert norms_last_slot(framework, flagged) is norms
    right, wrong = (30, FINAL) if norms else (FINAL, 30)
    assert list(final_norm(framework, right, 30, flagged)) == []
    (finding,) = final_norm(framework, wrong, 30, flagged)
    assert ("normed twice" if norms else "never normed") in finding.title
    assert finding.status is (Status.CANNOT_TELL if (name, version) == ("speculators", None) else Status.FAIL)


@pytest.mark.parametrize(
    ("name", "says", "mend"),
    [
        ("speculators", "a54a7283", "Use speculators 0.4.0 or newer"),
        ("modelopt", "writes no hidden_states_prenorm", "Write hidden_states_prenorm = True"),
        ("angelslim", "falls back to the state before the norm", "Dump again"),
    ],
)
def test_known_mistakes_are_named(name, says, mend):
    (finding,) = final_norm(Framework(Engine(name, "0.3.0" if name == "speculators" else None), told=True), 30, 30)
    assert says in finding.evidence
    assert mend in finding.next


def test_who_trained_as_far_as_it_can_be_told():
    specforge = {"architectures": ["LlamaForCausalLMEagle3"]}
    speculators = {"speculators_model_type": "eagle3", "speculators_version": "0.3.0"}
    modelopt = {"eagle_config": {"use_input_layernorm_in_first_layer": True}}
    assert trainer_of(specforge, "speculators==0.4.0") is None  # a layout that other pipelines write and read
    assert trainer_of(None, None) is None
    assert trainer_of({}, None, "nobody") is None
    assert trainer_of(specforge, None, "angelslim").told
    written = trainer_of(speculators, "speculators==0.4.0")
    assert (written.engine, written.title) == (Engine("speculators", "0.3.0"), "speculators 0.3.0 (guessed from the version in the config)")
    by_layout = trainer_of(specforge, "modelopt-vllm")
    assert (by_layout.name, by_layout.told, by_layout.sure) == ("modelopt", False, False)
    assert trainer_of(modelopt, "modelopt").sure  # dump and config are both of its making
    assert [f.status for f in final_norm(by_layout, 30, 30)] == [Status.CANNOT_TELL]
    assert [f.status for f in final_norm(trainer_of(modelopt, "modelopt"), 30, 30)] == [Status.FAIL]


# -- whole cases ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A target whose final norm has a gain: the state normed twice says other tokens."""
    return make_world(tmp_path_factory.mktemp("world"), seed=7)


def look(case, *ids):
    return {f.id: f for f in findings(Investigation(str(case)), *ids)}


def rewrite(folder, make):
    """Every sample of a dump in another layout."""
    for file in sorted(folder.rglob("*.pt")):
        torch.save(make(torch.load(file)), file)
    return folder


def as_modelopt(flag=None):
    def make(sample):
        *aux, last = sample["hidden_states"]
        made = {"input_ids": sample["input_ids"], "aux_hidden_states": torch.cat(aux, -1), "hidden_states": last, "conversation_id": "a"}
        return made | {"loss_mask": sample["loss_mask"]} | ({} if flag is None else {"hidden_states_prenorm": flag})

    return make


def as_angelslim(sample):
    *aux, last = (h[None] for h in sample["hidden_states"])
    ids, mask = (sample[key][None] for key in ("input_ids", "loss_mask"))
    return {"input_ids": ids, "loss_mask": mask, "hidden_states": torch.cat(aux, -1), "target_hiddens": last}


@pytest.mark.parametrize(
    ("make", "last", "statuses"),
    [  # (dump.last_state, config.final_norm)
        (as_modelopt(), FINAL, (Status.PASS, None)),
        (as_modelopt(), 6, (Status.PASS, Status.CANNOT_TELL)),  # its vLLM dump: no flag, taken for normed
        (as_modelopt(True), 6, (Status.PASS, None)),
        (as_modelopt(True), FINAL, (Status.FAIL, Status.CANNOT_TELL)),  # the flag says what is not so, and its trainer norms again
        (as_angelslim, FINAL, (Status.PASS, None)),
        (as_angelslim, 6, (Status.FAIL, Status.CANNOT_TELL)),  # its vLLM capture without the hook
    ],
)
def test_layouts_that_only_their_own_trainer_reads(world, tmp_path, make, last, statuses):
    case = build_case(tmp_path, world, slots=[1, 3, 5, last])
    rewrite(case / "dump", make)
    by_id = look(case, "dump.last_state")
    found = by_id.get("config.final_norm")
    assert (by_id["dump.last_state"].status, found and found.status) == statuses
    assert by_id["dump.last_state"].numbers["normed"] is (last == FINAL)


def test_speculators_0_3_took_the_state_before_the_norm_as_it_was(world, tmp_path):
    trained = {"framework": "speculators", "version": "0.3.0"}
    by_id = look(build_case(tmp_path, world, slots=[1, 3, 5, 6], training=trained), "dump.last_state", "replay.targets")
    assert by_id["dump.last_state"].status is Status.PASS
    assert by_id["config.final_norm"].status is Status.FAIL
    assert "never normed" in by_id["config.final_norm"].title
    assert "targets never normed" in by_id["replay.targets"].evidence


def test_a_list_of_four_with_a_normed_state_warns_whoever_trains_on_it(world, tmp_path):
    finding = look(build_case(tmp_path, world, slots=[1, 3, 5, FINAL]), "dump.last_state")["dump.last_state"]
    assert finding.status is Status.PASS
    assert finding.title.startswith("The last state is after the final norm; by lm_head it says the text: as it is 100.0%, normed again ")
    assert "speculators 0.3 to 0.4 writes: before the final norm" in finding.claim
    assert finding.next == "A trainer that goes by the format treats it wrongly: name yours under `[training]`."


def partial_target(folder, world, *kept):
    """The target's folder with some tensors alone."""
    tensors = load_file(world.folder / "model.safetensors")
    folder.mkdir()
    save_file({n: t for n, t in tensors.items() if n in kept}, folder / "model.safetensors")
    (folder / "config.json").write_text((world.folder / "config.json").read_text())
    return folder


@pytest.mark.parametrize(
    ("kept", "normed", "ground"),
    [
        (("model.norm.weight",), True, "values"),
        (("lm_head.weight",), None, ""),
        (("model.norm.weight", "lm_head.weight"), True, "values"),
    ],
)
def test_single_tensors_of_the_target_are_enough(world, tmp_path, kept, normed, ground):
    case = build_case(tmp_path, world, slots=[1, 3, 5, FINAL], target="none")
    folder = partial_target(tmp_path / "part", world, *kept)
    inv = Investigation(str(case))
    inv.case = replace(inv.case, target=replace(inv.case.target, path=folder))
    assert (inv.last_state.normed, inv.last_state.ground) == (normed, ground)
    assert inv.last_boundary == (FINAL if normed else None)


def test_the_sketch_alone_tells_it_by_comparison(world, tmp_path):
    finding = look(build_case(tmp_path, world, slots=[1, 3, 5, 6], target="sketch"), "dump.last_state")["dump.last_state"]
    assert (finding.status, finding.numbers["ground"], finding.numbers["normed"]) == (Status.PASS, "comparison", False)
    absent = look(build_case(tmp_path / "none", world, slots=[1, 3, 5, 6], target="none"), "dump.last_state")["dump.last_state"]
    assert absent.status is Status.NOT_GIVEN


@pytest.fixture(scope="module")
def gained(tmp_path_factory):
    """A target whose final norm's gain differs from channel to channel so that a second norm changes its choices."""
    world = make_world(tmp_path_factory.mktemp("gained"), seed=11)
    model = AutoModelForCausalLM.from_pretrained(world.folder, dtype=torch.float32).eval()
    with torch.no_grad():
        gain = model.model.norm.weight
        gain.copy_(torch.exp(1.5 * torch.randn(gain.shape, generator=torch.Generator().manual_seed(1))))
        world.states = [boundary_states(model, ids) for ids in world.texts]
        said = one_hot(torch.cat([ids[1:] for ids in world.texts]), VOCAB)
        model.lm_head.weight.copy_(readout(world.stacked(FINAL, drop=1), said))
    model.save_pretrained(world.folder)
    return world


@pytest.mark.parametrize("way", ["path", "tensors"])
def test_a_last_state_normed_twice_in_the_dump_judges_nothing(gained, tmp_path, way):
    norm = TensorSource(gained.folder).norm

    def spoil(sample, i):
        sample["hidden_states"][3] = norm(sample["hidden_states"][3])

    case = build_case(tmp_path, gained, slots=[1, 3, 5, FINAL], spoil=spoil)
    inv = Investigation(str(case), way="tensors" if way == "tensors" else "auto")
    by_id = {f.id: f for f in findings(inv, "dump.last_state", "drafter.vocabulary.coverage", "replay.works", "replay.targets")}
    assert by_id["dump.last_state"].status is Status.FAIL
    assert by_id["dump.last_state"].title.startswith("The last state was normed twice in the dump; by lm_head it says the text: as it is ")
    assert "config.final_norm" not in by_id
    assert inv.dump_wiring[3] is None
    assert inv.judge.head is None
    assert "by the text's tokens" in by_id["drafter.vocabulary.coverage"].evidence
    assert "judged by the text's token" in by_id["replay.works"].evidence
    assert by_id["replay.targets"].status is Status.NOT_GIVEN
    assert "normed twice" in by_id["replay.targets"].next + by_id["replay.targets"].title


def test_a_slot_of_another_layer_that_goes_as_the_last_state_judges_nothing(world, tmp_path):
    inv = Investigation(str(build_case(tmp_path, world, slots=[1, 3, 5, 2])))
    by_id = {f.id: f for f in findings(inv, "dump.last_state", "drafter.vocabulary.coverage", "replay.works")}
    assert by_id["dump.last_state"].status is Status.FAIL
    assert inv.judge.head is None
    assert by_id["drafter.vocabulary.coverage"].numbers["judged_by"] == "the text's token"
    assert "judged by the text's token" in by_id["replay.works"].evidence


def test_a_last_state_that_fits_no_boundary_never_passes(world, tmp_path):
    """One row late: after a norm by its values, and the choice of another place."""

    def spoil(sample, i):
        sample["hidden_states"][3] = sample["hidden_states"][3].roll(1, dims=0)  # another row's

    inv = Investigation(str(build_case(tmp_path, world, slots=[1, 3, 5, FINAL], spoil=spoil)))
    (finding,) = [f for f in findings(inv, "dump.last_state") if f.id == "dump.last_state"]
    assert finding.status is Status.CANNOT_TELL
    assert "fits no boundary of the target" in finding.title
    assert inv.judge.head is None


def test_a_dump_without_a_last_state(world, tmp_path):
    by_id = look(
        build_case(tmp_path, world, slots=[1, 3, 5], feed=[0, 1, 2, -1]),
        "dump.last_state",
        "replay.works",
        "replay.targets",
    )
    assert by_id["dump.last_state"].status is Status.NOT_APPLICABLE
    assert "judged by the text's token" in by_id["replay.works"].evidence
    assert by_id["replay.targets"].status is Status.NOT_GIVEN


# -- the drafter's own witness ------------------------------------------------------------------------------------------------------------


def test_a_drafter_that_learned_targets_normed_twice(world, tmp_path):
    """The head is changed so that the state normed twice says the texts: the drafter, which says the texts, fits those targets."""
    case = build_case(tmp_path, world, slots=[1, 3, 5, FINAL])
    inv = Investigation(str(case))
    gain = torch.randn(len(inv.head.norm.gain), generator=torch.Generator().manual_seed(2))  # of either sign: twice is not once
    wrong = FinalNorm(gain)
    states = torch.cat([wrong(s[FINAL][:-1]) for s in world.states])
    lm_head = readout(states, one_hot(torch.cat([t[1:] for t in world.texts]), VOCAB))
    inv.head = TargetHead(lm_head, wrong)
    inv.__dict__["last_state"] = replace(inv.last_state, normed=True)
    finding = {f.id: f for f in findings(inv, "replay.targets")}["replay.targets"]
    assert finding.status is Status.FAIL
    assert "fits targets that were normed twice better" in finding.title
    same, of = finding.numbers["same"]
    assert same < 0.9 * of


def test_a_gain_that_changes_no_choice(world, tmp_path):
    finding = look(build_case(tmp_path, world, slots=[1, 3, 5, FINAL]), "replay.targets")["replay.targets"]
    assert finding.status is Status.PASS
    assert finding.numbers["same"][0] == finding.numbers["same"][1]


# -- the layers that a format implies -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ids", "slots", "status"),
    [
        ([1, 2, 4, 5], [2, 3, 5, 6], Status.PASS),  # speculators up to 0.4: outputs of the layers
        ([1, 2, 4, 5], [1, 2, 4, FINAL], Status.FAIL),
        (None, [2, 3, 5, 6], Status.NOT_APPLICABLE),  # the layout alone implies no layers: other pipelines write it too
    ],
)
def test_ids_beside_the_samples_are_held_against_the_values(world, tmp_path, ids, slots, status):
    case = build_case(tmp_path, world, slots=slots)
    if ids is not None:
        (case / "dump" / "data_config.json").write_text(json.dumps({"version": "2.0", "hidden_states": {"layer_ids": ids}}))
    finding = look(case, "dump.format")["dump.format"]
    assert finding.status is status
    if ids is not None:
        assert finding.numbers["implied"] == [2, 3, 5, 6]
        assert finding.numbers["dump"] == slots


def test_a_default_that_was_not_taken_is_told(world, tmp_path):
    case = build_case(tmp_path, world, slots=[1, 3, 5, FINAL])
    rewrite(case / "dump", as_angelslim)
    finding = look(case, "dump.format")["dump.format"]
    assert finding.status is Status.PASS
    assert finding.title == "AngelSlim's default for 6 layers: boundaries [2, 3, 3]; the dump holds [1, 3, 5]"
