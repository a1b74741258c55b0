"""What provenance says of GPUs: those that the process sees, not those of the machine."""

import sys
from types import SimpleNamespace

import pytest

from eaglelab.provenance import device


@pytest.mark.parametrize(
    ("visible", "seen", "said"), [("3", 1, "1 GPU visible (CUDA_VISIBLE_DEVICES is set)"), (None, 8, "8 GPUs visible")]
)
def test_gpus_are_counted_as_they_are_seen(monkeypatch, visible, seen, said):
    cuda = SimpleNamespace(is_available=lambda: True, get_device_name=lambda n: "H200", device_count=lambda: seen)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda="12.8")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert device() == f"H200 (CUDA 12.8), {said}"
