"""The target: its checkpoint's single tensors (way b) and its own forward, one decoder layer in memory at a time (way d).

`open_checkpoint(path)` reads tensors and rows; `visit_boundaries(path, token_ids, visit)` runs the layers.
"""

from eaglelab.target.checkpoint import Checkpoint, open_checkpoint
from eaglelab.target.errors import CheckpointError, ForwardError
from eaglelab.target.forward import ForwardSource, visit_boundaries
from eaglelab.target.head import target_argmax
from eaglelab.target.norms import FinalNorm, final_norm
from eaglelab.target.tensors import TensorSource

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "FinalNorm",
    "ForwardError",
    "ForwardSource",
    "TensorSource",
    "final_norm",
    "open_checkpoint",
    "target_argmax",
    "visit_boundaries",
]
