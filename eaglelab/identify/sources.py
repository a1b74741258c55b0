"""What the slots are compared with: a forward of the target, its embedding rows alone, or a sketch. All end in a `Comparison`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eaglelab.cache import Pieces, Unfinished
from eaglelab.identify.compare import MIN_ROWS, BoundaryRows, BoundaryText, Comparison
from eaglelab.identify.rows import Rows, choose_positions, leading_padding, read_rows, spread
from eaglelab.target.forward import ForwardSource
from eaglelab.target.sketch import GRAM_ROWS, Sketch, gram, order_values, projection
from eaglelab.wiring import FINAL, Boundary

SEARCH_DIM = 64
"""Numbers to which rows are projected when they are looked for at other places."""
MAKE_SKETCH = "eaglelab sketch TARGET --dump DUMP --out sketch.safetensors"


@dataclass
class Compared:
    """A finished comparison and what was and was not in it."""

    comparison: Comparison
    used: list[int]  # indices of the samples in the comparison
    texts: list[str]  # names of the texts in which rows were looked for
    dim: int | None  # of the projection through which errors were estimated
    width: int
    untested: dict[int, str] = field(default_factory=dict)  # sample index: why
    embedding_only: dict[int, str] = field(default_factory=dict)  # sample index: why
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """All boundaries were looked at, `final` too."""
        return FINAL in self.comparison.boundaries


def against_forward(
    samples: Sequence[Any], source: Any, names: tuple[str, ...], rows: int, seed: int, unfinished: Unfinished | None = None
) -> Compared:
    """Compare with boundaries that `source.visit` hands over one after another, in full width.

    unfinished: where the last boundary of an interrupted run is kept, with what was found up to it: a forward goes on from its states.
    """
    starts = [leading_padding(sample) for sample in samples]
    positions = [choose_positions(sample, start, rows, seed + i) for i, (sample, start) in enumerate(zip(samples, starts, strict=True))]
    vocab_size = getattr(source, "vocab_size", None)
    untested = {i: why for i, p in enumerate(positions) if (why := _unusable(samples[i], len(p), vocab_size))}
    used = [i for i in range(len(samples)) if i not in untested]
    token_ids = [samples[i].token_ids[starts[i] :] for i in used]
    width, signs = source.hidden_size, projection(source.hidden_size, SEARCH_DIM)
    read = [read_rows(samples[i], names, positions[i], starts[i], width, signs, False, spread(len(positions[i]))) for i in used]
    comparison = Comparison(read, token_ids, list(range(len(used))))
    told = (getattr(source, "kind", ""), getattr(source, "up_to", None), [samples[i].key for i in used], names, rows, seed)
    done = Pieces() if unfinished is None else unfinished.of("boundaries", *told)

    def visit(boundary: Boundary, states: Sequence[Tensor]) -> None:
        comparison.add(boundary, [_at_rows(*pair) for pair in zip(states, read, strict=True)], [_text(state, signs) for state in states])
        if isinstance(source, ForwardSource) and boundary != FINAL:
            done["last"] = boundary, list(states), comparison.found()

    if used and "last" in done:
        boundary, states, found = done["last"]
        comparison.go_on(found)
        source.visit(token_ids, visit, (boundary, [s.to(source.device) for s in states]))
    elif used:
        source.visit(token_ids, visit)
    done.end()
    note = (
        f"compared {sum(len(positions[i]) for i in used):,} of {sum(map(len, token_ids)):,} rows of {len(used)} of {len(samples)} samples "
        f"(at most {rows:,} a sample, seed {seed}; first tokens and padding left out)"
    )
    return Compared(comparison, used, [samples[i].key for i in used], None, width, untested, notes=[note])


def _unusable(sample: Any, rows: int, vocab_size: int | None) -> str | None:
    if rows < MIN_ROWS:
        return f"{len(sample.token_ids)} tokens, {rows} rows after the first token and padding; {MIN_ROWS} needed"
    highest, lowest = int(sample.token_ids.max()), int(sample.token_ids.min())
    if lowest < 0 or (vocab_size is not None and highest >= vocab_size):
        bad = lowest if lowest < 0 else highest
        return f"token id {bad} is outside the target's 0..{vocab_size - 1 if vocab_size else 'V-1'}: another tokenizer or a damaged file"
    return None


def _at_rows(state: Tensor, rows: Rows) -> BoundaryRows:
    chosen = state[rows.positions.to(state.device)].cpu().float()  # [R, H]
    fixed = chosen[rows.fixed]  # [G, H]
    return BoundaryRows(chosen, chosen.norm(dim=-1), gram(fixed), order_values(fixed))


def _text(state: Tensor, signs: Tensor) -> BoundaryText:
    values = state.float()  # [T, H]
    return BoundaryText((values @ signs.to(values.device)).cpu(), values.norm(dim=-1).cpu())


def against_sketch(samples: Sequence[Any], sketch: Sketch, names: tuple[str, ...], rows: int) -> Compared:
    """Compare with a sketch, on the rows whose whole prefix it knows; elsewhere only with the embedding rows that it has."""
    signs = sketch.projection()
    read: list[Rows] = []
    own: list[int | None] = []
    used, untested, embedding_only = [], {}, {}
    for i, sample in enumerate(samples):
        start = leading_padding(sample)
        text, places = _sketched_rows(sample.token_ids[start:], sketch, rows)
        if text is None:
            kind = embedding_only if len(places) >= MIN_ROWS else untested
            kind[i] = _no_prefix(sample.token_ids[start:], sketch)
        if len(places) >= MIN_ROWS:
            fixed = (places < GRAM_ROWS).nonzero()[:, 0] if text is not None else places[:0]
            read.append(read_rows(sample, names, places, start, sketch.hidden_size, signs, True, fixed))
            own.append(text)
            used.append(i)
    comparison = Comparison(read, [t.token_ids for t in sketch.texts], own)
    for b, boundary in enumerate(sketch.boundaries if read else ()):
        at_rows = [_sketched(sketch, b, j, r, signs) for j, r in zip(own, read, strict=True)]
        comparison.add(boundary, at_rows, [BoundaryText(t.states[b], t.norms[b]) for t in sketch.texts])
    shared = [len(r.positions) for r, j in zip(read, own, strict=True) if j is not None]
    note = (
        f"compared {sum(shared):,} rows of {len(shared)} of {len(samples)} samples that share a prefix with the sketch's "
        f"{len(sketch.texts)} texts; errors are estimated through {sketch.dim} projections, to about {(2 * sketch.dim) ** -0.5:.0%} of themselves"
    )
    texts = [f"text {j} of the sketch" for j in range(len(sketch.texts))]
    return Compared(comparison, used, texts, sketch.dim, sketch.hidden_size, untested, embedding_only, [note])


def _sketched_rows(token_ids: Tensor, sketch: Sketch, rows: int) -> tuple[int | None, Tensor]:
    """(text, positions): rows with the same prefix; without enough of them, no text and the rows whose token has an embedding row."""
    text, shared = sketch.common_prefix(token_ids)
    if shared - 1 >= MIN_ROWS:
        return text, torch.arange(1, min(shared, rows + 1))
    known = torch.isin(token_ids, sketch.embedding_ids)
    known[0:1] = False
    return None, known.nonzero()[:rows, 0]


def _no_prefix(token_ids: Tensor, sketch: Sketch) -> str:
    return (
        f"the sketch has no text that starts like this sample ({sketch.common_prefix(token_ids)[1]} rows shared, {MIN_ROWS + 1} needed; "
        "a state depends on its whole prefix)"
    )


def _sketched(sketch: Sketch, b: int, text: int | None, rows: Rows, signs: Tensor) -> BoundaryRows:
    """Boundary number `b` of the sketch at the rows of one sample."""
    if text is None:  # a token's embedding row is known without its prefix, other states are not
        places = torch.searchsorted(sketch.embedding_ids, rows.token_ids[rows.positions])
        table = sketch.embedding_rows[places].float()  # [R, H]
        known = 1.0 if sketch.boundaries[b] == 0 else float("nan")
        return BoundaryRows(table @ signs * known, table.norm(dim=-1) * known)
    held, fixed = sketch.texts[text], rows.positions[rows.fixed]
    return BoundaryRows(
        held.states[b][rows.positions],
        held.norms[b][rows.positions],
        held.gram[b][fixed][:, fixed],
        held.order[b][fixed],
    )
