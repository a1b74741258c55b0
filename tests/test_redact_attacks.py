"""What somebody would try who wants to read something out of a redacted report; and what a maintainer must still be able to read there."""

import json
import re

import pandas as pd
import pytest

from eaglelab import notebook
from eaglelab.redact.known import Known
from eaglelab.redact.marks import count, mark
from eaglelab.redact.net import Net
from eaglelab.redact.redactor import Redactor
from eaglelab.redact.veil import Veil
from eaglelab.redact.vocabulary import vocabulary
from eaglelab.reports import parts


@pytest.fixture(scope="module")
def words():
    return vocabulary()


@pytest.fixture
def redactor(words):
    return Redactor(Known(), words)


@pytest.mark.parametrize(
    ("text", "hidden", "kind"),
    [
        # names that are short, or written so that they are not taken for names
        ("by 王伟, twice", "王", "word"),
        ("by Xu, twice", "Xu", "word"),
        ("a c m e is", "c m", "word"),
        ("A.C.M.E. is", "C.M", "word"),
        ("wu-bo-ng-xu is", "bo", "word"),
        ("fried\u200berike is", "erike", "word"),
        ("th\u00aderese is", "rese", "word"),
        ("h4x0r is", "h4x", "word"),
        ("a1b2c3 is", "a1b2", "word"),
        # numbers that are no measurements
        ("call +49 170 1234567 now", "170", "number"),
        ("call (415) 555-2671 now", "555", "number"),
        ("number 123-45-6789 of", "6789", "number"),
        ("number 4111 1111 1111 1111 of", "1111", "number"),
        ("account 901234567", "901234567", "number"),
        # token ids in sentences and printed lists
        ("token ids [5, 48123, 9912] of", "48123", "token id"),
        ("the token id 48123 of", "48123", "token id"),
        ("input_ids: 48123, 77 and 9912", "9912", "token id"),
        ("tensor([48123, 9912, 5, 7731, 2210, 4410, 1234, 8891])", "9912", "token id"),
        ("[48123  9912 5001 7731\n 2210 4410 1234 8891 ...]", "9912", "token id"),
        # addresses and hosts in the words of eaglelab
        ("on target-node-0042 at", "0042", "host"),
        ("on ip-10-77-31-9 at", "10-77", "host"),
        ("on drafter.target.internal at", "drafter.", "host"),
        ("git@layers.org:target/drafter.git is", "target", "e-mail"),
        ("target@drafter:/layers/norms is", "norms", "host"),
        # paths
        ("in C:/target/layers.pt", "layers", "path"),
        ("in D:\\target layers\\secret drafter\\norms.pt", "drafter", "path"),
        ("in \\\\layers\\target drafter\\norms.pt", "norms", "path"),
        ("in '/target/the layers/norms.pt'", "layers", "path"),
        # secrets and names of launch lines in the words of eaglelab
        ("passphrase: the target of layers", "layers", "secret"),
        ("api key is target", "target", "secret"),
        ("--served-model-name layers-of-target --tp 8", "layers-of", "model"),
        ("--model-path target/layers-v2", "layers", "model"),
        ("--speculative-draft-model-path='layers of target'", "layers", "model"),
    ],
)
def test_what_somebody_would_try_is_removed(redactor, text, hidden, kind):
    said = redactor.text(text)
    assert hidden not in said
    assert count(said)[kind] >= 1
    assert redactor.text(said) == said, "what is redacted stays as it is"


@pytest.mark.parametrize(
    "text",
    [
        "0.14285714285714285 and [1.2345678901234567e-05]",
        "mat1 and mat2 shapes cannot be multiplied (1x256 and 192x64), view 1x8x256x64",
        "w8a8 w4a16 e4m3fn q4_1 Q4_K_M fp8 cu128 sm90 H100 A100-80GB MI300X 8xH200",
        "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1.25 GiB is free.",
        "AttributeError: 'LlamaForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'",
        "settings 3-1-4, boundaries [3, 16, 28, 30], counts [1281, 1235, 1100, 900], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
        "max_total_num_tokens=1234567, 2026-11-30 04:45:07, between 12:03:11 and 12:04:00, port 30000",
        "--model target --tokenizer TARGET --speculative-num-steps 3",
    ],
)
def test_what_a_maintainer_needs_stays(redactor, text):
    assert redactor.text(text) == text


def test_an_engines_own_file_stays_behind_a_traceback_s_path(redactor):
    said = redactor.text('File "/users/friederike/sglang/srt/managers/scheduler.py", line 2511, in run')
    assert said == 'File "‹path›/sglang/srt/managers/scheduler.py", line 2511, in run'
    fork = redactor.text('File "/users/friederike/sglang/srt/models/friederike_eagle3.py", line 12')
    assert fork == 'File "‹path›/‹word›", line 12'


def test_a_sample_key_of_digits_is_hidden_in_sentences_too(words):
    known, key = Known(samples={"8812734": mark("sample", 1), "17": mark("sample", 2)}), "8812734"
    known.add(key, mark("sample", 1), words, hidden=True)
    known.add("17", mark("sample", 2), words, hidden=True)
    redactor = Redactor(known, words)
    assert redactor.text("sample 17: 17 rows; 8812734 has 3") == "‹sample 2›: 17 rows; ‹sample 1› has 3"


def test_a_number_that_is_also_a_sample_key_is_no_leak(tmp_path, words):
    (tmp_path / "findings.json").write_text(json.dumps({"bytes": 8812734}))
    Net(Known(names={"8812734": mark("sample", 1)}), words).search(tmp_path)


def test_a_tables_plain_text_hides_what_its_html_hides(redactor, monkeypatch, capsys):
    veil = Veil(redactor)
    monkeypatch.setattr(parts, "veil", veil)
    monkeypatch.setattr(notebook, "VEIL", veil)
    rows = pd.DataFrame({"slot": [0, 1], "token id": [48123, 771], "v0": [0.53125, 0.25], "rows": [12, 4812]})
    notebook.table(rows.set_index("slot"), caption="Rows")
    notebook.table(pd.DataFrame({"token": [48123], "n": [3]}).set_index("token"))
    said = capsys.readouterr().out
    assert not re.search(r"48123|771|0\.53125", said)
    assert {"slot", "rows", "4812"} <= set(re.findall(r"\w+", said))
