"""The header audit on each family's exact tensor names, on what can be wrong with a file, and what the engines are said to do about it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from case_builder import VOCAB, draft_config, write_case, write_drafter
from safetensors.torch import load_file, save_file
from tiny_models import HIDDEN

from eaglelab.checks import findings
from eaglelab.drafter.audit import DrafterError, audit_folder, read_headers
from eaglelab.drafter.config import DrafterConfig
from eaglelab.drafter.shapes import expected_tensors
from eaglelab.drafter.vocabulary import read_map
from eaglelab.engines.loading import ENGINES, consequence, table
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.target.checkpoint import open_checkpoint

DRAFT = 40
LAYER = {
    "self_attn.q_proj.weight": (64, 2 * HIDDEN),
    "self_attn.k_proj.weight": (32, 2 * HIDDEN),
    "self_attn.v_proj.weight": (32, 2 * HIDDEN),
    "self_attn.o_proj.weight": (HIDDEN, 64),
    "mlp.gate_proj.weight": (32, HIDDEN),
    "mlp.up_proj.weight": (32, HIDDEN),
    "mlp.down_proj.weight": (HIDDEN, 32),
    "hidden_norm.weight": (HIDDEN,),
    "input_layernorm.weight": (HIDDEN,),
    "post_attention_layernorm.weight": (HIDDEN,),
}
AROUND = {"fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,), "lm_head.weight": (DRAFT, HIDDEN)}
NAMES = {
    "eagle": ("midlayer", ("d2t", "t2d")),
    "specforge": ("midlayer", ("d2t", "t2d")),
    "angelslim": ("midlayer", ("d2t", "t2d", "embed_tokens.weight")),
    "modelopt": ("layers.0", ("d2t",)),
    "speculators": ("layers.0", ("d2t", "t2d", "embed_tokens.weight")),
}
"""How each framework names the layer, and what it stores besides."""


def tensors(prefix="midlayer", besides=("d2t", "t2d"), dtype=torch.bfloat16):
    g = torch.Generator().manual_seed(0)
    kept = torch.arange(DRAFT)
    extra = {"d2t": torch.zeros(DRAFT, dtype=torch.int64), "t2d": torch.arange(VOCAB) < DRAFT}
    extra["embed_tokens.weight"] = torch.randn(VOCAB, HIDDEN, generator=g).to(dtype)
    assert torch.equal(extra["t2d"].nonzero()[:, 0], kept)
    shapes = AROUND | {f"{prefix}.{n}": s for n, s in LAYER.items()}
    return {n: torch.randn(s, generator=g).to(dtype) for n, s in shapes.items()} | {n: extra[n] for n in besides}


def written(folder, state, **config):
    return write_drafter(folder, state, draft_config(**config))


def audited(folder):
    return audit_folder(folder, DrafterConfig.load(folder))


def complete(folder, engine=None, name="drafter.complete", **sections):
    root = folder.parent / f"case-{folder.name}-{engine}"
    parts = {"drafter": {"path": str(folder)}} | ({"engine": {"name": engine}} if engine else {}) | sections
    family = findings(Investigation(str(write_case(root, parts))), name.partition(".")[0] if name.startswith("config.") else name)
    return next((f for f in family if f.id == name), None)


# -- sound ones ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("container", ["one file", "shards", "bin"])
@pytest.mark.parametrize("family", NAMES)
def test_each_familys_names(family, container, tmp_path):
    state = tensors(*NAMES[family])
    folder = written(tmp_path / "d", state)
    if container != "one file":
        (folder / "model.safetensors").unlink()
    if container == "bin":
        torch.save(state, folder / "pytorch_model.bin")
    if container == "shards":
        shard(folder, state)
    audit = audited(folder)
    assert audit.whole
    assert (audit.unexpected, audit.respelt, audit.wrong_dtype, audit.quantised, audit.absent_shards) == ((), {}, {}, (), {})
    assert audit.dtypes == {"BF16": len(state) - len({"d2t", "t2d"} & set(state))}
    assert (audit.embedding is not None) == ("embed_tokens.weight" in state)


def shard(folder, state, parts=2):
    names = sorted(state)
    files = {f"model-{i + 1:05}-of-{parts:05}.safetensors": names[i::parts] for i in range(parts)}
    for file, held in files.items():
        save_file({n: state[n] for n in held}, folder / file)
    index = {"weight_map": {n: f for f, held in files.items() for n in held}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return files


def test_no_torch_is_needed(tmp_path):
    folder = written(tmp_path / "d", tensors())
    code = (
        "import sys; from eaglelab.drafter.audit import audit_folder; from eaglelab.drafter.config import DrafterConfig;"
        "from eaglelab.checks import weights;"
        f"assert audit_folder({str(folder)!r}, DrafterConfig.load({str(folder)!r})).whole;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- what is wrong ------------------------------------------------------------------------------------------------------------------------


def test_an_absent_shard_is_told_with_its_tensors(tmp_path):
    folder = written(tmp_path / "d", tensors())
    (folder / "model.safetensors").unlink()
    files = shard(folder, tensors(), 3)
    gone = list(files)[1]
    (folder / gone).unlink()
    assert audited(folder).absent_shards == {gone: len(files[gone])}
    found = complete(folder)
    assert found.status is Status.FAIL
    assert f"the index names {gone}, which is not there ({len(files[gone])} tensors)" in found.title
    assert "missing" not in found.title  # one fault, said once
    assert found.evidence.count("stops: the index names a file that is not there") == 2


def test_missing_ones_and_what_each_engine_does(tmp_path):
    state = tensors()
    for name in ("norm.weight", "fc.weight", "lm_head.weight"):
        state.pop(name)
    folder = written(tmp_path / "d", state)
    found = complete(folder)
    assert found.status is Status.FAIL
    does = {(e["what"], e["engine"]): e["does"] for e in found.numbers["engines"]}
    for engine in ("SGLang 0.5.23", "vLLM 0.32.0"):
        assert does["missing norm.weight", engine].startswith("keeps the norm's starting value, 1")
        assert does["missing fc.weight", engine].startswith("leaves it uninitialised")
    assert does["missing lm_head.weight", "SGLang 0.5.23"].startswith("leaves it uninitialised")
    assert does["missing lm_head.weight", "vLLM 0.32.0"].startswith(
        "takes the target's lm_head, of whose logits it keeps the first columns"
    )
    only = complete(folder, "vllm")
    assert {e["engine"] for e in only.numbers["engines"]} == {"vLLM 0.32.0"}
    assert "SGLang" not in only.evidence


def test_unexpected_ones_weigh_as_the_engine_takes_them(tmp_path):
    folder = written(tmp_path / "d", tensors() | {"midlayer.self_attn.q_norm.weight": torch.ones(16)})
    by_engine = {engine: complete(folder, engine) for engine in (None, *ENGINES)}
    assert {e: f.status for e, f in by_engine.items()} == {None: Status.CANNOT_TELL, "sglang": Status.CANNOT_TELL, "vllm": Status.FAIL}
    assert "drops it without a line in the log" in by_engine["sglang"].evidence
    assert "there is no module or parameter of this name" in by_engine["vllm"].evidence
    assert "is a flag missing in the config?" in by_engine["sglang"].next
    folder = written(tmp_path / "e", tensors() | {"verifier_norm.weight": torch.ones(16)})
    assert complete(folder, "sglang").status is Status.PASS  # no forward uses it
    assert "verifier_norm.weight is not used" in complete(folder, "sglang").evidence
    assert complete(folder, "vllm").status is Status.FAIL  # it stops all the same


def test_a_t2d_is_never_a_fault(tmp_path):
    folder = written(tmp_path / "d", tensors(besides=("d2t",)) | {"t2d": torch.ones(VOCAB + 16, dtype=torch.bool)})
    found = complete(folder)
    assert found.status is Status.PASS
    assert found.evidence.count("never reads it") == 2


def test_a_wrong_shape_stops_both(tmp_path):
    state = tensors()
    state["midlayer.self_attn.q_proj.weight"] = torch.ones(64, HIDDEN)
    found = complete(written(tmp_path / "d", state))
    assert found.status is Status.FAIL
    assert f"midlayer.self_attn.q_proj.weight is [64, {HIDDEN}], the config implies [64, {2 * HIDDEN}]" in found.title
    assert found.evidence.count("stops with an assertion while loading") == 2


def test_dtypes(tmp_path):
    state = tensors()
    state["fc.weight"] = state["fc.weight"].float()
    mixed = complete(written(tmp_path / "mixed", state))
    assert mixed.status is Status.PASS
    assert mixed.numbers["dtypes"] == {"BF16": 12, "F32": 1}
    state["fc.weight"] = torch.ones(HIDDEN, 3 * HIDDEN, dtype=torch.int32)
    state["d2t"] = state["d2t"].float()
    found = complete(written(tmp_path / "whole", state))
    assert found.status is Status.FAIL
    assert "fc.weight is I32, expected floats, or scales beside it" in found.title
    assert "d2t is F32, expected whole numbers" in found.title
    assert "copies the stored numbers in as weights" in found.evidence


def packed(state, name):
    state[name + "_packed"] = torch.ones(4, dtype=torch.int32)
    state[name + "_scale"], state[name + "_shape"] = torch.ones(4), torch.tensor(list(state.pop(name).shape))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.int8, "packed"])
@pytest.mark.report("vllm-project/vllm#18290", "BN")
def test_quantised_weights_are_recognised(kind, tmp_path):
    state, name = tensors(), "midlayer.mlp.up_proj.weight"
    if kind == "packed":
        packed(state, name)
    else:
        state[name] = torch.ones(32, HIDDEN).to(kind)
        state[name + "_scale"] = torch.ones(32, 1)
    folder = written(tmp_path / "d", state)
    stored = name + ("_packed" if kind == "packed" else "")
    audit = audited(folder)
    assert (audit.whole, audit.unexpected, audit.quantised, audit.wrong_dtype) == (True, (), (stored,), {})
    sglang, vllm = complete(folder, "sglang"), complete(folder, "vllm")
    assert sglang.status is vllm.status is Status.FAIL
    drops = (
        "drops the packed values and leaves the weight uninitialised"
        if kind == "packed"
        else "drops their scales without a line in the log"
    )
    assert drops in sglang.evidence
    assert "there is no parameter for the packed values or the scales" in vllm.evidence
    told = written(tmp_path / "told", state, quantization_config={"quant_method": "compressed-tensors"})
    assert complete(told).status is Status.PASS


def test_what_stands_beside_a_bitsandbytes_weight_is_no_weight(tmp_path):
    """Names as its serialisation writes them: the values in one row of bytes, statistics and maps after the weight's name."""
    state, name = tensors(), "midlayer.mlp.up_proj.weight"
    state[name] = torch.zeros(state[name].numel() // 2, 1, dtype=torch.uint8)
    for ending in (".absmax", ".quant_map", ".quant_state.bitsandbytes__nf4"):
        state[name + ending] = torch.zeros(4)
    audit = audited(written(tmp_path / "d", state))
    assert (audit.quantised, audit.wrong_dtype, audit.unexpected, audit.missing) == ((name,), {}, (), ())


def test_spellings_that_one_engine_takes(tmp_path):
    folder = written(tmp_path / "d", {"model." + n if n != "lm_head.weight" else n: t for n, t in tensors().items()})
    assert {e: complete(folder, e).status for e in ENGINES} == {"sglang": Status.PASS, "vllm": Status.FAIL}
    assert "looks for it as model.model.…, and stops" in complete(folder, "vllm").evidence


@pytest.mark.parametrize(("number", "status"), [(VOCAB, Status.FAIL), (None, Status.PASS)])
def test_a_borrowed_lm_head_in_sglang_needs_a_null(number, status, tmp_path):
    state = tensors(besides=())
    state.pop("lm_head.weight")
    folder = written(tmp_path / "d", state, draft_vocab_size=number)
    assert complete(folder, "sglang").status is status
    assert complete(folder, "vllm").status is Status.PASS
    assert complete(folder).status is (Status.CANNOT_TELL if number else Status.PASS)


def test_files_that_cannot_be_read(tmp_path):
    folder = written(tmp_path / "d", tensors())
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DrafterError, match=r"model\.safetensors: not readable .* is it cut short"):
        audited(folder)
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"nothing")
    with pytest.raises(DrafterError, match=r"pytorch_model\.bin"):
        audited(folder)


# -- the embedding table ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "statuses"),
    [(False, (Status.PASS, Status.PASS, Status.PASS)), (True, (Status.CANNOT_TELL, Status.FAIL, Status.PASS))],
)
def test_an_embedding_table_of_its_own(changed, statuses, tmp_path):
    state = tensors(besides=("d2t", "t2d", "embed_tokens.weight"))
    folder = written(tmp_path / "d", state)
    rows = state["embed_tokens.weight"].float() * (1.5 if changed else 1)
    save_file({"token_ids": torch.arange(VOCAB), "rows": rows}, tmp_path / "rows.safetensors")
    embed = {"drafter": {"path": str(folder), "embed": str(tmp_path / "rows.safetensors")}}
    found = [complete(folder, engine, "drafter.embedding", **embed) for engine in (None, "sglang", "vllm")]
    assert tuple(f.status for f in found) == statuses
    assert found[0].numbers["differ"] == (VOCAB if changed else 0)
    if changed:
        assert "SGLang 0.5.23 overwrites it with the target's" in found[1].evidence
        assert "largest 0.33" in found[1].evidence  # |a - 1.5 a| / |1.5 a|
    without = complete(folder, None, "drafter.embedding")
    assert (without.status, "[target] path" in without.next) == (Status.NOT_GIVEN, True)
    plain = written(tmp_path / "plain", tensors())
    assert complete(plain, None, "drafter.embedding").status is Status.NOT_APPLICABLE


@pytest.mark.report("vllm-project/vllm#18906", "BJ")
def test_r22_a_narrow_drafter_needs_a_table_of_its_own(tmp_path):
    """SGLang 0.5.23, models/llama.py:910-916 leaves the table as it was allocated where the widths differ."""
    finding = complete(written(tmp_path / "d", tensors(), target_hidden_size=2 * HIDDEN), None, "drafter.embedding")
    assert (finding.status, finding.title.startswith("The drafter brings no embedding table, and")) == (Status.FAIL, True)
    own = written(tmp_path / "own", tensors(besides=("d2t", "t2d", "embed_tokens.weight")), target_hidden_size=2 * HIDDEN)
    assert complete(own, None, "drafter.embedding").status is Status.NOT_APPLICABLE


# -- the table ----------------------------------------------------------------------------------------------------------------------------


def test_every_row_has_its_source_and_can_be_reached():
    rows = table()["rows"]
    assert {r["engine"] for r in rows} == set(ENGINES) == set(table()["read_at"])
    assert {r["effect"] for r in rows} == {"harmless", "silent", "stops", "unknown"}
    assert all(".py" in r["read"] and r["text"] and r["names"] for r in rows)
    for row in rows:
        probe = row["names"][0].replace("*", "x.").replace("?", "q").replace("[qkv]", "q")
        got = consequence(row["engine"], row["case"], probe, (row.get("layers") or ["llama"])[0])
        assert got.text == row["text"], row


def test_both_engines_answer_every_case():
    cases = {r["case"] for r in table()["rows"]}
    assert {(e, c) for e in ENGINES for c in cases if consequence(e, c, "d2t" if c == "map_of_floats" else "fc.weight") is None} == set()


def test_header_of_the_example():
    example = Path(__file__).parent.parent / "data" / "example" / "drafter"
    (header, absent), loaded = read_headers(example), load_file(example / "model.safetensors")
    assert absent == {}
    assert {n: tuple(t.shape) for n, t in loaded.items()} == {n: shape for n, (shape, _) in header.items()}


# -- what the config or the folder makes of a whole file --------------------------------------------------------------------------------

HEADS = {
    "tied": ({"tie_word_embeddings": True}, "drops the file's lm_head", "Write `tie_word_embeddings: false`"),
    "null": (
        {"draft_vocab_size": None, "vocab_size": DRAFT},
        "puts the target's lm_head in place of the file's",
        f"`draft_vocab_size: {DRAFT}`",
    ),
    "absent": ({"vocab_size": DRAFT}, "stops: it reads config.draft_vocab_size", f"`draft_vocab_size: {DRAFT}`"),
}


def drop(folder, key):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.pop(key)
    file.write_text(json.dumps(config))


@pytest.mark.parametrize("kind", HEADS)
def test_an_lm_head_that_sglang_does_not_take(kind, tmp_path):
    changes, does, mend = HEADS[kind]
    folder = written(tmp_path / "d", tensors(besides=("d2t",)), **changes)
    if kind == "absent":
        drop(folder, "draft_vocab_size")
    assert {e: complete(folder, e).status for e in (None, *ENGINES)} == {
        None: Status.CANNOT_TELL,
        "sglang": Status.FAIL,
        "vllm": Status.PASS,
    }
    found = complete(folder, "sglang")
    assert does in found.evidence
    assert mend in found.next
    assert found.numbers["mend"] == ["config"]


MLA = {
    "architectures": ["Eagle3DeepseekV2ForCausalLM"],
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}


def from_config(folder, **config):
    """A checkpoint with every tensor that its config implies."""
    raw = draft_config(**config)
    shapes = expected_tensors(DrafterConfig.from_dict(raw))
    state = {n: torch.zeros(s, dtype=torch.int64 if n == "d2t" else torch.bfloat16) for n, s in shapes.items()}
    return write_drafter(folder, state, raw)


def test_an_mla_layer_without_a_rank_for_its_queries_stops_sglang(tmp_path):
    folder = from_config(tmp_path / "d", **MLA)
    assert complete(folder, "sglang").status is Status.FAIL
    assert "Eagle3 MLA layer requires q_lora_rank" in complete(folder, "sglang").evidence
    assert complete(from_config(tmp_path / "e", q_lora_rank=8, **MLA), "sglang").status is Status.PASS


def test_an_mla_drafter_without_draft_vocab_size_counts_as_null(tmp_path):
    folder = from_config(tmp_path / "f", q_lora_rank=8, **MLA, vocab_size=DRAFT)
    drop(folder, "draft_vocab_size")
    assert "puts the target's lm_head in place of the file's, as with null" in complete(folder, "sglang").evidence


def test_further_layers_norms_are_told_and_left_to_the_configs_finding(tmp_path):
    folder = from_config(tmp_path / "d", num_hidden_layers=2)
    found = complete(folder, "sglang")
    assert found.status is Status.PASS
    assert "norms there by hidden_norm, 1 in every channel unless the file holds one, and never uses input_layernorm" in found.evidence
    told = complete(folder, "sglang", "config.further_norm")
    assert told.status is Status.FAIL
    assert complete(folder, "vllm", "config.further_norm") is None
    state = load_file(folder / "model.safetensors")
    state["layers.1.hidden_norm.weight"] = torch.ones(HIDDEN)
    save_file(state, folder / "model.safetensors")
    assert complete(folder, "sglang").status is Status.PASS
    assert "norms the input of a layer after the first by it" in complete(folder, "sglang").evidence
    assert complete(folder, "vllm").status is Status.CANNOT_TELL


def test_biases_that_specforge_never_builds(tmp_path):
    folder = written(tmp_path / "d", tensors(), attention_bias=True)
    sglang, vllm = complete(folder, "sglang"), complete(folder, "vllm")
    assert (sglang.status, vllm.status, complete(folder).status) == (Status.PASS, Status.FAIL, Status.CANNOT_TELL)
    assert "where missing midlayer.self_attn.o_proj.bias: starts it at zero" in sglang.evidence
    assert "leaves it uninitialised" in vllm.evidence
    assert "Write `attention_bias: false`" in vllm.next
    assert complete(folder, "sglang", "config.attention_bias") is None
    biased = from_config(tmp_path / "e", attention_bias=True)
    assert complete(biased, "sglang", "config.attention_bias").status is Status.FAIL


def test_weight_files_that_stand_beside(tmp_path):
    state = tensors()
    folder = written(tmp_path / "d", state)
    save_file({"fc.weight": state["fc.weight"]}, folder / "model_old.safetensors")
    found = complete(folder)
    assert found.status is Status.FAIL
    assert "model_old.safetensors stands beside the weights, and no index says which files count" in found.title
    assert found.evidence.count("of two tensors with one name the last one stays") == 2
    assert (found.numbers["mend"], "out of the folder" in found.next) == (["folder"], True)
    index = {"weight_map": dict.fromkeys(state, "model.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    found = complete(folder)
    assert found.status is Status.PASS
    assert "model_old.safetensors is not in the index and not read" in found.evidence


def test_shards_without_an_index_are_read_in_the_order_of_their_names(tmp_path):
    state = tensors()
    folder = written(tmp_path / "d", state)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"fc.weight": torch.ones(2, 2), "d2t": torch.ones(DRAFT, dtype=torch.int64)}, folder / "b.safetensors")
    assert read_headers(folder)[0]["fc.weight"][0] == (2, 2)
    assert read_map(folder).d2t.tolist() == [1] * DRAFT
    assert open_checkpoint(folder).shape("fc.weight") == (2, 2)
    plain = written(tmp_path / "e", state)
    save_file(state, plain / "consolidated.safetensors")  # both engines leave it out
    assert complete(plain).status is Status.PASS


def test_a_file_that_is_not_there_is_no_fault_of_the_training(tmp_path):
    folder = written(tmp_path / "d", tensors())
    (folder / "model.safetensors").unlink()
    gone = next(iter(shard(folder, tensors())))
    (folder / gone).unlink()
    found = complete(folder, "sglang")
    assert (found.numbers["mend"], found.next.startswith("Copy or download the files")) == (["copy"], True)


def test_one_byte_floats_without_scales_and_bitsandbytes(tmp_path):
    state, name = tensors(), "midlayer.mlp.up_proj.weight"
    plain = written(tmp_path / "f8", state | {name: state[name].to(torch.float8_e4m3fn)})
    found = complete(plain, "sglang")
    assert f"{name} is F8_E4M3, without scales" in found.title
    assert "copies the stored numbers in as weights, as if their scale were 1" in found.evidence
    state[name] = torch.zeros(32 * HIDDEN // 2, 1, dtype=torch.uint8)
    state |= {name + ".absmax": torch.ones(16), name + ".quant_map": torch.ones(16)}
    four = written(tmp_path / "bnb", state, quantization_config={"quant_method": "bitsandbytes"})
    assert complete(four).status is Status.PASS
    assert complete(four).numbers["quantised"] == [name]


def test_a_map_behind_any_prefix_and_a_tensor_stored_twice(tmp_path):
    state = tensors()
    folder = written(tmp_path / "d", {("module." + n if n == "d2t" else n): t for n, t in state.items()})
    assert {e: complete(folder, e).status for e in ENGINES} == {"sglang": Status.PASS, "vllm": Status.FAIL}
    assert complete(folder, None, "drafter.vocabulary").numbers["identity"]  # it is read
    twice = written(tmp_path / "e", state | {"layers.0.hidden_norm.weight": torch.ones(HIDDEN)})
    found = complete(twice)
    assert found.status is Status.PASS
    assert "layers.0.hidden_norm.weight and midlayer.hidden_norm.weight are one tensor" in found.evidence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0])
def test_an_embedding_table_of_rubbish_is_not_the_targets(value, tmp_path):
    state = tensors(besides=("d2t", "t2d", "embed_tokens.weight"))
    save_file({"token_ids": torch.arange(VOCAB), "rows": state["embed_tokens.weight"].float()}, tmp_path / "rows.safetensors")
    state["embed_tokens.weight"][[3, 7]] = value
    folder = written(tmp_path / "d", state)
    embed = {"drafter": {"path": str(folder), "embed": str(tmp_path / "rows.safetensors")}}
    found = {engine: complete(folder, engine, "drafter.embedding", **embed) for engine in (None, *ENGINES)}
    assert {e: f.status for e, f in found.items()} == {None: Status.CANNOT_TELL, "sglang": Status.PASS, "vllm": Status.FAIL}
    assert (found["vllm"].numbers["differ"], found["vllm"].numbers["ruined"]) == (2, 2)
    assert "2 rows hold NaN or infinity, or nothing but zeros (token ids 3, 7)" in found["vllm"].evidence
    assert "overwrites it with the target's" in found["sglang"].evidence
