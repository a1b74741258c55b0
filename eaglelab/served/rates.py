"""Which formula printed SGLang's `accept rate`: the number alone does not say, the accept length on the same line often does.

`length_share` is accept length / draft tokens (0.5.3.post3 to 0.5.10.post1; until 0.5.5.post2 the divisor was steps + 1, the same for a chain),
`accepted_share` is accepted / drafted = (accept length - 1) / (draft tokens - 1) (0.5.11 on). The turning points were read in the releases
themselves: srt/managers/scheduler_metrics_mixin.py, from 0.5.10 on srt/observability/scheduler_metrics_mixin.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from eaglelab.metrics.definitions import define

LARGEST = 256
"""Draft tokens that are tried where nobody says how many there were."""
ROUNDING = 0.005 + 1e-9
"""Both numbers are printed with two decimals."""


@dataclass(frozen=True)
class RateFormula:
    kind: str | None
    """`length_share`, `accepted_share`, or None where it cannot be told."""
    num_draft_tokens: int | None
    """In force, the root included, where given or where the numbers leave only one."""
    why: str


def rate_formula(
    printed: Iterable[tuple[float, float]], *, version: str | None = None, num_draft_tokens: int | None = None, steps: int | None = None
) -> RateFormula:
    """printed: (accept length, accept rate) of each line of one start of a server. version: SGLang's."""
    pairs = set(printed)
    if not pairs:
        return RateFormula(None, num_draft_tokens, "no accept rate was printed")
    by_version = {d.kind for d in define("accept_rate", "sglang", version)[0]} if version is not None else set()
    fits = _candidates(num_draft_tokens, steps)
    for length, rate in pairs:
        fits = {(kind, tokens, by) for kind, tokens, by in fits if _prints(kind, by, length, rate)}
    agreed = {fit for fit in fits if not by_version or fit[0] in by_version}
    kinds, tokens = {fit[0] for fit in agreed}, {fit[1] for fit in agreed}
    kind = kinds.pop() if len(kinds) == 1 else None
    found = num_draft_tokens if num_draft_tokens is not None else tokens.pop() if kind is not None and len(tokens) == 1 else None
    if kind is None and len(by_version) == 1 and not fits and num_draft_tokens is None and steps is None:
        kind = next(iter(by_version))
        return RateFormula(kind, None, f"{kind} by the version, SGLang {version}; no one number of draft tokens fits all lines")
    if kind is not None and by_version:
        return RateFormula(kind, found, f"{kind} by the version, SGLang {version}, and the numbers of {len(pairs)} lines agree")
    if kind is not None:
        return RateFormula(kind, found, f"{kind}: the only formula that makes both numbers of {len(pairs)} different lines")
    if not fits:
        given = f" with {num_draft_tokens} draft tokens" if num_draft_tokens is not None else ""
        return RateFormula(None, num_draft_tokens, f"neither formula makes accept length and accept rate of all lines{given}")
    if by_version and not agreed:
        return RateFormula(
            None, num_draft_tokens, f"SGLang {version} prints {by_version.pop()}, the lines say {fits.pop()[0]}: another version ran"
        )
    return RateFormula(None, num_draft_tokens, "both formulas make these numbers: the version or the draft tokens in force would tell")


def _candidates(num_draft_tokens: int | None, steps: int | None) -> set[tuple[str, int, int]]:
    """(kind, draft tokens, what the rate was divided by)."""
    tokens = [num_draft_tokens] if num_draft_tokens is not None else range(2, LARGEST + 1)
    found = {("length_share", n, n) for n in tokens} | {("accepted_share", n, n - 1) for n in tokens if n > 1}
    if num_draft_tokens is not None and steps is not None:
        found.add(("length_share", num_draft_tokens, steps + 1))
    return found


def _prints(kind: str, by: int, length: float, rate: float) -> bool:
    part = length if kind == "length_share" else length - 1
    return abs(part / by - rate) <= ROUNDING / by + ROUNDING
