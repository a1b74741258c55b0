"""The token strip: what it says is what the replay says, its buttons, what a case may lack, and text that would be markup."""

import re

import pytest
from case_builder import build_case, make_world
from tiny_drafters import tiny_drafter, tiny_embedding, tiny_sample

from eaglelab.explore import Live
from eaglelab.explore.strip_case import STEP, WALK
from eaglelab.explore.token_strip import TokenStrip
from eaglelab.investigation import Investigation, NotGiven
from eaglelab.replay.strip import Mark

SLOTS = [1, 3, 5, "final"]
HEADINGS = ("<caption>The drafter&#x27;s first five", "<caption>The target&#x27;s first five")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return make_world(tmp_path_factory.mktemp("strip"), samples=4, length=30)


@pytest.fixture(scope="module")
def inv(world, tmp_path_factory):
    """SGLang 0.5.23 reads the ids [-1, 0, 2] as the embedding and boundaries 1 and 3, where the drafter wants 1, 3 and 5."""
    case = build_case(tmp_path_factory.mktemp("case"), world, slots=SLOTS, ids=[-1, 0, 2])
    return Investigation(str(case), max_samples=4)


@pytest.fixture
def live(inv):
    return Live(TokenStrip(inv), strict=True)


def shown(markup):
    """The (mark's class, place) of each token of a strip."""
    return [(m, int(p)) for m, p in re.findall(r'class="(el-[nrwxo])(?: el-first)?"[^>]*title="place (\d+)', markup)]


def text_of(markup):
    return " ".join(re.sub("<[^>]+>", " ", markup).replace("&#x27;", "'").split())


def test_the_strip_shows_the_replays_outcome(live, inv):
    for sample in (1, 0):
        live.controls["sample"].value = sample
        outcome = inv.own_replay.outcomes[sample]
        for step in range(3):
            live.controls["step"].value = step
            marks = {p: m for m, p in shown(live.output.value)}
            assert len(marks) == len(inv.samples[sample].token_ids) + 1
            for column, row in enumerate(outcome.rows.tolist()):
                right, outside, counted = (bool(t[step, column]) for t in (outcome.right, outcome.outside, outcome.counted))
                expected = "el-n" if not counted else "el-r" if right else "el-x" if outside else "el-w"
                assert marks.get(row + 2 + step, "el-n") == expected
            said = text_of(live.output.value)
            assert f"step {step}: {outcome.right[step].sum()} of {outcome.counted[step].sum()} drafted tokens are right" in said
            assert f"right: {outcome.right[step].sum()}" in said


def test_the_walks_numbers_are_the_replays(live, inv):
    live.controls["kind"].value = WALK
    accepted = inv.own_replay.outcomes[0].walk
    said = text_of(live.output.value)
    assert f"the walk: {len(accepted)} verify passes, accept length {1 + sum(accepted) / len(accepted):.2f}" in said
    assert [int(n) for n in re.findall(r'data-n="(\d+)"', live.output.value)] == list(accepted)
    assert live.controls["step"].disabled
    assert live.output.value.count("el-first") == len(accepted)


def test_the_engines_feed_is_another_replay_of_the_same_text(live, inv):
    before = text_of(live.output.value)
    live.controls["feed"].value = 1
    served = inv.replay_of([inv.feeds.engine], samples=[inv.replay_samples[0]])[0].outcomes[0]
    assert inv.feeds.engine.feed != inv.feeds.dump.feed
    assert f"The engine's feed, step 0: {served.right[0].sum()} of" in text_of(live.output.value)
    assert served.right[0].sum() < inv.own_replay.outcomes[0].right[0].sum()
    assert "The dump's feed, step 0" in before


def test_buttons_go_from_rejection_to_rejection_and_round(live, inv):
    outcome, row = inv.own_replay.outcomes[0], live.controls["row"]
    wrong = outcome.rows[outcome.counted[0] & ~outcome.right[0]].tolist()
    assert len(wrong) >= 2
    assert row.value == wrong[0]
    for expected in [*wrong[1:], wrong[0]]:
        live.buttons["Next rejection"].click()
        assert row.value == expected
        assert f"Row {expected}, step 0: the token at place {expected + 2}" in text_of(live.output.value)
    assert "Went round: this is the first rejection again." in live.output.value
    live.buttons["Previous rejection"].click()
    assert row.value == wrong[-1]
    assert "Went round: this is the last rejection again." in live.output.value
    live.controls["row"].value = wrong[0]
    assert "Went round" not in live.output.value


def test_in_the_walk_the_buttons_go_from_pass_to_pass(live, inv):
    live.controls["kind"].value = WALK
    strip = live.explorer.case.strip(0)
    ends = [p for p in strip.passes if p.accepted < strip.steps]
    live.controls["row"].value = 0
    for end in ends:
        live.buttons["Next rejection"].click()
        assert live.controls["row"].value == end.row
        assert f"Row {end.row}, step {end.accepted}: the token at place {end.row + 2 + end.accepted}" in text_of(live.output.value)


def test_a_row_within_a_pass_names_the_pass(live, inv):
    """What the strip marks there is that pass's, and the candidates below are of a draft from the row itself."""
    live.controls["kind"].value = WALK
    strip = live.explorer.case.strip(0)
    over = next(p for p in strip.passes if 1 <= p.accepted < strip.steps)
    live.controls["row"].value = over.row + 1
    said = text_of(live.output.value)
    assert f"No pass of the walk drafts from row {over.row + 1}: the pass of row {over.row} gives this place, at its step 1." in said
    assert strip.along_walk().step[over.row + 3] == 1
    live.controls["row"].value = over.row
    assert "No pass of the walk" not in live.output.value
    whole = next((p for p in strip.passes if p.accepted == strip.steps), None)
    if whole is not None:
        live.controls["row"].value = whole.row + strip.steps
        assert "as the target's own token" in text_of(live.output.value)


def test_the_selected_rows_first_choices_stand_side_by_side(live, inv):
    live.controls["row"].value = 20
    for heading in HEADINGS:
        assert heading in live.output.value
    drafted, outcome = int(inv.own_replay.outcomes[0].drafted[0, live.explorer.case.strip(0).column(20)]), inv.own_replay.outcomes[0]
    said = text_of(live.output.value)
    sure = float(f"{outcome.confidence[0, live.explorer.case.strip(0).column(20)]:.3g}")
    assert f"Drafted: #{drafted} (confidence {sure:.4g})" in said or f"Drafted: #{drafted} (confidence {sure:g})" in said
    assert said.count("the text's, the target's choice, drafted") == 2  # the drafter is right, and so is the text
    assert "The text says #" in said
    assert "the target's choice is the same" in said


def test_a_token_outside_the_draft_vocabulary_is_one_that_the_drafter_cannot_say(live, inv):
    strip = live.explorer.case.strip(0)
    live.controls["row"].value = int(strip.outcome.rows[strip.marks[0] == Mark.OUTSIDE][0])
    said = text_of(live.output.value)
    assert "the text's, the target's choice, which it cannot say" in said
    assert "outside the draft vocabulary." in said


def test_what_a_later_step_is_fed_is_said(live, inv):
    strip = live.explorer.case.strip(0)
    live.controls["step"].value = 1
    rows = [int(r) for r in strip.outcome.rows if strip.outcome.counted[1, strip.column(r)]]
    whole, broken = (next(r for r in rows if strip.own_fed(r, 1) == same) for same in (1, 0))
    live.controls["row"].value = whole
    assert "What it drafted before is the text's own, so a server's chain, which feeds its own tokens, says the same here." in text_of(
        live.output.value
    )
    live.controls["row"].value = broken
    assert "Teacher-forced: at step 0 this chain drafted another token than the text's" in text_of(live.output.value)
    assert "The whole chain of this row, step by step: #" in live.output.value


def test_a_row_of_the_prompt_says_that_nothing_counts(live):
    live.controls["row"].value = 0
    assert "Row 0, step 0: the token at place 2" in text_of(live.output.value)
    assert "Nothing is counted here: the loss mask leaves it out." in live.output.value
    live.controls["step"].value = 2
    live.controls["row"].value = live.controls["row"].max
    assert "Nothing is counted here: the text ends before it." in live.output.value


def test_another_sample_begins_at_its_own_first_rejection(live, inv):
    live.controls["row"].value = live.controls["row"].max
    live.controls["sample"].value = 2
    outcome = inv.own_replay.outcomes[2]
    assert live.controls["row"].value == outcome.rows[outcome.counted[0] & ~outcome.right[0]][0]
    assert live.controls["row"].max == len(inv.samples[2].token_ids) - 2
    live.buttons["Next rejection"].click()  # an action adjusts all controls: the row stays where it went
    assert live.controls["row"].value == outcome.rows[outcome.counted[0] & ~outcome.right[0]][1]


# -- what a case may lack ---------------------------------------------------------------------------------------------------------------


def test_without_the_target_the_text_is_what_counts(world, tmp_path):
    inv = Investigation(str(build_case(tmp_path, world, slots=SLOTS, ids=[0, 2, 4], target="none")), max_samples=2)
    live = Live(TokenStrip(inv), strict=True)
    said = text_of(live.output.value)
    assert "by the text's token" in said
    assert "Tokens are shown as ids: a tokenizer is not given" in said
    assert "The target's first five cannot be had: its lm_head is not at hand: [target] path names its checkpoint." in said
    assert HEADINGS[0] in live.output.value
    assert HEADINGS[1] not in live.output.value
    live.controls["kind"].value = WALK
    assert "judged by the text's tokens" in text_of(live.output.value)
    assert "target&#x27;s first five" not in live.explorer.twin()
    assert "drafter&#x27;s first five" in live.explorer.twin()


def test_without_a_mask_all_counts_and_nothing_walks(world, tmp_path):
    case = build_case(tmp_path, world, slots=SLOTS, ids=[0, 2, 4], spoil=lambda s, i: {k: v for k, v in s.items() if k != "loss_mask"})
    explorer = TokenStrip(Investigation(str(case), max_samples=2))
    live = Live(explorer, strict=True)
    assert live.controls["kind"].options == (STEP,)
    assert "This dump has no loss mask: prompts count too, and there is no walk." in live.output.value
    assert "Walk" not in explorer.twin()


def test_an_empty_mask_leaves_nothing_to_mark(world, tmp_path):
    case = build_case(tmp_path, world, slots=SLOTS, ids=[0, 2, 4], spoil=lambda s, i: s | {"loss_mask": 0 * s["loss_mask"]})
    live = Live(TokenStrip(Investigation(str(case), max_samples=2)), strict=True)
    assert "Nothing counts in " in live.output.value
    live.buttons["Next rejection"].click()
    assert "Nothing is rejected here." in live.output.value
    live.controls["kind"].value = WALK
    assert "Nothing is rejected at step 0." in live.explorer.twin()


def test_one_feed_where_the_engine_feeds_the_dump(world, tmp_path):
    """SGLang reads [0, 2, 4] as 1, 3, 5: what the slots hold."""
    explorer = TokenStrip(Investigation(str(build_case(tmp_path, world, slots=SLOTS, ids=[0, 2, 4])), max_samples=2))
    assert [v.name for v in explorer.feeds] == ["the dump's feed"]
    assert "The engine feeds what the dump holds: there is one feed." in explorer.twin()


def test_an_engine_that_is_not_known_is_said(world, tmp_path):
    explorer = TokenStrip(Investigation(str(build_case(tmp_path, world, slots=SLOTS, ids=None)), max_samples=2))
    assert "Without the engine&#x27;s feed: " in explorer.twin()


def test_no_replay_is_not_given(world, tmp_path):
    without_drafter = build_case(tmp_path / "a", world, slots=SLOTS, drafter={}, **{"target": "none"})
    text = (without_drafter / "case.toml").read_text().replace('path = "drafter"', "")
    (without_drafter / "case.toml").write_text(text)
    with pytest.raises(NotGiven, match="a drafter is not given"):
        TokenStrip(Investigation(str(without_drafter)))
    without_rows = build_case(tmp_path / "b", world, slots=SLOTS, target="none")
    text = (without_rows / "case.toml").read_text().replace('embed = "rows.safetensors"', "")
    (without_rows / "case.toml").write_text(text)
    with pytest.raises(NotGiven, match="embedding rows is not given"):
        TokenStrip(Investigation(str(without_rows)))


# -- the twin, and text from outside ----------------------------------------------------------------------------------------------------


def test_a_dump_without_a_last_state_is_judged_by_the_text(world, tmp_path):
    case = build_case(tmp_path, world, slots=[1, 3, 5], feed=[0, 1, 2, -1], ids=[1, 3, 5])
    live = Live(TokenStrip(Investigation(str(case), max_samples=2)), strict=True)
    assert "The target's first five cannot be had: the dump keeps no last state. What counts as right is the text's token." in text_of(
        live.output.value
    )


def test_without_a_dump_there_is_none(world, tmp_path):
    case = build_case(tmp_path, world, slots=SLOTS, ids=[-1, 0, 2])
    toml = (case / "case.toml").read_text()
    (case / "case.toml").write_text(re.sub(r"\[dump\]\n(.+\n)*", "", toml))
    with pytest.raises(NotGiven, match="a dump is not given"):
        TokenStrip(Investigation(str(case)))


def test_the_twin_needs_no_script_and_names_its_frames(inv):
    twin = TokenStrip(inv).twin()
    assert "<script" not in twin
    labels = re.findall(r"<label for=\"([^\"]+)\">([^<]+)</label>", twin)
    assert [text for _, text in labels] == [
        "Step 0",
        "Step 1",
        "Step 2",
        "Walk",
        "Engine&#x27;s feed, step 0",
        "Engine&#x27;s feed, walk",
    ]
    ids = re.findall(r' id="([^"]+)"', twin)
    assert [i for i, _ in labels] == ids
    assert len(set(ids)) == len(ids)
    assert twin.count(" checked") == 1
    assert twin.count('class="el-frame"') == len(labels)
    outcome = inv.own_replay.outcomes[0]
    wrong = int((outcome.counted[0] & ~outcome.right[0]).sum())
    assert f"The first {min(6, wrong)} of {wrong} rejections at step 0, the dump&#x27;s feed" in twin


class Hostile:
    """A tokenizer whose tokens are whatever would break a page."""

    TEXTS = (
        "<script>alert(1)</script>",
        "</p></div><img src=x onerror=alert(1)>",
        "\u202egnp.exe\u202c",
        "x" * 10_000,
        "a\x00b\x1b[31m",
        "\ud800",
        "שלום",
        "\"quoted\" & 'more'",
        "`code`\n",
    )

    def decode(self, ids, **_):
        return self.TEXTS[ids[0] % len(self.TEXTS)]


def test_tokens_are_text_whatever_they_say(inv):
    explorer = TokenStrip(inv)
    explorer.case.tokenizer = Hostile()
    live = Live(explorer, strict=True)
    pages = [explorer.twin()]
    for kind in (STEP, WALK):
        live.controls["kind"].value = kind
        for row in range(6, 22):
            live.controls["row"].value = row
            pages.append(live.output.value)
    for page in pages:
        assert "<script" not in page
        assert "<img" not in page
        assert "onerror=alert(1)&gt;" in page or "onerror=" not in page
        assert not any(c in page for c in "\u202e\u202c\x00\x1b\ud800")
        assert len(page) < 200_000
        page.encode()
    assert "x" * 24 + "… (10,000 characters)" in pages[0]
    assert "x" * 25 not in pages[0]
    assert "\\u202egnp.exe" in pages[0]
    assert "שלום" in pages[0]


def test_a_long_text_is_shown_about_the_selected_token_with_the_count_of_the_rest(monkeypatch, inv):
    from eaglelab.explore import token_strip

    monkeypatch.setattr(token_strip, "WINDOW", 11)
    live = Live(TokenStrip(inv), strict=True)
    live.controls["row"].value = 15
    places = [p for _, p in shown(live.output.value)]
    assert places == list(range(12, 23))
    said, total = text_of(live.output.value), len(inv.samples[0].token_ids)
    assert "… 12 tokens before are not shown" in said
    assert f"{total + 1 - 23} tokens after are not shown …" in said


def test_only_the_window_of_a_long_sample_becomes_html():
    from eaglelab.replay import Judge, Variant, replay
    from eaglelab.replay.strip import Strip
    from eaglelab.reports import strip as pieces

    drafter, embed, sample, judge = tiny_drafter(), tiny_embedding(), tiny_sample("long", 3_000, 5, seed=1), Judge()
    outcome = replay(drafter, [sample], embed, [Variant((0, 1, 2))], judge=judge, steps=2)[0].outcomes[0]
    strip = Strip.of(outcome, sample, judge.answers([sample])[0])
    page = pieces.text(strip, strip.along_walk(), lambda ids: [f"#{i}" for i in ids], around=2_000, size=50, label="x")
    assert len(shown(page)) == 50
    assert "1,975 tokens before are not shown" in page
    assert "976 tokens after are not shown" in page
