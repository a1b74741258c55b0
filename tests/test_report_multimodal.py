"""Public reports of multimodal targets."""

import json

import pytest
import torch
from case_builder import write_case

from eaglelab.checks import findings
from eaglelab.engines.lint import lint
from eaglelab.findings import Status
from eaglelab.investigation import Investigation

IMAGE, H, T = 40, 8, 24


def case(root, pixels, image=IMAGE, dtype=torch.float32):
    """A dump of two samples with ten image tokens each; slot 0 holds the embedding."""
    table = torch.randn(64, H, generator=torch.Generator().manual_seed(0))
    (root / "dump").mkdir(parents=True)
    for i in range(2):
        g = torch.Generator().manual_seed(i + 1)
        ids = torch.cat([torch.arange(4), torch.full((10,), IMAGE), torch.arange(20, 30)])
        states = [torch.randn(T, H, generator=g) for _ in range(4)]
        states[0] = table[ids].clone()
        if pixels:
            states[0][4:14] = torch.randn(10, H, generator=g)
        data = {"input_ids": ids, "hidden_states": [s.to(dtype) for s in states], "loss_mask": (torch.arange(T) > 14).long()}
        torch.save(data, root / "dump" / f"data_{i}.pt")
    config = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "num_hidden_layers": 28, "hidden_size": H}
    (root / "target.json").write_text(json.dumps(config | ({} if image is None else {"image_token_id": image})))
    return write_case(root, {"dump": {"path": "dump"}, "target": {"config": "target.json"}})


def images(root):
    return next(iter(findings(Investigation(str(root)), "dump.images")), None)


@pytest.mark.report("sgl-project/SpecForge#497", "CL")
def test_pixel_values_that_were_dropped(tmp_path):
    """Offline training of a vision model through the text path."""
    found = images(case(tmp_path / "text", pixels=False))
    assert found.status is Status.FAIL
    assert found.title == "2 of 2 samples with images hold the same state for every image token: the pixels were dropped"
    assert found.numbers["tokens"] == 20
    seen = images(case(tmp_path / "seen", pixels=True))
    assert seen.status is Status.CANNOT_TELL  # they differ, as they do in any later slot
    assert images(case(tmp_path / "none", pixels=False, image=63)).status is Status.PASS
    assert images(case(tmp_path / "blind", pixels=False, image=None)) is None
    assert images(case(tmp_path / "absurd", pixels=False, image=2**70)) is None
    for dtype in (torch.bfloat16, torch.float8_e4m3fn):
        assert images(case(tmp_path / str(dtype), pixels=False, dtype=dtype)).status is Status.FAIL
        assert images(case(tmp_path / f"seen {dtype}", pixels=True, dtype=dtype)).status is Status.CANNOT_TELL


@pytest.mark.report("sgl-project/sglang#19689", "LO")
def test_a_target_that_this_version_cannot_capture():
    """Kimi-K2.5's class has its capture from a later version on; before it nothing can be fed, and the start fails."""
    config = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"num_hidden_layers": 61, "hidden_size": 7168}}
    drafter = {
        **{"architectures": ["LlamaForCausalLMEagle3"], "hidden_size": 7168, "num_attention_heads": 64, "intermediate_size": 18432},
        **{"vocab_size": 163840, "draft_vocab_size": 32000, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}},
    }
    before = {f.id: f for f in lint(drafter, "sglang==0.5.9", config)}
    assert before["config.target"].status is Status.FAIL
    assert "KimiK25ForConditionalGeneration" in before["config.target"].title
    assert "another engine or version" in before["config.target"].next
    assert "config.target" not in {f.id for f in lint(drafter, "sglang==0.5.23", config)}
