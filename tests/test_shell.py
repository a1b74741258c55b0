"""Launch scripts as a shell reads them: the same words as bash prints, whatever the quotes, and no text that never ends."""

import random
import subprocess
import time

import pytest

from eaglelab.engines.launch import parse_launch
from eaglelab.engines.shell import Raw, Script, quoted

SCRIPTS = [
    "show --a 'b c' \"d e\" f\\ g --h=i # comment",
    'X=1 Y=\'2 3\'\nshow $X "$Y" $Y ${X} ${Z:-4} ${Z-5} \'$X\' "\\$X" "\\"$X\\""',
    'export A=/m\nB=$A/n; show --path ${B}/o --q="$A" # $A',
    "show a > /dev/null; show b 2>&1 | cat; show c && show d || show e",
    "show 'one\ntwo' \"a\\b\" 'it'\\''s' \"\" ''",
    "show a#b '# c' \\# d",
    "show \\\n  --tp 8 \\\n  --port 3\nshow next",
]


@pytest.mark.parametrize("text", SCRIPTS)
def test_words_are_bashs(text):
    """`show` prints its words one a line with a mark behind each; what goes to /dev/null is left out of ours too."""
    bash = subprocess.run(
        ["bash", "-c", f'show() {{ printf "%s\\x01" show "$@"; echo; }}\n{text}'], capture_output=True, text=True, check=True
    ).stdout
    ours = [c.words for c in Script(text).commands if c.words[0] == "show" and not any("null" in r for r in c.left_out)]
    theirs = [row.split("\x01") for row in bash.split("\x01\n") if row]
    ran = [words for words in ours if words != ["show", "e"]]  # `||` runs nothing behind what went well
    assert ran == theirs


def test_what_is_open_is_printed_so_that_a_shell_expands_it():
    words = Script('B=$HOME/m\nserve --a=$X "b $Y c" \'$Z\' $B "$(nproc --all)" ~/d "$@"').commands[0].words
    assert quoted(words) == "serve --a=$X 'b '\"$Y\"' c' '$Z' $HOME/m \"$(nproc --all)\" ~/d \"$@\""
    assert [isinstance(word, Raw) for word in words] == [False, True, True, False, True, True, True, True]


def test_lines_without_a_backslash_go_on_where_they_start_with_a_dash():
    launch = parse_launch("python -m sglang.launch_server\n  --model-path x  # the model\n  # the port\n  --port 3\n\necho --tp 8")
    assert launch.arguments == ("--model-path", "x", "--port", "3")


@pytest.mark.parametrize(
    ("line", "engine"),
    [
        ("python -m sglang.bench_serving --backend sglang --model m", None),
        ("vllm bench serve --model m", None),
        ("python -m sglang.launch_server --model m & python -m sglang.bench_serving --port 3", "sglang"),
        ("docker run lmsysorg/sglang:v0.5.9 bash -c 'cd /w && sglang serve m'", "sglang"),
        ("ssh node 'python -m vllm.entrypoints.openai.api_server --model m'", "vllm"),
        ("docker run -e A=b vllm/vllm-openai:v0.32.0 --model m", "vllm"),
        ("./start.sh --model m", None),
    ],
)
def test_what_starts_a_server(line, engine):
    launch = parse_launch(line)
    assert launch.engine == engine
    assert ("names no server" in " ".join(launch.problems)) is (engine is None)
    assert launch.given.get("port") is None or engine is None


def test_odd_texts_neither_raise_nor_last():
    start, source = time.perf_counter(), random.Random(0)
    doubling = "A=xy\n" + "A=$A$A\n" * 60 + "sglang serve $A"
    for text in ("$(" * 2000, "'" * 999, "\\", "${", "`", "a=" * 5000, "#", "\n-" * 5000, "$A" * 5000, doubling, "--a " * 50000):
        parse_launch(f"sglang serve m {text}")
    for _ in range(300):
        parse_launch("sglang serve " + "".join(source.choices("ab \n\\\"'$(){}`#&|;<>=-~@1", k=40)))
    assert time.perf_counter() - start < 20
