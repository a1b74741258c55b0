"""What a log reports: rows in one definition, the accept length where one can be had, and whether two numbers may be compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from eaglelab.acceptance import (
    accept_length_from_conditional,
    accept_length_from_draft_rate,
    accept_length_from_joint,
    accept_length_from_sglang_rate,
)
from eaglelab.metrics.definitions import OUTSIDE, RATES, Definition


@dataclass(frozen=True)
class Row:
    """The last value of one metric, at one step, on one split."""

    name: str
    """As printed."""
    step: int
    """Draft step k; -1 for a metric that is not of one step."""
    value: float
    split: str | None
    """`train`, `eval`, `served`, or None where nothing says it."""
    definitions: tuple[Definition, ...]
    """What the name can stand for; several where the source or its version leave it open."""
    at: str = ""
    """Where in the training it was printed: `step 500`, `epoch 3`."""
    seen: int = 1
    """Values printed under this name."""
    recent: float | None = None
    """Mean of the last 50 of them: a training step's own value is one batch's."""
    decimals: int | None = None
    """Decimals that it was printed with; None where it was not rounded."""
    evaluations: tuple[tuple[str, float], ...] = ()
    """(where in the training, value), in the order of the log: of what is not of the training's own batches, and says where it stands."""

    @property
    def definition(self) -> Definition | None:
        """The one definition; None where several are left."""
        return self.definitions[0] if len(self.definitions) == 1 else None

    @property
    def kind(self) -> str | None:
        """The kind, where all that are left agree on it."""
        kinds = {d.kind for d in self.definitions}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def title(self) -> str:
        """`acc_0 of SpecForge`."""
        return f"{self.name} of {' or '.join(dict.fromkeys(d.title for d in self.definitions))}"

    @property
    def in_words(self) -> str:
        return " or, by version, ".join(dict.fromkeys(d.in_words for d in self.definitions))

    def to_json(self) -> dict[str, Any]:
        fields = ("name", "step", "value", "recent", "seen", "split", "at", "kind")
        return {f: getattr(self, f) for f in fields} | {"definition": self.in_words, "read": [d.read for d in self.definitions]}


@dataclass(frozen=True)
class AcceptLength:
    """An accept length out of what was printed, the bonus token included."""

    value: float | None
    approximate: bool
    how: str
    """From which rows it comes; why there is none."""


@dataclass(frozen=True)
class Reported:
    """All that a log reports."""

    file: str
    framework: str | None
    version: str | None
    rows: tuple[Row, ...]
    unknown: tuple[str, ...] = ()
    """Names that speak of accuracy, acceptance or loss and that the table does not know."""
    not_finite: dict[str, int] = field(default_factory=dict)
    """Names printed as NaN or infinite, with how often."""
    no_rate: dict[str, int] = field(default_factory=dict)
    """Names of rates printed below 0 or above 1, with how often: those values are not used."""

    @property
    def splits(self) -> list[str | None]:
        return list(dict.fromkeys(r.split for r in self.rows))

    def rates(self, kind: str, split: str | None) -> list[Row]:
        """The rows of one kind and split at steps 0, 1, …, without a gap; one name's only."""
        rows = [r for r in self.rows if r.kind == kind and r.split == split and r.step >= 0]
        stems = dict.fromkeys(_stem(r.name) for r in rows)
        chains = [{r.step: r for r in rows if _stem(r.name) == stem} for stem in stems]
        runs = [[chain[k] for k in range(len(chain)) if all(j in chain for j in range(k + 1))] for chain in chains]
        return max(runs, key=len, default=[])

    def accept_length(self, split: str | None = None, num_draft_tokens: int | None = None) -> AcceptLength:
        """Tokens per verify pass, as well as what was printed gives it: counted, from joint or conditional rates, or out of marginals.

        split: by default the evaluation's, else the first. num_draft_tokens: what a rate over draft tokens (SGLang) needs, the root counted.
        """
        if split is None:
            split = next((s for s in ("served", "eval") if s in self.splits), self.splits[0] if self.rows else None)
        counted = [r for r in self.rows if r.split == split and r.kind == "accept_length"]
        for row in counted:
            if len({d.bonus for d in row.definitions}) == 1:
                bonus = row.definitions[0].bonus
                return AcceptLength(row.value + (not bonus), False, f"{row.name} as counted" + ("" if bonus else ", plus the bonus token"))
        if joint := self.rates("joint", split):
            return AcceptLength(
                accept_length_from_joint(r.value for r in joint), False, f"1 + the joint rates {joint[0].name} to {joint[-1].name}"
            )
        if chain := self.rates("conditional", split):
            value = accept_length_from_conditional([r.value for r in chain])
            return AcceptLength(value, False, f"the conditional rates {chain[0].name} to {chain[-1].name} multiplied along the chain")
        shares = [r for r in self.rows if r.split == split and all(d.kind in ("accepted_share", "length_share") for d in r.definitions)]
        if shares:
            return _from_share(shares[0], num_draft_tokens)
        if chain := self.rates("marginal", split):
            value = accept_length_from_conditional([r.value for r in chain])
            how = f"1 + products of the marginal rates {chain[0].name} to {chain[-1].name}: a product of marginals is another number, equal only where steps are independent"
            return AcceptLength(value, True, how)
        for row in self.rows:
            if row.split == split and row.kind == "product_length":
                how = f"{row.name}: a product of marginals is another number, equal only where steps are independent"
                return AcceptLength(row.value + (not row.definitions[0].bonus), True, how)
        if counted:
            return AcceptLength(None, False, f"whether {counted[0].name} counts the bonus token depends on the version: say which")
        return AcceptLength(
            None,
            False,
            "nothing was printed that an accept length can be made of: losses and means over all steps cannot be turned into one",
        )

    def to_json(self) -> dict[str, Any]:
        length = self.accept_length()
        return {
            "file": self.file,
            "framework": self.framework,
            "version": self.version,
            "rows": [r.to_json() for r in self.rows],
            "not_understood": list(self.unknown),
            "not_finite": dict(self.not_finite),
            "no_rate": dict(self.no_rate),
            "accept_length": {"value": length.value, "approximate": length.approximate, "how": length.how},
        }


def _stem(name: str) -> str:
    """`full_acc_1_epoch` -> `full_acc_#_epoch`: the name without its last number."""
    return re.sub(r"\d+(?=\D*$)", "#", name)


def _from_share(row: Row, num_draft_tokens: int | None) -> AcceptLength:
    """Accepted of drafted (vLLM, SGLang since April 2026), or accept length over draft tokens (SGLang until then)."""
    if row.kind is None or num_draft_tokens is None:
        why = (
            "the number of draft tokens in force"
            if row.kind is not None
            else "the version (the formula changed) and the draft tokens in force"
        )
        return AcceptLength(None, False, f"{row.name} = {row.value:g} cannot be turned into an accept length without {why}")
    source = row.definitions[0].source
    if source == "vllm":
        return AcceptLength(
            accept_length_from_draft_rate(row.value, num_draft_tokens), False, f"1 + {row.name} * {num_draft_tokens} draft tokens"
        )
    since = row.kind == "accepted_share"
    value = accept_length_from_sglang_rate(row.value, num_draft_tokens, since_april_2026=since)
    formula = f"1 + rate * {num_draft_tokens - 1}" if since else f"rate * {num_draft_tokens}"
    return AcceptLength(value, False, f"{row.name}, {formula}")


def comparable(a: Row, b: Row) -> tuple[bool, str]:
    """Whether two reported numbers may be set beside each other: (False, what makes them different things), or (True, what still differs).

    What refuses: another kind (marginal, joint and conditional are one thing at step 0 alone), another step, another treatment of tokens outside the
    draft vocabulary, other tokens fed, a bonus token in one only, losses of different trainers. What is only said: the mask's offset,
    means over batches, verify passes against rows, another split.
    """
    if a.definition is None or b.definition is None:
        open_ = a if a.definition is None else b
        return False, f"{open_.title} stands for several things: {open_.in_words}. Say the framework and its version."
    one, other = a.definition, b.definition
    refusals = list(_refusals(a, b, one, other))
    if refusals:
        return False, f"{a.title} and {b.title} are not the same number: " + "; ".join(refusals)
    return True, "; ".join(_remarks(a, b, one, other))


def _refusals(a: Row, b: Row, one: Definition, other: Definition):
    first = a.step == b.step == 0
    if one.kind != other.kind and not (first and one.kind in RATES and other.kind in RATES):
        yield f"one is {one.in_words}, the other {other.in_words}"
        return
    if a.step != b.step:
        yield f"one is of step {a.step}, the other of step {b.step}"
    if one.kind == "loss" and (one.source != other.source or a.name != b.name):
        yield "losses are sums of different terms, over different rows and weights"
    if one.kind in (*RATES, "overlap", "mean_marginal") and one.outside != other.outside:
        yield f"in {one.title} {OUTSIDE[one.outside]}, in {other.title} {OUTSIDE[other.outside]}"
    if one.kind == "marginal" and not first and one.fed != other.fed:
        yield "one feeds the text, the other the drafter's own tokens, which differ behind the first wrong step"
    if one.kind in ("accept_length", "product_length", "length_share") and one.bonus != other.bonus:
        yield "one counts the bonus token, the other does not: add 1 first"
    if one.kind in ("accepted_share", "length_share"):
        yield "a share of draft tokens depends on how many were drafted: compare accept lengths"


def _remarks(a: Row, b: Row, one: Definition, other: Definition):
    if one.over != other.over:
        yield "one is over all rows, the other over an engine's verify passes: equal at best on the target's own greedy text"
    elif one.over == "rows" and one.kind != "loss" and one.mask != other.mask:
        yield "one counts rows by l[t+k], the other by l[t+1+k]: they differ at the edges of each answer"
    if one.kind != "marginal" and one.fed != other.fed and one.over == other.over:
        yield "one feeds the drafter's own tokens: equal where the text is the target's own choice"
    if one.averaged != other.averaged:
        yield "one is a mean over batches, the other over tokens"
    if a.split != b.split:
        yield f"one is of the split {a.split or 'not said'}, the other {b.split or 'not said'}"
