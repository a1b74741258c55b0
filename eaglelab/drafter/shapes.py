"""Which tensors, of which shapes, a drafter's config implies. No torch: this is what headers are set against."""

from __future__ import annotations

from eaglelab.drafter.config import DrafterConfig

Shapes = dict[str, tuple[int, ...]]
"""Canonical name (`midlayer.*` is the first layer, `layers.1.*` the next) -> shape."""


def expected_tensors(config: DrafterConfig) -> Shapes:
    """Every tensor that must be there."""
    width, target, vocabulary = config.hidden_size, config.target_hidden_size, config.draft_vocab_size
    shapes: Shapes = {"fc.weight": (width, config.num_slots * target), "norm.weight": (width,), "lm_head.weight": (vocabulary, width)}
    shapes |= _layer(config, "midlayer", first=True)
    for i in range(1, config.num_layers):
        shapes |= _layer(config, f"layers.{i}", first=False)
    if config.fc_bias:
        shapes["fc.bias"] = (width,)
    if config.norm_before_fc:
        shapes["input_norm.weight"] = (config.num_slots * target,)
    if config.fc_norm:
        shapes |= {f"fc_norm.{i}.weight": (target,) for i in range(config.num_slots)}
    if vocabulary < config.vocab_size:
        shapes["d2t"] = (vocabulary,)
    if width != target:
        shapes["embed_tokens.weight"] = (config.vocab_size, width)
    return shapes


def optional_tensors(config: DrafterConfig) -> Shapes:
    """Tensors that may be there and are not needed."""
    return {"t2d": (config.vocab_size,), "embed_tokens.weight": (config.vocab_size, config.hidden_size), "d2t": (config.draft_vocab_size,)}


def _layer(config: DrafterConfig, name: str, *, first: bool) -> Shapes:
    """The first layer takes the embedding beside the state, and norms the state by `hidden_norm`; further layers are plain ones."""
    width, inner = config.hidden_size, config.intermediate_size
    shapes: Shapes = {f"mlp.{n}_proj.weight": (inner, width) for n in ("gate", "up")} | {"mlp.down_proj.weight": (width, inner)}
    if config.mlp_bias:
        shapes |= {f"{n.removesuffix('weight')}bias": shape[:1] for n, shape in list(shapes.items())}
    norms = ("input_layernorm", *["hidden_norm"] * first, "post_attention_layernorm")
    shapes |= {f"{norm}.weight": (width,) for norm in norms}
    attention = _latent(config, 2 * width if first else width) if config.latent else _grouped(config, 2 * width if first else width)
    shapes |= {f"self_attn.{tensor}": shape for tensor, shape in attention.items()}
    return {f"{name}.{tensor}": shape for tensor, shape in shapes.items()}


def _grouped(config: DrafterConfig, width: int) -> Shapes:
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    outputs = {"q_proj": (queries, width), "k_proj": (keys, width), "v_proj": (keys, width), "o_proj": (config.hidden_size, queries)}
    shapes: Shapes = {f"{n}.weight": shape for n, shape in outputs.items()}
    if config.attention_bias:
        shapes |= {f"{n}.bias": shape[:1] for n, shape in outputs.items()}
    if config.layer_type == "qwen3":
        shapes |= {f"{n}_norm.weight": (config.head_dim,) for n in "qk"}
    return shapes


def _latent(config: DrafterConfig, width: int) -> Shapes:
    latent, heads = config.latent, config.num_attention_heads
    biased = {"kv_a_proj_with_mqa": (latent.kv_rank + latent.rope, width), "o_proj": (config.hidden_size, heads * latent.value)}
    plain = {"kv_b_proj": (heads * (latent.nope + latent.value), latent.kv_rank), "kv_a_layernorm": (latent.kv_rank,)}
    queries = heads * config.head_dim
    if latent.q_rank is None:
        plain["q_proj"] = (queries, width)
    else:
        biased["q_a_proj"] = (latent.q_rank, width)
        plain |= {"q_b_proj": (queries, latent.q_rank), "q_a_layernorm": (latent.q_rank,)}
    shapes: Shapes = {f"{n}.weight": shape for n, shape in (biased | plain).items()}
    return shapes | ({f"{n}.bias": shape[:1] for n, shape in biased.items()} if config.attention_bias else {})
