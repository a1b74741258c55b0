"""What a server says of the states that it hands out: which way, and which boundaries by its engine's convention. Claims, no evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.capture.write import CaptureError, CaptureInfo
from eaglelab.engines.conventions import convention_for
from eaglelab.engines.target_config import target_shape
from eaglelab.engines.wiring_report import engine_wiring
from eaglelab.outside_json import text_part

if TYPE_CHECKING:
    from eaglelab.live.server import Server
    from eaglelab.opened import OpenedCase

HOOK = "eaglelab"
"""`name` of the hook spec (`sglang_hook.hook_spec`) by which a server's recording is known."""
HOW = (
    "start SGLang with --enable-return-aux-hidden-states --speculative-algorithm EAGLE3 --return-aux-hidden-state-layer-ids … (no drafter), or "
    "with the drafter and --forward-hooks (docs/capture.md)"
)


@dataclass(frozen=True)
class Told:
    info: CaptureInfo
    hidden_size: int | None
    """H of the target, by its config."""
    flags: Mapping[str, Any]
    """The server's own answer."""

    @property
    def slots(self) -> int | None:
        """Slots that come by the flags; None where the boundaries are not known."""
        return None if self.info.boundaries is None else sum(b is not None for b in self.info.boundaries)


def ask(server: Server, case: OpenedCase | None, layer_ids: Sequence[int] | None) -> Told:
    """Raises ServerError, and CaptureError for a server that hands out no states."""
    flags = server.info()
    way = way_of(server.engine.name, flags)
    settings = server.settings(flags, None)
    base = CaptureInfo(str(server.engine), way, dtype=settings.get("dtype"), command=settings.get("command"))
    target = _target_config(case, flags)
    if target is None:
        note = "the target's config is not at hand: which boundaries were captured is not said"
        return Told(replace(base, notes=(note,)), None, flags)
    size = text_part(target).get("hidden_size")
    told = Told(replace(base, num_layers=target_shape(target).num_layers), size if type(size) is int and size > 0 else None, flags)
    return replace(told, info=_boundaries(told.info, server, target, flags, settings.get("draft_config"), case, layer_ids))


def way_of(engine: str, flags: Mapping[str, Any]) -> str:
    """`aux`, `hook` or `extract`. Raises CaptureError where the server hands no states out."""
    if engine == "vllm":
        return "extract"
    if hook_config(flags) is not None:
        return "hook"
    running = flags.get("return_hidden_states_mode") == "full" and str(flags.get("speculative_algorithm")).upper() == "EAGLE3"
    if flags.get("enable_return_aux_hidden_states") or running:
        return "aux"
    raise CaptureError(f"this server returns no states: {HOW}")


def hook_config(flags: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The config of our hook in a server's flags, None without it."""
    specs = flags.get("forward_hooks")
    if isinstance(specs, str):
        try:
            specs = json.loads(specs)
        except ValueError:
            return None
    for spec in specs if isinstance(specs, list) else ():
        if isinstance(spec, dict) and spec.get("name") == HOOK and isinstance(spec.get("config"), dict):
            return spec["config"]
    return None


def _boundaries(
    info: CaptureInfo,
    server: Server,
    target: Mapping[str, Any],
    flags: Mapping[str, Any],
    served: Mapping[str, Any] | None,
    case: OpenedCase | None,
    layer_ids: Sequence[int] | None,
) -> CaptureInfo:
    if info.way == "extract":
        layer_ids = layer_ids or _extracted_ids(flags)
        if layer_ids is None:
            return replace(info, notes=("the server does not say which layers it extracts (it does with VLLM_SERVER_DEV_MODE=1)",))
        ids = tuple(layer_ids)  # id k is boundary k, N the last layer's output (vLLM 0.32.0, models/llama.py:429-452), in layer order
        return replace(info, boundaries=tuple(sorted(set(ids))), layer_ids=ids)
    if flags.get("enable_return_aux_hidden_states"):  # these ids come from the command line, not from the drafter's config
        ids = flags.get("return_aux_hidden_state_layer_ids")
        fed = convention_for(server.engine, target_shape(target).architecture).feed(ids, info.num_layers)
        return replace(info, boundaries=fed.boundaries, layer_ids=None if ids is None else tuple(ids), notes=fed.notes)
    draft, notes = served, ()
    if draft is None and case is not None:
        draft, notes = case.draft_config, ("the served drafter's config cannot be read here: its boundaries are said by the case's",)
    if draft is None:
        return replace(info, notes=("the served drafter's config is not at hand: which boundaries it was fed is not said",))
    wiring = engine_wiring(draft, target, server.engine)
    return replace(
        info, boundaries=wiring.boundaries, layer_ids=None if wiring.ids is None else tuple(wiring.ids), notes=(*notes, *wiring.notes)
    )


def _extracted_ids(flags: Mapping[str, Any]) -> tuple[int, ...] | None:
    """vLLM's ids, as its configuration has them in development mode."""
    value: Any = flags
    for key in ("vllm_config", "speculative_config", "draft_model_config", "hf_config", "eagle_aux_hidden_state_layer_ids"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return tuple(value) if isinstance(value, list) and value and all(type(i) is int for i in value) else None


def _target_config(case: OpenedCase | None, flags: Mapping[str, Any]) -> dict[str, Any] | None:
    """The case's, else that of the folder which the server names, where it lies on this machine."""
    from eaglelab.drafter.config import read_config

    if case is not None and case.target_config is not None:
        return case.target_config
    models = flags.get("models")
    path = flags.get("model_path") or (
        models[0].get("root") if isinstance(models, list) and models and isinstance(models[0], dict) else None
    )
    try:
        return read_config(Path(path)) if isinstance(path, str) and Path(path).is_dir() else None
    except (ValueError, OSError):
        return None
