"""The target as transformers builds it, without weights: parameters on the meta device, buffers (rotary tables, …) real."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from eaglelab.target.checkpoint import Checkpoint
from eaglelab.target.errors import ForwardError

LAYER_LISTS = ("layers", "h", "blocks", "block")


@dataclass(frozen=True)
class Skeleton:
    """The text decoder without weights. Names are those of `root`'s parameters."""

    root: nn.Module
    base: nn.Module
    """Token ids in, final-normed states out."""
    base_prefix: str
    """`model.`, or "" where `root` is the base."""
    layers: list[nn.Module]
    layer_prefixes: list[str]
    embedding: nn.Module
    embedding_name: str
    """The name of the embedding table."""


def build_skeleton(checkpoint: Checkpoint, dtype: torch.dtype) -> Skeleton:
    """Build the text decoder of a checkpoint in `dtype`. Raises ForwardError when transformers has no model for it.

    Code that comes with a checkpoint (`auto_map`) is never run.
    """
    config = text_config(checkpoint)
    root = _instantiate(config, dtype, checkpoint)
    base = root.base_model
    base_prefix = "" if base is root else root.base_model_prefix + "."
    embedding = base.get_input_embeddings()
    names = {module: name for name, module in root.named_modules()}
    list_name, layers = _decoder_layers(root, config, checkpoint)
    return Skeleton(
        root=root,
        base=base,
        base_prefix=base_prefix,
        layers=list(layers),
        layer_prefixes=[f"{list_name}.{i}." for i in range(len(layers))],
        embedding=embedding,
        embedding_name=names[embedding] + ".weight",
    )


def cache_argument(module: nn.Module) -> str:
    """What a transformers model calls its cache: `cache` since 5.2x, `past_key_values` before."""
    return "cache" if "cache" in inspect.signature(type(module).forward).parameters else "past_key_values"


def text_config(checkpoint: Checkpoint) -> Any:
    """transformers' config object of the text decoder. Raises ForwardError for a model type that transformers does not know."""
    from transformers import CONFIG_MAPPING

    wrapper_type = checkpoint.config.get("model_type")
    if wrapper_type in CONFIG_MAPPING:  # fills in what a wrapper's text_config leaves to its class
        config = _config_from(CONFIG_MAPPING[wrapper_type], checkpoint.config, checkpoint)
        return config.get_text_config(decoder=True)
    model_type = checkpoint.text_config.get("model_type")
    if model_type not in CONFIG_MAPPING:
        model_type = _type_of_architecture(checkpoint)
    if model_type is None:
        raise ForwardError(_no_model(checkpoint, checkpoint.model_type))
    return _config_from(CONFIG_MAPPING[model_type], checkpoint.text_config, checkpoint)


def _config_from(kind: Any, values: dict[str, Any], checkpoint: Checkpoint) -> Any:
    left_out = ("auto_map", "quantization_config", "compression_config", "model_type", "transformers_version")
    try:
        return kind.from_dict({k: v for k, v in values.items() if k not in left_out})
    except Exception as error:  # a config class raises whatever it likes
        raise ForwardError(f"{checkpoint.path.name}/config.json: {kind.__name__} refuses it: {error}") from error


def _type_of_architecture(checkpoint: Checkpoint) -> str | None:
    """The model type whose class the config names, for a model type that transformers does not know (`kimi_k2`)."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    wanted = checkpoint.text_config.get("architectures") or checkpoint.architectures
    return next((t for t, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items() if name in wanted), None)


def _instantiate(config: Any, dtype: torch.dtype, checkpoint: Checkpoint) -> nn.Module:
    from transformers import AutoModel, AutoModelForCausalLM

    for kind in (AutoModelForCausalLM, AutoModel):
        if type(config) in kind._model_mapping:
            with parameters_on_meta():
                try:
                    return kind.from_config(config, dtype=dtype).eval()
                except (ValueError, ImportError, TypeError, RuntimeError, AttributeError) as error:
                    raise ForwardError(f"{checkpoint.path.name}: transformers cannot build this model: {error}") from error
    raise ForwardError(_no_model(checkpoint, getattr(config, "model_type", "")))


def _no_model(checkpoint: Checkpoint, model_type: str) -> str:
    import transformers

    return (
        f"{checkpoint.path.name}: transformers {transformers.__version__} has no causal language model for model_type {model_type!r} "
        f"(architectures {checkpoint.architectures}); install a version that has, or use a sketch or a live engine"
    )


def _decoder_layers(root: nn.Module, config: Any, checkpoint: Checkpoint) -> tuple[str, nn.ModuleList]:
    lists = [(n, m) for n, m in root.named_modules() if isinstance(m, nn.ModuleList) and n.rpartition(".")[2] in LAYER_LISTS]
    expected = getattr(config, "num_hidden_layers", None)
    fitting = sorted((n.count("."), n, m) for n, m in lists if len(m) == expected)
    if not fitting:
        raise ForwardError(
            f"{checkpoint.path.name}: no list of {expected} decoder layers in {type(root).__name__}, "
            f"got {', '.join(f'{n} ({len(m)})' for n, m in lists) or 'none'}"
        )
    return fitting[0][1], fitting[0][2]


class _EmptyOnMeta(TorchFunctionMode):
    """`torch.empty` makes no memory: what it makes becomes a parameter that is loaded later."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.empty:
            kwargs["device"] = "meta"
        return function(*args, **kwargs)


@contextmanager
def parameters_on_meta() -> Iterator[None]:
    """Within it, modules are made with parameters on the meta device and real buffers.

    Building on the meta device outright would lose the buffers that no checkpoint holds (rotary frequencies, embedding scales).
    """
    register = nn.Module.register_parameter

    def register_on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = register_on_meta
    try:
        with _EmptyOnMeta():
            yield
    finally:
        nn.Module.register_parameter = register
