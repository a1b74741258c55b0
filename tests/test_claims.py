"""What people write about slots, read as boundaries: known answers, and hostile text."""

import pytest

from eaglelab.case import Claim
from eaglelab.claims import MOST_IDS, claimed_boundary, claimed_capture_ids, claimed_ids, claimed_readings, claimed_wiring
from eaglelab.wiring import FINAL


@pytest.mark.parametrize(
    ("text", "boundary"),
    [
        ("embed", 0),
        ("the embedding", 0),
        ("Embedding output", 0),
        ("token_emb", 0),
        ("wte", 0),
        ("layer3", 3),
        ("layer 3", 3),
        ("Layer_31", 31),
        ("hidden_states[16]", 16),
        ("boundary 28", 28),
        ("layer #7", 7),
        ("final", FINAL),
        ("last hidden state", FINAL),
        ("post-norm", FINAL),
        ("aux state", None),
        ("", None),
        ("membedded in text", None),
        ("finalised", None),
        ("player3", None),
    ],
)
def test_a_label_names_a_boundary(text, boundary):
    assert claimed_boundary(text) == boundary


@pytest.mark.parametrize("text", ["layer" + "9" * 5000, "layer", "\x00" * 100, "<script>layer</script>", "層3"])
def test_odd_text_names_none_and_breaks_nothing(text):
    assert claimed_boundary(text) is None


@pytest.mark.parametrize(
    ("text", "readings"),
    [
        ("layer3", (3, 4)),  # input or output: writers mean either
        ("output of layer 2", (3,)),
        ("input of layer 2", (2,)),
        ("Layer-3", (3, 4)),
        ("model.layers.2", (2, 3)),
        ("after embedding, layer 3", (4,)),
        ("boundary 3", (3,)),
        ("hidden_states[3]", (3,)),
        ("not the embedding", ()),
        ("last layer before final norm", ()),
        ("last hidden state, pre-norm", ()),
        ("final", (FINAL,)),
    ],
)
def test_a_label_may_mean_more_than_one_boundary(text, readings):
    assert claimed_readings(text) == readings


def test_slots_that_nobody_names_stay_open():
    claims = [Claim("layer16", slot=2), Claim("embed", slot=0), Claim("[-1, 2]", key="ids")]
    assert claimed_wiring(claims).boundaries == (0, None, 16)
    assert claimed_wiring([Claim("whatever", slot=0)]) is None
    assert claimed_wiring([]) is None


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("[-1, 2, 15]", [-1, 2, 15]),
        ("was [2,30,58] before", [2, 30, 58]),
        ("[ 3 ]", [3]),
        ("no list", None),
        ("[a, 2]", None),
        ("[]", None),
        ("[" + ",".join(["1"] * (MOST_IDS + 1)) + "]", None),
        ("[" + "9" * 5000 + "]", None),
    ],
)
def test_layer_ids_in_a_claim(text, ids):
    assert claimed_ids(text) == ids


def test_the_ids_that_a_dump_is_said_to_be_captured_with():
    key = "eagle_aux_hidden_state_layer_ids"
    assert claimed_capture_ids([Claim("[2, 15, 27]", key=key)], 3) == [2, 15, 27]
    assert claimed_capture_ids([Claim("[2, 15, 27, 29]", key=key)], 3) == [2, 15, 27]  # the fourth is the last state
    assert claimed_capture_ids([Claim("[2, 15]", key=key)], 3) is None
    assert claimed_capture_ids([Claim("[15, 2, 27]", key=key)], 3) is None  # an engine sorts: which slot is which is not said
    assert claimed_capture_ids([Claim("[2, 15, 27]", slot=0)], 3) is None
