"""Served acceptance: what an engine printed, counted or answered, in our definitions."""

from eaglelab.served.counters import Counters, CountersError, read_counters
from eaglelab.served.counts import ServedCounts
from eaglelab.served.lines import LogError
from eaglelab.served.log import ServedLength, ServedLog, ServerStart, read_log
from eaglelab.served.recording import Recording, RecordingError, RecordingWriter, Request

__all__ = [
    "Counters",
    "CountersError",
    "LogError",
    "Recording",
    "RecordingError",
    "RecordingWriter",
    "Request",
    "ServedCounts",
    "ServedLength",
    "ServedLog",
    "ServerStart",
    "read_counters",
    "read_log",
]
