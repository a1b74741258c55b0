"""A whole case in which everything that names somebody, or is text, is a canary: a made-up word that eaglelab has nowhere else.

Every token's text is a word `zq….`, every name, path and secret holds `qx….`; besides, there are names and sentences made of eaglelab's own
words, which only the knowledge of the case tells from what eaglelab says itself.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import zlib
from html import unescape
from pathlib import Path
from urllib.parse import quote

import case_builder
import torch
from case_builder import SGLANG, build_case, draft_config, make_world
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eaglelab.served.recording import RecordingWriter, Request, Session
from eaglelab.wiring import FINAL

VOCAB = 9000
IDS = 1009 + 163 * torch.arange(case_builder.VOCAB)
"""Of the tokens that the texts are made of: four digits, so that a token id in a report is told from a count."""
CANARY = re.compile(r"zq[a-z]{4}|qx[a-z]{3,}", re.IGNORECASE)
SENTENCE = "the drafter reads every token of the target twice before the server answers at noon"
"""Text of the data in eaglelab's own words."""
FILE = "norms-of-the-target"
"""A file's name in eaglelab's own words."""
SAMPLE = "first-answer"
"""A sample's."""
SECRETS = {
    "hf": "hf_QxcanaryHuggingFaceTok123",
    "aws": "AKIAQXCANARY23456789",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJxeGNhbmFyeSJ9.c2lnbmF0dXJl",
    "password": "Qxwachtwoord77",
    "ip": "10.77.31.9",
    "key": "sk-qxlaunchkey4711aa",
}
ENVIRONMENT = {"HF_TOKEN": SECRETS["hf"], "QX_PROJECT": "qxprojektmond", "USER": "qxuserin", "LOGNAME": "qxuserin"}
HOST = "qxhostmaschine"
PEM = "-----BEGIN PRIVATE KEY-----\nMIIQxpemcanaryAAAA\n-----END PRIVATE KEY-----"


def word(token: int) -> str:
    """The text of a token: `zq` and four letters."""
    return "zq" + "".join(chr(97 + token // 26**i % 26) for i in range(4))


def tokenizer() -> PreTrainedTokenizerFast:
    raw = Tokenizer(models.WordLevel({word(i): i for i in range(VOCAB)} | {"<unk>": VOCAB}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=word(2), bos_token=word(1))


def seeded_case(root: Path) -> Path:
    """Build it below `root`; returns the folder of case.toml."""
    place = root / "qxlabor" / "models"
    place.mkdir(parents=True)
    world = make_world(place, "llama", 7, seed=3, samples=8, length=40)
    target = world.folder.rename(place / "qxtargetmodell")
    world.folder = target
    tokenizer().save_pretrained(target)
    case = place.parent / "qxfalkenfall"
    claims = [
        {"slot": 1, "text": "qxbehauptung layer3", "source": f"a note of qxkollegin, {SECRETS['password']}@qxhostmaschine"},
        {"key": SGLANG.rpartition(".")[2], "text": "[1, 3, 5]", "source": "qxnotizbuch, page 3"},
        {"key": "qxschluessel", "text": f"as {SENTENCE}", "source": f"/users/qxuserin/{FILE}.txt"},
    ]
    build_case(
        case,
        world,
        slots=[1, 2, 3, 4, 5, 6, FINAL],
        feed=[1, 3, 5, 6],
        ids=[0, 1, 2],
        claims=claims,
        config={"_name_or_path": "/srv/qxmodelle/qxdrafter-8B"},
        engine=("sglang", "0.5.23"),
        target="path",
    )
    _spread(case, world)
    (case / "drafter").rename(case / "qxdrafterordner")
    _rename_samples(case / "dump")
    _write_files(case, world)
    text = (case / "case.toml").read_text()
    text = text.replace('"drafter"', '"qxdrafterordner"').replace(
        "[engine]\n",
        f'[engine]\nurl = "http://qxuserin:{SECRETS["password"]}@qxserver.example.org:30000/v1"\n'
        f"launch = '''{_launch(case)}'''\nlog = \"qxlogs/{FILE}.log\"\ncounters = \"qxlogs/qxaufnahme.jsonl\"\nrecordings = \"qxlogs\"\n",
    )
    text += '\n[training]\nframework = "specforge"\nmetrics = "qxlogs/qxtraining.log"\n\n[timing]\ntable = "qxlogs/qxtabelle.csv"\n'
    (case / "case.toml").write_text(text)
    return case


def _spread(case: Path, world) -> None:
    """Give the few tokens of a small world ids all over a vocabulary of `VOCAB`."""
    target, drafter = world.folder, case / "drafter"
    weights = load_file(target / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = torch.zeros(VOCAB, weights[name].shape[1])
        rows[IDS] = weights[name]
        weights[name] = rows
    save_file(weights, target / "model.safetensors", {"format": "pt"})
    _say(target / "config.json", vocab_size=VOCAB, _name_or_path="/srv/qxmodelle/qxtargetmodell")
    own = load_file(drafter / "model.safetensors")
    kept = IDS[own["d2t"] + torch.arange(len(own["d2t"]))]
    own["d2t"], own["t2d"] = kept - torch.arange(len(kept)), torch.isin(torch.arange(VOCAB), kept)
    save_file(own, drafter / "model.safetensors")
    _say(drafter / "config.json", vocab_size=VOCAB)
    rows = load_file(case / "rows.safetensors")
    save_file({"token_ids": IDS.clone(), "rows": rows["rows"]}, case / "rows.safetensors")
    for file in (case / "dump").rglob("*.pt"):
        sample = torch.load(file, weights_only=True)
        torch.save(sample | {"input_ids": IDS[sample["input_ids"]]}, file)
    world.texts = [IDS[ids] for ids in world.texts]


def _say(config: Path, **keys) -> None:
    config.write_text(json.dumps(json.loads(config.read_text()) | keys))


def _launch(case: Path) -> str:
    return (
        f"HF_TOKEN={SECRETS['hf']} python -m sglang.launch_server --model-path /srv/qxmodelle/qxtargetmodell --served-model-name qxdienst "
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {case}/qxdrafterordner --speculative-num-steps 3 "
        f"--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --host qxserver.example.org --api-key {SECRETS['key']} "
        f"--dist-init-addr {SECRETS['ip']}:5000 --qxunbekannt qxwert"
    )


def _rename_samples(dump: Path) -> None:
    for n, file in enumerate(sorted(dump.rglob("*.pt"))):
        file.rename(file.with_name(f"qxpatient-{n}.pt" if n else f"{SAMPLE}.pt"))


def _write_files(case: Path, world) -> None:
    logs = case / "qxlogs"
    logs.mkdir()
    command = _launch(case)
    said = Session(
        engine="sglang==0.5.23",
        command=command,
        num_steps=3,
        eagle_topk=1,
        num_draft_tokens=4,
        draft_config=draft_config([0, 1, 2], SGLANG),
        server_info={"model_path": "/srv/qxmodelle/qxtargetmodell", "served_model_name": "qxdienst", "api_key": SECRETS["key"]},
        notes=("qxbemerkung of the recording",),
    )
    writer = RecordingWriter(logs / "qxaufnahme.jsonl", said)
    for i, ids in enumerate(world.texts):
        prompt, answer = ids[: world.prompts[i]].tolist(), ids[world.prompts[i] :].tolist()
        served = [*answer[:9], (answer[9] + 1) % VOCAB, *answer[10:]] if i % 3 == 0 else answer
        text = f"{SENTENCE} {' '.join(map(word, served))}"
        key = f"rows_0-4/qxpatient-{i}.pt"
        writer.write(Request(i, tuple(prompt), tuple(served), text, key, accepted=(1, 0, 2, 1), meta_info={"id": f"qxanfrage{i}"}))
    writer.end()
    prompt = " ".join(map(word, world.texts[0][:9].tolist()))
    lines = [
        f"[2026-11-30 04:45:07] server_args={{'model_path': '/srv/qxmodelle/qxtargetmodell', 'api_key': '{SECRETS['key']}', 'host': '{HOST}', "
        "'speculative_algorithm': 'EAGLE3', 'speculative_num_steps': 3, 'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 4}",
        f"[2026-11-30 04:45:09] Receive: obj=GenerateReqInput(text='{SENTENCE}: {prompt}', rid='qxanfrage1')",
        f'INFO: {SECRETS["ip"]}:51422 - "POST /generate HTTP/1.1" 200 OK user=qxuserin Authorization: Bearer {SECRETS["jwt"]}',
        "[2026-11-30 04:45:10] Decode batch. #running-req: 1, #token: 207, token usage: 0.01, accept len: 1.75, accept rate: 0.44, "
        "cuda graph: False, gen throughput (token/s): 12.3, #queue-req: 0",
        f'Traceback (most recent call last):\n  File "/users/qxuserin/qxserverbau/sglang/srt/models/qxmodell.py", line 12, in forward\n'
        f"RuntimeError: mat1 and mat2 shapes cannot be multiplied (1x256 and 192x64) at /users/qxuserin/qxserverbau, {prompt}, {SECRETS['aws']}",
        PEM,
    ]
    (logs / f"{FILE}.log").write_text("\n".join(lines) + "\n")
    rows = [f"step {k}: train/acc_0: 0.{40 + k}, train/acc_1: 0.{30 + k} run=qxtraininglauf out=/scratch/qxuserin" for k in range(8)]
    (logs / "qxtraining.log").write_text("\n".join(rows) + "\n")
    (logs / "qxtabelle.csv").write_text("batch,steps,topk,draft_tokens,tok_s,accept_length\n1,0,,,80,\n1,3,1,4,95,1.7\n")


# -- what is looked for, and where -----------------------------------------------------------------------------------------------------


def spellings(canary: str) -> set[str]:
    """A canary as files may hold it."""
    raw = canary.encode()
    return {canary, json.dumps(canary)[1:-1], quote(canary, safe=""), base64.b64encode(raw).decode().rstrip("=")[:-1]}


def texts(folder: Path):
    """(where, text) of everything in a run: names, contents, contents without what splits words, and PNGs' metadata."""
    for path in sorted(folder.rglob("*")):
        yield "name", str(path.relative_to(folder))
        if not path.is_file():
            continue
        content = path.read_text(encoding="utf-8")
        for picture in re.findall(r"(?:iVBORw0KGgo)[A-Za-z0-9+/=]+", content):
            yield f"picture in {path.name}", png_metadata(base64.b64decode(picture))
        content = re.sub(r"iVBORw0KGgo[A-Za-z0-9+/=]+", "", content)
        yield path.name, content
        yield path.name, unescape(re.sub(r"<wbr>|</?span[^>]*>|&#8203;|\u200b", "", content))


def png_metadata(png: bytes) -> str:
    found, place = "", 8
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        body = png[place + 8 : place + 8 + size]
        if kind in (b"tEXt", b"iTXt", b"eXIf"):
            found += body.decode("latin-1") + "\n"
        elif kind == b"zTXt":
            found += zlib.decompress(body.partition(b"\0")[2][1:]).decode("latin-1") + "\n"
        place += 12 + size
    return found
