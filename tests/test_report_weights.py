"""Public reports of a drafter's tensors: a head that is missing, a table of noise, another vocabulary."""

import pytest
import torch
from safetensors.torch import save_file
from test_audit import complete, tensors, written
from test_capabilities import QWEN3_DRAFTER, QWEN3_TARGET
from test_checks_served import by_id, cases, with_engine, world  # noqa: F401 - fixtures

from eaglelab.acceptance import accept_length_from_draft_rate
from eaglelab.engines.lint import lint
from eaglelab.findings import Status


@pytest.mark.report("sgl-project/sglang#27829", "B")
@pytest.mark.report("sgl-project/sglang#27908", "B")
def test_no_lm_head_where_the_config_declares_a_draft_vocabulary(tmp_path):
    """The head stays at its random start and nothing is printed: accept len 1.00."""
    state = tensors()
    state.pop("lm_head.weight")
    found = complete(written(tmp_path / "d", state, tie_word_embeddings=False), "sglang")
    assert found.status is Status.FAIL
    assert "lm_head.weight" in found.title
    assert "leaves it uninitialised" in found.evidence
    assert complete(written(tmp_path / "sound", tensors()), "sglang").status is Status.PASS


@pytest.mark.report("sgl-project/sglang#27829", "B")
def test_not_one_accepted_token_points_to_the_head(cases, tmp_path):  # noqa: F811
    counters = tmp_path / "metrics.txt"
    counters.write_text(prometheus(drafts=400, steps=3, accepted=(0, 0, 0)))
    found = by_id(with_engine(cases["right"], counters=counters), "served.acceptance")["served.acceptance"]
    assert found.status is Status.FAIL
    assert found.title.endswith("accepted no drafted token in 400 verify passes")
    assert "lm_head" in found.next


@pytest.mark.report("lightseekorg/TorchSpec#38", "B")
def test_an_embedding_table_of_noise(tmp_path):
    """An export wrote random weights, N(0, 0.02): SGLang hides it by taking the target's table, vLLM computes with it."""
    state = tensors(besides=("d2t", "t2d", "embed_tokens.weight"))
    own = 0.02 * torch.randn(state["embed_tokens.weight"].shape, generator=torch.Generator().manual_seed(9))
    rows = state["embed_tokens.weight"].float()
    save_file({"token_ids": torch.arange(len(rows)), "rows": rows}, tmp_path / "rows.safetensors")
    folder = written(tmp_path / "d", state | {"embed_tokens.weight": own})
    embed = {"drafter": {"path": str(folder), "embed": str(tmp_path / "rows.safetensors")}}
    found = complete(folder, None, "drafter.embedding", **embed)
    assert (found.status, found.numbers["differ"]) == (Status.CANNOT_TELL, len(rows))
    assert abs(float(torch.nn.functional.cosine_similarity(own, rows, dim=1).mean())) < 0.1
    sglang = complete(folder, "sglang", "drafter.embedding", **embed)
    assert "overwrites it with the target's" in sglang.evidence


def prometheus(drafts, steps, accepted):
    """vLLM's counters; accepted: at each of the steps."""
    per = "".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{k}"}} {n}.0\n' for k, n in enumerate(accepted)
    )
    return (
        f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}.0\nvllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafts * steps}.0\n'
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {sum(accepted)}.0\n{per}'
    )


@pytest.mark.report("vllm-project/vllm#27732", "B")
@pytest.mark.report("vllm-project/vllm#28549", "B")
@pytest.mark.parametrize(
    ("accepted", "drafted", "length", "rates"), [(59374, 563130, 1.32, None), (148350, 298221, 2.49, (0.70, 0.48, 0.31))]
)
def test_the_counters_of_a_head_that_was_overwritten(cases, tmp_path, accepted, drafted, length, rates):  # noqa: F811
    """gpt-oss-20b: 1.32 with the target's lm_head in place of the drafter's own, 2.49 with its own."""
    drafts = drafted // 3
    assert drafts * 3 == drafted
    assert accept_length_from_draft_rate(accepted / drafted, 3) == pytest.approx(length, abs=0.005)
    if rates:
        assert 1 + sum(rates) == pytest.approx(length, abs=0.005)
    each = rates or (0.23, 0.07, 0.02)
    first, second = (round(drafts * r) for r in each[:2])
    (tmp_path / "metrics.txt").write_text(prometheus(drafts, 3, (first, second, accepted - first - second)))
    found = by_id(with_engine(cases["right"], counters=tmp_path / "metrics.txt"), "served.acceptance")["served.acceptance"]
    assert found.title.endswith(f"counted in {drafts:,} verify passes: accept length {length}")
    assert f"step 0 {each[0]:.1%}" in found.evidence


@pytest.mark.report("SafeAILab/EAGLE#258", "BC")
def test_a_vocabulary_of_another_size_than_the_targets():
    found = {f.id: f for f in lint({**QWEN3_DRAFTER, "vocab_size": 128256}, "sglang==0.5.23", QWEN3_TARGET)}["config.vocab_size"]
    assert (found.status, found.numbers) == (Status.CANNOT_TELL, {"drafter": 128256, "target": 151936})
    assert "another target's drafter" in found.title
    assert "tokenizer" in found.next
    assert "config.vocab_size" not in {f.id for f in lint(QWEN3_DRAFTER, "sglang==0.5.23", QWEN3_TARGET)}
