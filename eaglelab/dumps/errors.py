"""The one error of this room: what is wrong with a dump or one of its files, and what to do."""

from __future__ import annotations


class DumpError(ValueError):
    """A dump or a sample that cannot be used. `problem` is the short name that the health table groups by."""

    def __init__(self, message: str, problem: str = "unreadable"):
        super().__init__(message)
        self.problem = problem

    def __reduce__(self):  # survives the way back from a worker process
        return type(self), (str(self), self.problem)
