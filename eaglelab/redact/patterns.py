"""What is removed by how it looks: secrets by name and by form, addresses, paths."""

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
    r"(?i)((?:\b|_)(?:api[_-]?key|access[_-]?key(?:[_-]?id)?|secret(?:[_-]?(?:access[_-])?key)?|password|passwd|pwd|credentials?|authorization|"
    r"(?:auth|access|hf|bearer|refresh|id)[_-]token|private[_-]key)[\"']?\s*(?:[=:]|\bis\b)\s*)(?:bearer\s+|basic\s+)?(?!‹|bearer\b|basic\b)(\"[^\"‹›]*\"|'[^'‹›]*'|[^\s\"',;‹›]+)"
)
RANDOM = re.compile(r"(?i)((?:token|secret|key|pass(?:word)?|auth)[\"']?\s*[=:]\s*[\"']?)(?!‹)([\w+/=-]{12,})")
"""After such names whatever is long and mixes letters with digits: `token=…`, but not `key = eagle_aux_hidden_state_layer_ids`."""
URL = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*://[^\s\"'<>‹›`)\]]+")
EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
IPV4 = re.compile(r"(?<![\w.])(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.]*\w)")
IPV6 = re.compile(
    r"(?i)(?<![\w:])(?=[0-9a-f:]*[0-9a-f])(?:[0-9a-f]{1,4}:){2,7}(?::?[0-9a-f]{1,4}){1,6}(?![\w:])|(?<![\w:])[0-9a-f]{0,4}::[0-9a-f:]+"
)
HOST = re.compile(
    r"(?i)(?<![\w./@-])[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?!(?:py|toml|jsonl?|log|csv|txt|cpp|cuh?|ipynb|safetensors):)[a-z0-9-]+:\d{2,5}\b|(?<![\w./-])[\w.-]+@[\w-]+(?=[:\s]|$)"
)
"""`host.name:port`, and `user@host` before a colon or a space."""
PATH = re.compile(
    r"(?<![\w.›:/])(?:~|\.{1,2})?/(?![\s/])[^\s\"'<>|‹›`,;()\[\]{}]*|\b[A-Za-z]:\\[^\s\"'<>|‹›`,;]*|\\\\[\w.-]+\\[^\s\"'<>|]*"
)
TOKEN_ID = re.compile(r"(?<![\w/#])#\d+\b")
TIMES = re.compile(r"\d{1,2}:\d{2}(?::\d{2})?")


def by_look(text: str, keep: Keep) -> str:
    """`text` with a mark for everything that looks like a secret, an address or a path, but for what `keep` knows."""
    for secret in SECRETS:
        text = secret.sub(mark("secret"), text)
    text = FLAG.sub(lambda m: m[1] + mark("secret"), text)
    text = LOOSE.sub(lambda m: m[1] + mark("secret"), text)
    text = BY_NAME.sub(lambda m: m[1] + mark("secret"), text)
    text = RANDOM.sub(lambda m: m[1] + mark("secret") if _mixed(m[2]) else m[0], text)
    text = URL.sub(lambda m: m[0] if keep(m[0].rstrip(".,:;")) else mark("url"), text)
    text = EMAIL.sub(lambda m: m[0] if keep(m[0]) else mark("e-mail"), text)
    for address in (IPV4, IPV6, HOST):
        text = address.sub(lambda m: m[0] if keep(m[0]) or TIMES.fullmatch(m[0]) else mark("host"), text)
    text = PATH.sub(lambda m: m[0] if len(m[0]) < 3 or keep(m[0].rstrip(".:")) else mark("path") + _end(m[0]), text)
    return TOKEN_ID.sub(mark("token id"), text)


def _mixed(value: str) -> bool:
    return bool(re.search(r"\d", value) and re.search(r"[A-Za-z]", value)) or bool(re.search(r"[a-z][A-Z].*[a-z][A-Z]", value))


def _end(path: str) -> str:
    """Punctuation that ends a sentence rather than a path."""
    return path[len(path.rstrip(".:")) :]
