"""Which tensor of a checkpoint is which: embedding table, final norm, lm_head, decoder layers, under the usual prefixes."""

from __future__ import annotations

import re
from collections.abc import Collection

from eaglelab.target.errors import CheckpointError

PREFIXES = (
    "model.",
    "language_model.model.",
    "model.language_model.",
    "model.language_model.model.",
    "language_model.",
    "thinker.model.",
    "transformer.",
    "model.decoder.",
    "decoder.",
    "gpt_neox.",
    "backbone.",
    "llm.model.",
    "",
)
EMBEDDINGS = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "embed_in.weight",
    "tok_embeddings.weight",
    "embeddings.weight",
)
NORMS = ("norm.weight", "ln_f.weight", "final_layernorm.weight", "final_layer_norm.weight", "norm_f.weight", "embedding_norm.weight")
HEADS = ("lm_head.weight", "embed_out.weight", "output.weight", "output_layer.weight")

LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
ASIDE = re.compile(r"(?:^|\.)(?:vision\w*|visual|image\w*|audio\w*|mtp\w*|talker|draft\w*|encoder)\.")
"""Parts of a checkpoint that are not the text decoder."""


def find_tensor(names: Collection[str], endings: tuple[str, ...], what: str, where: str) -> str:
    """The one name for `what`. A usual prefix wins; else a single name with one of the endings outside of layers.

    Raises CheckpointError that lists what comes near.
    """
    for ending in endings:
        for prefix in PREFIXES:
            if prefix + ending in names:
                return prefix + ending
    near = outside_layers(names, endings)
    if len(near) == 1:
        return near[0]
    raise CheckpointError(
        f"{where}: cannot tell which tensor is the {what}: expected one of {', '.join(endings)} under a usual prefix "
        f"({', '.join(p or '(none)' for p in PREFIXES[:4])}, …), got {', '.join(near) or 'none among ' + _some(names)}"
    )


def outside_layers(names: Collection[str], endings: tuple[str, ...]) -> list[str]:
    """Names that end with one of the endings, whole parts only, outside of decoder layers and of other towers."""
    whole = (n for n in names if any(n == e or n.endswith("." + e) for e in endings))
    return sorted(n for n in whole if not LAYER.search(n) and not ASIDE.search(n))


def count_layers(names: Collection[str], prefix: str) -> int | None:
    """Decoder layers by their names under `prefix` (extra prediction layers are counted too), None where there are none."""
    numbers = {int(m[1]) for n in names if n.startswith(prefix) and (m := LAYER.search(n[max(0, len(prefix) - 1) :]))}
    return max(numbers) + 1 if numbers else None


def _some(names: Collection[str], limit: int = 4) -> str:
    shown = sorted(names)[:limit]
    return f"{len(names)} names: " + ", ".join(shown) + (", …" if len(names) > limit else "") if names else "0 names"
