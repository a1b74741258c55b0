"""What trainers and engines print, in one definition. The package `replay.trainers` gets the same numbers out of a replay."""

from eaglelab.metrics.definitions import Definition, define, definitions
from eaglelab.metrics.reader import MetricsError, read_metrics
from eaglelab.metrics.reported import AcceptLength, Reported, Row, comparable

__all__ = ["AcceptLength", "Definition", "MetricsError", "Reported", "Row", "comparable", "define", "definitions", "read_metrics"]
