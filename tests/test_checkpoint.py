"""Checkpoints: containers, names, rows, quantised weights against hand computations, and what is said of broken ones."""

import json
import os
import shutil

import pytest
import tiny_models as tm
import torch
from safetensors.torch import load_file, save_file

from eaglelab.target import CheckpointError, open_checkpoint
from eaglelab.target.quantised import unpack_integers
from eaglelab.target.shards import row_spans


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return tm.make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return tm.make_llama(tmp_path_factory.mktemp("sharded"), max_shard_size="100KB")


def write(folder, tensors, config=None, name="model.safetensors"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config or {"model_type": "llama", "num_hidden_layers": 1}))
    save_file(tensors, folder / name)
    return folder


# -- reading ------------------------------------------------------------------------------------------------------------------


def test_single_file_holds_what_safetensors_says(llama):
    checkpoint, raw = open_checkpoint(llama), load_file(llama / "model.safetensors")
    assert checkpoint.names() == sorted(raw)
    for name in raw:
        assert checkpoint.shape(name) == tuple(raw[name].shape)
        assert checkpoint.dtype(name) == raw[name].dtype
        assert torch.equal(checkpoint.tensor(name), raw[name])


def test_shards_and_bin_files_equal_the_single_file(llama, sharded, tmp_path):
    raw = load_file(llama / "model.safetensors")
    assert len(list(sharded.glob("*.safetensors"))) > 3
    shutil.copy(llama / "config.json", tmp_path)
    torch.save(raw, tmp_path / "pytorch_model.bin")
    old = tmp_path / "old"
    old.mkdir()
    shutil.copy(llama / "config.json", old)
    torch.save(raw, old / "pytorch_model.bin", _use_new_zipfile_serialization=False)  # before torch 1.6: cannot be mapped
    ids = torch.tensor([5, 127, 0, 5])
    for folder in (sharded, tmp_path, old):
        checkpoint = open_checkpoint(folder)
        assert checkpoint.names() == sorted(raw)
        assert all(torch.equal(checkpoint.tensor(n), raw[n]) for n in raw)
        assert torch.equal(checkpoint.rows("model.embed_tokens.weight", ids), raw["model.embed_tokens.weight"][ids])


def test_sharded_bin_files(llama, tmp_path):
    raw = load_file(llama / "model.safetensors")
    shutil.copy(llama / "config.json", tmp_path)
    names = sorted(raw)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, part in halves.items():
        torch.save({n: raw[n] for n in part}, tmp_path / file)
    index = {"weight_map": {n: file for file, part in halves.items() for n in part}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    checkpoint = open_checkpoint(tmp_path)
    assert all(torch.equal(checkpoint.tensor(n), raw[n]) for n in raw)


@pytest.mark.parametrize("ids", [[0], [127, 0, 64], [3, 3, 3], list(range(127, -1, -1)), [1, 12, 13, 40], []])
def test_rows_in_the_order_asked_for(llama, ids):
    checkpoint = open_checkpoint(llama)
    table = load_file(llama / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(checkpoint.rows("model.embed_tokens.weight", ids), table[ids] if ids else table[:0])


def test_neighbouring_rows_are_joined_far_ones_are_not():
    assert row_spans([1, 2, 5, 100, 101, 500], gap=8) == [(1, 6), (100, 102), (500, 501)]


def test_rows_of_a_large_table_do_not_load_it(tmp_path):
    """A sparse file stands for a table of 16 GB, larger than what may be held in memory: only 500 rows of it are touched."""
    rows, width = 1_000_000, 8192
    header = json.dumps({"model.embed_tokens.weight": {"dtype": "BF16", "shape": [rows, width], "data_offsets": [0, rows * width * 2]}})
    header = header.encode().ljust(-len(header) % 8 + len(header))
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + rows * width * 2)
    (tmp_path / "config.json").write_text("{}")
    before = resident()
    got = open_checkpoint(tmp_path).rows("model.embed_tokens.weight", torch.arange(0, rows, rows // 500))
    assert got.shape == (500, width)
    assert not got.any()
    assert resident() - before < 100e6  # the rows asked for are 8 MB


def resident() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS"))


def test_lazy_rows(llama):
    lazy = open_checkpoint(llama).lazy("lm_head.weight")
    assert lazy.shape == (tm.VOCAB, tm.HIDDEN)
    assert torch.equal(lazy[10:20], load_file(llama / "model.safetensors")["lm_head.weight"][10:20])
    assert lazy[120:500].shape == (8, tm.HIDDEN)


# -- which tensor is which ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prefix", "head"),
    [
        ("model.", "lm_head.weight"),
        ("language_model.model.", "language_model.lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
        ("some.wrapper.model.", "some.wrapper.lm_head.weight"),
    ],
)
def test_parts_are_found_under_prefixes(tmp_path, prefix, head):
    names = ["embed_tokens.weight", "norm.weight", "layers.0.mlp.up_proj.weight", "layers.0.norm.weight", "layers.1.embed_tokens.weight"]
    tensors = {prefix + n: torch.zeros(4, 2) for n in names} | {head: torch.zeros(4, 2), "vision_tower.norm.weight": torch.zeros(2)}
    checkpoint = open_checkpoint(write(tmp_path / "c", tensors))
    assert checkpoint.embedding_name == prefix + "embed_tokens.weight"
    assert checkpoint.norm_name == prefix + "norm.weight"
    assert (checkpoint.tied, checkpoint.head_name) == (False, head)
    assert (checkpoint.vocab_size, checkpoint.hidden_size, checkpoint.num_layers) == (4, 2, 1)


def test_tied_and_untied_heads(tmp_path):
    tensors = {"model.embed_tokens.weight": torch.zeros(4, 2)}
    assert open_checkpoint(write(tmp_path / "t", tensors, {"tie_word_embeddings": True})).head_name == "model.embed_tokens.weight"
    untied = open_checkpoint(write(tmp_path / "u", tensors, {"tie_word_embeddings": False}))
    with pytest.raises(CheckpointError, match=r"cannot tell which tensor is the lm_head.*1 names"):
        _ = untied.head_name


def test_two_candidates_are_no_answer(tmp_path):
    tensors = {"a.embed_tokens.weight": torch.zeros(4, 2), "b.embed_tokens.weight": torch.zeros(4, 2)}
    with pytest.raises(CheckpointError, match=r"embedding table.*got a.embed_tokens.weight, b.embed_tokens.weight"):
        _ = open_checkpoint(write(tmp_path / "c", tensors)).embedding_name


def test_config_of_a_multimodal_wrapper(tmp_path):
    config = {
        "model_type": "outer",
        "architectures": ["Outer"],
        "text_config": {"num_hidden_layers": 61, "hidden_size": 7168, "dtype": "float16"},
    }
    checkpoint = open_checkpoint(write(tmp_path / "c", {"model.embed_tokens.weight": torch.zeros(4, 2)}, config))
    assert checkpoint.config == config
    assert (checkpoint.num_layers, checkpoint.hidden_size, checkpoint.architectures) == (61, 7168, ["Outer"])
    assert checkpoint.model_dtype == torch.float16


# -- quantised weights, against values computed by hand ------------------------------------------------------------------------


def test_fp8_blocks(tmp_path):
    """DeepSeek-V3: one scale per 128 x 128 block, the last blocks cut."""
    torch.manual_seed(0)
    stored = torch.randn(200, 300).to(torch.float8_e4m3fn)
    scale = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    tensors = {"model.embed_tokens.weight": torch.zeros(4, 2), "a.weight": stored, "a.weight_scale_inv": scale}
    checkpoint = open_checkpoint(write(tmp_path / "c", tensors, {"dtype": "bfloat16"}))
    expected = torch.tensor([[float(stored[i, j]) * float(scale[i // 128, j // 128]) for j in range(300)] for i in range(200)])
    assert "a.weight_scale_inv" not in checkpoint.names()
    assert checkpoint.dtype("a.weight") == torch.bfloat16
    assert torch.equal(checkpoint.tensor("a.weight"), expected.bfloat16())


@pytest.mark.parametrize("scale", [torch.tensor(0.5), torch.tensor([0.5]), torch.tensor([[0.5], [2.0]]), torch.tensor([0.5, 2.0])])
def test_one_scale_per_tensor_or_row(tmp_path, scale):
    stored = torch.tensor([[1.0, -2.0, 4.0], [0.5, 8.0, 1.0]]).to(torch.float8_e4m3fn)
    tensors = {"a.weight": stored, "a.weight_scale": scale, "a.input_scale": torch.tensor(1.0)}
    checkpoint = open_checkpoint(write(tmp_path / "c", tensors, {"dtype": "float32"}))
    rows = scale.flatten() if scale.numel() == 2 else scale.flatten().expand(2)
    assert checkpoint.names() == ["a.weight"]
    assert torch.equal(checkpoint.tensor("a.weight"), stored.float() * rows[:, None])


def test_packed_int4(tmp_path):
    """compressed-tensors: eight values per int32, lowest bits first, offset 8, one scale per row and group of 32."""
    torch.manual_seed(0)
    values = torch.randint(-8, 8, (4, 96))
    packed = torch.zeros(4, 12, dtype=torch.int64)
    for column in range(96):
        packed[:, column // 8] |= (values[:, column] + 8) << (4 * (column % 8))
    packed = torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)
    scale = torch.rand(4, 3)
    assert torch.equal(unpack_integers(packed, 4), values.to(torch.int8))
    tensors = {"a.weight_packed": packed, "a.weight_scale": scale, "a.weight_shape": torch.tensor([4, 96])}
    checkpoint = open_checkpoint(write(tmp_path / "c", tensors, {"dtype": "float32"}))
    expected = torch.stack([values[:, c] * scale[:, c // 32] for c in range(96)], dim=1)
    assert checkpoint.names() == ["a.weight"]
    assert checkpoint.shape("a.weight") == (4, 96)
    assert torch.equal(checkpoint.tensor("a.weight"), expected)


def test_mxfp4_blocks_equal_transformers(tmp_path):
    """gpt-oss: [experts, out, in / 32, 16] bytes and one exponent per 32 values; transformers' own conversion is the answer."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    torch.manual_seed(0)
    blocks, scales = torch.randint(0, 256, (3, 10, 2, 16), dtype=torch.uint8), torch.randint(110, 140, (3, 10, 2), dtype=torch.uint8)
    checkpoint = open_checkpoint(write(tmp_path / "c", {"a.up_proj_blocks": blocks, "a.up_proj_scales": scales}))
    expected = convert_moe_packed_tensors(blocks, scales)
    assert checkpoint.names() == ["a.up_proj"]
    assert checkpoint.shape("a.up_proj") == tuple(expected.shape) == (3, 64, 10)
    assert torch.equal(checkpoint.tensor("a.up_proj"), expected)


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64, torch.bool])
def test_maps_and_masks_are_what_they_say(tmp_path, dtype):
    """A drafter's d2t and t2d are integers and no quantised weights, whatever their width."""
    d2t = torch.tensor([0, 3, 1]).to(dtype)
    checkpoint = open_checkpoint(write(tmp_path / "c", {"d2t": d2t}))
    assert checkpoint.dtype("d2t") == dtype
    assert torch.equal(checkpoint.tensor("d2t"), d2t)


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ({"a.qweight": torch.zeros(2, 2, dtype=torch.int32), "a.qzeros": torch.zeros(2), "a.scales": torch.zeros(2)}, "GPTQ or AWQ"),
        ({"a.weight": torch.zeros(4, 1, dtype=torch.uint8), "a.weight.absmax": torch.zeros(2)}, "bitsandbytes"),
        ({"a.weight": torch.zeros(4, 1, dtype=torch.uint8), "a.weight_scale": torch.zeros(2)}, "uint8 without a layout"),
        ({"a.weight": torch.zeros(4, 4).to(torch.float8_e4m3fn)}, "a.weight_scale_inv is missing"),
        (
            {
                "a.weight_packed": torch.zeros(4, 1, dtype=torch.int32),
                "a.weight_scale": torch.zeros(2),
                "a.weight_zero_point": torch.zeros(2),
            },
            "asymmetric",
        ),
        ({"a.weight_packed": torch.zeros(4, 1, dtype=torch.uint8), "a.weight_scale": torch.zeros(2)}, "packed as torch.uint8"),
        ({"a.weight_packed": torch.zeros(4, 1, dtype=torch.int32), "a.weight_scale": torch.zeros(2)}, "a.weight_shape is missing"),
    ],
)
def test_what_cannot_be_read_is_said_for_that_tensor_alone(tmp_path, tensors, text):
    checkpoint = open_checkpoint(write(tmp_path / "c", {**tensors, "model.norm.weight": torch.ones(2)}))
    assert "a.weight" in checkpoint
    with pytest.raises(CheckpointError, match=f"a.weight is stored quantised as .*{text}"):
        checkpoint.tensor("a.weight")
    assert checkpoint.tensor("model.norm.weight").tolist() == [1, 1]


def test_scales_that_do_not_fit(tmp_path):
    tensors = {"a.weight": torch.zeros(300, 4).to(torch.float8_e4m3fn), "a.weight_scale_inv": torch.zeros(7, 1)}
    with pytest.raises(CheckpointError, match=r"a.weight: 7 scales over 300 values"):
        open_checkpoint(write(tmp_path / "c", tensors)).tensor("a.weight")


# -- broken ones --------------------------------------------------------------------------------------------------------------


def test_missing_path_file_and_empty_folder(tmp_path):
    with pytest.raises(CheckpointError, match="no such folder; expected a checkpoint folder"):
        open_checkpoint(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="is a file; expected the folder"):
        open_checkpoint(tmp_path / "file")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(CheckpointError, match=r"empty: no config.json in the folder"):
        open_checkpoint(empty)
    (empty / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="empty: no weights in the folder"):
        open_checkpoint(empty)
    os.mkfifo(empty / "model-1.safetensors")  # opening a pipe would wait for ever
    with pytest.raises(CheckpointError, match="empty: no weights in the folder"):
        open_checkpoint(empty)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not readable JSON"),
        ("[]", "holds a list"),
        ("\x00", "not readable JSON"),
        ('{"a":' * 9**5, "not readable JSON"),
        ('{"a":' * 500 + "1" + "}" * 500, "nested too deeply"),
    ],
)
def test_config_that_is_no_object(tmp_path, text, said):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=said):
        open_checkpoint(tmp_path)


def test_missing_shard_matters_only_for_its_tensors(sharded, tmp_path):
    folder = tmp_path / "c"
    shutil.copytree(sharded, folder)
    weight_map = json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]
    gone = weight_map["model.norm.weight"]
    (folder / gone).unlink()
    checkpoint = open_checkpoint(folder)
    with pytest.raises(CheckpointError, match=f"model.norm.weight is in {gone}, which the index names and the folder lacks"):
        checkpoint.tensor("model.norm.weight")
    assert checkpoint.tensor(next(n for n, file in weight_map.items() if file != gone)) is not None


@pytest.mark.parametrize("keep", [0, 5, 100, 0.5])
def test_truncated_shard(llama, tmp_path, keep):
    content = (llama / "model.safetensors").read_bytes()
    shutil.copy(llama / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content[: int(len(content) * keep) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError, match=r"model.safetensors \([\d,]+ bytes\) cannot be read .*cut short.*download it again"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"", b"text", "truncated"])
def test_broken_bin(llama, tmp_path, content):
    shutil.copy(llama / "config.json", tmp_path)
    file = tmp_path / "pytorch_model.bin"
    if content == "truncated":
        torch.save({"a": torch.zeros(1000)}, file)
        content = file.read_bytes()[:2000]
    file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"pytorch_model.bin"):
        open_checkpoint(tmp_path)


class Foreign:
    """Stands for code in a pickle."""


def test_bin_with_foreign_objects_is_refused(llama, tmp_path):
    shutil.copy(llama / "config.json", tmp_path)
    torch.save({"a": Foreign()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="holds more than tensors, and running code out of a checkpoint is refused"):
        open_checkpoint(tmp_path)


def test_index_that_lies_or_leads_out_of_the_folder(llama, tmp_path):
    shutil.copytree(llama, tmp_path, dirs_exist_ok=True)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.ghost.weight": "model.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"does not hold model.ghost.weight, though the index says so"):
        open_checkpoint(tmp_path).tensor("model.ghost.weight")
    for file in ("../other/model.safetensors", "/etc/passwd", "model.pkl", 3):
        index.write_text(json.dumps({"weight_map": {"a": file}}))
        with pytest.raises(CheckpointError, match="is not the name of a weight file in the same folder"):
            open_checkpoint(tmp_path)
    for content, said in (("{}", "no `weight_map`"), ("[1]", "no `weight_map`"), ("[" * 9**5, "index.json is not readable JSON")):
        index.write_text(content)
        with pytest.raises(CheckpointError, match=said):
            open_checkpoint(tmp_path)


def test_missing_tensor_names_the_nearest(llama):
    with pytest.raises(CheckpointError, match=r"no tensor model.layer.0.mlp.up_proj.weight among 39; the nearest name is model.layers.0"):
        open_checkpoint(llama).tensor("model.layer.0.mlp.up_proj.weight")


@pytest.mark.parametrize("bad", [-1, 128, 10**9])
def test_rows_outside_of_the_table(llama, bad):
    with pytest.raises(CheckpointError, match=rf"has rows 0..127, asked for {bad}; the token ids belong to another tokenizer"):
        open_checkpoint(llama).rows("model.embed_tokens.weight", [0, bad])
