"""Profiler traces to phases: `stream` reads a chrome trace's events in bounded memory, `spans` and `kernels` know names, `cycles` attributes."""

from eaglelab.timing.trace.report import TraceReport, read_trace

__all__ = ["TraceReport", "read_trace"]
