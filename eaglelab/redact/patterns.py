"""What is removed by how it looks: secrets by name and by form, addresses, paths, numbers that are no measurements."""

from __future__ import annotations

import re
from collections.abc import Callable

from eaglelab.live.secrets import FLAG, LOOSE
from eaglelab.redact.marks import mark

Keep = Callable[[str], bool]
"""Whether a match is eaglelab's own text."""

SECRETS = (
    re.compile(r"-----BEGIN [A-Z ]*(?:PRIVATE KEY|CERTIFICATE)[A-Z ]*-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{4,}(?:\.[\w-]*)?"),  # JWT
    re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{8,}|\bsk-[\w-]{8,}|\b(?:gh[pousr]|github_pat)_\w{8,}|\bglpat-[\w-]{8,}|\bxox[a-z]-[\w-]{8,}"),
    re.compile(r"\b(?:AKIA|ASIA|AGPA|AIDA|AROA)[A-Z0-9]{12,}\b|\bAIza[\w-]{20,}|\bnvapi-[\w-]{8,}|\bwandb_v\d_\w+"),
)
BY_NAME = re.compile(
    r"(?i)((?:\b|_)(?:api[ _-]?key|access[_-]?key(?:[_-]?id)?|secret(?:[_-]?(?:access[_-])?key)?|pass(?:word|phrase|code|wd)|pwd|credentials?|authorization|"
    r"(?:auth|access|hf|bearer|refresh|id)[_-]token|private[_-]key)[\"']?\s*(?:[=:]|\bis\b)\s*)(?:bearer\s+|basic\s+)?(?!‹|bearer\b|basic\b)(\"[^\"‹›]*\"|'[^'‹›]*'|[^\s\"',;‹›]+)"
)
PHRASE = re.compile(r"(?i)(\bpass(?:word|phrase|code)[\"']?\s*[=:]\s*)([^\s\"',;‹›][^\"',;\n‹›]*)")
"""A password of several words ends where the sentence does."""
RANDOM = re.compile(r"(?i)((?:token|secret|key|pass(?:word)?|auth)[\"']?\s*[=:]\s*[\"']?)(?!‹)([\w+/=-]{12,})")
"""After such names whatever is long and mixes letters with digits: `token=…`, but not `key = eagle_aux_hidden_state_layer_ids`."""
URL = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s\"'<>‹›`)\]]+")
EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+(?::[\w~./-]*[\w/-])?")
"""With what follows in git's `git@host.name:owner/repository`."""
IPV4 = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.]*\w)")
IPV6 = re.compile(
    r"(?i)(?<![\w:])(?=[0-9a-f:]*[0-9a-f])(?:[0-9a-f]{1,4}:){2,7}(?::?[0-9a-f]{1,4}){1,6}(?![\w:])|(?<![\w:])[0-9a-f]{0,4}::[0-9a-f:]+"
)
HOST = re.compile(
    r"(?i)(?<![\w./@-])[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?!(?:py|toml|jsonl?|log|csv|txt|cpp|cuh?|ipynb|safetensors):)[a-z0-9-]+:\d{2,5}\b|(?<![\w./-])[\w.-]+@[\w-]+(?::[\w~./-]+|(?=[:\s,;)]|$))"
)
"""`host.name:port`, and `user@host`."""
LOCAL = re.compile(
    r"(?i)\b[\w-]+(?:\.[\w-]+)*\.(?:internal|local|lan|corp|intranet|localdomain)\b|(?<![\w.-])(?:ip-?|host-?)?\d{1,3}(?:-\d{1,3}){3}(?![\w-])(?:\.[\w-]+)*"
    r"|\b(?:[a-z]+-)*(?:node|host|server|login)-?\d{2,}\b(?:\.[\w-]+)*|\b(?:gpu|[dh]gx)(?:-\w+)+-?\d{2,}\b"
)
"""Names inside of a network, and addresses with dashes. (No example here: what the code writes is kept.)"""
MODEL = re.compile(
    r"(--(?:served-model-name|model(?:-path|-name)?|tokenizer(?:-path)?|(?:speculative-)?draft-model(?:-path)?|speculative-model|lora-paths?)(?:=|\s+))"
    r"(?!-)(\"[^\"‹›]+\"|'[^'‹›]+'|[^\s\"'`‹›,;)]+)"
)
"""What a launch line calls a model."""
PATH = re.compile(
    r"(?<=[\"'])(?:~|\.{1,2})?/(?=[^\"'\n]*\s)[^\"'<>|‹›\n]*(?=[\"'])|(?<![\w.›:/])(?:~|\.{1,2})?/(?![\s/])[^\s\"'<>|‹›`,;()\[\]{}]*"
    r"|(?:\b[A-Za-z]:[\\/]|\\\\)(?:[^\\/\"'<>|‹›`,;:\n]+[\\/])*[^\s\\/\"'<>|‹›`,;:]*"
)
"""Between quotes also with spaces, and in Windows' spelling up to its last separator."""
OF_AN_ENGINE = re.compile(r"(?<=/)(?:sglang|vllm|torch|transformers|flashinfer|specforge|speculators|eaglelab)/[\w./-]+\.py$")
"""What stays of a path in a traceback, as far as its words are known."""
TOKEN_ID = re.compile(r"(?<![\w/#])#\d+\b")
TOKEN_IDS = re.compile(r"(?i)(\b(?:token|input)[ _]ids?[\"']?[ :=]*[\[(]?)(\d+(?:(?:,\s*|\s+(?:and|to|or)\s+)\d+)*)")
MANY = re.compile(r"\[\s*\d+(?:[\s,]+\d+){7,}(?:[\s,]+(?:\.\.\.|…)[^\]]*)?\s*\]")
"""A list of whole numbers; where most are above `COUNTS` they are token ids."""
COUNTS = 1000
NUMBER = re.compile(
    r"(?<![\w.+])\+\d(?:[ ()/-]*\d){8,}|(?<![\w-])\(?\d{3}\)?[ -]\d{3}-\d{4}(?![\w-])|(?<![\w.-])\d{3}-\d{2}-\d{4}(?![\w-])|(?<![\w.-])\d{4}(?:[ -]\d{4}){3}(?!\w)"
    r"|(?<![\w.,-])\d{9,}(?![\w.-])"
)
"""Of phones, accounts, people; eaglelab writes large numbers with commas."""
TIMES = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


def by_look(text: str, keep: Keep) -> str:
    """`text` with a mark for everything that looks like a secret, an address or a path, but for what `keep` knows."""
    for secret in SECRETS:
        text = secret.sub(mark("secret"), text)
    text = FLAG.sub(lambda m: m[1] + mark("secret"), text)
    text = LOOSE.sub(lambda m: m[1] + mark("secret"), text)
    text = PHRASE.sub(lambda m: m[1] + mark("secret"), text)
    text = BY_NAME.sub(lambda m: m[1] + mark("secret"), text)
    text = RANDOM.sub(lambda m: m[1] + mark("secret") if _mixed(m[2]) else m[0], text)
    text = MODEL.sub(lambda m: m[0] if keep(m[2].strip("\"'")) else m[1] + mark("model"), text)
    text = URL.sub(lambda m: m[0] if keep(m[0].rstrip(".,:;")) else mark("url"), text)
    text = EMAIL.sub(lambda m: m[0] if keep(m[0]) else mark("e-mail"), text)
    for address in (IPV4, IPV6, HOST, LOCAL):
        text = address.sub(lambda m: m[0] if keep(m[0]) or TIMES.fullmatch(m[0]) else mark("host"), text)
    text = PATH.sub(lambda m: m[0] if len(m[0]) < 3 or keep(m[0].rstrip(".:")) else _path(m[0]), text)
    text = TOKEN_IDS.sub(lambda m: m[1] + re.sub(r"\d+", mark("token id"), m[2]), TOKEN_ID.sub(mark("token id"), text))
    text = MANY.sub(lambda m: f"[{mark('token id')}]" if _are_ids(m[0]) else m[0], text)
    return NUMBER.sub(mark("number"), text)


def _mixed(value: str) -> bool:
    return bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value)) or bool(re.search(r"[a-z][A-Z].*[a-z][A-Z]", value))


def _path(path: str) -> str:
    """A path's mark, with a file of an engine's own behind it, and punctuation that ends the sentence rather than the path."""
    bare = path.rstrip(".:")
    own = OF_AN_ENGINE.search(bare)
    return mark("path") + (f"/{own[0]}" if own else "") + path[len(bare) :]


def _are_ids(listed: str) -> bool:
    numbers = [int(n) for n in re.findall(r"\d+", listed)]
    return sum(n > COUNTS for n in numbers) > len(numbers) / 2
