"""Findings on mask and text, and two renderings side by side, on small dumps with a real tokenizer."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from case_builder import write_case
from text_fakes import SPECIALS, TALKS, TEMPLATE, conversation, encode, make_tokenizer, moved, talk_case, write_talks
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from eaglelab.checks import findings, text
from eaglelab.cli import main
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.renderings import Rendering, RenderingError, compare_renderings, read_jsonl, summary
from eaglelab.text import answer_frame

PASS, FAIL, CANNOT_TELL, NOT_GIVEN = Status.PASS, Status.FAIL, Status.CANNOT_TELL, Status.NOT_GIVEN
IDS = ("text.mask", "text.faults", "text.tokens", "text.shift", "text.first_token")


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def talks(tokenizer):
    return [conversation(tokenizer, *talk) for talk in TALKS]


def look(case, *ids):
    found = findings(Investigation(str(case)), *(ids or IDS))
    return {f.id: f for f in found} if len(found) > 1 else found[0]


# -- what a template writes ---------------------------------------------------------------------------------------------------------


def test_the_frame_of_a_template(tokenizer):
    frame = answer_frame(tokenizer)
    assert frame.headers == (tuple(encode(tokenizer, "<|im_start|>assistant\n")),)
    assert frame.ends == tuple(encode(tokenizer, "<|im_end|>"))
    assert frame.bos == tokenizer.bos_token_id


def test_a_prompt_that_opens_a_think_block_gives_both_headers():
    template = make_tokenizer().chat_template.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    tokenizer = make_tokenizer(template)
    assert answer_frame(tokenizer).headers == tuple(tuple(encode(tokenizer, f"<|im_start|>assistant\n{t}")) for t in ("<think>\n", ""))


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}", "{{ messages[9].content }}", "{% for"])
def test_without_a_usable_template_there_is_no_header(template):
    frame = answer_frame(make_tokenizer(template))
    assert (frame.headers, len(frame.ends)) == ((), 1)


# -- findings -----------------------------------------------------------------------------------------------------------------------


def test_a_dump_in_order(tokenizer, talks, tmp_path):
    by_id = look(talk_case(tmp_path, talks, tokenizer, training={"framework": "specforge"}))
    assert {f.status for f in by_id.values()} == {PASS}
    assert by_id["text.shift"].title == "The mask starts at the answer in 6 of 6 spans"
    assert "6 of 6 whole answers' spans end on the token that ends the turn" in by_id["text.shift"].evidence
    assert by_id["text.mask"].numbers["whole_answers"] == 6
    assert by_id["text.tokens"].title == "6 of 6 prompts are the tokens that this tokenizer makes of their text"
    assert "its third token, so that the one drafted before it never trains (specforge)" in by_id["text.first_token"].title


@pytest.mark.parametrize(
    ("framework", "places", "says"),
    [
        ("speculators", 0, "its second token, the first that an engine drafts"),
        ("modelopt", 1, "its third token, so that the one drafted before it never trains"),
        ("eagle", -1, "its second token, the first that an engine drafts"),
        ("angelslim", 1, "its fourth token, so that the 2 drafted before it never train"),
        ("speculators", -2, "one before its second token, which no engine drafts"),
    ],
)
def test_the_first_trained_prediction_by_framework(tokenizer, talks, tmp_path, framework, places, says):
    shifted = [(ids, moved(mask, places)) for ids, mask in talks]
    found = look(talk_case(tmp_path, shifted, tokenizer, training={"framework": framework}), "text.first_token")
    assert found.status is PASS
    assert found.title == f"The first prediction that trains in an answer: {says} ({framework})"
    assert found.numbers["start"] == places


def test_without_a_framework_both_rules_are_read(tokenizer, talks, tmp_path):
    found = look(talk_case(tmp_path, talks, tokenizer), "text.first_token")
    assert found.status is NOT_GIVEN
    assert list(found.numbers["first_trained"].values()) == [2, 3]
    assert "[training] framework" in found.next


@pytest.mark.parametrize(
    ("places", "words"), [(-2, "2 token(s) early"), (-1, "1 token(s) early"), (1, "1 token(s) late"), (2, "2 token(s) late")]
)
def test_a_moved_mask_fails(tokenizer, talks, tmp_path, places, words):
    found = look(talk_case(tmp_path, [(ids, moved(mask, places)) for ids, mask in talks], tokenizer), "text.shift")
    assert found.status is FAIL
    assert words in found.title
    assert found.numbers["offset"] == places
    assert ("the whole mask is shifted" in found.evidence) == (places < 0)  # moved to the right, it ends with the sample


IM = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' and '</think>' not in m.content }}"
IM += "{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
DEEPSEEK = "{{ bos_token }}{% for m in messages %}{{ '<User>' + m.content if m.role == 'user' else '<Assistant>' + m.content.split('</think>')[-1] + eos_token }}"
DEEPSEEK += "{% endfor %}{% if add_generation_prompt %}<Assistant>GEN{% endif %}"
MISTRAL = "{{ bos_token }}{% for m in messages %}{{ '[INST] ' + m.content + '[/INST]' if m.role == 'user' else ' ' + m.content + eos_token }}{% endfor %}"
SHIFTED = {  # a template, what stands before and behind the answer (where @ the mask starts and stops), by the shift that is found or None
    "Qwen3 thinking": (IM, "<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n@<think>\n{t}</think>\n\n{a}<|im_end|>@\n", {2: None}),
    "Qwen3 without": (IM, "<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n@{a}<|im_end|>@\n", {}),
    "DeepSeek": (DEEPSEEK.replace("GEN", ""), "<s><User>{q}<Assistant>@{a}<|im_end|>@", {}),
    "R1": (DEEPSEEK.replace("GEN", "<think>\n"), "<s><User>{q}<Assistant><think>\n@{t}</think>{a}<|im_end|>@", {}),
    "Mistral": (MISTRAL, "<s>[INST] {q}[/INST]@{a}<|im_end|>@", {}),
}


@pytest.mark.parametrize("places", [-3, -2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("name", SHIFTED)
def test_a_moved_mask_is_named_whatever_the_template(tmp_path, name, places):
    template, text, undecided = SHIFTED[name]
    tokenizer = make_tokenizer(template)
    specials = ["<think>", "</think>", "<User>", "<Assistant>", "[INST]", "[/INST]"]
    tokenizer.add_special_tokens({"additional_special_tokens": specials})
    samples = []
    for i, (ask, answer) in enumerate(TALKS):
        parts = [encode(tokenizer, p) for p in text.format(q=ask, a=answer, t=f"{'klmnop'[i]} so {ask}").split("@")]
        samples.append(
            ([i for part in parts for i in part], moved([k for k, part in zip((0, 1, 0), parts, strict=True) for _ in part], places))
        )
    found = look(talk_case(tmp_path, samples, tokenizer), "text.shift")
    expected = undecided.get(places, places)
    assert (found.numbers["offset"], found.status) == (expected, PASS if expected == 0 else CANNOT_TELL if expected is None else FAIL)


@pytest.mark.parametrize(("cut", "ids"), [(1, "the end token does not train"), (-1, "the line end trains too")])
def test_rules_for_the_end_of_a_turn_are_no_shift(tokenizer, talks, tmp_path, cut, ids):
    line = encode(tokenizer, "\n")
    ends = [(t + line, [*mask[: len(mask) - max(cut, 0)], *[0] * max(cut, 0), int(cut < 0)]) for t, mask in talks]
    assert look(talk_case(tmp_path, ends, tokenizer), "text.shift").status is PASS


def test_a_whole_header_that_trains_moves_the_first_prediction(tokenizer, talks, tmp_path):
    header = encode(tokenizer, "<|im_start|>assistant\n")
    early = [(ids, [int(m or any(mask[i : i + len(header) + 1])) for i, m in enumerate(mask)]) for ids, mask in talks]
    by_id = look(talk_case(tmp_path, early, tokenizer, training={"framework": "speculators"}), "text.shift", "text.first_token")
    assert by_id["text.shift"].status is PASS
    assert by_id["text.first_token"].numbers["start"] == -len(header)
    assert "no engine drafts" in by_id["text.first_token"].title


def test_where_the_mask_lies_is_not_known_the_first_prediction_is_not_either(talks, tmp_path):
    early = [(ids, moved(mask, -1)) for ids, mask in talks]
    found = look(talk_case(tmp_path, early, training={"framework": "eagle"}), "text.first_token")
    assert (found.status, found.numbers["start"]) == (CANNOT_TELL, None)


def test_a_template_without_a_header_of_its_own():
    tokenizer = make_tokenizer(MISTRAL)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[INST]", "[/INST]"]})
    assert answer_frame(tokenizer).headers == tuple(tuple(encode(tokenizer, h)) for h in ("[/INST]",))


def test_prompts_are_not_held_against_a_tokenizer_that_changes_its_own_template(talks, tmp_path):
    """Legacy SentencePiece writes a space behind each special token: plain text comes back, a rendered question does not."""
    letters = [*map(chr, range(33, 127)), "\n", "\u2581"]
    raw = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    raw.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    raw.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="<|im_end|>")
    tokenizer.chat_template = TEMPLATE
    spaced = [conversation(tokenizer, *talk) for talk in TALKS]
    found = look(talk_case(tmp_path, spaced, tokenizer), "text.tokens")
    assert found.numbers["differ"] == 6
    assert (found.status, found.numbers["faithful"]) == (CANNOT_TELL, False)


def test_masks_of_ones_have_no_prompts_to_repeat(tokenizer, talks, tmp_path):
    full = look(talk_case(tmp_path, [(ids, [1] * len(ids)) for ids, _ in talks], tokenizer), "text.faults")
    assert full.numbers["the same prompt"] == 0


def test_without_a_tokenizer_what_needs_one_is_not_given(talks, tmp_path):
    by_id = look(talk_case(tmp_path / "right", talks))
    assert by_id["text.faults"].status is by_id["text.tokens"].status is NOT_GIVEN
    assert "`[target] tokenizer`" in by_id["text.faults"].next
    assert by_id["text.shift"].status is PASS  # the same tokens stand before all masks, and the answers differ
    early = look(talk_case(tmp_path / "early", [(ids, moved(mask, -1)) for ids, mask in talks]), "text.shift")
    assert early.status is CANNOT_TELL
    assert "the first 1 trained token(s) are the same in all spans" in early.title
    assert "`[target] tokenizer`" in early.next
    assert look(talk_case(tmp_path / "few", talks[:2]), "text.shift").status is NOT_GIVEN


@pytest.mark.report("SafeAILab/EAGLE#196", "C")
def test_another_templates_header(tokenizer, talks, tmp_path):
    other = make_tokenizer(tokenizer.chat_template.replace("assistant", "model"))
    other.chat_template = other.chat_template.replace("{{ m.role }}", "{{ 'model' if m.role == 'assistant' else m.role }}")
    found = look(talk_case(tmp_path, talks, other), "text.shift")
    assert "the template's header stands before none of the spans" in found.title


@pytest.mark.report("marin-community/marin#7237", "C")
@pytest.mark.report("NVIDIA-NeMo/Megatron-Bridge#3359", "C")
@pytest.mark.report("vllm-project/speculators#195", "C")
def test_masks_that_train_nothing_everything_or_are_absent(tokenizer, talks, tmp_path):
    zero = look(talk_case(tmp_path / "zero", [(ids, [0] * len(ids)) for ids, _ in talks], tokenizer))
    assert (zero["text.mask"].status, zero["text.mask"].title) == (FAIL, "6 of 6 samples train nothing")
    assert zero["text.tokens"].status is NOT_GIVEN
    full = look(talk_case(tmp_path / "full", [(ids, [1] * len(ids)) for ids, _ in talks], tokenizer), "text.mask")
    assert (full.status, full.title) == (CANNOT_TELL, "6 of 6 samples train every token")
    absent = look(talk_case(tmp_path / "absent", [(ids, None) for ids, _ in talks], tokenizer))
    assert {absent[i].status for i in ("text.mask", "text.tokens", "text.shift", "text.first_token")} == {NOT_GIVEN}
    assert "a loss mask" in absent["text.mask"].title
    assert absent["text.faults"].status is PASS


def test_faults_of_the_text_are_counted(tokenizer, tmp_path):
    bos = tokenizer.bos_token_id
    good = conversation(tokenizer, "Tell me of tea.", "Tea is hot.")
    samples = [
        good,
        ([bos, *good[0]], [0, *good[1]]),  # BOS twice; then also the same answer
        (good[0][1:], good[1][1:]),  # BOS missing, the same answer
        conversation(tokenizer, "And rain?", "<think>\n\n</think>\n\nIt falls."),
        conversation(tokenizer, "And ants?", "They", end=""),
        conversation(tokenizer, "And ants?", "They march."),
    ]
    found = look(talk_case(tmp_path, samples, tokenizer), "text.faults")
    assert found.status is FAIL
    assert found.numbers == {
        "samples": 6,
        "BOS twice": 1,
        "BOS missing": 1,
        "empty think block": 1,
        "truncated answer": 1,
        "the same prompt": 1,
        "the same answer": 2,
    }
    think = look(talk_case(tmp_path / "think", samples[3:4], tokenizer), "text.faults")
    assert think.status is CANNOT_TELL
    assert "Is thinking off at serving too?" in think.next
    same = look(talk_case(tmp_path / "same", [conversation(tokenizer, ask, "No.") for ask, _ in TALKS], tokenizer), "text.faults")
    assert (same.status, same.numbers["the same answer"]) == (FAIL, 5)


def test_ids_of_another_tokenizer_do_not_come_back(tokenizer, talks, tmp_path):
    foreign = [([9 + 7 * i % 240 for i in ids], mask) for ids, mask in talks]
    found = look(talk_case(tmp_path / "foreign", foreign, tokenizer), "text.tokens")
    assert (found.status, found.numbers["differ"], found.numbers["faithful"]) == (FAIL, 6, True)
    assert "The first: data_0.pt, token" in found.evidence
    outside = [([i + 10_000 for i in ids], mask) for ids, mask in talks]
    assert look(talk_case(tmp_path / "outside", outside, tokenizer), "text.tokens").status is FAIL
    one = look(talk_case(tmp_path / "one", [*talks[:5], foreign[5]], tokenizer), "text.tokens")
    assert (one.status, one.numbers["differ"]) == (CANNOT_TELL, 1)


def test_the_text_at_both_ends_of_each_span(tokenizer, talks, tmp_path):
    ids, mask = talks[0]
    twice = (ids + encode(tokenizer, "\n") + ids, [*mask, 0, *mask])
    rows = Investigation(str(talk_case(tmp_path / "a", [twice], tokenizer))).mask_text()
    assert [r["before (not trained)"] for r in rows] == ["sistant⏎"] * 2
    assert [r["last trained"] for r in rows] == [".".join(["a␣␣yes", "<|im_end|>"])] * 2
    assert rows[0]["after (not trained)"].startswith("⏎<s><|im_start|>user")
    assert rows[1]["after (not trained)"] == "(the sample ends)"
    assert rows[0]["trained"] == f"{mask.index(1)}..{len(mask) - 1}"
    plain = Investigation(str(talk_case(tmp_path / "b", [talks[0]]))).mask_text()
    assert plain[0]["first trained"].startswith(f"#{ids[mask.index(1)]} #")


# -- where the tokenizer comes from --------------------------------------------------------------------------------------------------


def test_a_named_folder_without_a_tokenizer_is_an_error_and_a_target_without_one_is_not(talks, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 1}')
    write_talks(tmp_path / "dump", talks)
    named = write_case(tmp_path, {"dump": {"path": "dump"}, "target": {"tokenizer": "empty"}})
    found = look(named, "text.faults")
    assert found.status is CANNOT_TELL
    assert "no tokenizer can be read here" in found.evidence
    target = write_case(tmp_path, {"dump": {"path": "dump"}, "target": {"path": "empty"}})
    assert "the target's folder holds none" in look(target, "text.faults").title
    assert Investigation(str(target)).mask_text()


# -- two renderings ------------------------------------------------------------------------------------------------------------------


def renderings(samples, start=0):
    return [Rendering(f"data_{i}.pt", list(ids), mask.index(1)) for i, (ids, mask) in enumerate(samples, start)]


def test_the_first_difference_of_each_sample(tokenizer, talks):
    bos = tokenizer.bos_token_id
    theirs = renderings(talks)
    theirs[1] = Rendering("data_1.pt", [bos, *talks[1][0]])
    theirs[2] = Rendering("data_2.pt", talks[2][0][: talks[2][1].index(1)])  # only the prompt: equal as far as it goes
    theirs[3] = Rendering("data_3.pt", [*talks[3][0][:-3], 9, 9, 9])
    table = compare_renderings(renderings(talks), theirs, tokenizer).set_index("sample")
    assert table["differ"].tolist() == [False, True, False, True, False, False]
    row = table.loc["data_1.pt"]
    assert (row["position"], row["ours"], row["theirs"], row["before"], row["where"]) == (1, "<|im_start|>", "<s>", "<s>", "prompt")
    assert (table.loc["data_3.pt", "position"], table.loc["data_3.pt", "where"]) == (len(talks[3][0]) - 3, "answer")
    said = summary(table.reset_index())
    assert said.startswith("2 of 6 samples differ, 1 of them first at token 1: '<|im_start|>' against '<s>'.")
    assert "the prompt in 1" in said
    assert "the answer in 1" in said


def test_conversations_are_matched_by_what_they_say_not_by_place_or_name(tokenizer, talks):
    turned = [Rendering(f"data_{i}.pt", r.ids) for i, r in enumerate(reversed(renderings(talks)))]
    table = compare_renderings(renderings(talks), turned, tokenizer)
    assert table["other"].tolist() == [f"data_{5 - i}.pt" for i in range(6)]
    assert set(table["matched"]) == {"text"}
    fewer = compare_renderings(renderings(talks), turned[:4], tokenizer)
    assert fewer["matched"].tolist() == ["", "", "text", "text", "text", "text"]
    assert "2 of 6 samples have no counterpart" in summary(
        compare_renderings(renderings(talks), [Rendering("x", r.ids) for r in turned[:4]])
    )
    foreign = [Rendering(f"data_{i}.pt", [7] * 40) for i in range(6)]
    named = compare_renderings(renderings(talks), foreign, tokenizer)
    assert set(named["matched"]) == {"name"}
    assert set(named["position"]) == {0}
    assert "6 of 6 were matched by their names alone and share little text: they may be other conversations." in summary(named)


def test_one_sample_is_not_matched_by_the_templates_own_tokens(tokenizer):
    system = "You are a helpful assistant that answers in one short sentence and never more than that."
    mine, other = (
        encode(tokenizer, f"<s><|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n")
        for ask in ("Tell me of the tea in old China.", "Why do big red boats float on water?")
    )
    with_system = make_tokenizer(
        "<s>" + f"<|im_start|>system\n{system}<|im_end|>\n" + tokenizer.chat_template.replace("{{ bos_token }}", "")
    )
    ours, theirs = [Rendering("a", mine, len(mine))], [Rendering("b", other), Rendering("c", [1, *mine])]
    for known in (None, with_system):
        assert compare_renderings(ours, theirs[:1], known)["matched"].tolist() == [""]
        assert compare_renderings(ours, theirs, known)["other"].tolist() == ["c"]


def test_jsonl_in_its_four_forms(tokenizer, talks, tmp_path):
    (ask, answer), (ids, _) = TALKS[0], talks[0]
    rendered = f"<s><|im_start|>user\n{ask}<|im_end|>\n<|im_start|>assistant\n"
    rows = [
        {"id": "a", "input_ids": ids},
        {"messages": [{"role": "user", "content": ask}]},
        {"messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]},
        {"text": rendered},
    ]
    file = tmp_path / "o.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    a, asked, told, text = read_jsonl(file, tokenizer)
    assert (a.key, a.ids) == ("a", ids)
    assert asked.ids == text.ids == encode(tokenizer, rendered)
    assert told.ids == ids + encode(tokenizer, "\n")
    assert asked.key == "line 2"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 1 is not JSON"),
        ("[1]", "line 1 is list, expected an object"),
        ('{"x": 1}', "line 1 holds x, expected token_ids, input_ids, messages, prompt or text"),
        ('{"token_ids": [1, "2"]}', "token_ids is not a list of whole numbers"),
        ('{"text": 5}', "text is int, expected text"),
        ('{"messages": 5}', "cannot render these messages"),
        ('{"messages": []}', "cannot render these messages"),
        ('{"x": ' + "[" * 200_000 + "]" * 200_000 + "}", "line 1"),
        ("", "is empty"),
    ],
)
def test_lines_that_are_no_rendering(tokenizer, tmp_path, line, says):
    (tmp_path / "o.jsonl").write_text(line)
    with pytest.raises(RenderingError, match=says.replace("[", r"\[")):
        list(read_jsonl(tmp_path / "o.jsonl", tokenizer))


def test_text_needs_a_tokenizer(tmp_path):
    (tmp_path / "o.jsonl").write_text('{"text": "hi"}')
    with pytest.raises(RenderingError, match="gives text, which needs a tokenizer"):
        list(read_jsonl(tmp_path / "o.jsonl", None))


def test_the_command_compares_a_case_with_a_dump_and_a_file(tokenizer, talks, tmp_path, capsys):
    case = talk_case(tmp_path, talks, tokenizer)
    twice = write_talks(tmp_path / "twice", [([tokenizer.bos_token_id, *ids], [0, *mask]) for ids, mask in talks])
    assert main(["dump", str(case), "--against", str(twice), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["summary"].startswith("6 of 6 samples differ, 6 of them first at token 1: '<|im_start|>' against '<s>'.")
    assert data["samples"][0]["position"] == 1
    other = tmp_path / "o.jsonl"
    other.write_text("\n".join(json.dumps({"messages": [{"role": "user", "content": ask}]}) for ask, _ in TALKS))
    assert main(["dump", str(case), "--against", str(other)]) == 0
    assert "6 of 6 samples are the same in both renderings" in capsys.readouterr().out
    assert main(["dump", str(tmp_path / "dump"), "--against", str(other)]) == 2  # a bare dump has no tokenizer
    assert "needs a tokenizer" in capsys.readouterr().err


def test_the_example_says_what_is_known_of_it():
    """Its prompts come from the template, its answers were cut at 160 tokens."""
    example = Path(__file__).parents[1] / "data" / "example"
    if not (example / "target" / "tokenizer.json").is_file():
        pytest.skip("the example's target is not fetched")
    by_id = look(example)
    assert by_id["text.shift"].numbers["starts"] == {"0": 10}
    assert by_id["text.tokens"].numbers == {"prompts": 10, "differ": 0, "faithful": True}
    assert by_id["text.faults"].numbers["truncated answer"] == 8
    assert {f.status for f in by_id.values()} == {PASS, NOT_GIVEN}


def test_a_rendering_without_the_generation_prompt_differs():
    prompt = list(range(100, 140))
    ours = [Rendering(f"s{i}", [*prompt, 200 + i, 201 + i, 1, 2, 3], first_trained=42) for i in range(5)]
    theirs = [Rendering(f"t{i}", [*prompt, 200 + i, 201 + i][: 41 + i]) for i in range(5)]  # one token short; then whole
    table = compare_renderings(ours, theirs)
    first, *rest = table.to_dict(orient="records")
    assert (first["differ"], first["position"], first["ours"], first["theirs"], first["where"]) == (True, 41, "#201", "(its end)", "prompt")
    assert [row["differ"] for row in rest] == [False] * 4


# -- the side of the mask ---------------------------------------------------------------------------------------------------------------


@pytest.mark.report("vllm-project/speculators#195", "C")
@pytest.mark.parametrize(
    ("inside", "outside", "fails"),
    [
        (0.1, 1.0, True),  # the mask's rule found the other role
        (1.0, 0.1, False),  # as it should be
        (0.5, 0.6, False),  # people's own text, of which the target would say about half
        (0.95, 1.0, False),  # its own text on either side, all but as often: a prompt that it would say itself
    ],
)
def test_a_mask_on_the_prompts_is_told_by_what_the_target_says(monkeypatch, inside, outside, fails):
    draws = torch.Generator().manual_seed(0)
    masks = [(torch.arange(41) >= 20 + i).long() for i in range(8)]
    ids = torch.zeros(41, dtype=torch.int64)
    samples = [SimpleNamespace(token_ids=ids, loss_mask=m) for m in masks]
    own = [torch.rand(40, generator=draws) < torch.where(m[1:].bool(), inside, outside) for m in masks]
    monkeypatch.setattr(text, "_said", lambda inv, asked, positions: [(~o).long() for o in own])
    found = list(text._wrong_side(SimpleNamespace(judge=SimpleNamespace(head=object())), samples))
    assert [f.id for f in found] == ["text.side"] * fails
    if fails:
        right, of = found[0].numbers["inside"]
        assert (right, of) == (sum(int(o[m[1:].bool()].sum()) for o, m in zip(own, masks, strict=True)), sum(int(m.sum()) for m in masks))
    assert not list(text._wrong_side(SimpleNamespace(judge=SimpleNamespace(head=None)), samples))
