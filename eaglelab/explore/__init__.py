"""Explorers: a question asked of a case by hand, live in JupyterLab, each with a static twin for reports.

One file, one explorer; `frame` is what they share. `nb.explore(EXPLORER)` shows one.
"""

from eaglelab.explore.frame import Explorer, Live

__all__ = ["Explorer", "Live"]
