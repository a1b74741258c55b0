"""The errors of this room: a checkpoint that cannot be read, a forward that cannot be run."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A checkpoint, or one of its tensors, that cannot be read: what, where, why, and what to do."""


class ForwardError(ValueError):
    """The target's forward cannot be run on these tokens or with these settings."""
