"""Image tokens in a dump: did the pixels go in with them?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation

if TYPE_CHECKING:
    from torch import Tensor

KEYS = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
"""Where multimodal configs of transformers name the tokens that stand for pixels."""


def images(inv: Investigation) -> Iterator[Finding]:
    """Rows of image tokens: a text path embeds the same token each time, and the states are then those of no image."""
    config = inv.target_config or {}
    named = [config.get(key) for key in KEYS]
    marks = {id for id in named if isinstance(id, int) and not isinstance(id, bool) and 0 <= id < 2**31}
    if not marks or inv.dump is None:
        return
    import torch

    held = [(s, torch.isin(s.token_ids, torch.tensor(sorted(marks)))) for s in inv.samples]
    held = [(s, where) for s, where in held if where.any()]
    named = f"token{'s' * (len(marks) > 1)} {', '.join(map(str, sorted(marks)))}"
    if not held:
        title = f"None of {len(inv.samples)} samples holds an image ({named} of the target's config)"
        yield Finding("dump.images", title, Status.PASS, next="Images at serving are then text that the drafter never saw.")
        return
    blind = [s.key for s, where in held if any(_alike(slot, s.token_ids, where) for slot in s.slots if len(slot) == len(where))]
    tokens = sum(int(where.sum()) for _, where in held)
    yield Finding(
        id="dump.images",
        title=f"{len(blind)} of {len(held)} samples with images hold the same state for every image token: the pixels were dropped"
        if blind
        else f"{len(held)} of {len(inv.samples)} samples hold {tokens:,} image tokens: whether the pixels went in is not shown by the dump alone",
        status=Status.FAIL if blind else Status.CANNOT_TELL,
        claim=f"The samples hold {named}, which stand for pixels in the target's config.",
        evidence="With its pixels an image token's embedding differs from row to row; a text path embeds one token again and again."
        + (f" The first: {blind[0]}." if blind else " No slot holds the embedding, where that would show by itself."),
        numbers={"samples": len(inv.samples), "with_images": len(held), "tokens": tokens, "alike": len(blind)},
        next="Dump through the multimodal path (processor and pixel values), or train on text alone and expect no gain on images."
        if blind
        else "Capture the same prompts from the server that gets the images: `eaglelab live CASE --url … --capture DIR`.",
    )


def _alike(slot: Tensor, ids: Tensor, where: Tensor) -> bool:
    """Whether each marked token (`where` [T]) has one state in all its rows of a slot [T, H], of at least two, and not zeros."""
    from eaglelab.dumps.rows import take_rows

    groups = [take_rows(slot, (where & (ids == i)).nonzero()[:, 0]).float() for i in ids[where].unique()]  # [n, H] each
    several = [g for g in groups if len(g) > 1]
    return bool(several) and all(bool((g == g[:1]).all()) and bool((g != 0).any()) for g in several)
