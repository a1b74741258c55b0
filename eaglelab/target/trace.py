"""transformers' own loop over the decoder layers, with the layers taken out: what each is given, and what comes after the last.

A layer's place is taken by a stub that notes its arguments and hands on a state of NaNs. That makes the assumption behind running
layer by layer checkable: each layer must receive the very object that the one before handed on, and nothing else that it receives
may have come out of a layer. An architecture where this does not hold is refused, never run wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from eaglelab.target.errors import ForwardError
from eaglelab.target.skeleton import Skeleton

FORMS: tuple[Callable[[Tensor], Any], ...] = (lambda h: h, lambda h: (h,), lambda h: (h, None), lambda h: (h, None, None))
"""What a decoder layer returns, by era and architecture: the state, or a tuple that starts with it."""


class _Stop(Exception):
    """The loop has shown all that is wanted."""


class _Unlike(Exception):
    """The loop does not treat the layers as a plain chain, or not with this form."""


@dataclass
class LayerCall:
    """What the loop gives one layer besides the state."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    by_name: bool
    """The state comes as `hidden_states=`."""

    def __call__(self, layer: nn.Module, states: Tensor) -> Tensor:
        """states [T, H] through one layer: [T, H]."""
        state = states.unsqueeze(0)  # [1, T, H]
        out = layer(hidden_states=state, **self.kwargs) if self.by_name else layer(state, *self.args, **self.kwargs)
        out = out if isinstance(out, Tensor) else out[0]
        if out.shape != state.shape:
            raise ForwardError(f"{type(layer).__name__} turned states of shape {tuple(state.shape)} into {tuple(out.shape)}")
        return out.squeeze(0)


@dataclass
class Trace:
    """One sample's way through the loop."""

    token_ids: Tensor
    calls: list[LayerCall] = field(default_factory=list)
    embedded: Tensor | None = None
    """What enters layer 0: [T, H]."""


def trace_calls(skeleton: Skeleton, token_ids: Tensor, last: int) -> Trace:
    """Run the loop for one sample [T] up to boundary `last` and note what layers 0..last-1 are given.

    Raises ForwardError for an architecture that is not a chain of layers over one residual stream.
    """
    reason = ""
    for form in FORMS:
        trace = Trace(token_ids)
        try:
            _run_traced(skeleton, trace, last, form)
        except _Unlike as error:
            reason = str(error)
        except (TypeError, IndexError, AttributeError, ValueError, RuntimeError) as error:
            reason = reason or f"{type(error).__name__}: {error}"
        else:
            return trace
    name = type(skeleton.base).__name__
    raise ForwardError(f"{name} cannot be run one layer at a time: {reason}. Use a sketch made by a whole forward, or a live engine")


def _run_traced(skeleton: Skeleton, trace: Trace, last: int, form: Callable[[Tensor], Any]) -> None:
    handed_on: Tensor | None = None

    def stub(index: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal handed_on
        state, call = _split(args, kwargs)
        if index == 0:
            if state.dim() != 3 or state.shape[:2] != (1, len(trace.token_ids)):
                raise _Unlike(f"what enters layer 0 has the shape {tuple(state.shape)}, expected (1, {len(trace.token_ids)}, H)")
            trace.embedded = state.squeeze(0)
        elif state is not handed_on:
            raise _Unlike(f"layer {index} is not given what layer {index - 1} returns, but something made of it")
        if index != len(trace.calls):
            raise _Unlike(f"layer {index} runs as number {len(trace.calls)}")
        if index == last:
            raise _Stop
        if _holds_nan((call.args, call.kwargs)):
            raise _Unlike(f"layer {index} is given more from earlier layers than the residual stream")
        trace.calls.append(call)
        if index + 1 == len(skeleton.layers):
            raise _Stop
        handed_on = torch.full((1, 1, 1), torch.nan, dtype=state.dtype, device=state.device).expand_as(state)
        return form(handed_on)

    with _stubs(skeleton, stub):
        try:
            skeleton.base(input_ids=trace.token_ids.unsqueeze(0), use_cache=False)
        except _Stop:
            return
    raise _Unlike(f"the loop ended after {len(trace.calls)} of {last} layers")


def final_states(skeleton: Skeleton, trace: Trace, states: Tensor) -> Tensor:
    """What the loop makes of the last layer's output [T, H]: the states after the final norm, [T, H]."""
    state = states.unsqueeze(0)  # [1, T, H]
    reason = ""
    for form in FORMS:
        with _stubs(skeleton, lambda index, args, kwargs, form=form: form(state)):
            try:
                out = skeleton.base(input_ids=trace.token_ids.unsqueeze(0), use_cache=False)[0]
            except (TypeError, IndexError, AttributeError, ValueError, RuntimeError) as error:
                reason = f": {type(error).__name__}: {error}"
                continue
        if out.shape == state.shape:
            return out.squeeze(0)
    raise ForwardError(f"{type(skeleton.base).__name__} gives no states after its last layer{reason}")


@contextmanager
def _stubs(skeleton: Skeleton, stub: Callable[[int, tuple[Any, ...], dict[str, Any]], Any]) -> Iterator[None]:
    for index, layer in enumerate(skeleton.layers):
        layer.forward = lambda *args, index=index, **kwargs: stub(index, args, kwargs)
    try:
        yield
    finally:
        for layer in skeleton.layers:
            del layer.forward


def _split(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, LayerCall]:
    state = args[0] if args else kwargs.pop("hidden_states", None)
    if not isinstance(state, Tensor):
        raise _Unlike(f"a layer is given a {type(state).__name__} first, expected the states")
    return state, LayerCall(args[1:], kwargs, by_name=not args)


def _holds_nan(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.is_floating_point() and bool(value.isnan().any())
    if isinstance(value, dict):
        return any(_holds_nan(v) for v in value.values())
    return isinstance(value, (tuple, list)) and any(_holds_nan(v) for v in value)
