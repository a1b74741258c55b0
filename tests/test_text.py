"""Tokens as text: what cannot be seen is made visible, and nothing is downloaded."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from tokenizers.decoders import ByteLevel
from transformers import PreTrainedTokenizerFast

from eaglelab.text import load_tokenizer, token_texts, visible


@pytest.fixture
def folder(tmp_path):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "tok")
    return tmp_path / "tok"


def test_local_tokenizer_gives_visible_text(folder):
    tokenizer = load_tokenizer(folder)
    ids = tokenizer("a b\n")["input_ids"]
    assert token_texts(tokenizer, ids) == ["a", "␣", "b", "⏎"]
    part_of_a_character = tokenizer("é")["input_ids"]
    assert token_texts(tokenizer, part_of_a_character) == [f"#{i}" for i in part_of_a_character]
    assert token_texts(tokenizer, [10_000_000, -1]) == ["#10000000", "#-1"]


def test_no_tokenizer_gives_numbers():
    assert load_tokenizer(None) is None
    assert token_texts(None, [1234, 0]) == ["#1234", "#0"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "␣the"),
        ("a b", "a b"),
        ("  ", "␣␣"),
        ("\t\r\n", "⇥␍⏎"),
        ("\x00\x1b[31m", "\\u0000\\u001b[31m"),
        ("\u202eevil\u200b", "\\u202eevil\\u200b"),
        ("\U000e0041", "\\U000e0041"),
        ("ü中🙂", "ü中🙂"),
        ("", ""),
    ],
)
def test_visible(text, shown):
    assert visible(text) == shown


def test_missing_folder_and_folder_without_a_tokenizer(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such folder; `\[target\] tokenizer`"):
        load_tokenizer(tmp_path / "none")
    (tmp_path / "weights.bin").write_text("x")
    with pytest.raises(ValueError, match=r"no tokenizer can be read here .*expected tokenizer.json, found weights.bin"):
        load_tokenizer(tmp_path)


def test_a_folder_with_a_config_and_no_vocabulary_holds_no_tokenizer(tmp_path):
    """For Gemma's config transformers makes a tokenizer with an empty vocabulary."""
    (tmp_path / "config.json").write_text('{"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}')
    with pytest.raises(ValueError, match=r"no tokenizer can be read here .*expected tokenizer.json, found config.json"):
        load_tokenizer(tmp_path)
