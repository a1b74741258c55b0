"""Layouts of one file a sample, in the order in which they are decided. A new layout is one small class, named here.

The order is that of the keys that only one writer uses; a key that several writers use for different tensors (`hidden_state`,
`hidden_states`) is decided by the company it keeps and by its shape. No two layouts fit the same file.
"""

from __future__ import annotations

from eaglelab.dumps.layouts.layout import Layout
from eaglelab.dumps.layouts.speculators import ListOfFour

LAYOUTS: tuple[Layout, ...] = (ListOfFour(),)
