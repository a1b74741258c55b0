"""The flags of a launch line as the engine's parser reads them: options in full, values as numbers, and what it would refuse."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from eaglelab.engines.effective.options import Meaning, meaning
from eaglelab.engines.launch import Launch
from eaglelab.engines.shell import Raw

ONE_NAME = {
    "sglang": {
        "speculative_algo": "speculative_algorithm",
        "speculative_draft_model": "speculative_draft_model_path",
        "model": "model_path",
        "tensor_parallel_size": "tp_size",
        "pipeline_parallel_size": "pp_size",
        "data_parallel_size": "dp_size",
        "attention_data_parallel_size": "attn_dp_size",
    },
    "vllm": {"tp": "tensor_parallel_size", "cc": "compilation_config", "sc": "speculative_config"},
}
"""Other spellings of an option, by engine."""
OFF = ("0", "false", "no", "n", "")


def as_written(name: str, value: Any) -> str:
    """A flag of `Launch.given` as it stands on the line, for a claim."""
    words = value if isinstance(value, (list, tuple)) else [] if value is True else [value]
    return " ".join([f"--{name.replace('_', '-')}", *map(str, words)])[:120]


class Given:
    """One launch line, read with one version's list of options (None: not known, names are taken as they stand)."""

    def __init__(self, launch: Launch, known: frozenset[str] | None) -> None:
        self.launch = launch
        self.known = known
        in_python = not launch.program and bool(launch.given)
        one_dash = {word[1:].partition("=")[0].replace("-", "_") for word in launch.arguments if word[:1] == "-" != word[1:2]}
        self.meanings: dict[str, Meaning] = {
            name: Meaning(name) if in_python or name in one_dash else meaning(name, known) for name in launch.given
        }
        """Each flag as written -> what it means. Words with one dash (`-tp`) are not looked up."""
        self.flags: dict[str, Any] = {}
        """Options in full, one spelling each -> the value as written."""
        names = ONE_NAME.get(launch.engine or "sglang", {})
        for name, value in launch.given.items():
            found = self.meanings[name].name
            if found is not None:
                self.flags[names.get(found, found)] = value
        self.refused: dict[str, str] = {}
        """Option -> why the parser stops at its value."""
        self.unknown: list[str] = []
        """Options whose value only the shell or another program knows."""

    def has(self, *names: str) -> bool:
        return any(name in self.flags for name in names)

    def whole(self, *names: str) -> int | None:
        """A whole number under the first of these options that is there; None where none is, or where it is no number (then noted)."""
        return self._number(int, "a whole number", names)

    def real(self, *names: str) -> float | None:
        """A number; NaN and infinities count as none."""
        value = self._number(float, "a number", names)
        return value if value is None or math.isfinite(value) else self._refuse(names, value, "a finite number")

    def text(self, name: str) -> str | None:
        """A word; None where it is not given or not known."""
        value = self.flags.get(name)
        if isinstance(value, Raw):
            return self._open(name)
        if value is True or isinstance(value, list):
            return self._refuse((name,), value, "one word")
        return None if value is None else str(value)

    def switch(self, *names: str) -> bool:
        """Whether an option without a value is there."""
        return any(self.flags.get(name, False) not in (False, None) for name in names)

    def variable(self, name: str) -> bool | None:
        """A variable that is true or false; None where it is not set in front of the program."""
        value = self.launch.env.get(name)
        return None if value is None else value.strip().lower() not in OFF

    def sizes(self, *names: str) -> list[int] | None:
        """A list of whole numbers."""
        name = next((n for n in names if n in self.flags), None)
        if name is None:
            return None
        value = self.flags[name]
        if any(isinstance(word, Raw) for word in (value if isinstance(value, list) else [value])):
            return self._open(name)
        try:
            return [int(str(word)) for word in (value if isinstance(value, (list, tuple)) else [value])]
        except ValueError:
            return self._refuse(names, value, "whole numbers")

    def mapping(self, name: str) -> Mapping[str, Any] | None:
        """A JSON object."""
        value = self.flags.get(name)
        if value is None or isinstance(value, Mapping):
            return value
        try:
            found = json.loads(str(value))
        except (ValueError, RecursionError):
            found = None
        return found if isinstance(found, dict) else self._refuse((name,), value, "a JSON object")

    def _number(self, kind: type, expected: str, names: tuple[str, ...]) -> Any:
        name = next((n for n in names if n in self.flags), None)
        value = self.flags.get(name) if name else None
        if value is None:
            return None
        if isinstance(value, Raw):
            return self._open(name)
        try:
            if value is True or isinstance(value, list):
                raise ValueError
            number = kind(value if isinstance(value, (int, float)) else str(value))
        except (ValueError, OverflowError):
            return self._refuse((name,), value, expected)
        return number

    def _open(self, name: str) -> None:
        if name not in self.unknown:
            self.unknown.append(name)

    def _refuse(self, names: tuple[str, ...], value: Any, expected: str) -> None:
        name = next(n for n in names if n in self.flags)
        got = "nothing" if value is True else repr(value if not isinstance(value, list) else " ".join(map(str, value)))[:80]
        self.refused[name] = f"--{name.replace('_', '-')} is {got}, expected {expected}"
