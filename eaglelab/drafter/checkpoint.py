"""Load a drafter: EAGLE/SpecForge (`midlayer.*`) or speculators/ModelOpt (`layers.0.*`) names, safetensors or .bin, whole or in shards.

Quantised weights (FP8, INT8, packed integers) come dequantised out of `eaglelab.target`; a layout that it cannot read is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eaglelab.drafter.audit import Audit, DrafterError, audit_names, canonical_name
from eaglelab.drafter.config import DrafterConfig, DrafterConfigError
from eaglelab.drafter.device import choose_device
from eaglelab.drafter.embedding import EmbeddingRows
from eaglelab.drafter.model import Drafter
from eaglelab.drafter.shapes import expected_tensors
from eaglelab.drafter.vocabulary import check_d2t
from eaglelab.findings import few
from eaglelab.target.checkpoint import DTYPES, open_checkpoint
from eaglelab.target.errors import CheckpointError


def choose_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA, as engines run it, and float32 on the CPU."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    if dtype not in DTYPES:
        raise DrafterError(f"dtype {dtype!r}: expected auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def load_drafter(
    folder: str | Path, *, device: str = "auto", dtype: str | torch.dtype = "auto", lm_head: Any = None
) -> tuple[Drafter, Audit]:
    """The drafter of a folder, ready to replay, and the audit of its tensors.

    lm_head: [V, H], the target's, for a checkpoint that borrows it (only one over the whole vocabulary can). Raises DrafterError: tensors missing or of the wrong shape (by
    name), values that are not finite, a layer type that the replay does not run, d2t out of range; DrafterConfigError for a config that is no EAGLE-3 drafter's.
    """
    folder = Path(folder)
    config = DrafterConfig.load(folder)
    try:
        checkpoint = open_checkpoint(folder)
        check_runs(config, checkpoint.names(), folder)
        config = without_biases(config, checkpoint.names())
        shapes = {n: checkpoint.shape(n) for n in checkpoint.names()}
        expected = expected_tensors(config)
        for name, shape in shapes.items():
            if expected.get(canonical_name(name), shape) != shape:
                checkpoint.tensor(name)  # a quantised layout that cannot be read says so, which is more than its shape tells
    except CheckpointError as error:
        raise DrafterError(f"{folder}: {error}") from error
    audit = audit_names(config, shapes)
    own_head = audit.embedding if config.tie_word_embeddings else None
    problems = [f"missing {n}" for n in audit.missing] + list(audit.wrong_shape)
    if audit.borrowed and lm_head is None and own_head is None:
        problems.append(f"{audit.borrowed[0]} is borrowed from the target, whose lm_head is not given")
    if problems:
        unused = f" (in the file and not used: {few(audit.unexpected, 5)})" if audit.unexpected else ""
        raise DrafterError(f"{folder}: " + "; ".join(problems) + unused)
    try:
        with torch.device("meta"):  # no memory and no random numbers for what is loaded next
            drafter = Drafter(config)
    except DrafterConfigError as error:
        raise DrafterConfigError(f"{folder}: {error}") from error
    try:
        wanted = set(drafter.state_dict())
        state = {canonical_name(n): checkpoint.tensor(n) for n in checkpoint.names() if canonical_name(n) in wanted}
        if audit.borrowed:  # a tied drafter speaks through its own table where it has one
            state["lm_head.weight"] = checkpoint.tensor(own_head) if own_head else check_borrowed(lm_head, config, folder)
    except CheckpointError as error:
        raise DrafterError(f"{folder}: {error}") from error
    if "d2t" in state:
        state["d2t"] = check_d2t(state["d2t"], config, folder)
    else:
        state["d2t"] = torch.zeros(config.draft_vocab_size, dtype=torch.int64)
    place = choose_device(device)
    kind = choose_dtype(dtype, place)
    for name in state:  # one at a time: no second copy of the whole drafter
        state[name] = state[name].to(place) if name == "d2t" else state[name].to(place, kind)
    check_finite(state, folder)
    drafter.load_state_dict(state, strict=False, assign=True)  # the audit has compared every name
    drafter.to(place).requires_grad_(False)  # the rotary's tables move
    return drafter.eval(), audit


def without_biases(config: DrafterConfig, names: Iterable[str]) -> DrafterConfig:
    """The config of a drafter of SpecForge, whose layers have no biases whatever the config says (0.2.0, modeling/draft/llama3_eagle.py),
    unless its file holds some."""
    says = [key for key in ("attention_bias", "mlp_bias") if getattr(config, key)]
    if config.family != "specforge" or not says or any(n.endswith(("_proj.bias", "_mqa.bias")) for n in names):
        return config
    note = f"{' and '.join(says)} of the config left out: the file holds no bias, and SpecForge trains none."
    return replace(config, attention_bias=False, mlp_bias=False, note=note)


def check_finite(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Raise DrafterError for NaN or infinity among weights, naming tensors, how many and the first place."""
    bad = []
    for name, tensor in tensors.items():
        wrong = ~tensor.isfinite()
        if bool(wrong.any()):
            place = wrong.nonzero()[0].tolist()
            bad.append(f"{name} holds {int(wrong.sum()):,} of {wrong.numel():,} ({tensor[tuple(place)]} first, at {place})")
    if bad:
        raise DrafterError(
            f"{folder}: NaN or infinity among the weights: {few(bad, 3, '; ')}. Nothing can be drafted with them: take an earlier checkpoint, or "
            "copy the file again"
        )


def check_runs(config: DrafterConfig, names: Iterable[str], folder: Path) -> None:
    """Raise DrafterError for a draft layer that the replay has no code for."""
    if config.sliding_window is not None:
        raise DrafterError(
            f"{folder}: its attention looks back {config.sliding_window} rows (layer_types), expected full attention: the replay has no window"
        )
    experts = next((n for n in names if ".mlp.experts." in n), None)
    if experts is not None:  # TorchSpec trains them; vLLM and SGLang build a dense MLP in their place
        raise DrafterError(
            f"{folder}: a draft layer with experts (MoE; it holds {experts}), expected a dense MLP: the replay runs no MoE layers"
        )


def check_borrowed(lm_head: Any, config: DrafterConfig, folder: Path) -> Tensor:
    """The target's lm_head, [Vd, H], a tensor or one on disk (`Checkpoint.lazy`). Raises DrafterError where its shape is another."""
    expected = (config.draft_vocab_size, config.hidden_size)
    if tuple(lm_head.shape) != expected:
        raise DrafterError(
            f"{folder}: the borrowed lm_head is {list(lm_head.shape)}, the drafter's config implies {list(expected)}: is it another target's?"
        )
    return lm_head[: expected[0]]


def own_embedding(folder: str | Path, token_ids: Tensor) -> EmbeddingRows | None:
    """Rows of the drafter's own embedding table, None where its checkpoint carries none (most do not). Raises DrafterError for rows that are
    not finite, or all zeros."""
    checkpoint = open_checkpoint(folder)
    name = next((n for n in checkpoint.names() if canonical_name(n) == "embed_tokens.weight"), None)
    if name is None:
        return None
    ids = token_ids.unique()
    rows = checkpoint.rows(name, ids)
    check_finite({f"{name} (rows of the samples' tokens)": rows}, Path(folder))
    if not bool(rows.any()):
        raise DrafterError(f"{folder}: {name} holds nothing but zeros in the rows of the samples' tokens: export it again, or leave it out")
    return EmbeddingRows(ids, rows, "the drafter's own embedding table")
