"""Error messages and what their widths mean. Messages and numbers are those of public threads, named at each."""

import gzip
import io
import json
import math
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from case_builder import write_case

from eaglelab.checks import findings
from eaglelab.checks.errors import facts_of, finding, given
from eaglelab.cli import main
from eaglelab.engines import errors, known
from eaglelab.engines.errors import Facts, explain_error, explain_lines, widths
from eaglelab.findings import Status
from eaglelab.investigation import Investigation

EXAMPLE = Path(__file__).parents[1] / "data" / "example"
DOCS = Path(__file__).parents[1] / "docs" / "errors.md"
SIDES = "RuntimeError: The size of tensor a ({}) must match the size of tensor b ({}) at non-singleton dimension 1"
FC = "RuntimeError: mat1 and mat2 shapes cannot be multiplied ({}x{} and {}x{})"
TRACE = 'Traceback (most recent call last):\n  File "/x/{file}", line 88, in {function}\n    y = f(x)\n{error}'


def one(text, facts=None):
    (found,) = explain_error(text, facts or Facts())
    return found


# -- widths ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.report(thread="sgl-project/sglang#32226", classes=["A", "J"])
def test_three_slots_expected_and_two_given():
    """gpt-oss-120b (H = 2880, N = 36) with ids [24, 30, 36]: the last boundary is not captured."""
    facts = Facts(hidden=2880, slots=3, ids=(24, 30, 36), num_layers=36)
    found = one(SIDES.format(8640, 5760), facts)
    assert (found.id, found.widths.cause, found.standing) == ("width", "missing_slots", "established")
    assert found.widths.numbers == {"hidden": 2880, "given_slots": 2, "expected_slots": 3}
    assert found.widths.sentences[0] == "8,640 = 3 * 2,880: three slots expected. 5,760 = 2 * 2,880: two slots given."
    assert found.widths.sentences[1] == "Of the ids [24, 30, 36], id 36 may lie beyond the last state that is captured (N = 36)."
    assert "sgl-project/sglang#32226" in found.sources
    told = finding(found)
    assert (told.id, told.status) == ("errors.width", Status.FAIL)
    assert told.title == "Fewer slots come to the drafter's fc than it takes: 2 given, 3 expected (H = 2,880)"
    assert one(SIDES.format(5760, 8640), facts).widths == found.widths  # which side is a and which is b says nothing


def test_without_h_one_hidden_size_fits_these_widths():
    found = one(SIDES.format(8640, 5760))
    assert found.widths.numbers == {"hidden": 2880, "slots": [3, 2]}
    assert found.widths.sentences[0].startswith("H = 2,880 is the one hidden size that fits")


def test_widths_of_another_target_than_the_cases():
    found = one(FC.format(112, 5760, 8640, 2880), Facts(hidden=4096))
    assert found.widths.sentences[-1] == "They are two slots and three slots of H = 2,880: is the case's target the one that was served?"
    assert "is the case's target" not in " ".join(one(FC.format(112, 5760, 8640, 2880), Facts(hidden=5760)).widths.sentences)


@pytest.mark.report(thread="SafeAILab/EAGLE#294", classes=["A"])
@pytest.mark.parametrize("facts", [Facts(), Facts(hidden=4096, num_layers=36)])
def test_all_hidden_states_were_concatenated(facts):
    """Qwen3-8B has 36 layers: 37 * 4096 = 151552, as its reporter worked out."""
    found = one(FC.format(112, 151552, 12288, 4096), facts)
    assert found.widths.cause == "all_states"
    assert {k: found.widths.numbers[k] for k in ("hidden", "given_slots", "expected_slots")} == {
        "hidden": 4096,
        "given_slots": 37,
        "expected_slots": 3,
    }
    assert "37 = N + 1 for N = 36: all hidden states of the target were concatenated." in found.widths.sentences
    assert found.title == "All hidden states of the target were concatenated instead of the drafter's slots"


def test_states_of_another_depth_are_not_called_all_of_them():
    found = one(FC.format(112, 151552, 12288, 4096), Facts(hidden=4096, num_layers=32))
    assert "The target has N = 32, so N + 1 = 33 states: 37 are of another target." in found.widths.sentences


@pytest.mark.report(thread="vllm-project/vllm#48259", classes=["A", "J"])
@pytest.mark.parametrize("facts", [Facts(), Facts(hidden=4096)])
def test_one_slot_where_three_are_expected(facts):
    """A target cut to one layer, ids (2, 0, -2): 4096 come, fc takes 3 * 4096; 16384 counts tokens."""
    found = one(FC.format(16384, 4096, 12288, 4096), facts)
    assert found.widths.cause == "one_slot"
    assert found.widths.numbers["given_slots"] == 1
    assert found.widths.numbers["expected_slots"] == 3
    assert "16,384" not in " ".join(found.widths.sentences)


@pytest.mark.report(thread="vllm-project/vllm#48113", classes=["A"])
def test_four_of_five_slots():
    """A drafter with five layer ids for a target that lacks the last: 4 * 2560 of 5 * 2560."""
    found = one(FC.format("1", 10240, 12800, 2560))
    assert found.widths.cause == "missing_slots"
    assert (found.widths.numbers["given_slots"], found.widths.numbers["expected_slots"]) == (4, 5)


@pytest.mark.report(thread="vllm-project/vllm#54526", classes=["J", "A"])
@pytest.mark.parametrize(
    "text",
    [
        "AssertionError: Attempted to load weight (torch.Size([4096, 16384])) into parameter (torch.Size([4096, 12288]))",
        "AssertionError: Tried to load weights of size torch.Size([4096, 16384])to a parameter of size torch.Size([4096, 12288])",
    ],
)
def test_the_engine_built_fc_for_three_slots_and_the_checkpoint_has_four(text):
    found = one(text, Facts(hidden=4096))
    assert found.widths.cause == "built_other"
    assert found.widths.numbers == {"hidden": 4096, "stored_slots": 4, "built_slots": 3}
    assert finding(found).title.endswith("3 built, 4 in the checkpoint (H = 4,096)")


def test_fc_of_eagle_1():
    """vLLM 0.8 with `eagle`: fc [4096, 2 * 4096] is built for a checkpoint's [4096, 3 * 4096]."""
    found = one("Attempted to load weight (torch.Size([4096, 12288])) into parameter (torch.Size([4096, 8192]))")
    assert (found.widths.cause, found.widths.numbers["stored_slots"]) == ("eagle1", 3)


@pytest.mark.report(thread="sgl-project/sglang#24215", classes=["J"])
def test_two_hidden_sizes_are_named_only_where_they_are_known():
    text = "RuntimeError: Sizes of tensors must match except in dimension 0. Expected size 4096 but got size 2048 for tensor number 1 in the list."
    known = one(text, Facts(hidden=4096, draft_hidden=2048))
    assert known.widths.cause == "two_sizes"
    open_ = one(text)
    assert open_.widths.cause == ""
    assert "two hidden sizes, 4,096 and 2,048" in open_.widths.sentences[0]
    assert {"hidden": 2048, "slots": [2, 1]} in open_.widths.numbers["readings"]
    assert one("Expected size 4096 but got size 2048").widths == open_.widths  # vllm-project/vllm#38073, quoted alone


@pytest.mark.report(thread="sgl-project/sglang#13352", classes=["F"])
def test_rows_are_not_taken_for_widths():
    """topk 4, 5 steps, 8 draft tokens: 6 and 8 are tokens."""
    text = (
        "RuntimeError: Sizes of tensors must match except in dimension 1. Expected size 6 but got size 8 for tensor number 1 in the list."
    )
    found = one(text, Facts(hidden=4096, steps=5, draft_tokens=8))
    assert found.widths.cause == "rows"
    assert "8 is the nodes of a verify pass." in found.widths.sentences
    assert "6 is the drafted steps and the bonus token." in found.widths.sentences


@pytest.mark.report(thread="sgl-project/SpecForge#613", classes=["A", "I"])
def test_a_hidden_state_that_is_all_slots():
    text = "hidden_states context (2, 16, 2688), last_hidden_states None"
    found = one(text, Facts(hidden=896))
    assert (found.id, found.widths.numbers["slots"]) == ("hidden_is_aux", 3)
    assert "2,688 is three slots of H = 896." in found.widths.sentences
    assert {"hidden": 896, "slots": [3]} in one(text).widths.numbers["readings"]


@pytest.mark.report(thread="SafeAILab/EAGLE#249", classes=["B", "J"])
def test_a_head_of_the_draft_vocabulary_in_a_model_of_the_whole_one():
    text = (
        "size mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint, the shape in current model "
        "is torch.Size([128256, 4096])."
    )
    found = one(text, Facts(hidden=4096, vocab=128256, draft_vocab=32000))
    assert found.widths.cause == "vocabulary"
    assert "32,000 stored (the draft vocabulary (32,000)), 128,256 built (the target's vocabulary (128,256))" in found.widths.sentences[0]
    assert one(text).widths.cause == ""  # without the sizes of the vocabularies nobody knows what they are


def test_widths_of_no_hidden_size_are_left_alone():
    """sgl-project/sglang#29516: 96 and 90 have nothing to do with a drafter."""
    found = one("The size of tensor a (96) must match the size of tensor b (90) at non-singleton dimension 1")
    assert found.widths.cause == ""
    assert "readings" not in found.widths.numbers
    assert "fit no hidden size" in found.widths.sentences[0]


@pytest.mark.report(thread="sgl-project/sglang#10059", classes=["G", "J"])
def test_disaggregation_is_seen_in_the_traceback():
    error = "RuntimeError: The size of tensor a (4096) must match the size of tensor b (12288) at non-singleton dimension 0"
    text = TRACE.format(file="sglang/srt/disaggregation/prefill.py", function="send_kv_chunk", error=error)
    assert one(text).id == "disaggregation"
    assert one(error).id == "width"


def test_pipeline_stages_are_named_where_slots_are_missing():
    found = one(FC.format(8, 8192, 12288, 4096), Facts(hidden=4096, pipeline=2))
    assert "2 pipeline stages" in found.widths.sentences[-1]


def test_the_arithmetic_finds_what_was_multiplied():
    """Any H, any slots: with H given the counts come back; without it the true reading is among the consistent ones, all of which multiply out."""
    draw = random.Random(0)
    for _ in range(500):
        hidden = 64 * draw.randint(4, 128)
        came, asked = draw.sample(range(1, 9), 2)
        found = widths.fc(came * hidden, asked * hidden, Facts(hidden=hidden))
        assert (found.numbers["given_slots"], found.numbers["expected_slots"]) == (came, asked)
        assert found.cause == ("one_slot" if came == 1 else "missing_slots" if came < asked else "too_many_slots")
        pairs = widths.candidates((came * hidden, asked * hidden))
        assert (hidden, (came, asked)) in pairs
        assert all(h % 64 == 0 and h * s == w for h, slots in pairs for s, w in zip(slots, (came * hidden, asked * hidden), strict=True))
        assert len({h for h, _ in pairs}) == len(pairs)
        either = [
            widths.sides(*pair, Facts(hidden=hidden, slots=asked))
            for pair in ((came * hidden, asked * hidden), (asked * hidden, came * hidden))
        ]
        assert either[0] == either[1]


def test_all_states_come_back_for_any_depth():
    draw = random.Random(1)
    for _ in range(200):
        hidden, layers = 64 * draw.randint(8, 128), draw.randint(16, 128)
        facts = Facts(hidden=hidden, num_layers=layers)
        assert widths.fc((layers + 1) * hidden, 3 * hidden, facts).cause == "all_states"
        alone = widths.fc((layers + 1) * hidden, 3 * hidden, Facts(), hidden)
        assert alone.cause in ("all_states", "")
        assert {"hidden": hidden, "slots": [layers + 1, 3]} in alone.numbers["readings"]


def test_a_reading_is_called_the_one_only_where_no_other_divides():
    draw = random.Random(2)
    for _ in range(300):
        a, b = 64 * draw.randint(4, 400), 64 * draw.randint(4, 400)
        found = widths.sides(a, b, Facts())
        said_one = any("the one hidden size that fits" in s for s in found.sentences)
        fits = [h for h in range(256, math.gcd(a, b) + 1, 64) if a % h == b % h == 0 and max(a, b) // h <= 8]
        assert not said_one or len(fits) == 1


# -- the messages ------------------------------------------------------------------------------------------------------------------------

MESSAGES = [
    (
        "Tree speculative sampling kernel unavailable (likely AMD/HIP build). Falling back to greedy verification.",
        "greedy_fallback",
        "sgl-project/sglang#39253",
    ),
    ("assert hidden_states.shape[-1] == input_embeds.shape[-1]", "hidden_vs_embed", "vllm-project/vllm#18906"),
    ("KeyError: 'embed_tokens.weight'", "embed_tokens", "vllm-project/vllm#18906"),
    ("KeyError: 'midlayer.self_attn.qkv_proj.weight'", "not_a_drafter", "Tencent/AngelSlim#39"),
    ("KeyError: 'model.layers.18.mlp.down_proj.weight_scale'", "scales", "sgl-project/sglang#3604"),
    ("KeyError: 'fc.bias'", "drafter_weight", "NVIDIA/TensorRT-LLM#2588"),
    ("KeyError: 'hidden_states'", "no_states", "SafeAILab/EAGLE#294"),
    ('Missing key(s) in state_dict: "lm_head.weight".', "missing_weights", "sgl-project/sglang#27829"),
    ('Unexpected key(s) in state_dict: "fc_norm.0.weight".', "unexpected_weights", "vllm-project/vllm#42764"),
    ("Parameter midlayer.x.weight not found in params_dict", "unknown_parameter", "sgl-project/sglang#27829"),
    (
        "ValueError: Following weights were not initialized from checkpoint: {'model.fc.weight'}",
        "missing_weights",
        "sgl-project/sglang#27829",
    ),
    (
        "Some weights of LlamaForCausalLM were not initialized from the model checkpoint at x: ['lm_head']",
        "missing_weights",
        "TorchSpec#38",
    ),
    ("ValueError: There is no module or parameter named 'embed_tokens' in LlamaForCausalLM", "no_module", "vllm-project/vllm#12304"),
    ("AttributeError: 'EConfig' object has no attribute 'draft_vocab_size'", "draft_vocab_size", "SafeAILab/EAGLE#214"),
    (
        "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'",
        "target_without_eagle3",
        "sgl-project/sglang#23569",
    ),
    (
        "AttributeError: 'Qwen2ForCausalLM' object has no attribute 'capture_aux_hidden_states'",
        "target_without_eagle3",
        "sgl-project/sglang#9216",
    ),
    (
        "RuntimeError: Model does not support EAGLE3 interface but aux_hidden_state_outputs was requested",
        "target_without_eagle3",
        "vllm-project/vllm#25134",
    ),
    (
        "ValueError: Eagle3 is only supported for ['llama', 'qwen'] models. Got self.target_model_config...",
        "target_without_eagle3",
        "vllm-project/vllm#31254",
    ),
    ("RuntimeError: captured 2 of 3 aux hidden states", "too_few_captured", "vllm-project/vllm#46788"),
    ("AttributeError: 'LlamaForCausalLM' object has no attribute 'hot_token_id'", "not_a_drafter", "sgl-project/sglang#36528"),
    ("AttributeError: 'Qwen2ForCausalLM' object has no attribute 'set_embed'", "not_a_drafter", "sgl-project/sglang#36528"),
    (
        "ValueError: Cannot find model module. 'EagleLlamaForCausalLMEagle3' is not a registered model in the Transformers library",
        "unknown_class",
        "Tencent/AngelSlim#15",
    ),
    ("ValueError: Model architectures ['EagleQwen2ForCausalLM'] are not supported for now.", "unknown_class", "vllm-project/vllm#24967"),
    ("ValueError: EAGLE3 currently only supports 1 layer", "one_layer", "sgl-project/SpecForge#129"),
    ("ValueError: Eagle3 MLA layer requires q_lora_rank in the draft config", "mla_rank", "SGLang 0.5.23"),
    ("ValueError: Unsupported activation: gelu. Only silu is supported for now.", "activation", "SGLang 0.5.23"),
    (
        "Warning: Target model's context_length (8192) is greater than the derived context_length (2048).",
        "context",
        "sgl-project/sglang#9388",
    ),
    ("index out of bounds: 0 <= tmp4 < 2048", "position", "vllm-project/vllm#48894"),
    (
        "ScatterGatherKernel.cu:163: operator(): block: [0,0,0], thread: [62,0,0] Assertion `idx_dim >= 0 && idx_dim < index_size && "
        '"scatter gather kernel index out of bounds"` failed.',
        "gather",
        "sgl-project/sglang#9388",
    ),
    ("RuntimeError: CUDA error: device-side assert triggered", "device_assert", "SafeAILab/EAGLE#122"),
    ("RuntimeError: CUDA error: an illegal memory access was encountered", "illegal_access", "sgl-project/sglang#10787"),
    ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "memory", "sgl-project/sglang#4330"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory", "sgl-project/sglang#6875"),
    ("Exception: Capture cuda graph failed: Ninja build failed.", "graphs", "sgl-project/sglang#3430"),
    ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "nan", "SafeAILab/EAGLE#45"),
    ("ValueError: Detected errors during sampling! NaN in the logits.", "nan", "sgl-project/sglang#19664"),
    ("AssertionError: hidden_state is expected to be non-nan", "nan", "sgl-project/SpecForge#104"),
    (
        "return_assistant_tokens_mask==True but chat template does not contain `{% generation %}` keyword.",
        "mask",
        "marin-community/marin#7237",
    ),
    ("TypeError: fill_next_token_bitmask() argument 3", "grammar", "sgl-project/sglang#24283"),
    (
        "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: c10::BFloat16 != c10::Half",
        "dtype",
        "vllm-project/vllm#28435",
    ),
    ("ValueError: Cannot find the config file for awq", "draft_quantisation", "sgl-project/sglang#28196"),
    ("ValueError: EAGLE is not supported in decode attention backend torch_native", "backend", "sgl-project/sglang#5491"),
    ("ValueError: speculative_eagle_topk > 1 with page_size > 1 is unstable and produces incorrect results", "tree_pages", "sglang#7643"),
    ("launch_server.py: error: argument --speculative-algorithm: invalid choice: 'eagle3'", "algorithm_name", "sgl-project/sglang#4247"),
    (
        "ValueError: Target and draft model should have the same vocabulary size. Target model vocab_size=151936. Draft model vocab_size=32000.",
        "vocabularies",
        "vllm-project/vllm#43369",
    ),
    (
        "ERROR 05-29 15:17:48 [core.py:502] AssertionError: Expected logits to have shape (*, 128256), but got torch.Size([1, 32000])",
        "map_not_loaded",
        "vllm-project/vllm#18909",
    ),
    ("AssertionError: For PP = 1, Eagle draft should share embed with target model", "embed_tokens", "vllm-project/vllm#17326"),
    ("size of tensor. Target sizes: [256].  Tensor sizes: [512]", "rows", "vllm-project/vllm#29559"),
    (
        "RuntimeError: The expanded size of the tensor (1024) must match the existing size (4096) at non-singleton dimension 1.",
        "width",
        "vllm-project/vllm-ascend#7602",
    ),
    ("RuntimeError: a and b must have same reduction dim, but got [s0, 8192] X [12288, 4096].", "fc_width", "speculators#149"),
    ("这张图片展示!!!!!!!!", "exclamation_marks", "sgl-project/sglang#14063"),
]


@pytest.mark.parametrize(("text", "id_", "source"), MESSAGES, ids=[m[1] + str(i) for i, m in enumerate(MESSAGES)])
def test_a_message_is_known_with_its_public_source(text, id_, source):
    found = one(text)
    assert found.id == id_
    assert any(source in s for s in found.sources)
    assert found.standing in ("established", "claimed", "inferred")
    told = finding(found)
    assert told.next
    assert told.evidence
    assert "{" not in told.title.replace("{% generation %}", "").replace("{'model.fc.weight'}", "")


@pytest.mark.parametrize("text", [m[0] for m in MESSAGES if m[1] not in ("exclamation_marks", "rows")])
def test_a_message_is_found_in_a_log_too(text):
    """SGLang's lines name no level: `[time TP0] message`."""
    wanted = one(text).id
    lines = [(1, f"[2026-05-22 09:10:10 TP0] {text}"), (2, f"(Worker_TP1 pid=5) ERROR 10-06 18:54:30 [x.py:597] {text}")]
    assert [(e.id, e.count) for e in explain_lines(lines)] == [(wanted, 2)]


@pytest.mark.parametrize(
    ("file", "function", "error", "id_"),
    [
        ("vllm/v1/worker/gpu_model_runner.py", "_dummy_run", "ValueError: too many values to unpack (expected 2)", "no_state_captured"),
        ("sglang/srt/models/qwen3_moe.py", "set_eagle3_layers_to_capture", "IndexError: list index out of range", "capture_index"),
        ("sglang/srt/speculative/eagle_worker_v2.py", "draft", "AttributeError: 'list' object has no attribute 'to'", "list_of_states"),
        ("vllm/models/llama_eagle3.py", "__init__", "TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'", "null_width"),
    ],
)
def test_common_words_count_only_where_the_traceback_is_about_drafting(file, function, error, id_):
    assert one(TRACE.format(file=file, function=function, error=error)).id == id_
    assert one(TRACE.format(file="app/main.py", function="run", error=error)).id == "unknown"
    assert one(error).id == "unknown"


def test_every_row_has_what_it_needs_and_is_found_by_a_test():
    told = {m[1] for m in MESSAGES} | {"disaggregation", "fc_width", "width", "load_shape", "hidden_is_aux"}
    told |= {
        "no_state_captured",
        "capture_index",
        "list_of_states",
        "null_width",
        "worker_failed",
        "unused_weights",
        "draft_parallel",
        "speculators_type",
    }
    assert {row["id"] for row in errors.table()["patterns"]} == told
    assert len(errors.table()["patterns"]) >= 60
    for row in (*errors.table()["patterns"], *errors.table()["causes"].values()):
        assert row["standing"] in ("established", "claimed", "inferred")
        assert row["source"]
        assert all(re.search(r"#\d+$|\d\.\d", s) for s in row["source"])
        assert all(row[key].endswith((".", ")")) for key in ("meaning", "next"))
    kinds = {row.get("widths") for row in errors.table()["patterns"]} - {None}
    assert kinds <= {"fc", "sides", "rows", "load", "shape", "index"}


@pytest.mark.parametrize(
    ("text", "id_"),
    [
        ("Some weights of the model checkpoint at x were not used when initializing LlamaForCausalLM: ['fc']", "unused_weights"),
        ("speculative_draft_tensor_parallel_size=2 cannot be other value than 1 or target model tensor_parallel_size", "draft_parallel"),
        ("ValueError: Unsupported model_type: gemma for Eagle3 speculator", "speculators_type"),
        ("RuntimeError: Engine core initialization failed. See root cause above.", "worker_failed"),
    ],
)
def test_messages_without_a_thread_of_their_own(text, id_):
    assert one(text).id == id_


def test_what_follows_from_an_error_is_not_told_beside_it():
    text = "KeyError: 'embed_tokens.weight'\nRuntimeError: Engine core initialization failed. See root cause above."
    assert [e.id for e in explain_error(text)] == ["embed_tokens"]


@pytest.mark.parametrize(
    "text", ["hello", "ZeroDivisionError: division by zero", "x" * 10_000, "\x00\x1b[31m\n'", "Traceback (most recent call last):"]
)
def test_not_known_is_an_answer(text):
    (found,) = explain_error(text)
    assert (found.id, found.standing, finding(found).status) == ("unknown", "not known", Status.CANNOT_TELL)
    assert "No public report of it is known here." in finding(found).evidence


def test_what_is_not_known_still_has_its_place_and_shape_read():
    text = TRACE.format(file="sglang/srt/models/llama_eagle3.py", function="forward", error="FooError: got (2, 16, 2688)")
    found = one(text, Facts(hidden=896))
    assert (found.title, found.place) == ("Not known here: FooError", "the drafter's own forward")
    assert found.widths.sentences == ("2,688 is three slots of H = 896.",)


def test_shapes_of_a_message_that_is_not_known_are_read_only_where_h_is():
    text = "ValueError: Expected state of (*, 5), but got torch.Size([1, 32000])"
    assert one(text).widths.sentences == ()
    assert one(text, Facts(hidden=4096)).widths.sentences == ("32,000 is no whole number of states of H = 4,096.",)


def test_an_empty_text_is_an_error_of_whoever_gives_it():
    assert explain_error("  \n ") == []
    with pytest.raises(ValueError, match="--error is empty: expected an error message"):
        given("")


# -- logs --------------------------------------------------------------------------------------------------------------------------------

DECODE = "[2026-05-22 09:10:10 TP0] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, accept len: 2.17, accept rate: 0.54, cuda graph: True, gen throughput (token/s): 189.60, #queue-req: 0"
OF_SGLANG = """[2026-07-23 10:00:00 TP{rank}] Scheduler hit an exception: Traceback (most recent call last):
  File "/sgl/python/sglang/srt/managers/scheduler.py", line 2736, in run_scheduler_process
    scheduler.event_loop_overlap()
  File "/sgl/python/sglang/srt/models/llama_eagle3.py", line 240, in forward
    hidden_states = self.fc(hidden_states)
RuntimeError: The size of tensor a (8640) must match the size of tensor b (5760) at non-singleton dimension 1
"""


def log_case(tmp_path, text, engine=None):
    (tmp_path / "server.log").write_text(text, encoding="utf-8")
    return Investigation(write_case(tmp_path, {"engine": {"name": "sglang", "version": "0.5.16", "log": "server.log", **(engine or {})}}))


def test_an_error_of_every_rank_is_one_finding(tmp_path):
    inv = log_case(tmp_path, "".join(OF_SGLANG.format(rank=r) for r in range(8)))
    (found,) = findings(inv, "errors")
    assert (found.id, found.status) == ("errors.width", Status.FAIL)
    assert "line 6, 8 times" in found.claim
    assert "Raised in the drafter's own forward." in found.evidence


def test_a_server_that_went_on_is_not_called_stopped(tmp_path):
    (found,) = findings(log_case(tmp_path, OF_SGLANG.format(rank=0) + f"{DECODE}\n" * 3), "errors")
    assert found.status is Status.CANNOT_TELL
    assert "The server went on: 3 lines of decoding follow." in found.evidence
    (again,) = findings(log_case(tmp_path, f"{DECODE}\n" * 3 + OF_SGLANG.format(rank=0)), "errors")
    assert again.status is Status.FAIL


@pytest.mark.parametrize(
    "line",
    [
        DECODE,
        "[2026-05-22 09:10:10] Receive: obj=GenerateReqInput(text='RuntimeError: CUDA out of memory. KeyError: \\'embed_tokens.weight\\'')",
        "INFO 05-22 09:10:10 [logger.py:43] Received request cmpl-1: prompt: 'KeyError: embed_tokens.weight', params: SamplingParams(n=1)",
        "(APIServer pid=7) INFO 05-22 09:10:10 [proxy.py:3] user asks: KeyError: 'embed_tokens.weight'",
        "DEBUG 05-22 09:10:10 [proxy.py:3] RuntimeError: mat1 and mat2 shapes cannot be multiplied (112x5760 and 8640x2880)",
        "[2026-05-22 09:10:10] WARNING: attention backend fa3 is chosen",
        "!!!!!!!!!!!!!!!!!!!!!!!! ready !!!!!!!!!!!!!!!!!!!!!!!!",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
    ],
)
def test_what_users_send_and_what_harms_nobody_is_no_error(tmp_path, line):
    (found,) = findings(log_case(tmp_path, f"{line}\n{DECODE}\n"), "errors")
    assert (found.id, found.status) == ("errors", Status.PASS)


def test_an_unknown_traceback_counts_where_it_is_about_drafting_or_the_end(tmp_path):
    other = TRACE.format(file="app/metrics.py", function="push", error="FooError: no") + "\n"
    drafting = TRACE.format(file="sglang/srt/speculative/eagle_worker.py", function="verify", error="FooError: no") + "\n"
    assert [f.id for f in findings(log_case(tmp_path, other + DECODE), "errors")] == ["errors"]
    assert [f.id for f in findings(log_case(tmp_path, other), "errors")] == ["errors.unknown"]
    (found,) = findings(log_case(tmp_path, drafting + DECODE), "errors")
    assert (found.id, found.status) == ("errors.unknown", Status.CANNOT_TELL)


def test_levels_do_not_hide_errors_and_warnings(tmp_path):
    """vLLM prints a worker's error with its level before it; the word INFO may stand in the message itself."""
    line = "(EngineCore pid=7) ERROR 05-22 09:10:10 [core.py:3] "
    assert [f.id for f in findings(log_case(tmp_path, f"{line}KeyError: 'embed_tokens.weight'\n"), "errors")] == ["errors.embed_tokens"]
    behind = f"{line}{'x' * 64} INFO KeyError: 'embed_tokens.weight'\n"
    assert [f.id for f in findings(log_case(tmp_path, behind), "errors")] == ["errors.embed_tokens"]


def test_a_log_that_is_empty_or_breaks_off_is_not_free_of_errors(tmp_path):
    whole = gzip.compress(random.Random(0).randbytes(4000).hex("\n", 8).encode() + b"\n")
    for name, data, says in (
        ("a.log", b"", "a.log holds no line"),
        ("b.log", whole[:2000], "that could be read"),
        ("c.log", whole[:30], "c.log holds no line"),
    ):
        (tmp_path / name).write_bytes(data)
        (found,) = findings(Investigation(write_case(tmp_path, {"engine": {"name": "sglang", "log": name}})), "errors")
        assert (found.id, found.status) == ("errors", Status.CANNOT_TELL)
        assert says in found.title
    (tmp_path / "d.log").write_bytes(whole)
    (found,) = findings(Investigation(write_case(tmp_path, {"engine": {"name": "sglang", "log": "d.log"}})), "errors")
    assert found.status is Status.PASS


def test_a_warning_with_another_id_in_each_line_is_looked_at_once():
    reader = errors.Reader()
    for i in range(100):
        reader.take(i, f"WARNING request {random.Random(i).randbytes(8).hex()} failed after {i} s")
    assert len(reader.passed) == 1


def test_without_a_log_how_to_get_one_is_said(tmp_path):
    inv = Investigation(write_case(tmp_path, {"engine": {"name": "sglang"}}))
    (found,) = findings(inv, "errors")
    assert found.status is Status.NOT_GIVEN
    assert "[engine] log" in found.next


def test_many_kinds_of_errors_are_bounded(tmp_path):
    draw = random.Random(0)
    names = ["".join(draw.choices("abcdefgh", k=12)) for _ in range(60)]
    text = "".join(f"KeyError: 'midlayer.{name}.weight'\n" for name in names)
    found = findings(log_case(tmp_path, text), "errors")
    assert len(found) == errors.KEPT + 1
    assert found[-1].title == "40 further lines of the log hold other errors"


def test_the_example_has_no_error_and_its_facts_are_read():
    inv = Investigation(EXAMPLE)
    (found,) = findings(inv, "errors")
    assert found.status is Status.PASS
    facts = facts_of(inv)
    assert (facts.hidden, facts.slots, facts.num_layers, facts.vocab, facts.draft_vocab) == (576, 3, 30, 49152, 4096)
    assert (facts.ids, facts.steps, facts.draft_tokens) == ((-1, 2, 15), 3, 4)


def test_hostile_text_takes_no_long_time():
    draw = random.Random(0)
    letters = "abcXYZ(){}[]'\"`:.,0123456789 _-!%\\/"
    lines = ["".join(draw.choices(letters, k=300)) + " Error " for _ in range(300)]
    lines += [
        "Assertion `" * 800,
        "a." * 4000 + "Error",
        "(1, " * 2000 + "Error",
        "weights of " * 800,
        "hidden_state " * 500 + "NaN",
        "9" * 9000,
    ]
    lines += [f"The size of tensor a ({'9' * n}) must match the size of tensor b (0) at non-singleton dimension 1" for n in (1, 11, 400)]
    start = time.perf_counter()
    explain_lines(enumerate(lines, 1))
    for line in lines:
        explain_error(line)
    assert time.perf_counter() - start < 10


def test_decode_lines_are_passed_over_fast():
    lines = [DECODE] * 20_000
    start = time.perf_counter()
    assert explain_lines(enumerate(lines, 1)) == []
    assert time.perf_counter() - start < 5  # 100 MB hold half a million of them


def test_no_torch_is_loaded_to_explain():
    code = "import sys; from eaglelab.checks.errors import given; given('KeyError: d2t'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# -- the command line ----------------------------------------------------------------------------------------------------------------------


def test_a_message_is_explained_without_a_case(capsys, monkeypatch, tmp_path):
    text = SIDES.format(8640, 5760)
    assert main(["check", "--error", text]) == 1
    said = capsys.readouterr().out
    assert "[FAIL] Fewer slots come to the drafter's fc than it takes: 3 and 2 of H = 2,880  (errors.width)" in said
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    assert main(["check", "--error", "-"]) == 1
    assert capsys.readouterr().out == said
    (tmp_path / "message.txt").write_text(text)
    assert main(["check", "--error", f"@{tmp_path / 'message.txt'}"]) == 1
    assert capsys.readouterr().out == said


def test_a_case_says_what_the_widths_are(capsys):
    """The example's target has H = 576; its drafter takes three slots."""
    assert main(["check", str(EXAMPLE), "--json", "--error", FC.format(8, 1152, 1728, 576)]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["case"] == "example"
    assert told["findings"][0]["title"] == "Fewer slots come to the drafter's fc than it takes: 2 given, 3 expected (H = 576)"


def test_a_log_without_errors_passes_and_what_is_no_text_is_an_error(capsys, tmp_path):
    assert main(["check", "--error", f"@{EXAMPLE / 'engine' / 'sglang-claimed.log'}"]) == 0
    assert "[ok] No error in 147 lines" in capsys.readouterr().out
    long = tmp_path / "long.log"
    long.write_text(f"{DECODE}\n" * 3000 + OF_SGLANG.format(rank=0))
    assert main(["check", "--error", f"@{long}"]) == 1
    assert "(errors.width)" in capsys.readouterr().out
    assert main(["check", "--error", "what is this"]) == 3
    for wrong, said in (([], "check needs a case"), (["--error", ""], "is empty"), (["--error", "@/nowhere.log"], "no such file")):
        capsys.readouterr()
        assert main(["check", *wrong]) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "powershell.txt").write_text("KeyError: 'embed_tokens.weight'", encoding="utf-16")
    assert main(["check", "--error", f"@{tmp_path / 'powershell.txt'}"]) == 2
    assert "UTF-16" in capsys.readouterr().err
    assert main(["check", "--error", "accept_len: 1.00"]) == 3
    assert "is no error: name the whole log" in capsys.readouterr().out


def test_what_a_log_prints_moves_no_terminal(capsys):
    main(["check", "--error", "KeyError: 'embed_tokens.weight' \x1b[2J\x07"])
    assert "\x1b" not in capsys.readouterr().out


def test_the_page_lists_every_message_cause_and_fault():
    page = DOCS.read_text(encoding="utf-8")
    for row in errors.table()["patterns"]:
        assert (
            f"| `errors.{row['id']}` | {row['title'].replace('|', chr(92) + '|')} | {row['standing']}: {', '.join(row['source'])} |" in page
        )
    assert all(f"(`{name}`)" in page for name in errors.table()["causes"])
    assert all(f"`engine.known.{row['id']}`" in page for row in known.table())
