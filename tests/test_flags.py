"""The launch-flag audit. Known answers: SGLang's own resolution in ten wheels, vLLM's own config class (tests/engines/effective/)."""

import ast
import json
import re
from pathlib import Path

import pytest
import sglang_options
import sglang_resolution
from engine_wheels import VERSIONS
from hypothesis import given as any_of
from hypothesis import settings as with_settings
from hypothesis import strategies as st

from eaglelab.checks import findings
from eaglelab.cli import main
from eaglelab.engines.conventions import Engine, parse_engine
from eaglelab.engines.effective import audit, options
from eaglelab.engines.effective.rules import Rules, neighbours, table
from eaglelab.engines.effective.sglang import tree_nodes
from eaglelab.engines.launch import parse_launch
from eaglelab.engines.lint.flags import UNREAD  # noqa: F401 - the lint imports this room: no circle
from eaglelab.findings import Finding, Status
from eaglelab.investigation import Investigation
from eaglelab.replay.tree_choice import check_tree
from eaglelab.verdict import verdict

HERE = Path(__file__).parent
RECORDED = {name: json.loads((HERE / "engines" / "effective" / f"{name}.json").read_text()) for name in ("sglang", "vllm")}
LOG = HERE.parent / "data" / "example" / "engine" / "sglang-claimed.log"
LLAMA = {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32, "vocab_size": 128256}
QWEN = {"architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 48, "vocab_size": 151936}
EAGLE3 = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": 32000, "hidden_size": 64}
EAGLE = {"architectures": ["LlamaForCausalLMEagle"], "hidden_size": 64}
BARE = "python -m sglang.launch_server --model-path t --speculative-algorithm EAGLE3 --speculative-draft-model-path d"
CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
STORY = "--speculative-num-steps 1 --speculative-eagle-topk 1 --speculative-num-draft-tokens 16"
TREE = "--speculative-num-steps 5 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"


def look(line, engine="sglang==0.5.23", **more):
    return audit(parse_launch(line), parse_engine(engine), **more)


def found(line, engine="sglang==0.5.23", **more):
    """Findings by id; each id at most once, unless it is of unknown options or bad values."""
    return {f.id: f for f in look(line, engine, **more).findings}


def case(folder, launch, engine='name = "sglang"\nversion = "0.5.23"', **keys):
    """A case with a launch line, two configs, and further keys of [engine]."""
    folder.mkdir(exist_ok=True)
    (folder / "served.json").write_text(json.dumps(EAGLE3 | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 16, 29]}}))
    (folder / "target.json").write_text(json.dumps(LLAMA))
    more = "".join(f"{key} = {json.dumps(str(value))}\n" for key, value in keys.items())
    text = f'[target]\nconfig = "target.json"\n[engine]\n{engine}\nlaunch = {json.dumps(launch)}\ndraft_config = "served.json"\n{more}'
    (folder / "case.toml").write_text(text)
    return folder


def vllm(engine="vllm==0.32.0", flags="", **settings):
    return look(f"vllm serve m --speculative-config '{json.dumps(settings)}' {flags}", engine)


# -- the engines' own code ----------------------------------------------------------------------------------------------------------


def command(line):
    """A recorded line (variables, then flags) as a command."""
    variables = " ".join(word for word in line.split() if not word.startswith("-") and word.startswith("SGLANG"))
    return f"{variables} python -m sglang.launch_server --model-path t {line.removeprefix(variables)}"


@pytest.mark.parametrize("version", VERSIONS)
def test_effective_settings_are_those_of_sglangs_own_resolution(version):
    seen = 0
    for row in RECORDED["sglang"]:
        real = next(o["result"] for o in row["outcomes"] if version in o["versions"])
        target = {"architectures": [row["architecture"]], "num_hidden_layers": 2}
        mine = look(command(row["line"]), f"sglang=={version}", target_config=target).effective
        if "stops" in real:
            assert mine["starts"] is False, row["line"]
        else:
            assert {key: mine[key] for key in real} == real, row["line"]
        seen += 1
    assert seen == 55


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_recorded_of_sglang_is_what_its_wheel_does(version, tmp_path):
    for row in RECORDED["sglang"]:
        recorded = next(o["result"] for o in row["outcomes"] if version in o["versions"])
        assert sglang_resolution.resolved(version, row["line"], row["architecture"], tmp_path) == recorded, row["line"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_options_are_those_of_the_wheel(version):
    real = sglang_options.options(version)
    listed = options.options(Engine("sglang", version), version) - set(options.SERVE_ONLY)
    # The other list, of the newest version, has internal fields too.
    assert real - listed == set()
    assert listed - real == set() or (version == VERSIONS[-1] and len(listed - real) < 20)


def test_effective_settings_are_those_of_vllms_own_config_class():
    for row in RECORDED["vllm"]:
        settings, real = row["settings"], row["result"]
        if settings.get("model") == "DRAFTER":
            settings = settings | {"model": "some/eagle3-drafter"}
        mine = audit(
            parse_launch(f"vllm serve m --speculative-config '{json.dumps(settings)}'"), parse_engine("vllm==0.32.0"), draft_config=EAGLE3
        ).effective
        if "stops" in real:
            assert mine["starts"] is False, settings
        else:
            assert {key: mine[key] for key in real} == real, settings
            assert mine["starts"] is True, settings
            assert (mine["eagle_topk"], mine["num_draft_tokens"]) == (1, real["num_steps"] + 1)


def test_the_keys_of_vllms_config_against_its_own_source():
    found = sorted((HERE.parent / ".live" / "vllm").glob("lib/python*/site-packages/vllm/config/speculative.py"))
    if not found:
        pytest.skip("no vllm under .live/ (`make live` installs it)")
    tree = ast.parse(found[0].read_text())
    config = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "SpeculativeConfig")
    real = {n.target.id for n in config.body if isinstance(n, ast.AnnAssign)}
    mine = set(table()["vllm"]["fields"].split())
    assert mine <= real
    assert real - mine == {"target_model_config", "target_parallel_config", "draft_parallel_config"}  # the engine's own to fill in


def test_every_rule_stands_between_versions_that_were_read():
    read = table()["read"]["sglang"]
    assert read == VERSIONS
    by_rule = {}
    for row in table()["rules"]:
        first, last = read.index(row["first"]), read.index(row["last"])
        assert first <= last
        for place in range(first, last + 1):
            assert (row["what"], place) not in by_rule, f"two rows of {row['what']} for {read[place]}"
            by_rule[row["what"], place] = row
    assert all(("algorithms", place) in by_rule for place in range(len(read)))


# -- the story ------------------------------------------------------------------------------------------------------------------------


def test_the_storys_line_verifies_2_tokens_and_not_16():
    told = look(f"{BARE} {STORY}")
    assert (told.given["num_steps"], told.given["num_draft_tokens"]) == (1, 16)
    assert (told.effective["num_steps"], told.effective["eagle_topk"], told.effective["num_draft_tokens"]) == (1, 1, 2)
    finding = next(f for f in told.findings if f.id == "flags.draft_tokens")
    assert finding.status is Status.FAIL
    assert finding.title == "SGLang 0.5.23 verifies 2 tokens a pass, not the 16 of the line: with top-k 1 the steps decide"
    assert "an accept length above 2 cannot be reached" in finding.evidence
    assert "speculative_hook.py:1255" in finding.evidence
    assert finding.numbers == {"asked": 16, "in_force": 2, "steps": 1}
    assert finding.next == (
        "Say which was meant: --speculative-num-draft-tokens 2, or --speculative-num-steps 15 --speculative-num-draft-tokens 16."
    )


def test_sglang_0_4_5_does_not_override_and_fails_at_the_first_draft():
    told = found(f"{BARE} {STORY}", "sglang==0.4.5")
    assert "flags.draft_tokens" not in told
    assert told["flags.tree"].numbers == {"candidates": 1, "asked": 16}
    assert "at most 2 can be verified" in told["flags.tree"].title


def test_a_line_without_fault_passes_with_one_finding():
    told = look(f"{BARE} {CHAIN}")
    assert [(f.id, f.status) for f in told.findings] == [("flags.effective", Status.PASS)]
    assert told.effective["starts"] is True


# -- SGLang: steps, top-k, draft tokens -----------------------------------------------------------------------------------------------


def test_without_the_targets_class_the_default_chain_cannot_be_told():
    told = look(BARE)
    assert told.effective["num_steps"] is None
    finding = {f.id: f for f in told.findings}["flags.chain"]
    assert finding.status is Status.CANNOT_TELL
    assert "[3, 1, 4] or [5, 4, 8]" in finding.title
    assert look(BARE, "sglang==0.4.5").effective["num_draft_tokens"] == 8  # there every class gets the same


@pytest.mark.parametrize(("target", "chain"), [(LLAMA, (5, 4, 8)), (QWEN, (3, 1, 4))])
def test_the_default_chain_of_a_target(target, chain):
    told = look(BARE, target_config=target)
    assert tuple(told.effective[k] for k in ("num_steps", "eagle_topk", "num_draft_tokens")) == chain
    assert {f.id for f in told.findings} == {"flags.effective"}


@pytest.mark.parametrize(
    ("flags", "raises", "then"),
    [
        ("--speculative-num-steps 3", "TypeError", "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4"),
        ("--speculative-eagle-topk 1", "AssertionError", "Add --speculative-num-steps."),
        ("--speculative-num-draft-tokens 4", "AssertionError", "Add --speculative-num-steps 3."),
    ],
)
def test_a_chain_that_is_given_in_part_ends_the_start_up(flags, raises, then):
    told = look(f"{BARE} {flags}", target_config=LLAMA)
    finding = {f.id: f for f in told.findings}["flags.chain"]
    assert finding.status is Status.FAIL
    assert raises in finding.evidence
    assert then in finding.next
    assert told.effective["starts"] is False
    assert told.effective["num_steps"] is None


@pytest.mark.parametrize(("steps", "topk", "nodes"), [(1, 2, 2), (5, 4, 68), (1, 1, 1), (3, 1, 3), (2, 8, 72)])
def test_the_limit_of_a_tree(steps, topk, nodes):
    """Counted level by level: top-k children of the root, then top-k of each of the top-k kept."""
    assert nodes == topk + sum(topk * topk for _ in range(steps - 1)) == tree_nodes(steps, topk)
    line = f"{BARE} --speculative-num-steps {steps} --speculative-eagle-topk {topk} --speculative-num-draft-tokens"
    if topk > 1:
        assert "flags.tree" not in found(f"{line} {max(nodes + 1, steps + 1)}")
        assert found(f"{line} {nodes + 2}")["flags.tree"].numbers == {"candidates": nodes, "asked": nodes + 2}
        with pytest.raises(ValueError, match=str(nodes)):
            check_tree(steps, topk, nodes + 2)  # the replay draws the same limit


def test_steps_that_no_path_of_the_tree_can_hold():
    line = f"{BARE} --speculative-num-steps 8 --speculative-eagle-topk 4 --speculative-num-draft-tokens 4"
    finding = found(line)["flags.tree"]
    assert finding.numbers == {"steps": 8, "draft_tokens": 4}
    assert "--speculative-num-steps 3" in finding.next


def test_pages_and_backends_of_a_tree():
    assert "flags.page_size" not in found(f"{BARE} {TREE} --page-size 16 --attention-backend triton")
    old = found(f"{BARE} {TREE} --page-size 16 --attention-backend triton", "sglang==0.5.12")["flags.page_size"]
    assert "flashinfer, fa3" in old.title
    assert found(f"{BARE} {TREE} --page-size 16")["flags.page_size"].status is Status.CANNOT_TELL
    assert found(f"{BARE} {TREE} --attention-backend trtllm_mha")["flags.backend"].status is Status.FAIL
    lowered = look(f"{BARE} {TREE} --page-size 16", "sglang==0.4.5")
    assert lowered.effective["eagle_topk"] == 1
    assert {f.id: f for f in lowered.findings}["flags.page_size"].numbers == {"asked": 4, "in_force": 1}


# -- SGLang: the drafter --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["EAGLE", "NEXTN", "eagle"])
@pytest.mark.report("sgl-project/sglang#21272", "AF")
@pytest.mark.report("sgl-project/sglang#25673", "AF")
def test_eagle_for_an_eagle3_drafter(name):
    line = f"{BARE.replace('EAGLE3', name)} {CHAIN}"
    told = look(line, draft_config=EAGLE3)
    assert told.effective["algorithm"] == "EAGLE"
    finding = {f.id: f for f in told.findings}["flags.algorithm"]
    assert finding.status is Status.FAIL
    assert "about 1.00" in finding.evidence
    assert "flags.algorithm" not in found(line, draft_config=EAGLE)
    assert found(f"{BARE} {CHAIN}", draft_config=EAGLE)["flags.algorithm"].next.startswith("Write --speculative-algorithm EAGLE,")


def test_eagle_where_the_widths_differ_promises_no_accept_length():
    told = found(f"{BARE.replace('EAGLE3', 'EAGLE')} {CHAIN}", draft_config=EAGLE3, target_config=LLAMA | {"hidden_size": 4096})
    assert "4096 wide, which a drafter of hidden size 64 cannot take" in told["flags.algorithm"].evidence
    assert "1.00" not in told["flags.algorithm"].evidence


@pytest.mark.parametrize(
    ("engine", "line", "what", "says"),
    [
        ("sglang", "python -m sglang.launch_server --model-path t", "off", "serves without speculation"),
        ("sglang", f"{BARE.replace('EAGLE3', 'STANDALONE')} {CHAIN}", "algorithm", "STANDALONE is given for an EAGLE-3 drafter"),
        ("sglang", BARE.replace("EAGLE3", "NGRAM"), "algorithm", "NGRAM is given for an EAGLE-3 drafter"),
        ("sglang", 'sglang serve t "$@"', "line", 'what "$@" holds the shell alone knows'),
        ("sglang", "sglang serve t --config s.yaml", "line", "the flags in s.yaml (--config) are not read"),
        ("vllm", "vllm serve t", "off", "serves without speculation"),
        ("vllm", "vllm serve t --spec-method ngram --spec-tokens 3", "algorithm", "as method ngram"),
    ],
)
def test_lines_that_do_not_use_the_drafter_as_eagle3(engine, line, what, says):
    version = {"sglang": "sglang==0.5.23", "vllm": "vllm==0.32.0"}[engine]
    told = found(line, version, draft_config=EAGLE3)
    assert says in told[f"flags.{what}"].title
    assert told[f"flags.{what}"].status is (Status.CANNOT_TELL if what == "line" else Status.FAIL)
    assert what != "line" or "flags.off" not in told
    assert "flags.off" not in found(line, version)  # no drafter, nothing meant


def test_a_speculators_folder_brings_its_own_config():
    assert "flags.off" not in found("vllm serve d", "vllm==0.32.0", draft_config={"speculators_model_type": "eagle3"})


def test_a_drafter_whose_name_says_nothing_is_not_judged():
    assert "flags.algorithm" not in found(f"{BARE} {CHAIN}", draft_config={"architectures": ["LlamaForCausalLM"]})


def test_small_letters_are_refused_by_older_versions():
    line = f"{BARE.replace('EAGLE3', 'eagle3')} {CHAIN}"
    assert look(line).effective["algorithm"] == "EAGLE3"
    told = look(line, "sglang==0.5.9")
    assert told.effective["starts"] is False
    assert "eagle3 is no algorithm of SGLang 0.5.9" in told.findings[0].title


def test_flags_without_an_algorithm_serve_without_speculation():
    told = found(f"python -m sglang.launch_server --model-path t {STORY}")
    assert "names no --speculative-algorithm" in told["flags.off"].title
    assert "flags.draft_tokens" not in told
    assert found("sglang serve t")["flags.effective"].title == "SGLang 0.5.23 starts without speculation"


def test_no_path_to_a_drafter():
    line = f"sglang serve t --speculative-algorithm EAGLE3 {CHAIN}"
    deepseek = {"architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 61}
    assert "the target's own draft layer" in found(line, target_config=deepseek)["flags.draft_model"].title
    assert "nothing to draft with" in found(line, target_config=LLAMA)["flags.draft_model"].title
    assert "flags.draft_model" not in found(line.replace("EAGLE3", "EAGLE"), target_config=deepseek)
    assert found(line.replace("EAGLE3", "EAGLE"))["flags.draft_model"].status is Status.CANNOT_TELL


@pytest.mark.parametrize(
    ("flag", "what"),
    [
        ("--speculative-draft-load-format dummy", "dummy"),
        ("--load-format dummy", "dummy"),
        ("--speculative-token-map hot.pt", "token_map"),
        ("--speculative-accept-threshold-single 0.5", "thresholds"),
        ("--speculative-accept-threshold-acc=0.9", "thresholds"),
        ("--pp-size 2", "pipeline"),
        ("--disable-cuda-graph", "cuda_graph"),
        ("--disable-decode-cuda-graph", "cuda_graph"),
        ("--cuda-graph-backend-decode disabled", "cuda_graph"),
        ('--cuda-graph-config \'{"decode": {"backend": "disabled"}}\'', "cuda_graph"),
    ],
)
def test_flags_that_spoil_the_serving(flag, what):
    assert found(f"{BARE} {CHAIN} {flag}")[f"flags.{what}"].status is Status.FAIL


def test_rejection_sampling_wants_the_whole_vocabulary():
    line = f"{BARE} {CHAIN} --speculative-use-rejection-sampling"
    assert found(line, target_config=LLAMA, draft_config=EAGLE3)["flags.rejection_sampling"].numbers == {"draft": 32000, "target": 128256}
    assert "flags.rejection_sampling" not in found(line, target_config=LLAMA, draft_config=EAGLE3 | {"draft_vocab_size": 128256})


# -- SGLang: graphs, batches, environment -----------------------------------------------------------------------------------------------


def test_graphs_that_end_below_the_running_requests():
    line = f"{BARE} {CHAIN} --max-running-requests 64 --cuda-graph-max-bs-decode 8"
    seen = found(line, running=9)["flags.cuda_graph"]
    assert (seen.status, seen.numbers, seen.next) == (
        Status.FAIL,
        {"running": 9, "largest": 8},
        "Write --cuda-graph-max-bs-decode 9 or more.",
    )
    assert "flags.cuda_graph" not in found(line, running=8)
    assert found(line)["flags.cuda_graph"].status is Status.CANNOT_TELL
    assert found(f"{BARE} {CHAIN}", running=8)["flags.cuda_graph"].status is Status.CANNOT_TELL  # the default needs the GPU
    assert look(f"{BARE} {CHAIN} --cuda-graph-bs-decode 1 2 16").effective["cuda_graph_max_bs"] == 16
    assert look(f"{BARE} {CHAIN} --cuda-graph-max-bs 8", "sglang==0.5.9").effective["cuda_graph_max_bs"] == 8
    assert look(f"{BARE} {CHAIN} --cuda-graph-max-bs 8", "sglang==0.5.17").effective["cuda_graph_max_bs"] == 8


def test_an_option_whose_name_was_taken_away_stops_the_newer_version():
    line = f"{BARE} {CHAIN} --cuda-graph-max-bs 8"
    finding = found(line)["flags.unknown"]
    assert finding.title == (
        "SGLang 0.5.23 does not take --cuda-graph-max-bs: it could be --cuda-graph-max-bs-decode or --cuda-graph-max-bs-prefill"
    )
    assert finding.next == "Write --cuda-graph-max-bs-decode."
    assert look(line).effective["starts"] is False
    assert found(line, "sglang==0.5.17")["flags.deprecated"].next == "Write --cuda-graph-max-bs-decode."
    assert {f.id for f in look(line, "sglang==0.5.13").findings} == {"flags.cuda_graph"}  # 8 < 48


def test_the_48_requests_that_come_with_speculation():
    assert look(f"{BARE} {CHAIN}").effective["max_running_requests"] == 48
    assert look(f"{BARE} {CHAIN} --max-running-requests 200").effective["max_running_requests"] == 200
    assert found(f"{BARE} {CHAIN} --disable-cuda-graph", running=48)["flags.max_running_requests"].numbers == {"running": 48, "most": 48}
    assert "flags.max_running_requests" not in found(f"{BARE} {CHAIN}", running=47)


@pytest.mark.parametrize(
    ("version", "variable", "made_up"),
    [
        ("0.5.23", "SGLANG_SIMULATE_ACC_LEN=3.5", True),
        ("0.5.3", "SGLANG_SIMULATE_ACC_LEN=1", True),
        ("0.5.23", "SGLANG_SIMULATE_ACC_LEN=-1", False),
        ("0.5.23", "SGLANG_SIMULATE_ACC_LEN=", False),
        ("0.5.23", "SIMULATE_ACC_LEN=3", False),
        ("0.4.9", "SIMULATE_ACC_LEN=3", True),
        ("0.4.9", "SGLANG_SIMULATE_ACC_LEN=3", False),
    ],
)
def test_an_accept_length_that_the_environment_makes_up(version, variable, made_up):
    for line in (f"{variable} {BARE} {CHAIN}", f"export {variable}\n{BARE} {CHAIN}", f"docker run -e {variable} image {BARE} {CHAIN}"):
        assert ("flags.simulated" in found(line, f"sglang=={version}")) is made_up, line


def test_the_overlap_variable_by_version():
    line = f"SGLANG_ENABLE_SPEC_V2=0 {BARE} {CHAIN}"
    assert "has no effect in SGLang 0.5.23: the overlap scheduler is on" in found(line)["flags.overlap"].title
    assert "flags.overlap" not in found(line, "sglang==0.5.12")
    assert look(line, "sglang==0.5.12").effective["overlap_schedule"] is False
    on = look(f"SGLANG_ENABLE_SPEC_V2=1 {BARE} {TREE}", "sglang==0.5.9")
    assert on.effective["starts"] is False
    assert on.findings[0].id == "flags.overlap"


def test_mixed_chunk_by_version():
    line = f"{BARE} {CHAIN} --enable-mixed-chunk"
    assert found(line, "sglang==0.5.17")["flags.mixed_chunk"].status is Status.FAIL
    assert found(line)["flags.mixed_chunk"].status is Status.CANNOT_TELL


def test_adaptive_steps():
    told = look(f"{BARE} --speculative-adaptive", target_config=LLAMA)
    assert (told.effective["num_steps"], told.effective["num_draft_tokens"], told.effective["adaptive"]) == (3, 4, True)
    off = look(f"{BARE} {TREE} --speculative-adaptive")
    assert off.effective["adaptive"] is False
    assert "it works with top-k 1, not 4" in off.findings[0].title
    stops = look(f"{BARE} {CHAIN.replace('steps 3', 'steps 2')} --speculative-adaptive")
    assert "[0, 1, 3, 5, 7]" in stops.findings[0].title
    attention = f"{BARE} {CHAIN} --speculative-adaptive --attn-dp-size 2"
    assert "data-parallel attention" in found(attention)["flags.adaptive"].title
    from_file = look(f"{BARE} --speculative-adaptive --speculative-adaptive-config a.json", target_config=LLAMA)
    assert from_file.effective["num_steps"] is None


def test_on_the_cpu_the_temperature_is_not_applied():
    told = look(f"{BARE} {CHAIN} --device cpu", running=4)
    assert {f.id for f in told.findings if f.status is Status.CANNOT_TELL} == {"flags.temperature"}
    assert told.effective["overlap_schedule"] is False


# -- versions -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "near"),
    [
        ("0.5.23", ("0.5.23",)),
        ("0.5.6.post2", ("0.5.6",)),
        ("0.5.16", ("0.5.17", "0.5.14")),
        ("0.5.10", ("0.5.9", "0.5.12")),
        ("0.5.20", ("0.5.17", "0.5.23")),
        ("0.3.0", ("0.4.5",)),
        ("0.6.0", ("0.5.23",)),
        ("0.5.0", ("0.5.3", "0.4.9")),
        (None, ("0.5.23",)),
    ],
)
def test_the_version_that_speaks_for_one_that_was_not_read(version, near):
    assert neighbours(Engine("sglang", version)) == near


def test_neighbours_that_disagree_are_both_told():
    line = f"{BARE} {CHAIN}"
    between = found(line, "sglang==0.5.10")["flags.version"]
    assert between.status is Status.CANNOT_TELL
    assert between.numbers == {"overlap_schedule": {"0.5.9": False, "0.5.12": True}}
    assert found(line, "sglang==0.5.20")["flags.version"].status is Status.PASS
    assert found(line, "sglang==0.6.1")["flags.version"].status is Status.CANNOT_TELL
    assert "flags.version" not in found(line, "sglang==0.5.6.post1")


def test_without_a_version_it_is_said_whether_that_matters():
    same = found(f"{BARE} {CHAIN}", "sglang")["flags.version"]
    assert same.status is Status.PASS
    assert "the same in all that were read, 0.4.5 to 0.5.23" in same.title
    story = found(f"{BARE} {STORY}", "sglang")["flags.version"]
    assert story.status is Status.CANNOT_TELL
    assert "in 0.4.5 the line leads to another answer on: num_draft_tokens" in story.title  # it alone lacks the override
    assert (story.numbers["num_draft_tokens"]["0.4.5"], story.numbers["num_draft_tokens"]["0.4.9"]) == (16, 2)
    assert "[engine] version" in story.next


def test_options_are_not_called_wrong_for_a_version_that_nobody_knows():
    told = look(f"{BARE} {CHAIN} --cuda-graph-max-bs 8", "sglang")
    assert {f.id: f.status for f in told.findings}["flags.unknown"] is Status.CANNOT_TELL
    assert told.effective["starts"] is None
    old = look("vllm serve m --speculative-model d --num-speculative-tokens 5", "vllm==0.6.0")
    assert {f.status for f in old.findings} == {Status.CANNOT_TELL}
    assert all("vLLM 0.6.0 does not take" not in f.title for f in old.findings)


def test_a_rule_that_a_version_lacks_cannot_be_quoted():
    with pytest.raises(KeyError, match="no rule 'chain' in 0\\.4\\.5"):
        Rules("0.4.5").read("chain")


# -- options and values ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flag", "title", "then"),
    [
        ("--speculative-num-stepz 3", "--speculative-num-stepz: it has no such option", "Write --speculative-num-steps."),
        ("--no-such-thing", "--no-such-thing: it has no such option", "Leave it out, or serve with the version that has it."),
        ("--pp 2", "--pp: it could be --pp-async-batch-depth or --pp-max-micro-batch-size or --pp-size", "Write it in full."),
    ],
)
def test_words_that_are_no_options(flag, title, then):
    told = look(f"{BARE} {CHAIN} {flag}")
    finding = {f.id: f for f in told.findings}["flags.unknown"]
    assert title in finding.title
    assert finding.next.startswith(then)
    assert told.effective["starts"] is False


def test_beginnings_of_options_count():
    told = look(f"sglang serve t --speculative-alg EAGLE3 --speculative-draft-model-p d {CHAIN.replace('num-steps', 'num-s')} --tp 8")
    assert told.effective["num_steps"] == 3
    assert {f.id for f in told.findings} == {"flags.effective"}


@pytest.mark.parametrize(
    ("value", "said"),
    [("x", "is 'x', expected a whole number"), ("2.5", "is '2.5'"), ("1e1", "is '1e1'"), ("3 4", "is '3 4'"), ("", "is nothing")],
)
def test_values_that_are_no_numbers(value, said):
    told = look(f"{BARE} --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --speculative-num-steps {value}")
    assert said in {f.id: f for f in told.findings}["flags.value"].title
    assert told.effective["starts"] is False
    assert told.effective["num_steps"] is None


@pytest.mark.parametrize("value", ["-1", "0"])
def test_numbers_that_mean_nothing(value):
    told = look(f"{BARE} --speculative-num-steps={value} --speculative-eagle-topk 1 --speculative-num-draft-tokens 4")
    assert told.given["num_steps"] == int(value)
    assert told.effective["num_draft_tokens"] == int(value) + 1  # as the engine computes it, recorded above
    assert [f.title for f in told.findings] == [f"--speculative-num-steps is {value}, expected 1 or more"]
    assert told.effective["starts"] is True


def test_a_variable_in_place_of_a_number():
    told = look(f"{BARE} --speculative-num-steps $STEPS --speculative-eagle-topk 1 --speculative-num-draft-tokens 4")
    assert told.effective["num_draft_tokens"] is None
    assert {f.id: f for f in told.findings}["flags.value"].status is Status.CANNOT_TELL


# -- vLLM -----------------------------------------------------------------------------------------------------------------------------


def test_vllm_options_of_earlier_versions():
    told = look("vllm serve m --speculative-model d --num-speculative-tokens 5 --speculative-disable-by-batch-size 8", "vllm==0.32.0")
    assert told.effective["starts"] is False
    assert [f.next for f in told.findings if f.id == "flags.unknown"] == [
        "Write --spec-model.",
        "Write --spec-tokens.",
        "Write num_speculative_tokens_per_batch_size in --speculative-config.",
    ]


def test_vllm_flags_that_lead_elsewhere():
    full = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
    assert [f.id for f in vllm(**full).findings] == ["flags.effective"]
    assert {f.id for f in vllm(**full, enforce_eager=True).findings} == {"flags.cuda_graph"}
    assert {f.id for f in vllm(**full, flags="--enforce-eager").findings} == {"flags.cuda_graph"}
    unpadded = vllm(**full, disable_padded_drafter_batch=True)
    assert unpadded.effective["overlap_schedule"] is False
    assert {f.id for f in unpadded.findings} == {"flags.overlap"}
    assert vllm(**full, disable_padded_drafter_batch=True, flags="--async-scheduling").effective["starts"] is False
    assert {f.id for f in vllm(**full, num_speculative_tokens_per_batch_size=[[1, 8, 3]]).findings} == {"flags.adaptive"}
    assert {f.id for f in vllm(**full, flags="--load-format dummy").findings} == {"flags.dummy"}
    both = look(f"vllm serve m --spec-tokens 2 --speculative-config '{json.dumps(full)}'", "vllm==0.32.0")
    assert "mutually exclusive" in {f.id: f for f in both.findings}["flags.keys"].evidence
    assert vllm(**full, flags="-tp 4 --no-enable-prefix-caching").effective["draft_tensor_parallel_size"] == 4
    assert vllm(**full | {"draft_tensor_parallel_size": 2}, flags="-tp 4").effective["starts"] is False


def test_vllm_graph_sizes_count_tokens():
    line = 'vllm serve m --speculative-config \'{"method": "eagle3", "model": "d", "num_speculative_tokens": 3}\' --max-cudagraph-capture-size 64'
    told = look(line, "vllm==0.32.0", running=17)
    assert told.effective["cuda_graph_max_bs"] == 16  # 64 tokens, 3 + 1 a request
    assert {f.id: f for f in told.findings}["flags.cuda_graph"].numbers == {"largest": 16, "running": 17}
    assert "flags.cuda_graph" not in {f.id for f in look(line, "vllm==0.32.0", running=16).findings}


def test_vllm_methods():
    def of(drafter, **config):
        line = f"vllm serve m --speculative-config '{json.dumps(config)}'"
        return {f.id: f for f in look(line, "vllm==0.32.0", draft_config=drafter).findings}

    assert "no method is given" in of(EAGLE3, model="me/eagle-head", num_speculative_tokens=3)["flags.algorithm"].evidence.lower()
    assert "flags.algorithm" not in of(EAGLE3, model="me/x-eagle3", num_speculative_tokens=3)
    assert "flags.algorithm" in of(EAGLE, method="eagle3", model="d", num_speculative_tokens=3)
    assert of(None, method="EAGLE3", model="d", num_speculative_tokens=3)["flags.algorithm_name"].next == "Write eagle3."
    speculators = {"speculators_model_type": "eagle3", "speculators_config": {"proposal_methods": [{"speculative_tokens": 5}]}}
    line = 'vllm serve m --speculative-config \'{"method": "eagle3", "model": "d"}\''
    assert look(line, "vllm==0.32.0", draft_config=speculators).effective["num_draft_tokens"] == 6
    assert {f.id: f for f in look(line, "vllm==0.32.0").findings}["flags.steps"].status is Status.CANNOT_TELL


# -- hostile input --------------------------------------------------------------------------------------------------------------------


def test_a_line_of_the_other_engine():
    told = look("vllm serve m --speculative-config '{}'")
    assert [(f.id, f.status) for f in told.findings] == [("flags.engine", Status.CANNOT_TELL)]
    assert set(told.effective.values()) == {None}
    assert [f.id for f in look(f"{BARE} {STORY}", "vllm==0.32.0").findings] == ["flags.engine"]


@pytest.mark.parametrize("line", ["", "   \n", "bash run_everything.sh", "python -m sglang.launch_server --model 'x", "ls; true"])
def test_lines_that_say_nothing(line):
    told = look(line)
    assert [(f.id, f.status) for f in told.findings][:1] == [("flags.line", Status.CANNOT_TELL)]
    assert told.effective["algorithm"] is None


def test_a_config_that_is_no_json_is_not_called_no_speculation(capsys):
    line = "vllm serve m --speculative-config '{method: eagle3}'"
    told = look(line, "vllm==0.32.0")
    assert told.effective["starts"] is False
    assert [(f.id, f.status) for f in told.findings] == [("flags.value", Status.FAIL)]
    assert run(capsys, line, "--engine", "vllm==0.32.0")[1].startswith("vLLM 0.32.0: does not start\n")
    assert look(line, "vllm==0.6.0").effective["starts"] is None
    assert run(capsys, line, "--engine", "vllm==0.6.0")[1].startswith("vLLM 0.6.0: nothing of speculation is known")
    assert "flags.value" not in found("vllm serve m --speculative-config None", "vllm==0.32.0")
    assert "flags.value" not in found('vllm serve m --speculative-config "$CONFIG"', "vllm==0.32.0")


def test_bare_flags_are_read_and_said_to_be():
    told = look(f"--speculative-algorithm EAGLE3 --speculative-draft-model-path d {STORY}")
    assert told.effective["num_draft_tokens"] == 2
    assert "its flags are taken for those of SGLang 0.5.23" in {f.id: f for f in told.findings}["flags.line"].title


def test_flags_as_one_pastes_them_say_what_they_would_become(capsys):
    code, out, _ = run(capsys, STORY)  # no program, no algorithm, no --engine
    assert code == 0
    assert out.startswith("SGLang: nothing of speculation is known\n")
    assert (
        "[cannot tell] No --speculative-algorithm on it: a fragment? With EAGLE3 SGLang 0.5.23 would draft 1 step with top-k 1 and verify 2 tokens"
        in out
    )
    assert "--engine sglang==VERSION" in out
    assert "the same in all that were read" not in out  # 0.4.5 verifies 16
    one = found(STORY)["flags.off"]
    assert one.status is Status.CANNOT_TELL
    assert one.title.endswith("would draft 1 step with top-k 1 and verify 2 tokens a pass, not the 16 of the line")
    assert found(STORY, "sglang==0.4.5")["flags.off"].title.endswith("verify 16 tokens a pass")  # it does not override
    assert found(TREE)["flags.off"].title.endswith("would draft 5 steps with top-k 4 and verify 8 tokens a pass")
    assert "would not start: --speculative-eagle-topk without" in found("--speculative-eagle-topk 4 --tp 8")["flags.off"].title
    served = found(f"sglang serve t {STORY}")["flags.off"]
    assert served.status is Status.FAIL
    assert "verify 2 tokens a pass, not the 16 of the line" in served.evidence


def test_bare_flags_of_vllm_are_read_as_its_own(capsys):
    config = json.dumps({"method": "eagle3", "model": "d", "num_speculative_tokens": 3})
    code, out, _ = run(capsys, f"--speculative-config '{config}' --max-num-seqs 8")
    assert code == 0
    assert out.startswith("vLLM: num_speculative_tokens 3 (drafts 3, verifies 4), algorithm eagle3, max_running_requests 8\n    also: ")


def test_the_first_line_is_what_decides(capsys):
    lines = run(capsys, f"{BARE} {STORY}", "--engine", "sglang==0.5.23")[1].splitlines()
    first = "num_steps 1, eagle_topk 1, num_draft_tokens 2 (asked: 16), algorithm EAGLE3, max_running_requests 48"
    assert lines[0] == f"SGLang 0.5.23: {first}"
    assert lines[1].startswith("    also: overlap_schedule True, ")
    told = vllm(method="eagle3", model="d", num_speculative_tokens=3).findings[0]
    assert told.title == "vLLM 0.32.0 takes the line as it is written; it drafts 3 and verifies 4 tokens a pass"


@pytest.mark.parametrize(
    ("engine", "status"),
    [
        ("sglang", Status.FAIL),
        ("sglang==0.5.23", Status.FAIL),
        ("sglang==0.5.6.post1", Status.FAIL),
        ("sglang==0.5.10", Status.CANNOT_TELL),
    ],
)
def test_a_word_that_no_version_takes_stops_the_parser(engine, status):
    told = look(f"{BARE} {CHAIN} --no-such-thing", engine)
    assert {f.id: f for f in told.findings}["flags.unknown"].status is status
    assert told.effective["starts"] is (False if status is Status.FAIL else None)


def test_a_call_in_python():
    call = 'import sglang as sgl\nsgl.Engine(model_path="t", speculative_algorithm="EAGLE3", speculative_draft_model_path="d", '
    told = look(call + "speculative_num_steps=1, speculative_eagle_topk=1, speculative_num_draft_tokens=16, tp_size=2)")
    assert told.effective["num_draft_tokens"] == 2
    assert {f.id for f in told.findings} == {"flags.draft_tokens"}


def test_what_trains_is_no_engine():
    with pytest.raises(ValueError, match=r"expected an engine that serves: sglang, vllm"):
        audit(parse_launch(BARE), parse_engine("specforge"))


WORDS = st.sampled_from(
    [
        *("--speculative-num-steps", "--speculative-eagle-topk", "--speculative-num-draft-tokens", "--speculative-algorithm", "EAGLE3"),
        *(
            "-1",
            "0",
            "3",
            "1e999",
            "nan",
            "$X",
            '"',
            "'",
            "--page-size",
            "--cuda-graph-config",
            "{",
            "[1",
            "--speculative-adaptive",
            "--tp",
        ),
        *(
            "--cuda-graph-bs-decode",
            "--attention-backend",
            "trtllm_mha",
            "--device",
            "cpu",
            "--enable-dp-attention",
            "--dp-size",
            "=",
            "\\",
        ),
        *("--speculative-config", '\'{"method": "eagle3"}\'', "--speculative-accept-threshold-acc", "--speculative-config.model", "\u202e"),
        *("--max-cudagraph-capture-size", "--compilation-config", "'{\"cudagraph_mode\": null}'", "--speculative-use-rejection-sampling"),
    ]
)


@with_settings(max_examples=40, deadline=None)
@any_of(st.lists(WORDS, max_size=14), st.sampled_from(["sglang==0.4.5", "sglang==0.5.11", "sglang", "vllm"]), st.booleans())
def test_no_line_raises_and_every_answer_is_json(words, engine, dressed):
    program = {"s": "python -m sglang.launch_server", "v": "vllm serve m"}[engine[0]] if dressed else ""
    told = look(f"{program} {' '.join(words)}", engine, target_config=LLAMA, draft_config=EAGLE3, running=3)
    data = json.loads(json.dumps(told.to_json(), default=str))
    assert {"engine", "given", "effective", "findings"} == set(data)
    assert told.findings
    assert len({f.title for f in told.findings}) == len(told.findings)


@pytest.mark.parametrize("config", [{}, {"architectures": []}, {"architectures": [3]}, {"num_hidden_layers": "x"}, {"text_config": {}}])
def test_configs_that_say_nothing(config):
    told = look(f"{BARE} {STORY}", target_config=config, draft_config=config)
    assert told.effective["num_draft_tokens"] == 2


# -- the command ----------------------------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    code = main(["flags", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_with_a_line_a_file_and_configs(capsys, tmp_path):
    code, out, _ = run(capsys, f"{BARE} {STORY}", "--engine", "sglang==0.5.23", "--json")
    data = json.loads(out)
    assert code == 0
    assert data["engine"] == "sglang==0.5.23"
    assert data["given"]["num_draft_tokens"] == 16
    assert data["effective"]["num_draft_tokens"] == 2
    assert [f["status"] for f in data["findings"]] == ["fail"]
    file = tmp_path / "serve.sh"
    file.write_text(f"#!/bin/bash\nexport SGLANG_SIMULATE_ACC_LEN=2\n{BARE} {CHAIN} \\\n  --tp 8\n")
    (tmp_path / "target.json").write_text(json.dumps(LLAMA))
    (tmp_path / "draft.json").write_text(json.dumps(EAGLE3))
    code, out, _ = run(capsys, file, "--target", tmp_path / "target.json", "--drafter", tmp_path / "draft.json", "--running", "4")
    assert code == 0
    assert "num_draft_tokens 4" in out
    assert "[FAIL] The accept length is made up" in out
    assert "(flags.version)" in out  # no --engine: the newest that was read


def test_the_command_with_a_case(capsys, tmp_path):
    code, out, _ = run(capsys, case(tmp_path, f"{BARE} {STORY}"), "--json")
    assert code == 0
    assert json.loads(out)["effective"]["num_draft_tokens"] == 2


def test_a_line_longer_than_a_files_name_may_be(capsys):
    line = f"{BARE} {STORY} --served-model-name {'x' * 200}"
    assert 255 < len(line) < 1024
    assert "/" not in line
    code, out, _ = run(capsys, line, "--engine", "sglang==0.5.23")
    assert (code, "num_draft_tokens 2 (asked: 16)" in out) == (0, True)


def test_what_is_in_force_and_not_on_the_line_is_said(capsys, tmp_path):
    assert "no speculation" in run(capsys, "sglang serve t", "--engine", "sglang==0.5.23")[1]
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    out = run(capsys, BARE, "--engine", "sglang==0.5.23", "--target", tmp_path)[1]
    assert "not on it and in force: num_steps 5, eagle_topk 4, num_draft_tokens 8, max_running_requests 48" in out


# -- in a case's check -----------------------------------------------------------------------------------------------------------------


def checked(*arguments, **keys):
    """(findings by id, verdict) of `check --cheap` without the drafter's other findings."""
    inv = Investigation(str(case(*arguments, **keys)))
    told = [f for name in ("served.flags", "served.log", "flags") for f in findings(inv, name)]
    return {f.id: f for f in told}, verdict(told, inv)


LONGER = CHAIN.replace("tokens 4", "tokens 16")


def test_one_voice_in_a_case_with_a_log(tmp_path):
    """3 steps and 16 draft tokens are asked for; the log's own settings are 3 and 4, as the audit says of the line."""
    told, said = checked(tmp_path, f"{BARE} {LONGER}", log=LOG)
    assert told["flags.draft_tokens"].numbers == {"asked": 16, "in_force": 4, "steps": 3}
    assert told["served.flags"].status is Status.PASS
    assert told["served.log.graphs"].status is Status.PASS  # on a CPU, by the log's own column
    assert "flags.cuda_graph" not in told
    assert said.stage == "engine"
    assert said.text.startswith(f"Engine: {told['flags.draft_tokens'].title}")


def test_a_log_without_the_column_leaves_graphs_to_the_flags(tmp_path):
    lines = [line for line in LOG.read_text().splitlines() if "Decode batch" in line]
    (tmp_path / "gpu.log").write_text("\n".join(re.sub(r"\w+ graph: \w+, ", "", line) for line in lines))
    told, _ = checked(tmp_path, f"{BARE} {CHAIN}", log="gpu.log")
    assert told["flags.cuda_graph"].status is Status.CANNOT_TELL
    (tmp_path / "gpu.log").write_text("\n".join(re.sub(r"\w+ graph: \w+", "cuda graph: True", line) for line in lines))
    told, _ = checked(tmp_path, f"{BARE} {CHAIN}", log="gpu.log")
    assert "flags.cuda_graph" not in told
    assert told["served.log.graphs"].title == "Every decode line ran as a captured graph"


def test_a_log_or_a_config_that_cannot_be_read_does_not_hide_the_flags(tmp_path):
    folder = case(tmp_path, f"{BARE} {STORY}", log="gone.log")
    (folder / "gone.log").write_bytes(bytes(range(256)))
    (folder / "served.json").write_text("{")
    inv = Investigation(str(folder))
    assert "flags.draft_tokens" in {f.id for f in findings(inv, "flags")}


@pytest.mark.parametrize(
    ("engine", "what", "says"),
    [
        ('name = "sglang"', "flags.version", "[engine] version"),
        ("", "flags.version", "[engine] version"),
        ('name = "vllm"\nversion = "0.32.0"', "flags.engine", "`[engine] name` and `version`"),
    ],
)
def test_a_case_without_a_version_or_with_another_engines_line(tmp_path, engine, what, says):
    told, _ = checked(tmp_path, f"{BARE} {STORY}", engine=engine)
    assert told[what].status is Status.CANNOT_TELL
    assert says in told[what].next


def test_a_server_that_drafts_as_eagle3_excuses_the_lines_word():
    wrong = Finding("flags.algorithm", "EAGLE is given for an EAGLE-3 drafter", Status.FAIL)
    told = {wrong.id: wrong}
    assert verdict(told.values()).faults[0].stage == "engine"
    drafts = Finding("served.expected", "Reached as predicted", Status.PASS, numbers={"as_fed": True})
    assert not verdict([wrong, drafts]).faults


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-file.sh",), "neither a file nor a launch line"),
        (("ls -la",), "names no server of SGLang or vLLM"),
        (("",), "the launch line is empty"),
        ((LOG,), "is a server's log, not its launch line"),
        ((BARE, "--engine", "tensorrt"), "unknown engine"),
        ((BARE, "--engine", "specforge"), "expected an engine that serves"),
        ((BARE, "--target", "nowhere.json"), "nowhere.json"),
    ],
)
def test_what_the_command_cannot_use(capsys, arguments, said):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert said in err


def test_an_empty_line_is_a_finding(capsys):
    code, out, _ = run(capsys, "", "--engine", "sglang==0.5.23")
    assert code == 0
    assert "nothing of speculation is known" in out
    assert "there is nothing on it" in out
