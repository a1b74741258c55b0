"""Layouts of one file a sample, in the order in which they are decided. A new layout is one small class, named here.

Keys that one writer uses decide first; `hidden_state` and `hidden_states`, under which different writers store different tensors, are
decided by the company that they keep and by their rank. The first line that holds decides, so that no two layouts fit the same file:

    hidden_states is a list              list_of_four           [T, H] each: aux slots, then the last state
    token_ids                            vllm                   [T, S, H]: aux slots, then the last state
    target_hiddens                       angelslim              hidden_states is aux, target_hiddens the last state
    aux_hidden_states                    modelopt               hidden_states is the last state
    aux_hidden_state                     specforge              hidden_state is the last state
    target and hidden_state, [T, …]      speculators_v0         hidden_state is aux, target the last state
    target and hidden_state, [1, T, …]   specforge_capture      the same
    hidden_state [T, H]                  eagle                  the last state alone
    hidden_state [1, T, H]               specforge_no_aux       the last state alone
"""

from __future__ import annotations

from eaglelab.dumps.layouts.angelslim import AngelSlim
from eaglelab.dumps.layouts.eagle import GeData
from eaglelab.dumps.layouts.layout import Layout
from eaglelab.dumps.layouts.modelopt import ModelOpt
from eaglelab.dumps.layouts.specforge import SpecForgeCapture, SpecForgeOffline, SpecForgeWithoutAux
from eaglelab.dumps.layouts.speculators import ListOfFour, SpeculatorsV0
from eaglelab.dumps.layouts.vllm import VllmStates

LAYOUTS: tuple[Layout, ...] = (
    ListOfFour(),
    VllmStates(),
    AngelSlim(),
    ModelOpt(),
    SpecForgeOffline(),
    SpeculatorsV0(),
    SpecForgeCapture(),
    GeData(),
    SpecForgeWithoutAux(),
)
