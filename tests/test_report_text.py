"""Public reports of a training text that is not the served one."""

import pytest
from test_lost import Words, digits  # noqa: F401 - a fixture
from text_fakes import conversation, encode, make_tokenizer, talk_case

from eaglelab.checks import findings
from eaglelab.cli import main
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.lost import LostCase
from eaglelab.renderings import Rendering, compare_renderings, summary

TALKS = [(f"How many {t}?", f"There are {n} {t}.") for n, t in ((3, "pens"), (4, "cups"), (5, "keys"), (6, "hats"), (7, "maps"))]


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.mark.report("sgl-project/SpecForge#296", "C")
def test_an_empty_think_block_that_one_of_two_renderings_has(tokenizer, tmp_path, capsys):
    """Qwen3's template writes `<think></think>` on one path and not on the other: the first token that differs, in every sample."""
    trained = [conversation(tokenizer, ask, answer) for ask, answer in TALKS]
    served = [conversation(tokenizer, ask, f"<think>\n\n</think>\n\n{answer}") for ask, answer in TALKS]
    ours, theirs = ([Rendering(f"data_{i}.pt", ids, mask.index(1)) for i, (ids, mask) in enumerate(side)] for side in (trained, served))
    table = compare_renderings(ours, theirs, tokenizer)
    assert table["differ"].all()
    assert table["position"].tolist() == [mask.index(1) for _, mask in trained]  # the answer's first token
    assert set(table["ours"]) == {"T"}
    assert set(table["theirs"]) == {"<"}
    assert "5 of 5 samples differ" in summary(table)
    one, other = talk_case(tmp_path / "one", trained, tokenizer), talk_case(tmp_path / "other", served, tokenizer)
    main(["dump", str(one), "--against", str(other / "dump")])
    assert "5 of 5 samples differ" in capsys.readouterr().out
    found = {f.id: f for f in findings(Investigation(str(other)), "text.faults")}["text.faults"]
    assert (found.status, found.numbers["empty think block"]) == (Status.CANNOT_TELL, 5)
    assert "thinking off at serving" in found.next


@pytest.mark.report("vllm-project/speculators#195", "C")
@pytest.mark.parametrize("header", ["<|im_start|>assistant\n", "<role>ASSISTANT</role>"])
def test_a_pattern_for_the_answers_that_matches_nothing(tokenizer, tmp_path, header):
    """Masks come from a pattern for each family of templates; another family's matches no turn and trains nothing."""
    talks = [conversation(tokenizer, ask, answer) for ask, answer in TALKS]
    wanted = encode(tokenizer, header)
    masked = []
    for ids, _ in talks:
        ends = [i + len(wanted) for i in range(len(ids)) if ids[i : i + len(wanted)] == wanted]
        masked.append((ids, [int(bool(ends) and i >= ends[-1]) for i in range(len(ids))]))
    found = {f.id: f for f in findings(Investigation(str(talk_case(tmp_path, masked, tokenizer))), "text.mask")}["text.mask"]
    assert found.status is (Status.PASS if "im_start" in header else Status.FAIL)
    assert ("5 of 5 samples train nothing" in found.title) is ("role" in header)


class TwoLanguages(Words):
    """Ids 0 to 3 are Chinese, all others words."""

    def decode(self, ids, **options):
        return "茶雨船蚁"[ids[0]] if ids[0] < 4 else f" w{chr(97 + ids[0])}"


@pytest.mark.report("SafeAILab/EAGLE#179", "C")
def test_a_language_that_the_training_did_not_hold(digits, monkeypatch):  # noqa: F811
    """Speed ratio 3.0 for English, 1.5 on a Chinese task, where test accuracy is 79 %: acceptance is split by language."""
    monkeypatch.setattr(LostCase, "tokenizer", TwoLanguages())
    (found,) = findings(Investigation(str(digits), steps=2), "lost.classes")
    assert found.title.startswith("Most acceptance is lost at one class of tokens: CJK")
    lost = next(c for c in found.numbers["classes"] if c["class"] == "CJK")
    assert lost["marginal"] < 0.5 < 0.8 < lost["others"]
    assert "Train on more" in found.next
