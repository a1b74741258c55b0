"""On PYTHONPATH of every SGLang process of a CPU run: what has to be in place before `import sglang`, in spawned children too.

SGLang takes its CPU path only where torch reports AMX tiles (srt/utils/common.py:366, 0.5.23) and its kernel package is there. PyPI's
torchvision is a CUDA build whose operators are absent beside a CPU torch, so that importing it dies; declared, they are never called.
"""

import importlib.abc
import os
import sys

DETECTION = "Tensor dets, Tensor scores, float iou_threshold"


class _BeforeSGLang(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "sglang":
            return None
        sys.meta_path.remove(self)
        import torch

        torch.cpu._is_amx_tile_supported = lambda: True
        self.library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            self.library.define(f"{operator}({DETECTION}) -> Tensor")
        import sgl_kernel  # noqa: F401, registers its operators

        if os.environ.get("SGLANG_ENABLE_METRICS_DEVICE_TIMER"):
            import cpu_events  # noqa: F401, puts itself in place

        return None  # sglang itself is found as ever


finder = _BeforeSGLang()
sys.meta_path.insert(0, finder)
