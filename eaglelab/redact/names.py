"""Many names in a text, found in one walk: the longest first, as whole words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

HEAD = 3
"""Characters by which names are looked up; shorter ones are no names."""


class Names:
    """name -> what stands in its place."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = {n: m for n, m in names.items() if len(n) >= HEAD}
        self.by_head: dict[str, list[str]] = defaultdict(list)
        for name in sorted(self.names, key=len, reverse=True):
            self.by_head[name[:HEAD].lower()].append(name.lower())
        self.lower = {n.lower(): m for n, m in self.names.items()}

    def found(self, text: str) -> Iterator[tuple[int, str]]:
        """(place, name in lower case) of every name, none inside of another."""
        low, place = text.lower(), 0
        if len(low) != len(text):  # a letter whose lower case is longer: places would be off
            low = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
        while place < len(low) - HEAD + 1:
            name = next((n for n in self.by_head.get(low[place : place + HEAD], ()) if self._stands(low, place, n)), None)
            if name is not None:
                yield place, name
            place += len(name) if name else 1

    @staticmethod
    def _stands(text: str, place: int, name: str) -> bool:
        """Whether the name is there, and not a part of a longer word."""
        end = place + len(name)
        if not text.startswith(name, place):
            return False
        inside = place > 0 and text[place - 1].isalnum() and name[0].isalnum()
        return not inside and not (end < len(text) and text[end].isalnum() and name[-1].isalnum())

    def sub(self, text: str) -> str:
        for place, name in reversed(list(self.found(text))):
            text = text[:place] + self.lower[name] + text[place + len(name) :]
        return text
