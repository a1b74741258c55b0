"""What is known of a case and of this machine, and what stands in its place: written once by the runner, read by each notebook's kernel.

Never more than a safety net above the vocabulary: what cannot be read here adds nothing, and its words are taken out all the same.
"""

from __future__ import annotations

import getpass
import json
import os
import platform
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eaglelab.case import Case
from eaglelab.live.secrets import SECRET
from eaglelab.redact import heard
from eaglelab.redact.marks import mark
from eaglelab.redact.places import Places
from eaglelab.redact.vocabulary import LETTERS, Vocabulary, runs

MOST_SAMPLES = 2000
"""Samples whose text is read, the choice of the notebooks first."""
SHORTEST = 3
DIGITS = 5
"""Of a name that is a number: a shorter one would take counts out of every sentence."""


@dataclass
class Known:
    names: dict[str, str] = field(default_factory=dict)
    """What must not be shown -> the mark in its place."""
    samples: dict[str, str] = field(default_factory=dict)
    """Sample keys, those made of digits too -> `‹sample 3›`."""
    phrases: set[tuple[str, ...]] = field(default_factory=set)
    """Words in a row, in lower case, of the case's texts."""

    def add(self, name: Any, instead: str, vocabulary: Vocabulary, hidden: bool = False) -> None:
        """hidden: also where eaglelab's own code has this name; never a single word of its own."""
        name = str(name).strip().rstrip("/")
        telling = LETTERS.search(name) or (name.isdigit() and len(name) >= DIGITS)
        if len(name) < SHORTEST or not telling or name.lower() in vocabulary.words or name in self.names:
            return
        if hidden or not vocabulary.holds(name):
            self.names[name] = instead

    def merge(self, other: Known) -> None:
        """Of several cases, the mark that a name had first stays."""
        self.names, self.samples = {**other.names, **self.names}, {**other.samples, **self.samples}
        self.phrases |= other.phrases

    def write(self, path: Path, vocabulary: Vocabulary) -> None:
        """With the vocabulary, for this user's eyes only."""
        data = {"names": self.names, "samples": self.samples, "phrases": [" ".join(p) for p in self.phrases]}
        data |= {"vocabulary": [sorted(vocabulary.words), sorted(vocabulary.names)]}
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8", errors="surrogatepass") as file:
            json.dump(data, file)

    @classmethod
    def read(cls, path: Path) -> tuple[Known, Vocabulary]:
        data = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass"))
        words, names = map(frozenset, data["vocabulary"])
        return cls(data["names"], data["samples"], {tuple(p.split(" ")) for p in data["phrases"]}), Vocabulary(words, names, frozenset())


def known_of(case: Case, vocabulary: Vocabulary, max_samples: int | None = 32, seeds: Iterable[int] = (0,)) -> Known:
    """Everything that is known of `case`. max_samples and seeds: the choices that the notebooks make."""
    known = Known()
    for name, instead in _of_machine(vocabulary):
        known.add(name, instead, vocabulary)
    _keys_and_texts(case, known, vocabulary, max_samples, seeds)
    for name, instead in Places(case, vocabulary).names():
        known.add(name, instead, vocabulary)
    known.add(case.engine.url or "", mark("url"), vocabulary, hidden=True)
    _hear(heard.of_launch(case.engine.launch or ""), known, vocabulary)
    for file in heard.files(case):
        _hear(heard.read(file), known, vocabulary)
    return known


def _of_machine(vocabulary: Vocabulary) -> Iterable[tuple[str, str]]:
    """The user, the host, and what the environment holds."""
    with suppress(OSError, KeyError, ImportError):  # a user without a name
        yield getpass.getuser(), mark("user")
    yield Path.home().name, mark("user")
    for host in {platform.node(), platform.node().partition(".")[0]}:
        yield host, mark("host")
    for name, value in os.environ.items():
        secret = SECRET.search(name) is not None
        if secret or (len(value) >= 6 and not all(map(vocabulary.knows, LETTERS.findall(value)))):
            yield value, mark("secret" if secret else "environment")


def _keys_and_texts(case: Case, known: Known, vocabulary: Vocabulary, max_samples: int | None, seeds: Iterable[int]) -> None:
    """Sample keys, and the words in a row of the samples that notebooks look at."""
    from eaglelab.investigation import Investigation
    from eaglelab.text import load_tokenizer

    for seed in seeds:
        inv = Investigation(case, max_samples=min(max_samples or MOST_SAMPLES, MOST_SAMPLES), seed=seed)
        with suppress(Exception):  # whatever is wrong with a dump is said by its checks
            if inv.dump is None:
                return
            for key in inv.dump.keys:
                known.samples.setdefault(key, mark("sample", len(known.samples) + 1))
            tokenizer = load_tokenizer(case.target.tokenizer or case.target.path)
            for sample in inv.samples if tokenizer is not None else ():
                with suppress(Exception):  # ids out of range
                    known.phrases |= set(_phrases(tokenizer.decode(sample.token_ids.tolist(), skip_special_tokens=True), vocabulary))
    for key, instead in known.samples.items():
        known.add(key, instead, vocabulary, hidden=True)


def _hear(said: heard.Heard, known: Known, vocabulary: Vocabulary) -> None:
    for key in said.samples:
        known.samples.setdefault(key, mark("sample", len(known.samples) + 1))
        known.add(key, known.samples[key], vocabulary, hidden=True)
    for name, kind in said.names.items():
        known.add(name, mark(kind), vocabulary)
        known.add(name.rstrip("/").rpartition("/")[2], mark(kind), vocabulary)
    for text in said.texts:
        known.phrases |= set(_phrases(text, vocabulary))


def _phrases(text: str, vocabulary: Vocabulary) -> Iterable[tuple[str, ...]]:
    return (r for r in runs(text) if r not in vocabulary.runs)
