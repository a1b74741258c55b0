"""The verdict on hand-made findings: nothing that fails is dropped, sure needs two kinds of witnesses, faults are ordered by what they cost."""

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eaglelab.checks
from eaglelab.findings import Finding, Status
from eaglelab.verdict import verdict
from eaglelab.verdict.charge import kinds

PASS, FAIL, CANNOT_TELL, NOT_GIVEN = Status.PASS, Status.FAIL, Status.CANNOT_TELL, Status.NOT_GIVEN
EXPLAINED = tomllib.loads((Path(eaglelab.checks.__file__).parent / "explain.toml").read_text())
IDS = sorted(
    {i.replace("*", "x") for i in EXPLAINED}
    | {
        "wiring.match",
        "replay.engine",
        "replay.works",
        "replay.order",
        "replay.choices",
        "replay.targets",
        "replay.flags",
        "served.expected",
    }
    | {"served.flags", "served.parity", "served.variant", "triangle", "training.metric", "config.final_norm", "config.training_residual"}
    | {"drafter.complete", "drafter.vocabulary", "dump.health", "wiring.anomalies", "served.text", "cost.worth", "timing.draft"}
    | {"config.norm_output", "served.log.constant", "flags.simulated", "somebody.elses", "wiring.claims.slot0", "text.mask"}
)
REPLAYED = {"accept_length": 1.8, "walk": {"accept_length": 1.9, "verify_steps": 50}}
SLOWER = {"accept_length": 1.1, "walk": {"accept_length": 1.2, "verify_steps": 90}}
IDS_OF = {"sglang==0.5.23": {"edits": {"eagle_config.eagle_aux_hidden_state_layer_ids": [2, 15, 27]}, "ids": [2, 15, 27], "why": ""}}


def finding(id, status=FAIL, title="", next="", **numbers):
    return Finding(id, title or f"What {id} says", status, numbers=numbers, next=next)


def match(status=FAIL, held=(3, 16, 28)):
    fed = [0, 3, 16] if status is FAIL else list(held)
    return finding(
        "wiring.match",
        status,
        f"SGLang 0.5.23 feeds {fed}, the dump holds {list(held)}",
        "Set the ids.",
        engine=fed,
        dump=list(held),
        ids=IDS_OF,
    )


def replayed(status=FAIL):
    return finding("replay.engine", status, dump_feed=REPLAYED, engine_feed=SLOWER)


def served(status=FAIL, requests=10, **numbers):
    fed = {"wiring": [0, 3, 16], "requests": requests, "served": 1.2, "predicted": 1.2}
    told = {"as_fed": True, "same_text": True, "engine": "sglang", "fed": fed, "right": {"predicted": 1.9}} | numbers
    return finding("served.expected", status, **told)


WORKS = finding("replay.works", PASS)


def told(failing, said):
    """Its title stands in the text; the wiring's own words say what wiring.match says, and those of served.expected what the triangle says."""
    with_it = [set(f.findings) for f in said.faults if failing.id in f.findings]
    in_other_words = failing.id == "wiring.match" or (failing.id == "triangle" and any("served.expected" in ids for ids in with_it))
    return failing.title in said.text or (in_other_words and bool(with_it))


# -- sure needs two kinds ---------------------------------------------------------------------------------------------------------------


def test_values_and_replay_are_sure_and_each_alone_is_not():
    both = verdict([match(), replayed(), WORKS])
    assert (both.stage, both.confidence) == ("wiring", "sure")
    assert both.text.startswith("Wiring: SGLang 0.5.23 feeds the drafter boundaries [0, 3, 16], and the drafter was trained on [3, 16, 28]")
    assert ". Set the ids. " in both.text
    assert "Two independent witnesses agree: the states' values and the replay." in both.text
    assert [(c.key, c.value) for c in both.changes] == [("eagle_config.eagle_aux_hidden_state_layer_ids", [2, 15, 27])]
    assert verdict([match(), WORKS]).confidence == "likely"
    assert "it rests on the states' values alone" in verdict([match(), WORKS]).text
    alone = verdict([replayed(), WORKS])
    assert (alone.stage, alone.confidence, alone.changes) == ("wiring", "cannot tell", ())


@pytest.mark.parametrize(
    "against",
    [
        finding("served.parity", PASS),
        finding("wiring.target", CANNOT_TELL),
        finding("replay.works", FAIL),
        finding("served.variant", PASS),
        served(PASS, as_fed=False, as_right=True),
        finding("served.flags", FAIL, ran={"boundaries": [3, 16, 28]}),
    ],
    ids=lambda f: f.id,
)
def test_a_contradiction_makes_it_likely_and_is_named(against):
    said = verdict([match(), replayed(), WORKS, against])
    assert said.faults[0].stage == "wiring"
    assert said.faults[0].confidence == "likely"
    assert against.title in said.faults[0].text


def test_two_prompts_are_no_witness():
    assert verdict([match(), served(requests=10), WORKS]).confidence == "sure"
    few = verdict([match(), served(requests=2), WORKS])
    assert few.confidence == "likely"
    assert "served.expected on fewer than 5 samples or requests" in few.text


def test_many_statistics_of_one_kind_are_one_witness():
    said = verdict([finding(i) for i in ("replay.works", "replay.order", "lost.steps")])
    assert [f.confidence for f in said.faults] == ["likely"]
    assert verdict([served(as_fed=False), finding("served.variant", kind="states")]).confidence == "likely"
    assert verdict([served(as_fed=False), finding("served.parity")]).confidence == "sure"


def test_a_checkpoint_is_refuted_by_its_header_and_the_engines_code_not_by_the_header_alone():
    does = [{"effect": "stops", "engine": "SGLang"}]
    assert verdict([finding("drafter.complete", engines=does, mend=["export"])]).confidence == "sure"
    assert verdict([finding("drafter.complete", mend=["export"])]).confidence == "likely"
    assert verdict([finding("drafter.complete", engines=does), WORKS]).confidence == "likely"
    assert verdict([finding("drafter.complete", mend=["copy"])]).stage == "engine"


STATUSES = st.sampled_from([PASS, FAIL, FAIL, FAIL, CANNOT_TELL, Status.NOT_GIVEN])
NUMBERS = st.sampled_from(
    [
        {},
        {"effect": 0.3},
        {"stage": "dump"},
        {"gap": "training"},
        {"gap": "engine"},
        {"kind": "flags"},
        {"kind": "wiring", "as_config": True},
        {"as_fed": True, "same_text": False},
        {"own": 0.1, "other": 0.4},
        {"with_errors": 1, "checked": 100},
        {"faults": [{"kind": "range", "status": "fail"}]},
        {"fed": {"requests": 2, "wiring": [1], "served": 1.0, "predicted": 2.0}},
    ]
)


@st.composite
def sets_of_findings(draw):
    chosen = draw(st.lists(st.sampled_from(IDS), unique=True, max_size=12))
    found = [finding(i, draw(STATUSES), **draw(NUMBERS)) for i in chosen if i != "wiring.match"]
    return found + ([match(draw(st.sampled_from([PASS, FAIL])))] if "wiring.match" in chosen else [])


@settings(max_examples=400, deadline=None)
@given(sets_of_findings())
def test_nothing_that_fails_is_dropped_and_nothing_is_sure_on_one_kind(found):
    said = verdict(found)
    for f in found:
        assert f.status is not FAIL or told(f, said), f.id
    by_id = {f.id: f for f in found}
    for fault in said.faults:
        witnesses = [by_id[i] for i in fault.findings if by_id[i].status in (FAIL, PASS)]
        assert fault.confidence != "sure" or len(frozenset().union(*map(kinds, witnesses))) >= 2
        assert fault.findings
    order = ("sure", "likely", "cannot tell")
    if said.faults:
        assert said.confidence == max((f.confidence for f in said.faults), key=order.index)
    assert len(said.not_looked_at) <= 5
    json.dumps(said.to_json(), allow_nan=False)


@pytest.mark.parametrize("id", IDS)
def test_each_id_that_can_fail_is_told(id):
    """Alone, and beside a drafter that works and a wiring that is right."""
    failing = finding(id) if id != "wiring.match" else match()
    for beside in ([], [WORKS, match(PASS)]):
        found = [failing, *(f for f in beside if f.id != id)]
        said = verdict(found)
        assert told(failing, said)
        in_fault = any(id in f.findings for f in said.faults)
        assert in_fault or "none" in said.stage or said.stage == "cannot tell"


# -- order --------------------------------------------------------------------------------------------------------------------------------


def test_faults_come_by_what_they_cost_and_the_unmeasured_last():
    flags = finding("replay.flags", difference=0.2, engine={"accept_length": 1.6})
    said = verdict([finding("text.mask"), flags, match(), replayed(), WORKS])
    assert [f.stage for f in said.faults] == ["wiring", "engine", "dump"]
    assert [f.effect for f in said.faults] == [pytest.approx(0.7), 0.2, None]
    assert said.stage == "wiring and engine and dump"
    assert said.text.startswith("3 faults, the costliest in accept length first. (1) Wiring:")
    swapped = verdict([finding("text.mask"), finding("replay.flags", difference=0.9, engine={"accept_length": 1.6}), match(), replayed()])
    assert [f.stage for f in swapped.faults] == ["engine", "wiring", "dump"]


def test_without_effects_the_order_is_the_datas_way():
    said = verdict([finding("served.text"), finding("training.amount"), finding("text.mask"), finding("drafter.embedding")])
    assert [f.findings[0] for f in said.faults] == ["drafter.embedding", "text.mask", "served.text", "training.amount"]


# -- what is no fault ----------------------------------------------------------------------------------------------------------------------


def test_another_version_than_served_is_no_fault_where_the_prediction_was_met():
    """The case says 0.5.9 and K = 3, the server ran 0.5.23 with K = 5, and reached what is predicted for that."""
    apart = finding("served.flags", title="The server runs with other settings than the case says: num_steps = 5, not 3")
    met = served(PASS)
    said = verdict([apart, met, match(PASS), WORKS])
    assert said.stage == "none found"
    assert apart.title in said.text
    assert "mend the case, not the server" in said.text
    assert verdict([apart, match(PASS), WORKS]).stage == "engine"


def test_text_that_is_not_the_targets_own_blames_no_server():
    short = served(same_text=False, as_fed=False)
    own = finding("replay.expected", CANNOT_TELL, "The accept length cannot be predicted from this text")
    assert verdict([short, match(PASS), WORKS]).stage == "engine"
    said = verdict([short, own, match(PASS), WORKS])
    assert "engine" not in said.stage
    assert short.title in said.text


def test_the_triangle_is_the_stage_only_where_nothing_more_specific_is_found():
    gap = finding("triangle", gap="engine")
    assert verdict([gap]).stage == "engine"
    said = verdict([gap, match(), replayed(), WORKS])
    assert said.stage == "wiring"
    assert "triangle" in said.faults[0].findings
    apart = verdict([gap, finding("text.mask")])  # a mask does not explain what the server loses against the replay
    assert apart.stage == "dump and engine"
    assert verdict([finding("triangle", gap="training"), finding("training.metric")]).confidence == "likely"  # one log, told twice


def test_a_variant_witnesses_the_fault_that_it_names():
    named = finding("served.variant", kind="wiring", as_config=True)
    assert verdict([match(), named, WORKS]).confidence == "sure"
    flags = finding("replay.flags", difference=0.4, engine={"accept_length": 1.4})
    said = verdict([flags, finding("served.variant", kind="flags")])
    assert (said.stage, said.confidence, len(said.faults)) == ("engine", "sure", 1)
    other = verdict([flags, finding("served.variant", kind="vocabulary")])
    assert len(other.faults) == 2


# -- what was not looked at ----------------------------------------------------------------------------------------------------------------


def test_not_looked_at_names_what_is_open_and_not_what_is_settled():
    absent = [
        finding("dump.health", PASS),
        finding("served.acceptance", Status.NOT_GIVEN, next="Record a server."),
        finding("served.text", Status.NOT_GIVEN, next="Record a server."),
        finding("timing.phases", Status.NOT_GIVEN, next="Record a trace."),
        finding("drafter.vocabulary.other", Status.NOT_GIVEN, next="Name the map."),
    ]
    sure = verdict([match(), replayed(), WORKS, *absent]).not_looked_at
    assert sure == ("What the server reached: Record a server.", "Whether the map is the one of the training: Name the map.")
    well = verdict([match(PASS), WORKS, *absent]).not_looked_at
    assert well[-1] == "Where the milliseconds go: Record a trace."
    assert len(well) == 3  # the same input once


def test_cheap_checks_say_that_the_dump_was_not_looked_at():
    unseen = verdict([finding("wiring.engine", PASS)]).not_looked_at
    assert unseen == ("Dump, target and replay: run `eaglelab check CASE` without --cheap.",)


def test_a_few_checks_that_were_asked_for_say_nothing_of_the_rest():
    said = verdict([match(PASS)], only=["wiring.match"])
    assert (said.stage, said.confidence) == ("none found", "cannot tell")
    assert "Looked at wiring.match only" in said.text
    assert said.not_looked_at == ("Everything but wiring.match: run `eaglelab check CASE` without --only.",)
    assert verdict([match(), replayed()], only=["wiring.match", "replay.engine"]).stage == "wiring"


def test_of_what_was_asked_for_and_could_not_be_looked_at_nothing_is_said():
    absent = Finding("errors", "Does the log hold an error? Not given: a server's log", NOT_GIVEN, next="`[engine] log` names it")
    said = verdict([absent], only=["errors"])
    assert said.stage == "cannot tell"
    assert said.text == f"Nothing could be looked at for errors. {absent.title}. `[engine] log` names it."
    silent = verdict([], only=["served.log"])
    assert (silent.stage, silent.confidence) == ("none found", "cannot tell")
    assert "is not given, or shows nothing" in silent.text


def test_a_check_that_broke_is_said_beside_a_verdict_that_is_sure():
    broke = Finding("served.expected", "Does it? Cannot tell: the check itself broke (x)", CANNOT_TELL, numbers={"defect": True})
    said = verdict([match(), replayed(), broke])
    assert said.not_looked_at[0] == "What served.expected would say: eaglelab broke there, which is a defect of its own."


@pytest.mark.parametrize(("bad", "confidence"), [(1, "sure"), (14, "likely")])
def test_a_dump_that_is_mostly_bad_is_no_clean_bill(bad, confidence):
    """A drafter that works excuses its bad files; sure that nothing is wrong one is only where they are few."""
    health = finding("dump.health", FAIL, with_errors=bad, checked=32)
    said = verdict([health, finding("wiring.match", PASS), finding("replay.works", PASS)])
    assert (said.stage, said.confidence) == ("none found", confidence)
    assert health.title in said.text


@pytest.mark.parametrize(("collapse", "confidence"), [(False, "sure"), (True, "likely")])
def test_a_drafter_that_collapses_is_no_clean_bill(collapse, confidence):
    steps = finding("lost.steps", Status.CANNOT_TELL, "Acceptance collapses at step 1", collapse=collapse)
    said = verdict([steps, finding("wiring.match", PASS), finding("replay.works", PASS)])
    assert (said.stage, said.confidence) == ("none found", confidence)
    assert "Acceptance collapses at step 1" in said.text


def test_numbers_that_cannot_be_leave_a_doubt():
    """Measured runs that are faster than their accept length allows: something was counted wrongly."""
    clean = [finding("wiring.match", PASS), finding("replay.works", PASS)]
    odd = finding(
        "cost.worth", Status.CANNOT_TELL, "3-1-4 is 3.28 times as fast with accept length 2.10", "Measure both again.", impossible=True
    )
    assert verdict(clean).confidence == "sure"
    said = verdict([*clean, odd])
    assert (said.stage, said.confidence) == ("none found", "likely")
    assert "On cost: 3-1-4 is 3.28 times as fast with accept length 2.10. Measure both again." in said.text
