"""What a server says of itself, without the keys that it was started with: SGLang's /server_info shows its `api_key`."""

from __future__ import annotations

import re
from typing import Any

from eaglelab.outside_json import too_deep

HIDDEN = "***"
NAMES = r"api[_-]?keys?|password|passwd|secret|credentials?|access[_-]key|(?:auth|access|hf|bearer)[_-]token|authorization|bearer"
ENV = r"[A-Z][A-Z0-9_]*_(?:TOKEN|KEY|SECRET|PASSWORD)"
"""Variables of the environment."""
SECRET = re.compile(rf"(?i:(^|[_-])({NAMES})$|^token$)|^{ENV}$")
"""Names of values that are left out. `speculative_num_draft_tokens` or `bos_token` are none."""
FLAG = re.compile(
    rf"(--(?:(?:[\w-]*-)?(?:{NAMES})|token)(?:=|\s+))((?:\"[^\"]*\"|'[^']*'|(?!-)\S+)(?:\s+(?:\"[^\"]*\"|'[^']*'|(?!-)\S+))*)",
    re.IGNORECASE,
)
"""A flag of a command line that ends in such a name, and its values up to the next flag (vLLM takes several keys)."""


LOOSE = re.compile(rf"(\b{ENV}=|(?i:\bbearer\s+))(\"[^\"]*\"|'[^']*'|[^\s\"',]+)")
"""A variable set before a command, and a header."""


def without_secrets(value: Any) -> Any:
    """A copy of JSON without secrets, in values by name and in command lines; None where it is nested too deeply to be kept."""
    return None if too_deep(value) else _clean(value)


def _clean(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: HIDDEN if SECRET.search(k) and v else _clean(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_clean(v) for v in value]
    return command_without_secrets(value) if isinstance(value, str) else value


def command_without_secrets(line: str) -> str:
    return LOOSE.sub(rf"\1{HIDDEN}", FLAG.sub(rf"\1{HIDDEN}", line))
