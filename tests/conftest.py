"""Shared by all tests: bounded threads, tiny random models that need no download."""

import os

os.environ.setdefault("EAGLELAB_RAISE", "1")  # a check's unexpected error is a test's failure
os.environ.setdefault("EAGLELAB_CACHE", "off")  # notebooks compute: nothing that a test sees was computed by another version
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch

torch.set_num_threads(1)  # tiny tensors; two threads on a busy machine wait for each other

requires_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture
def steady_keys(monkeypatch, tmp_path):
    """For tests of the cache: cases that are built just before they are opened count as settled, and who edits eaglelab meanwhile changes no key.
    Yields the folder that stands for eaglelab's own files."""
    import time

    from eaglelab.cache import inputs, key, results

    own = tmp_path / "eaglelab"
    own.mkdir()
    (own / "module.py").write_text("number = 1")
    monkeypatch.setattr(key, "HERE", own)
    monkeypatch.setattr(inputs, "COARSE", 0.0)
    monkeypatch.setattr(results, "BEGUN", time.time() + 3600)
    return own


@pytest.fixture(scope="session")
def example_report(tmp_path_factory):
    """The example's report, all notebooks, as `make report` runs it."""
    from pathlib import Path

    from eaglelab.reports.run import run_report

    place, example = tmp_path_factory.mktemp("reports"), Path(__file__).resolve().parents[1] / "data" / "example"
    result = run_report(example, out=place / "reports", environment={"EAGLELAB_CACHE": str(place / "cache")})
    assert result.exit_code == 0, result.notebooks
    return result
