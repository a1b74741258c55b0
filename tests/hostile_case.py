"""A whole case in which everything that comes from outside is hostile: text that would run, hide, reorder or break a page that took it for more
than text."""

from __future__ import annotations

import json
from pathlib import Path

import case_builder
import torch
from case_builder import SGLANG, build_case, draft_config, make_world
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eaglelab.served.recording import RecordingWriter, Request, Session
from eaglelab.wiring import FINAL

RUN = "window.owned=1;document.title='owned'"
"""What a script of the case would do."""
TEXTS = (
    f"<script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f"<svg/onload={RUN}>",
    f"<details open ontoggle={RUN}><summary>s",
    "</td></tr></table></div><div style='position:fixed;inset:0'>over",
    f"</style><script>{RUN}</script>",
    f"</textarea></title></script><script>{RUN}</script>",
    f"<!--<script>{RUN}",
    f"<![CDATA[<script>{RUN}</script>]]>",
    f'" onmouseover="{RUN}" x="',
    f"' autofocus onfocus='{RUN}' x='",
    '<a href="javascript:window.owned=1">go',
    "[go](javascript:window.owned=1)",
    "![i](https://x.example/i.png)",
    r"$\href{javascript:window.owned=1}{go}$",
    r"$$\unicode{x3c}\require{html}\style{position:fixed}{x}$$",
    r"\(\href{javascript:window.owned=1}{go}\)",
    r"$x^{$ \frac{",
    "<iframe srcdoc='<script>parent.owned=1</script>'>",
    "<meta http-equiv=refresh content='0;url=https://x.example/'>",
    "<base href=https://x.example/>",
    "<link rel=stylesheet href=https://x.example/a.css>",
    "<form action=https://x.example/><input name=q autofocus>",
    "{{ 7 * 7 }}{% raw %}<%= 1 %>${7*7}",
    "\u202etxet desrever\u2066 isolated",
    "zero\u200b\u200d\ufeffwidth\u00ad",
    "nul\x00bell\x07escape\x1b[31mred\x9b\x7f",
    "👩\u200d👩\u200d👧\u200d👦🏳️\u200d🌈🇩🇪👍🏽",
    "z̸̡͔͍̈́̓͐a̷̧̛̲͚͐͗lgo" + "\u0301" * 50,
    "مرحبا بالعالم",
    "W" * 10_000,
    "unbroken/" * 1000,
    "line\nfeed\r\ttab\u2028separator\u2029",
)
"""What tokens say, in turn."""
SIGNS = ("window.owned", "javascript:", "onerror", "\\u202e", "\\x07")
"""Some of what must stand on a page as text."""
EVIL = "".join(TEXTS[i] for i in (0, 1, 5, 7, 14, 24)) + "\x07`"
"""Several in one."""
SURROGATE = "\ud800lone"
FILE = f"<img src=x onerror={RUN.replace(' ', '')}>$\\href{{javascript:1}}{{go}}$'\"&amp;\u202e\u200b👩\u200d👦"
"""A file's name; what is inside of a folder `<script>…<` and called `script>` reads as a whole tag."""


def tokenizer() -> PreTrainedTokenizerFast:
    """A token a text; those that are left say another number."""
    said = {(TEXTS[i % len(TEXTS)] + (str(i) if i >= len(TEXTS) else "")): i for i in range(case_builder.VOCAB - 1)}
    raw = Tokenizer(models.WordLevel(said | {"<unk>": case_builder.VOCAB - 1}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, unk_token="<unk>")


def hostile_case(root: Path, samples: int = 4, length: int = 40) -> Path:
    """Build it below `root`; returns the folder of case.toml."""
    root.mkdir(parents=True, exist_ok=True)
    world = make_world(root, "llama", 6, seed=3, samples=samples, length=length)
    tokenizer().save_pretrained(world.folder)
    case = root / "case <script>owned=1<" / "script> $x$ \u202e"
    claims = [
        {"slot": 0, "text": f"embed {EVIL}", "source": EVIL},
        {"slot": 1, "text": "layer3 " + "c" * 10_000, "source": "s" * 3000},
        {"key": SGLANG.rpartition(".")[2], "text": "[1, 3, 5]", "source": EVIL},
        {"key": EVIL, "text": EVIL, "source": EVIL},
    ]
    named = {"_name_or_path": SURROGATE + EVIL, EVIL: EVIL, "architectures": ["LlamaForCausalLMEagle3", EVIL], "torch_dtype": EVIL}
    build_case(case, world, slots=[1, 3, 5, FINAL], ids=[-1, 0, 2], claims=claims, config=named)
    _rename(case / "dump")
    _write_files(case, world)
    text = (case / "case.toml").read_text()
    more = f"launch = {json.dumps(_launch(case))}\nlog = 'log'\ncounters = 'served.jsonl'\n"
    text = text.replace("[engine]\n", f"[engine]\n{more}")
    text += "\n[training]\nframework = 'specforge'\nmetrics = 'train.log'\n\n[timing]\ntable = 'runs.csv'\n"
    (case / "case.toml").write_text(text)
    return case


def _rename(dump: Path) -> None:
    for n, file in enumerate(sorted(dump.rglob("*.pt"))):
        folder = file.parent / f"<script>{RUN.replace(' ', '')}<"
        folder.mkdir(exist_ok=True)
        file.rename(folder / (f"script>{n}.pt" if n % 2 else f"{FILE}{n}.pt"))


def _launch(case: Path) -> str:
    return (
        f"python -m sglang.launch_server --model-path 'm{TEXTS[1]}' --speculative-algorithm EAGLE3 --speculative-draft-model-path '{TEXTS[0]}' "
        f"--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --served-model-name '\u202e{TEXTS[14]}' "
        f"--unheard-of '{TEXTS[5]}' --mem-fraction-static '{TEXTS[7]}'"
    )


def _write_files(case: Path, world) -> None:
    said = Session(
        engine="sglang==0.5.23",
        command=_launch(case),
        num_steps=3,
        eagle_topk=1,
        num_draft_tokens=4,
        draft_config=draft_config([-1, 0, 2], SGLANG) | {EVIL: EVIL},
        server_info={"model_path": EVIL, EVIL: EVIL},
        notes=(EVIL, "n" * 10_000),
    )
    writer = RecordingWriter(case / "served.jsonl", said)
    for i, ids in enumerate(world.texts):
        prompt, answer = ids[: world.prompts[i]].tolist(), ids[world.prompts[i] :].tolist()
        served = [*answer[:9], (answer[9] + 1) % case_builder.VOCAB, *answer[10:]] if i % 2 else answer
        told = {"id": EVIL, EVIL: EVIL}
        writer.write(Request(i, tuple(prompt), tuple(served), EVIL + str(i), EVIL, accepted=(1, 0, 2, 1), meta_info=told))
    writer.end()
    one_line = EVIL.replace("\n", " ")
    lines = [
        f"[2026-11-30 04:45:07] server_args={{'model_path': '{one_line}', 'speculative_algorithm': 'EAGLE3', 'speculative_num_steps': 3, "
        "'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 4}",
        one_line,
        "[2026-11-30 04:45:10] Decode batch. #running-req: 1, #token: 207, token usage: 0.01, accept len: 1.75, accept rate: 0.44, "
        f"cuda graph: False, gen throughput (token/s): 12.3, #queue-req: 0, {one_line}",
        f'Traceback (most recent call last):\n  File "{one_line}", line 12, in forward',
        f"RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x256 and 192x64) {one_line} {'e' * 10_000}",
        "KeyError: '" + one_line + "'",
    ]
    (case / "log").write_bytes("\n".join(lines).encode() + b"\n\xff\xfe\x00\xed\xa0\x80 " + one_line.encode() + b"\n")
    rows = [f"step {k}: train/acc_0: 0.{40 + k}, train/acc_1: 0.{30 + k} {one_line}" for k in range(8)]
    (case / "train.log").write_text("\n".join(rows) + "\n")
    note = '"' + one_line.replace('"', '""') + '"'
    head = "batch,steps,topk,draft_tokens,tok_s,accept_length,gpu,note\n"
    (case / "runs.csv").write_text(f"{head}1,0,,,80,,{note},{note}\n1,3,1,4,95,1.7,{note},{note}\n")
    rows = sorted((case / "dump").rglob("*.pt"))
    assert torch.load(rows[0], weights_only=True)["input_ids"].max() < case_builder.VOCAB
