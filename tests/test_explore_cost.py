"""Cost playground: three numbers of a run, whether measured, predicted or typed; the story's figures; what cannot be is said."""

import math

import pytest
from case_builder import write_case
from markup import visible_text

from eaglelab.explore import Live
from eaglelab.explore.cost_playground import CostPlayground, most
from eaglelab.explore.cost_start import STORY
from eaglelab.investigation import Investigation
from eaglelab.timing.predict import MEASURED, PREDICTED
from eaglelab.timing.setting import Setting

HEAD = "batch,steps,topk,draft_tokens,tok_s,accept_length\n"
SWEEP = HEAD + "1,0,,,100,\n1,1,1,2,130,1.6\n1,2,1,3,150,2.0\n1,3,1,4,145,2.2\n4,0,,,320,\n4,1,1,2,380,1.6\n4,3,1,4,350,2.2\n"
TYPED = {"batch": 1, "steps": 3, "topk": 1, "draft_tokens": 4, "tok_s": 54.8, "at": 1.8, "baseline": 90.0, "accept_length": 1.8}


@pytest.fixture
def case(tmp_path):
    """case(table, launch) -> a playground on a case that has these alone."""

    def make(table=None, launch=None, **options):
        sections = {"engine": {"name": "sglang", "version": "0.5.23"}}
        if launch is not None:
            sections["engine"]["launch"] = launch
        if table is not None:
            (tmp_path / "table.csv").write_text(table, encoding="utf-8")
            sections["timing"] = {"table": "table.csv"}
        return CostPlayground(Investigation(str(write_case(tmp_path, sections))), **options)

    return make


def test_the_story_s_numbers_need_no_table(case):
    """54.8 tok/s at accept length 1.8 against 90: a cycle cost 2.96 plain decode steps, more than one draft token could bring in."""
    play = case()
    now = play.now(**TYPED)
    assert now.before.break_even == pytest.approx(1.8 * 90 / 54.8)
    assert f"{now.before.break_even:.2f}" == "2.96"
    assert now.before.speedup == pytest.approx(54.8 / 90)
    assert now.words["r"] == now.words["baseline"] == "typed"
    said = visible_text(play.view(**TYPED))
    assert "Slower than no speculation: at this cost it needs accept length 2.96 and has 1.80; 3-1-4 can give 4 at most." in said
    assert "Nothing was measured in this case: type the numbers of your own run." in said
    one = visible_text(play.view(**TYPED | {"steps": 1, "draft_tokens": 2}))
    assert "1-1-2 can give 2 at most, so that it cannot win" in one


def test_with_top_k_1_the_draft_tokens_are_steps_plus_1(case):
    said = visible_text(case().view(**TYPED | {"steps": 1, "draft_tokens": 16}))
    assert "16 draft tokens are asked for and 2 are in force: with top-k 1 they are steps + 1." in said


def test_two_steps_against_the_baseline(case):
    now = case().now(**TYPED | {"steps": 2, "draft_tokens": 3, "tok_s": 94.0, "at": 1.75, "accept_length": 1.75, "baseline": 88.8})
    assert now.before.speedup == pytest.approx(94 / 88.8)
    assert now.before.tok_s == pytest.approx(94)


def test_another_accept_length_costs_the_same_and_brings_more(case):
    now = case().now(**TYPED | {"accept_length": 3.6})
    assert now.before.break_even == pytest.approx(1.8 * 90 / 54.8)
    assert now.before.speedup == pytest.approx(2 * 54.8 / 90)
    assert now.words["accept"] == now.words["gain"] == "assumed"


def test_verify_faster_by_27_per_cent(case):
    """By hand: 95 % of a cycle is verify; 27 % less of it leaves 1 - 0.95 * 0.27 of the cycle."""
    play = case()
    now = play.now(**TYPED, verify_percent=27, verify_share=95.0)
    assert now.after.break_even == pytest.approx(1.8 * 90 / 54.8 * (1 - 0.95 * 0.27))
    assert now.after.tok_s == pytest.approx(54.8 / (1 - 0.95 * 0.27))
    both = play.now(**TYPED, verify_percent=27, draft_percent=50, verify_share=95.0)
    assert both.after.tok_s == pytest.approx(54.8 / (1 - 0.95 * 0.27 - 0.05 * 0.5))
    assert both.changes == ("verify 27% faster", "draft 50% faster")
    saved = 0.95 * 0.1 * 1.8 * 1000 / 54.8
    shared = play.now(**TYPED, verify_percent=10, shared=True, verify_share=95.0)
    assert shared.after.baseline_ms == pytest.approx(1000 / 90 - saved)
    said = visible_text(play.view(**TYPED, verify_percent=27, verify_share=95.0))
    assert "with the change" in said
    assert "before the change" not in said  # that is in the figure


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tok_s": 0.0}, "tok_s is 0, expected a number above 0"),
        ({"tok_s": -5.0}, "tok_s is -5, expected a number above 0"),
        ({"tok_s": math.nan}, "tok_s is nan, expected a number above 0"),
        ({"baseline": math.inf}, "baseline is inf, expected a number above 0"),
        ({"at": 0.5}, "accept length is 0.5, expected 1 or more"),
        ({"at": math.nan}, "accept length is nan, expected 1 or more"),
        ({"at": 4.5}, "accept length 4.5 cannot be: a pass of 3-1-4 gives 4 tokens at most"),
        ({"accept_length": 4.5}, "accept length 4.5 cannot be: a pass of 3-1-4 gives 4 tokens at most"),
        ({"accept_length": -1.0}, "accept length is -1, expected 1 or more"),
        ({"batch": 0}, "batch is 0, expected a number above 0"),
        ({"steps": 0}, "steps is 0, which is no speculation"),
        ({"steps": -1}, "a setting has steps 0 or more"),
        ({"verify_percent": 100}, "verify faster by 1.0, expected a share from 0 to below 1"),
        ({"draft_percent": -5}, "draft faster by -0.05, expected a share from 0 to below 1"),
        ({"verify_share": 130.0}, "expected 0 or more, and 1 at most together"),
    ],
)
def test_what_cannot_be_gets_a_sentence(case, change, message):
    with pytest.raises(ValueError, match=message.replace("+", r"\+")):
        case().view(**TYPED | change)


def test_a_cycle_cheaper_than_a_decode_step_has_no_conclusion(case):
    assert "No conclusion" in visible_text(case().view(**TYPED | {"tok_s": 300.0}))


def test_a_table_fills_the_fields(case):
    live = Live(case(SWEEP), strict=True)
    values = live.values
    assert (values["batch"], values["steps"], values["draft_tokens"]) == (1, 2, 3)  # the fastest
    assert (values["tok_s"], values["at"], values["baseline"], values["accept_length"]) == (150, 2.0, 100, 2.0)
    assert "1.5 measured" in visible_text(live.output.value)
    live.controls["batch"].value = 4
    assert "4" in live.controls["batch"].description
    live.controls["steps"].value = 3
    assert (live.controls["tok_s"].value, live.controls["baseline"].value) == (350, 320)
    assert (live.controls["draft_tokens"].value, live.controls["accept_length"].max) == (4, 4.0)
    live.controls["accept_length"].value = 3.0
    assert "speedup over no speculation 1.491 assumed" in visible_text(live.output.value)  # 350 / 320 * 3 / 2.2
    live.buttons["As the case has it"].click()
    assert live.values == values


def test_a_measured_accept_length_between_two_steps_of_the_slider_is_measured(case):
    play = case(HEAD + "1,0,,,7.454,\n1,2,1,3,11.232,1.6652\n")
    assert play.defaults["accept_length"] == 1.67
    assert play.now(**play.defaults).words["accept"] == "measured"
    assert play.now(**play.defaults | {"accept_length": 1.7}).words["accept"] == "assumed"


def test_what_did_not_run_is_predicted_as_the_cost_report_predicts_it(case):
    play = case(SWEEP)
    start = play.known.start(4, Setting(2))
    [outlook] = [o for r in play.inv.timing.cost.recommendations if r.batch == 4 for o in r.outlooks if o.setting == Setting(2)]
    assert (start.source, start.baseline_source) == (PREDICTED, MEASURED)
    length = outlook.accept_length
    assert start.accept_length == pytest.approx(length)
    time = play.inv.timing.cost.fits[0].predict(4, Setting(2)).ms
    assert start.tok_s == pytest.approx(1000 * 4 * length / time, rel=1e-5)
    live = Live(play, strict=True)
    live.controls["batch"].value = 4
    assert "speedup over no speculation" in visible_text(live.output.value)
    assert "predicted" in visible_text(live.output.value)


def test_what_can_be_neither_run_nor_predicted_is_asked_for(case):
    live = Live(case(SWEEP))
    live.controls["batch"].value = 64
    assert "at batch 64 was neither run nor can it be predicted from what was (batch 1, 4)" in visible_text(live.error.value)
    live.controls["tok_s"].value, live.controls["baseline"].value = 900.0, 600.0
    assert live.error.value == ""
    assert "tok/s 900 typed" in visible_text(live.output.value)


def test_without_a_baseline_one_is_asked_for(case):
    play = case(HEAD + "1,3,1,4,95,1.7\n")
    with pytest.raises(ValueError, match=r"no run without speculation tells what batch 1 gives: run it \(steps 0 in the table\), or type"):
        play.twin()
    live = Live(play)
    live.controls["baseline"].value = 80.0
    assert "1.19 times as fast" in live.output.value  # 95 / 80


def test_the_launch_line_s_setting_is_where_it_begins(case):
    launch = "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
    launch += " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
    assert case(SWEEP, launch).begin == (1, Setting(3), "")
    assert case(None, launch).begin == (1, Setting(3), "")


def test_the_twin_shows_the_present_setting_and_what_ifs(case):
    play = case(SWEEP, faster=0.5, longer=0.1)
    markup = play.twin()
    said = visible_text(markup)
    assert markup.count("<img") == 1
    assert "verify 50% faster" in said
    assert "accept length +0.1" in said
    assert "<script" not in markup
    ifs = play.inv.timing.what_ifs(0.5, 0.1)
    assert said.count("accept length +0.1") == (ifs["what if"] == "accept length +0.1").sum()


def test_without_a_table_a_report_says_how_to_get_one_and_shows_no_made_up_number(case):
    said = visible_text(case().twin())
    assert "measured throughputs of settings" in said
    assert "eaglelab sweep CASE" in said
    assert str(STORY[0]) not in said


def test_without_batch_sizes_there_are_no_milliseconds(case):
    said = visible_text(case("steps,tok_s,accept_length\n0,100,\n3,150,2.5\n").twin())
    assert "speedup over no speculation 1.5" in said
    assert "a cycle, ms" not in said


def test_models_kept_apart_can_be_chosen(case):
    table = "model,batch,steps,tok_s,accept_length\na,1,0,100,\na,1,3,150,2.5\n<b>b</b>,1,0,10,\n<b>b</b>,1,3,12,2.0\n"
    live = Live(case(table), strict=True)
    assert live.controls["tok_s"].value == 150
    live.controls["group"].value = "model <b>b</b>"
    assert (live.controls["tok_s"].value, live.controls["baseline"].value) == (12, 10)
    assert "<b>b" not in live.output.value


def test_tokens_of_a_pass():
    assert [most(s) for s in (Setting(1), Setting(3), Setting(4, 4, 3), Setting(3, 8, 32))] == [2, 4, 3, 4]
