"""The replay's accept lengths beside what the case's own server reached: they are of the right wiring, which the engine need not feed."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from eaglelab.opened import NotGiven
from eaglelab.timing.predict import Acceptance
from eaglelab.timing.setting import Setting
from eaglelab.timing.sweep.plan import NOISE, WALK, told

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation


def served_less(inv: Investigation, accept: Acceptance, engine: str | None) -> str:
    """A warning where the case's server reached less than the replay's interval for the same setting; empty where it did not, or told nothing.

    engine: the one that is swept. Nothing is run for it, and what cannot be read is left to `eaglelab check`.
    """
    with suppress(NotGiven, ValueError, OSError):
        reached, setting = inv.served.reached, served_setting(inv)
        expected = None if reached is None or setting is None else accept(setting)
        if expected is None or not told(expected) or reached.accept_length >= expected.low * (1 - WALK - NOISE):
            return ""
        fed = inv.served_wiring if inv.engine is not None and inv.engine.name == engine else None
        feeds = "" if fed is None else f"; with the case's config {inv.engine.title} feeds boundaries {fed.wiring}"
        return (
            f"The accept lengths of this plan are those of the dump's feed, the right wiring, which predicts {expected.accept_length:.2f} "
            f"({expected.low:.2f} to {expected.high:.2f}) for {setting.name}. The case's server reached {reached.accept_length:.2f} with it "
            f"({reached.source}){feeds}. Where that config is launched the sweep measures what it feeds: see wiring.match and served.expected "
            "in `eaglelab check`, and mend that first"
        )
    return ""


def served_setting(inv: Investigation) -> Setting | None:
    """The setting of the source that `inv.served.reached` is from; what it does not tell is the launch line's."""
    served = inv.served
    by_log = served.by_counters is None
    said = {name: value for source, values in served.settings.items() if (source == "the log") is by_log for name, value in values.items()}
    said = {**served.asked, **said}
    return Setting(said["num_steps"], said.get("eagle_topk", 1), said.get("num_draft_tokens", 0)) if said.get("num_steps") else None
