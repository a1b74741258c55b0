"""Served acceptance: what an engine printed, counted or answered, in our definitions."""

from eaglelab.served.counts import ServedCounts
from eaglelab.served.recording import Recording, RecordingError, RecordingWriter, Request

__all__ = ["Recording", "RecordingError", "RecordingWriter", "Request", "ServedCounts"]
