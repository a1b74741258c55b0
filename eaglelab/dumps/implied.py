"""What a format says about its slots without being asked: claims read in its writer's source, to be set beside the numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LastState = Literal["final", "N"]
"""`final`: after the target's final norm; `N`: the last layer's output, before it."""


@dataclass(frozen=True)
class Implied:
    """What a dump of this format holds when its own writer wrote it and nobody changed its defaults."""

    writer: str
    """Framework and versions: `speculators 0.3 to 0.4`."""
    framework: str | None = None
    """The row of the convention table by which its layer ids are read, as `parse_engine` takes it: `speculators==0.4.0`."""
    layer_ids: tuple[int, ...] | None = None
    """The ids that the metadata beside the samples states, in the order of the slots; None = not stated."""
    last_state: LastState | None = None
    """Which state the last slot is; None = not implied, or the format holds no last state."""
    mask: str = ""
    """What the loss mask marks, by the writer's own rule; "" where the format stores none."""
    certain: bool = True
    """False where other pipelines are known to write the same layout by other rules."""
    source: str = ""
    """Where it was read: project, version, file and lines."""

    def describe(self) -> str:
        """As a sentence for the health table."""
        last = {"final": "the last state is after the final norm", "N": "the last state is before the final norm"}
        parts = [f"layer ids {list(self.layer_ids)}"] if self.layer_ids else []
        parts += [last[self.last_state]] if self.last_state else []
        parts += [self.mask] if self.mask else []
        doubt = "" if self.certain else "; other pipelines write the same layout by other rules"
        return f"{self.writer} writes such files: {'; '.join(parts) or 'nothing is implied'}{doubt}"
