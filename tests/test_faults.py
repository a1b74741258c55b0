"""A small part of the fault bench: a world that is really trained, a healthy case, faults of several classes, and the scorer itself."""

from __future__ import annotations

import csv
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from random import Random

import pytest
import torch
from faults import score
from faults.bench import COLUMNS, Bench, Job, Seen, changed, effect, effect_of_text, healthy_outcome, outcome, same_server, wrong_and_sure
from faults.healthy import healthy
from faults.kinds import KINDS
from faults.plan import Kind, Server
from faults.server import accepted_of, serve
from faults.write import write

from eaglelab.acceptance import ratio_interval
from eaglelab.findings import Fault, Finding, Status, Verdict
from eaglelab.loop.target import CachedTarget

ROOT = Path(__file__).parents[1]
BY_NAME = {k.name: k for k in KINDS}


@pytest.fixture(scope="module")
def bench():
    return Bench("llama", 0, "test")


# -- the world ----------------------------------------------------------------------------------------------------------------------------


def test_the_texts_are_the_targets_own_greedy_answers_and_the_states_its_own(bench):
    """By the loop's own target, which runs with a cache, token by token; the texts came out of transformers."""
    world = bench.world
    target = CachedTarget(world.folder, dtype="float32", device="cpu")
    for text, prompt, states in list(zip(world.texts, world.prompts, world.states, strict=True))[:3]:
        target.reset()
        logits, fed = target.forward(text, [0, 3, world.num_layers, "final"])
        assert (logits.argmax(-1)[prompt - 1 : -1] == text[prompt:]).all()
        for boundary, given in zip([0, 3, world.num_layers, "final"], fed, strict=True):
            torch.testing.assert_close(given, states[boundary], rtol=1e-3, atol=1e-4)


def test_the_drafter_beats_a_bigram_and_the_last_token_and_uses_every_slot(bench):
    world = bench.world
    following = {}
    for text in world.trained_texts:
        for a, b in zip(text[:-1].tolist(), text[1:].tolist(), strict=True):
            following.setdefault(a, []).append(b)
    best = {a: max(set(b), key=b.count) for a, b in following.items()}
    right = {"bigram": 0, "repeat": 0, "n": 0}
    for text, prompt in zip(world.texts, world.prompts, strict=True):
        for a, b in zip(text[prompt:-1].tolist(), text[prompt + 1 :].tolist(), strict=True):
            right["n"] += 1
            right["bigram"] += best.get(a) == b
            right["repeat"] += a == b
    first = [p.accepted > 0 for a in bench.answers for p in a.passes]
    drafter = sum(first) / len(first)
    assert drafter > 1.3 * right["bigram"] / right["n"] > right["repeat"] / right["n"]

    def length(spoil):
        answers = serve(world, replace(bench.base.server, spoil=spoil))
        return effect(bench.length, accepted_of(answers))

    for place in range(3):

        def zeroed(states, place=place):
            return [torch.zeros_like(s) if p == place else s for p, s in enumerate(states)]

        assert length(zeroed)[2] < 0  # surely worse without any of them
    assert 2 < 1 + sum(a for a, _ in bench.length) / sum(n for _, n in bench.length) < 3.5


def test_looking_states_up_serves_as_running_the_target_does(bench):
    """`Known` against the real target with its cache, verify pass by verify pass, on a wiring that is wrong so that much is rejected."""
    world, server = bench.world, Server([1, 4, 6], bench.world.tensors, bench.world.config, bench.world.folder)
    looked = serve(world, server)
    small = replace(world, texts=world.texts[:2], prompts=world.prompts[:2], folder=Path("/elsewhere"))
    ran = serve(small, server)  # another folder than the world's: the target runs
    assert [[p.accepted for p in a.passes] for a in ran] == [[p.accepted for p in a.passes] for a in looked[:2]]


def test_a_plans_copy_is_another_plan_and_its_server_is_compared_whole(bench):
    copy = bench.base.copy()
    assert copy.world is bench.world
    assert same_server(bench.base, copy)
    name = next(n for n, t in copy.server.tensors.items() if t.is_floating_point())
    copy.server.tensors[name][0] += 1
    assert not same_server(bench.base, copy)
    assert same_server(bench.base, healthy(bench.world))


def test_a_case_has_changed_where_it_differs_beyond_rounding(bench):
    def change(how) -> bool:
        plan = bench.base.copy()
        how(plan)
        return changed(bench.base, plan)

    assert not change(lambda plan: None)
    assert not change(lambda plan: plan.samples[0]["hidden_states"][0].mul_(1 + 2**-9))
    assert change(lambda plan: plan.samples[0]["hidden_states"][0].mul_(1.1))
    assert change(lambda plan: plan.samples[3]["loss_mask"].zero_())
    assert change(lambda plan: plan.samples.pop())
    assert change(lambda plan: plan.claims.append({"slot": 0, "text": "embed"}))
    assert change(lambda plan: plan.tensors.pop("d2t"))
    assert change(lambda plan: plan.config.update(rope_theta=1e6))


# -- cases --------------------------------------------------------------------------------------------------------------------------------


def test_a_healthy_case_is_clean(bench, tmp_path):
    seen = _look(bench.base, bench.answers, tmp_path)
    assert healthy_outcome(seen) == "clean", (seen.fails, seen.verdict)
    assert not seen.broke


NAMED = (
    "ids one too deep",
    "d2t all zero",
    "lm_head missing",
    "norm_before_residual ignored",
    "EAGLE in place of EAGLE3",
    "mask all zero",
    "random embedding table",
    "engine steps on from the normed state",
)


@pytest.mark.parametrize("name", NAMED)
def test_a_gross_fault_is_named(bench, name):
    rows = list(bench.faulted(Job("llama", 0, (BY_NAME[name],), 1.0)))
    assert [r["outcome"] for r in rows] == ["named"], rows
    assert rows[0]["above_noise"] == 1
    assert not rows[0]["wrong_and_sure"]
    assert set(rows[0]) == set(COLUMNS)


def _look(plan, answers, folder):
    from eaglelab.case import open_case
    from eaglelab.checks import run_checks
    from eaglelab.investigation import Investigation
    from eaglelab.verdict import verdict

    write(plan, folder, answers)
    inv = Investigation(open_case(folder))
    found = list(run_checks(inv))
    return Seen(found, verdict(found, inv), 0.0)


# -- the scorer ---------------------------------------------------------------------------------------------------------------------------

KIND = Kind("a kind", "A", frozenset({"wiring.match"}), lambda plan, strength, rng: None)


def seen(*fails: str, told: tuple[str, ...] = (), stage: str = "wiring", confidence: str = "sure", faults: tuple[Fault, ...] = ()) -> Seen:
    found = [Finding(i, f"title of {i}", Status.FAIL) for i in fails] + [Finding(i, i, Status.CANNOT_TELL) for i in told]
    return Seen(found, Verdict(stage, confidence, " ".join(f.title for f in found), faults=faults), 0.0)


def fault(*findings: str, confidence: str = "sure") -> Fault:
    return Fault("wiring", confidence, "", findings=findings)


def test_outcomes():
    assert outcome(KIND, seen("wiring.match", faults=(fault("wiring.match"),))) == "named"
    assert outcome(KIND, seen("wiring.match")) == "named"  # a verdict without records names it in its text
    silent = Seen(seen("wiring.match").findings, Verdict("none found", "likely", "nothing"), 0.0)
    assert outcome(KIND, silent) == "noticed"  # the finding fails and the verdict does not say so
    assert outcome(KIND, seen("dump.health", faults=(fault("dump.health"),))) == "noticed"
    assert outcome(KIND, seen(told=("wiring.match",), stage="none found")) == "cannot tell"
    assert outcome(KIND, seen(told=("dump.health",), stage="none found")) == "missed"
    assert outcome(KIND, seen(stage="cannot tell")) == "cannot tell"


def test_a_sure_verdict_on_something_else_is_counted_as_wrong_and_sure():
    right, wrong = fault("wiring.match"), fault("dump.health")
    assert not wrong_and_sure([KIND], seen("wiring.match", faults=(right,)))
    assert wrong_and_sure([KIND], seen("dump.health", faults=(wrong,)))
    assert wrong_and_sure([KIND], seen("wiring.match", "dump.health", faults=(right, wrong)))  # beside the right one, too
    assert not wrong_and_sure([KIND], seen("dump.health", faults=(replace(wrong, confidence="likely"),)))
    assert wrong_and_sure([KIND], seen("dump.health"))  # a verdict without records
    assert not wrong_and_sure([], seen(stage="none found"))
    assert wrong_and_sure([KIND], seen(stage="none found"))  # sure that nothing is wrong
    assert not wrong_and_sure([KIND], seen(stage="none found", confidence="likely"))
    assert wrong_and_sure([], seen("dump.health", faults=(wrong,)))  # a healthy case
    assert healthy_outcome(seen("dump.health", stage="none found")) == "false alarm"
    assert healthy_outcome(seen(stage="wiring")) == "false alarm"
    assert healthy_outcome(seen(stage="cannot tell")) == "cannot tell"


def test_the_effects_interval_is_of_paired_requests():
    same = [(10, 10), (20, 10), (5, 5)]
    assert effect(same, same) == (0, 0, 0)
    assert effect(same, [(a - 5, n) for a, n in same])[2] < 0
    assert effect(same, same[:2]) != effect(same, same[:2])  # NaN: other requests are not compared


def row(**changes: str) -> dict[str, str]:
    return dict.fromkeys(COLUMNS, "") | {
        "world": "llama", "seed": "0", "column": "calibration", "kinds": "k", "fault": "k", "cls": "A", "strength": "1", "above_noise": "1",
        "faults": "wiring (sure): wiring.match triangle", "outcome": "named", "wrong_and_sure": "0",
    } | changes  # fmt: skip


def test_the_table_counts_what_it_says(tmp_path):
    rows = [
        row(),
        row(kinds="l", fault="l", outcome="missed", faults="", wrong_and_sure="1"),
        row(kinds="m", fault="m", outcome="cannot tell", faults=""),
        row(kinds="n", fault="n", outcome="named", above_noise="0"),
        row(kinds="o", fault="o", outcome="error", above_noise=""),
        row(kinds="k + l", fault="k"),
        row(kinds="k + l", fault="l", outcome="noticed"),
        row(kinds="healthy: plain", fault="", outcome="false alarm", faults=""),
        row(kinds="healthy: vLLM", fault="", outcome="clean", faults=""),
    ]
    got = score.score(rows, "calibration")
    assert (got.single["named"], got.told, got.weak.total(), got.pairs.total()) == (1, 3, 1, 2)  # the broken one is in the denominator
    assert (got.false_alarms, got.healthy.total(), got.wrong_and_sure, got.cases) == (1, 2, 1, 8)
    names, lines = score.confusion(rows)
    assert names == ["wiring", "nothing"]
    assert {kind: dict(counts) for _, kind, counts, _ in lines}["l"] == {"nothing": 1}
    low, high = score.wilson(9, 10)  # Wilson's interval of 9 of 10: 0.596 to 0.982
    assert (round(low, 3), round(high, 3)) == (0.596, 0.982)
    hostile = [*rows, row(kinds="<script>alert(1)</script>", fault="<b>", outcome="missed")]
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{score.BEGIN}\nold\n{score.END}\nafter\n")
    score.publish(hostile, tmp_path / "docs", "abc", readme)
    assert readme.read_text() == f"before\n{score.BEGIN}\n{score.markdown(hostile)}\n{score.END}\nafter\n"
    html = (tmp_path / "docs" / "index.html").read_text()
    assert "<script" not in html
    assert "&lt;b&gt;" in html
    _Balanced().check(html)
    with pytest.raises(ValueError, match="no block"):
        score.with_block("a README without marks", "x")


class _Balanced(HTMLParser):
    """Every element that is opened is closed, in order."""

    def check(self, html: str) -> None:
        self.open: list[str] = []
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_readme_shows_the_published_rows():
    rows = score.load([ROOT / "docs" / "faults" / "cases.csv"])
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{score.BEGIN}\n{score.markdown(rows)}\n{score.END}" in text
    with (ROOT / "docs" / "faults" / "confusion.csv").open(newline="", encoding="utf-8") as file:
        assert sum(int(r["cases"]) for r in csv.DictReader(file)) == sum(not score.is_pair(r) for r in rows)


def test_every_kind_is_declared_whole():
    assert len(BY_NAME) == len(KINDS) >= 40
    for kind in KINDS:
        assert kind.cls in set("ABCDEFGHIJKLMNOX"), kind.name
        assert kind.named_by, kind.name
        assert " + " not in kind.name, "a plus with spaces parts the names of a pair"
    assert Random("a").random() == Random("a").random()  # injections are drawn by name: the same in every run


def test_the_effect_of_other_prompts_is_not_paired():
    """Two independent means of +-1: the square root of the sum of both half widths' squares, whatever the order and the number of requests."""
    easy, hard = [(20, 10), (22, 10), (18, 10), (20, 10)], [(10, 10), (12, 10), (8, 10), (10, 10), (11, 10), (9, 10)]
    moved, low, high = effect_of_text(easy, hard)
    assert moved == pytest.approx(-1)
    one, other = (ratio_interval([a for a, _ in side], [n for _, n in side]) for side in (easy, hard))
    assert moved - low == pytest.approx((((other[1] - other[0]) / 2) ** 2 + ((one[1] - one[0]) / 2) ** 2) ** 0.5)
    assert effect_of_text(easy, hard[::-1]) == (moved, low, high)
