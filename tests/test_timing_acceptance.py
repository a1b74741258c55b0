"""Accept length by setting: one deep replay gives what a replay of each depth gives."""

import pytest
from case_builder import build_case, make_world

from eaglelab.acceptance import Walk
from eaglelab.investigation import Investigation
from eaglelab.timing.acceptance import Expected, ReplayedAcceptance, of_counts
from eaglelab.timing.setting import Setting
from eaglelab.wiring import FINAL


@pytest.fixture(scope="module")
def inv(tmp_path_factory):
    world = make_world(tmp_path_factory.mktemp("world"), "llama", 6, seed=3)
    return Investigation(str(build_case(tmp_path_factory.mktemp("case"), world, slots=[1, 3, 5, FINAL], ids=[1, 3, 5])))


def test_every_depth_is_a_prefix_of_the_deepest_chain(inv):
    acceptance = ReplayedAcceptance(inv)
    for steps in (1, 2, 4):
        walk = inv.replay_of([inv.feeds.dump], steps=steps)[0].walk
        assert walk.verify_steps > 0
        assert acceptance(Setting(steps)).accept_length == pytest.approx(walk.accept_length)


def test_a_tree_reaches_no_less_than_its_chain(inv):
    acceptance = ReplayedAcceptance(inv)
    tree = acceptance(Setting(2, 2, 5))
    own = inv.tree_replay(steps=2, topk=2, num_draft_tokens=5)
    assert tree.accept_length == pytest.approx(own.walk.accept_length)
    assert tree.low <= tree.accept_length <= tree.high


def test_where_lm_head_says_the_text_nothing_is_compared_with_the_target(tmp_path, monkeypatch):
    """A forward of the target takes minutes; the answers are the same with and without it."""
    world = make_world(tmp_path, "llama", 6, seed=3)
    build_case(tmp_path, world, slots=[1, 3, 5, FINAL], ids=[1, 3, 5])
    asked = [Setting(3), Setting(2, 2, 5)]
    slow, quick = Investigation(str(tmp_path)), Investigation(str(tmp_path))
    found = [ReplayedAcceptance(quick)(s) for s in asked]
    assert not {"identification", "source", "feeds", "replay_samples"} & set(quick.__dict__)
    monkeypatch.setattr("eaglelab.timing.acceptance.SAYS_THE_TEXT", 1.1)  # as of a text that the target did not write
    assert [ReplayedAcceptance(slow)(s) for s in asked] == found
    assert "identification" in slow.__dict__


def test_off_is_one_token_a_pass(inv):
    assert ReplayedAcceptance(inv)(Setting(0)).accept_length == 1.0


def test_counts_add_up_before_they_are_divided():
    found = of_counts([(3, 0, 0), (1,) * 9, ()], "hand")
    assert found.accept_length == Walk(12, 12).accept_length == 2.0
    assert found.low <= 2.0 <= found.high
    assert of_counts([(2, 1)], "one sample") == Expected(2.5, 2.5, 2.5, "one sample")
    assert of_counts([(), ()], "nothing") is None
