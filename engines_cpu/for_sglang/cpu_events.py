"""Events of a device that waits for nothing: what SGLang's device timer (srt/utils/device_timer.py, 0.5.23) needs and torch.cpu has not.

`torch.cpu.Event` takes no `enable_timing` and tells no elapsed time. On a CPU a forward has run when its call returns, so the wall clock at
`record` is the device's own.
"""

import time

import torch


class Event:
    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.at = None

    def record(self, stream=None):
        self.at = time.perf_counter()

    def query(self):
        return True

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)

    def wait(self, stream=None):
        pass

    def synchronize(self):
        pass


torch.cpu.Event = Event
