"""Files of EAGLE-1 and EAGLE-2 (`ge_data`). EAGLE-3's own code writes none: it runs the target while it trains."""

from __future__ import annotations

from eaglelab.dumps.implied import Implied
from eaglelab.dumps.layouts.layout import SideBySide


class GeData(SideBySide):
    """`{gpu}/data_{i}.ckpt` of `eagle/ge_data`: the last state alone."""

    name = "eagle"
    looks_for = "a dict with input_ids [T], loss_mask [T] and hidden_state [T, H] alone"
    decided_by, ranks, aux_key, last_key = "", (2,), None, "hidden_state"
    says = Implied(
        writer="EAGLE-1/2's ge_data",
        framework="eagle",
        last_state="final",
        mask="1 = a token of the answer; its trainer leaves the last row out",
        source="EAGLE f2f2366^, eagle/ge_data/ge_data_all_llama3.py:190-219, eagle/train/main.py:146-172",
    )
