"""A small language with something in it that a target has to know, and a drafter can guess ahead.

    prompt: BOS, mode, noise, topic of each of three sets in any order, a number of two digits, SEP
    answer: marker, topic, phrase; marker, topic, phrase; ...

A marker (one a set, in turn) calls for its set's topic, which stands somewhere in the prompt; mode, topic and the size of the number together choose the
phrase, which ends with the number's digits where it is one that counts. The number's last digit says which set is first. So the next token hangs
on tokens far back and on the last few, and more of it is worked out in the target's layers than a drafter of one layer could on its own.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from torch import Tensor

VOCAB = 96
PAD, BOS, EOS, SEP = range(4)
MODES = range(4, 6)
MARKERS = range(7, 10)
DIGITS = range(10, 20)
TOPICS = tuple(range(20 + 8 * i, 26 + 8 * i) for i in range(3))
WORDS = range(44, 80)
NOISE = range(80, 96)
SLIPS = 0.03
"""Share of answer tokens that are another word: a language without any would leave the target no probabilities to speak of."""


@dataclass(frozen=True)
class Language:
    """The phrases of one seed."""

    seed: int

    def phrase(self, mode: int, topic: int, large: bool) -> tuple[list[int], bool]:
        """(words, whether the number's digits follow)."""
        r = random.Random(f"{self.seed} {mode} {topic} {large}")
        return [r.choice(WORDS) for _ in range(r.randint(3, 5))], r.random() < 0.3

    def prompt(self, r: random.Random) -> list[int]:
        topics = [r.choice(s) for s in TOPICS]
        r.shuffle(topics)
        noise = [r.choice(NOISE) for _ in range(r.randint(0, 4))]
        return [BOS, r.choice(MODES), *noise, *topics, r.choice(DIGITS), r.choice(DIGITS), SEP]

    def answer(self, prompt: list[int], length: int, r: random.Random | None = None) -> list[int]:
        """The right answer's first `length` tokens; r: with slips."""
        mode, number = prompt[1], prompt[-3:-1]
        answer: list[int] = []
        while len(answer) < length:
            place = (number[1] + sum(t in MARKERS for t in answer)) % len(TOPICS)
            topic = next(t for t in prompt if t in TOPICS[place])
            words, counts = self.phrase(mode, topic, number[0] >= DIGITS[5])
            answer += [MARKERS[place], topic, *words, *(number if counts else [])]
        if r is not None:
            answer = [r.choice(WORDS) if t in WORDS and r.random() < SLIPS else t for t in answer]
        return answer[:length]

    def batch(self, size: int, length: int, r: random.Random) -> Tensor:
        """[size, length] int64: prompts with their answers behind them."""
        rows = []
        for _ in range(size):
            prompt = self.prompt(r)
            rows.append(prompt + self.answer(prompt, length - len(prompt), r))
        return torch.tensor(rows)
