"""Public reports of dumps: their size, their integrity, what a slot must not hold."""

import time

import pytest
import torch
from test_health import H, T, rows, sample, write

from eaglelab.checks import findings
from eaglelab.dumps import DumpError, open_dump
from eaglelab.dumps.health import bytes_of_states, check_health
from eaglelab.dumps.rows import repeated_rows
from eaglelab.findings import Status
from eaglelab.investigation import Investigation


@pytest.mark.report("SafeAILab/EAGLE#30", "I")
def test_the_size_of_a_dump_is_told_before_it_is_made(tmp_path):
    """H 4096 and four states: 32,768 bytes a token; H 7168: 57,344. Bytes = tokens * (slots + 1) * H * 2."""
    assert (bytes_of_states(4096), bytes_of_states(7168)) == (32_768, 57_344)
    assert 50_000 * 1024 * bytes_of_states(4096) / 1e12 == pytest.approx(1.6, abs=0.1)  # speculators' own figure: 1.6 TB
    (tmp_path / "target.json").write_text('{"num_hidden_layers": 61, "hidden_size": 7168}')
    (tmp_path / "case.toml").write_text('[target]\nconfig = "target.json"\n')
    (found,) = findings(Investigation(str(tmp_path)), "dump.health")
    assert found.status is Status.NOT_GIVEN
    assert "57,344 bytes a token: 5.7 TB for 100 million tokens" in found.next
    assert check_health(write(tmp_path)).summary["bytes_per_token"] == 4 * H * 2


@pytest.mark.report("sgl-project/sglang#20492", "G")
def test_rows_of_one_rank_gathered_twice_are_named(tmp_path):
    """A gather over the whole tensor-parallel group in place of the attention's own: rows come again for other tokens."""
    twice = sample(4)
    twice["hidden_states"][1][20:] = twice["hidden_states"][1][:20].clone()
    detail, severity = rows(check_health(write(tmp_path, twice)))["repeated rows"]
    assert severity == "error"
    assert (
        f"slot 1 (hidden_states[1]): 20 of {T} rows hold the state of an earlier row of another token, the first is row 20 (that of row 0)"
        in detail
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_one_tokens_own_state_may_come_again(dtype):
    states = torch.randn(6, H, generator=torch.Generator().manual_seed(0)).to(dtype)
    states[1], states[4], states[5] = states[0].clone(), 0, 0
    ids = torch.tensor([1, 1, 2, 3, 4, 5])  # a doubled first token attends to itself alone; zero rows are told elsewhere
    assert len(repeated_rows(states, ids)[0]) == 0
    ids[1] = 7
    again, earlier = repeated_rows(states, ids)
    assert (again.tolist(), earlier.tolist()) == ([1], [0])
    assert len(repeated_rows(states[:0], ids[:0])[0]) == 0


def test_rows_that_begin_alike_are_told_apart_in_a_second():
    """Channels that a quantisation has set to zero: 4,096 rows with one beginning, two of them the same to the end."""
    states = torch.randn(4096, 256, generator=torch.Generator().manual_seed(0))
    states[:, :64] = 0
    states[4000] = states[7]
    began = time.perf_counter()
    again, earlier = repeated_rows(states, torch.arange(4096))
    assert (again.tolist(), earlier.tolist()) == ([4000], [7])
    assert time.perf_counter() - began < 2  # pair by pair: minutes


@pytest.mark.report("sgl-project/SpecForge#613", "AI")
@pytest.mark.report("sgl-project/sglang#10059", "GJ")
def test_a_last_state_that_is_all_slots_side_by_side(tmp_path):
    """(2, 16, 2688) = 3 * 896 where the last state of 896 belongs: the engine handed over the concatenated slots as its hidden states."""
    wide = sample(4, hidden=896)
    wide["hidden_states"][3] = torch.cat(wide["hidden_states"][:3], dim=1)
    torch.save(wide, tmp_path / "data_0.pt")
    try:
        health = check_health(open_dump(tmp_path), hidden_size=896)
        said = " ".join(health.table["detail"])
        assert set(health.table["severity"]) == {"error"}
    except DumpError as error:
        said = str(error)
    assert "2688" in said
    assert "896" in said


@pytest.mark.report("sgl-project/SpecForge#295", "I")
def test_logits_where_the_last_state_belongs(tmp_path):
    """The format changed from the target's logits to its last state: a file of the old kind is as wide as the vocabulary."""
    old = sample(4)
    old["hidden_states"][3] = torch.randn(T, 64).bfloat16()
    table = rows(check_health(write(tmp_path, old), hidden_size=H))
    assert any("64" in detail and str(H) in detail and severity == "error" for detail, severity in table.values()), table


@pytest.mark.report("Tencent/AngelSlim#175", "IL")
def test_what_a_long_sample_of_a_vision_target_takes_is_forecast(tmp_path):
    """Out of memory at 8192 tokens where 1024 worked: H 3584 takes 28,672 bytes a token, 235 MB a sample, 235 GB for a thousand."""
    (tmp_path / "target.json").write_text(
        '{"text_config": {"num_hidden_layers": 28, "hidden_size": 3584}, "vision_config": {"hidden_size": 1280}}'
    )
    (tmp_path / "case.toml").write_text('[target]\nconfig = "target.json"\n')
    (found,) = findings(Investigation(str(tmp_path)), "dump.health")
    assert "28,672 bytes a token: 2.9 TB for 100 million tokens" in found.next
    assert 8192 * bytes_of_states(3584) == 234_881_024
