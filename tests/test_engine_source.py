"""The engines' own code asked: published SGLang wheels against the shipped table, vLLM where it is installed, and wheels made to be nasty."""

import gzip
import io
import json
import re
import tarfile
import time
import zipfile
from functools import lru_cache
from pathlib import Path

import pytest

from eaglelab.case import CaseError, open_case
from eaglelab.checks.configs import engine_feeds
from eaglelab.engines.conventions import ConventionError, Engine, convention_for, parse_engine, table, table_convention
from eaglelab.engines.source import vllm
from eaglelab.engines.source.archive import SourceError, open_source
from eaglelab.engines.source.classes import Package
from eaglelab.engines.source.convention import Disagreement, disagreement, source_convention
from eaglelab.engines.source.interpreter import CannotTell
from eaglelab.engines.source.rows import as_toml, rows_of, words_of
from eaglelab.engines.source.sglang import config_keys, registered, target, targets
from eaglelab.engines.source.target import is_drafter
from eaglelab.engines.wiring_report import corrected_config, engine_wiring
from eaglelab.findings import Status
from eaglelab.investigation import Investigation
from eaglelab.wiring import FINAL
from tests.engine_wheels import USUAL, VERSIONS, published, toy_files, toy_model, toy_wheel

KEY = "eagle_aux_hidden_state_layer_ids"
DEEPSEEK, LLAMA, QWEN3_MOE, GPT_OSS = "DeepseekV3ForCausalLM", "LlamaForCausalLM", "Qwen3MoeForCausalLM", "GptOssForCausalLM"


def id_lists(n: int) -> list[list[int] | None]:
    """None, empty, in and out of order, twice the same, the first and the last layers, out of range on both sides."""
    few = [None, [], [1, 2, 3], [2, 3], [n - 2, 1], [2, 2, 3], [1, 1], [-1, 2], [0, 2], [2, n - 1], [2, n], [1, n], [n, 2], [n + 3, 1]]
    return [*few, [-2, 2], [-n - 4, 2], [n - 1], [2, -1, n], [1, n // 2, n - 4], [2, n // 2, n - 3]]


@lru_cache(maxsize=2)
def setters(version: str) -> dict:
    return targets(open_source("sglang", published(version)))


LISTED = sorted({a for row in table()["rows"] if row["family"] == "sglang" for a in row["architectures"] if a != "*"})


@pytest.mark.parametrize("version", VERSIONS)
def test_every_architecture_with_a_setter_is_in_the_table(version):
    untold = {"MindSporeForCausalLM"}  # hands the ids on to a library of another house
    assert sorted(set(setters(version)) - set(LISTED)) == sorted(untold & set(setters(version)))


def no_capture(name: str) -> set[str]:
    return set(table()["families"][name]["no_capture"].split())


@pytest.mark.parametrize("version", ["0.5.3", "0.5.23"])
def test_every_registered_class_has_a_setter_or_is_said_to_have_none(version):
    found = {a: cls for a, cls in registered(open_source("sglang", published(version))).items() if not is_drafter(a)}
    assert len(found) > 100
    without = {a for a, cls in found.items() if cls.find("set_eagle3_layers_to_capture") is None}
    assert without - no_capture("sglang") <= set(LISTED)  # those that had one, or got one later
    assert not no_capture("sglang") & (found.keys() - without)
    assert not no_capture("sglang") & set(LISTED)


@pytest.mark.parametrize("architecture", LISTED)
@pytest.mark.parametrize("version", VERSIONS)
def test_the_table_says_what_the_engines_own_functions_do(version, architecture):
    asked, row = setters(version).get(architecture), table_convention(Engine("sglang", version), architecture)
    assert row.assumptions == ()
    if asked is None:
        assert row.rule == "none", f"{architecture} has no setter in {version}"
        return
    for n in (4, 24):
        for ids in id_lists(n):
            own, fed = asked.run(ids, n), row.feed(ids, n)
            said, what = " ".join(fed.notes), f"N = {n}, ids {ids}: own {own}, table {fed}"
            if row.rule == "none":
                assert own.boundaries == (), what
                continue
            if own.error:
                kinds = {"IndexError": "IndexError", "TypeError": "unpatched, it raises", "RuntimeError": "captured X of Y"}
                kinds["AssertionError"] = kinds["RuntimeError"]
                assert kinds[own.error.split(": ")[1]] in said, what
            if "TypeError" not in own.error and "IndexError" not in own.error:
                assert list(own.boundaries) == [b for b in fed.boundaries if b is not None], what
            assert own.no_residual == (row.bug == "no_residual") or not own.boundaries, what


# Facts that others published or ran: N, ids, boundaries.
KNOWN = [
    *[(v, DEEPSEEK, 61, [2, 30, 58], (3, 31, 59)) for v in ("0.5.6", "0.5.9", "0.5.12")],
    *[(v, DEEPSEEK, 61, [2, 30, 58], (2, 30, 58)) for v in ("0.5.13", "0.5.14", "0.5.23")],
    *[(v, DEEPSEEK, 61, [1, 29, 57], (2, 30, 58)) for v in ("0.5.12", "0.5.13", "0.5.23")],
    *[(v, GPT_OSS, 36, [24, 30, 36], (25, 31)) for v in ("0.5.3", "0.5.14")],
    *[(v, GPT_OSS, 36, [24, 30, 36], (24, 30, 36)) for v in ("0.5.17", "0.5.23")],
    ("0.5.23", "KimiK25ForConditionalGeneration", 61, [2, 30, 58], (2, 30, 58)),
    ("0.5.23", "MiniMaxM3SparseForConditionalGeneration", 62, None, (3, 32, 60)),
    ("0.5.23", "Llama4ForConditionalGeneration", 48, [2, 24, 45], (3, 25, 46)),
    ("0.5.3", QWEN3_MOE, 94, None, (2, 47, 91)),
    ("0.4.5", LLAMA, 32, [5, 6], (2, 16, 29)),
]


@pytest.mark.parametrize(("version", "architecture", "n", "ids", "boundaries"), KNOWN)
def test_known_answers(version, architecture, n, ids, boundaries):
    own = setters(version)[architecture].run(ids, n)
    assert own.boundaries == boundaries
    assert own.assumptions == ()


def test_gemma3_lost_its_residual_between_two_wheels():
    """0.5.12's layers add the residual before they return; later ones hand it on beside a branch, and the capture was not mended."""
    assert not setters("0.5.12")["Gemma3ForCausalLM"].run([2, 3], 26).no_residual
    assert setters("0.5.23")["Gemma3ForCausalLM"].run([2, 3], 26).no_residual


def test_qwen3_5_captured_nothing_for_a_while():
    """Its layers wait for a flag that the setter of 0.5.12 to 0.5.17 did not set."""
    for version in ("0.5.12", "0.5.17"):
        own = setters(version)["Qwen3_5ForConditionalGeneration"].run([2, 9, 14], 24)
        assert (own.numbers, own.boundaries) == ((3, 10, 15), ())
    assert setters("0.5.23")["Qwen3_5ForConditionalGeneration"].run([2, 9, 14], 24).boundaries == (3, 10, 15)


@pytest.mark.parametrize("version", VERSIONS)
def test_where_the_ids_are_read(version):
    keys, uses_aux, where = config_keys(open_source("sglang", published(version)))
    if version == "0.4.5":
        assert keys == ()  # no ids are read at all
        return
    assert keys == (f"eagle_config.{KEY}",)
    assert uses_aux == table_convention(Engine("sglang", version), LLAMA).reads_use_aux
    assert "srt/model_executor/" in where


# ------------------------------------------------------------------------------------------------------------------- sglang@PATH
DRAFT = {
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 256,
    "architectures": ["LlamaForCausalLMEagle3"],
}
TOY = {"architectures": ["ToyForCausalLM"], "num_hidden_layers": 30}


def nested(ids, **more):
    return {**DRAFT, "eagle_config": {KEY: ids, **more}}


def test_a_version_that_nobody_knows_answers_for_itself(tmp_path):
    wheel = toy_wheel(tmp_path, version="9.9")
    fed = engine_wiring(nested([-1, 2, 15]), TOY, f"sglang@{wheel}")
    assert fed.to_json()["wiring"] == {"engine": [0, 3, 16]}
    assert (fed.engine.version, fed.engine.title, fed.assumptions) == ("9.9", "SGLang 9.9", ())
    assert fed.convention.rule == "plus_one"
    assert fed.convention.read.endswith("srt/models/toy.py:29; ids read in srt/model_executor/model_runner.py:6")
    assert parse_engine(str(fed.engine)) == fed.engine
    new, diff = corrected_config(nested([-1, 2, 15]), (3, 16, 28), TOY, fed.engine)
    assert new["eagle_config"][KEY] == [2, 15, 27]
    assert "+++ config.sglang-9.9.json" in diff


def test_a_rule_that_the_table_has_no_word_for(tmp_path):
    body = "self.model.layers_to_capture = [1] if layer_ids is None else [2 * i for i in layer_ids]"
    convention = convention_for(f"sglang@{toy_wheel(tmp_path, toy_files(body))}", "ToyForCausalLM")
    assert (convention.rule, convention.default) == ("engine", ("1",))
    assert convention.feed([1, 4, 8], 30).boundaries == (2, 8, 16)
    assert convention.feed(None, 30).boundaries == (1,)
    assert convention.assumptions == ()


FORWARDS = {
    "after the layer": (
        "            if i in self.layers_to_capture:\n"
        "                aux_hidden_states.append(hidden_states if residual is None else hidden_states + residual)\n"
        "            hidden_states, residual = self.layers[i](positions, hidden_states, residual)\n",
        "            hidden_states, residual = self.layers[i](positions, hidden_states, residual)\n"
        "            if i in self.layers_to_capture:\n"
        "                aux_hidden_states.append(hidden_states + residual)\n",
        [2, 6, 11],
        (4, 8),
    ),
    "no residual": ("hidden_states + residual)", "hidden_states)", [2, 6], (3, 7)),
    "the last layer too": (
        "        return hidden_states, aux",
        "        if len(self.layers) in self.layers_to_capture:\n            aux_hidden_states.append(hidden_states + residual)\n"
        "        return hidden_states, aux",
        [2, 11],
        (3, 12),
    ),
    "one layer more": ("range(len(self.layers))", "range(1, len(self.layers))", [2, 11], None),
}


@pytest.mark.parametrize("change", FORWARDS)
def test_the_forward_decides(tmp_path, change):
    old, new, ids, boundaries = FORWARDS[change]
    text = toy_model()
    assert old in text
    source = open_source("sglang", toy_wheel(tmp_path, {**toy_files(), "srt/models/toy.py": text.replace(old, new)}))
    asked = target(source, "ToyForCausalLM")
    if boundaries is None:
        with pytest.raises(CannotTell, match="layer 1 runs after 0 layers"):
            asked.run(ids, 12)
        return
    own = asked.run(ids, 12)
    assert own.boundaries == boundaries
    assert own.no_residual == (change == "no residual")
    convention = convention_for(Engine("sglang", "0.9.1", source.where and str(tmp_path / source.where)), "ToyForCausalLM")
    assert convention.bug == ("no_residual" if change == "no residual" else None)
    assert [b for b in convention.feed(ids, 12).boundaries if b is not None] == list(boundaries)


SETTERS = {
    "flags": "for i in layer_ids or [1]:\n    setattr(self.model.layers[i + 1], '_x', True)\n" + USUAL,
    "helper": "self.model.layers_to_capture = [2] if layer_ids is None else shifted(layer_ids)",
    "loop": "kept = []\nfor i in layer_ids or [1, 2]:\n    kept.append(i + 1)\nself.model.layers_to_capture = sorted(set(kept))",
}


@pytest.mark.parametrize("body", SETTERS)
def test_setters_of_many_styles(tmp_path, body):
    asked = target(open_source("sglang", toy_wheel(tmp_path, toy_files(SETTERS[body]))), "ToyForCausalLM")
    assert asked.run([2, 6, 9], 12).boundaries == (3, 7, 10)


NASTY = {
    "import": ("__import__('os').system('touch {mark}')\n" + USUAL, None),
    "import statement": ("import os\nos.system('touch {mark}')\n" + USUAL, "not a statement that is followed"),
    "open": ("open('{mark}', 'w').write('x')\n" + USUAL, None),
    "exec": ("exec(\"open('{mark}', 'w')\")\n" + USUAL, None),
    "classes": ("().__class__.__bases__[0].__subclasses__()\n" + USUAL, None),
    "getattr": ("getattr(self, '__class__')\n" + USUAL, None),
    "globals": ("globals()['x'] = 1\n" + USUAL, "which is not followed"),
    "while": ("while True:\n    pass\n" + USUAL, "not a statement that is followed"),
    "long loop": ("for a in range(9999):\n    for b in range(9999):\n        pass\n" + USUAL, "more than 400,000 steps"),
    "huge range": ("for a in range(10 ** 12):\n    pass\n" + USUAL, "cannot be told"),
    "large range": ("for a in range(1000000000):\n    pass\n" + USUAL, "more than 10,000 entries"),
    "huge number": ("a = 9999999\na = a * a\na = a * a\n" + USUAL, "is a number beyond"),
    "huge list": ("a = [1] * 9999999999\nself.model.layers_to_capture = a", "cannot be told"),
    "growing list": ("a = [1]\nfor i in range(60):\n    a = a + a\n" + USUAL, "more than 10,000 entries"),
    "recursion": ("self.set_eagle3_layers_to_capture(layer_ids)", "nested more than 20 deep"),
    "unknown test": ("if environment.flag:\n    return\n" + USUAL, "`environment.flag` decides, and it cannot be told from the text"),
    "unknown helper": ("configure(self.model, layer_ids)", "is handed the layers, and what it does cannot be told"),
    "unknown ids": ("self.model.layers_to_capture = read_file()", "what is set as layers_to_capture cannot be told"),
    "nothing set": ("pass", "it sets no layers_to_capture on a model that is known"),
    "lambda": ("self.model.layers_to_capture = list(map(lambda i: i, layer_ids))", "is not an expression that is followed"),
}


@pytest.mark.parametrize("name", NASTY)
def test_nothing_of_the_engine_runs(tmp_path, name):
    """Harmless where it is passed over, `cannot tell` with the reason where it decides; never run, never long."""
    body, reason = NASTY[name]
    mark = tmp_path / "mark"
    wheel = toy_wheel(tmp_path, toy_files(body.replace("{mark}", str(mark))))
    started = time.process_time()
    convention = convention_for(f"sglang@{wheel}", "ToyForCausalLM")
    assert not mark.exists()
    assert time.process_time() - started < 20
    if reason is None:
        assert convention.assumptions == ()
        assert convention.feed([2, 15, 27], 30).boundaries == (3, 16, 28)
    else:
        assert reason in convention.assumptions[0]
        assert "does not say by itself what it captures" in convention.assumptions[0]
        assert "the table's rule is assumed" in convention.assumptions[0]


def test_code_that_cannot_be_parsed(tmp_path):
    deep = {**toy_files(), "srt/models/deep.py": "x = " + "(" * 5000 + ")" * 5000 + "\n# ToyForCausalLM\nEntryClass = []"}
    broken = {"srt/models/broken.py": "def (:\n# ToyForCausalLM EntryClass", "srt/models/nul.py": "x = 1\0 # ToyForCausalLM EntryClass"}
    wheel = toy_wheel(tmp_path, {**deep, **broken})
    assert convention_for(f"sglang@{wheel}", "ToyForCausalLM").rule == "plus_one"


@pytest.mark.parametrize("body", ["x = " + "-" * 20000 + "1", "x = " + "1 + " * 20000 + "1", "x = self" + ".a" * 20000])
def test_expressions_without_end(tmp_path, body):
    convention = convention_for(f"sglang@{toy_wheel(tmp_path, toy_files(body + chr(10) + USUAL))}", "ToyForCausalLM")
    assert convention.rule == "plus_one"
    assert re.search(r"nested too deeply|srt/models/toy.py cannot be read as Python", convention.assumptions[0])


def test_a_wheel_of_a_thousand_megabytes_of_zeros(tmp_path):
    path = tmp_path / "sglang-9.9-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for i in range(100):
            wheel.writestr(f"sglang/srt/models/m{i}.py", b"\0" * (3 << 20))
    assert path.stat().st_size < 1 << 20
    with pytest.raises(SourceError, match="holds more than 256 MB of Python: no engine does"):
        parse_engine(f"sglang@{path}")


def test_a_check_says_where_code_and_table_differ(tmp_path):
    text = toy_model(USUAL.replace("i + 1", "i + 3")).replace("ToyForCausalLM", LLAMA)
    wheel = toy_wheel(tmp_path, {**toy_files(), "srt/models/toy.py": text}, version="0.5.23")
    for name, config in {"target.json": {"architectures": [LLAMA], "num_hidden_layers": 30}, "config.json": nested([2, 15, 24])}.items():
        (tmp_path / name).write_text(json.dumps(config))
    (tmp_path / "case.toml").write_text(
        f'[engine]\nname = "sglang"\nsource = "{Path(wheel).name}"\ndraft_config = "config.json"\n[target]\nconfig = "target.json"\n'
    )
    found = {f.id: f for f in engine_feeds(Investigation(open_case(tmp_path)))}
    assert found["wiring.engine"].status == Status.PASS
    assert found["wiring.engine_source"].status == Status.FAIL
    assert "feeds [5, 18, 27], the shipped table says [3, 16, 25]" in found["wiring.engine_source"].title


def test_an_architecture_that_is_not_there(tmp_path):
    wheel = toy_wheel(tmp_path)
    convention = convention_for(f"sglang@{wheel}", "NobodyForCausalLM")  # a plug-in may register it
    assert convention.rule == "plus_one"
    assert (
        "(no model of sglang-0.9.1-py3-none-any.whl is registered as NobodyForCausalLM): the table's rule is assumed"
        in convention.assumptions[0]
    )
    assert engine_wiring(nested([2, 15, 27]), {**TOY, "architectures": ["NobodyForCausalLM"]}, f"sglang@{wheel}").other_versions == ()
    bare = toy_files()["srt/models/toy.py"].replace("set_eagle3_layers_to_capture", "another_method")
    wheel = toy_wheel(tmp_path, {**toy_files(), "srt/models/toy.py": bare}, version="0.9.2")
    fed = engine_wiring(nested([1, 2]), TOY, f"sglang@{wheel}")
    assert fed.boundaries == (None, None)
    assert "ToyForCausalLM (srt/models/toy.py) has no set_eagle3_layers_to_capture. The start-up fails." in fed.notes[0]
    assert "architecture is not given" in convention_for(f"sglang@{wheel}").assumptions[0]


def test_places_that_hold_no_engine(tmp_path):
    other = toy_wheel(tmp_path, {"__init__.py": ""}, name="other", project="other")
    renamed = toy_wheel(tmp_path, project="notsglang")
    (tmp_path / "cut.whl").write_bytes(Path(toy_wheel(tmp_path)).read_bytes()[:300])
    (tmp_path / "text.whl").write_text("no zip")
    (tmp_path / "cut.tar.gz").write_bytes(gzip.compress(b"x" * 2000)[:40])
    (tmp_path / "empty").mkdir()
    for place, message in [
        (other, "holds no package sglang"),
        (renamed, "is the package 'notsglang', expected sglang"),
        (tmp_path / "cut.whl", "neither a wheel .* nor an sdist"),
        (tmp_path / "text.whl", "neither a wheel"),
        (tmp_path / "cut.tar.gz", "no readable sdist"),
        (tmp_path / "empty", "holds no package sglang: expected the folder sglang/ itself"),
        (tmp_path / "nowhere.whl", "nothing there; expected a wheel, an sdist"),
        ("installed", "sglang is not installed for this Python"),
    ]:
        with pytest.raises(SourceError, match=message):
            parse_engine(f"sglang@{place}")
    for name in ("sglang", "vllm"):
        empty = toy_wheel(tmp_path, {"__init__.py": ""}, name=name, project=name, version="9.1")
        (tmp_path / "bare" / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / "bare" / name / "__init__.py").write_text("")
        for place in (empty, tmp_path / "bare", tmp_path / "bare" / name):
            with pytest.raises(SourceError, match=f"holds the package {name} without its models .*is it the whole engine"):
                parse_engine(f"{name}@{place}")
    with pytest.raises(ConventionError, match="only an engine's own code can be asked"):
        parse_engine(f"specforge@{tmp_path}")
    assert parse_engine("sglang@0.5.23") == Engine("sglang", "0.5.23")


def test_a_member_that_is_damaged_settles_nothing(tmp_path):
    path = Path(toy_wheel(tmp_path))
    with zipfile.ZipFile(path) as wheel:
        start = wheel.getinfo("sglang/srt/models/toy.py").header_offset + 120
    data = bytearray(path.read_bytes())
    data[start : start + 8] = b"damaged!"
    path.write_bytes(bytes(data))
    assert "(srt/models/toy.py cannot be read as Python)" in convention_for(f"sglang@{path}", "ToyForCausalLM").assumptions[0]
    known = Engine("sglang", "0.5.23", str(path))  # a row of the table does not heal a damaged copy
    assert "cannot be read as Python" in convention_for(known, LLAMA).assumptions[0]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, "encrypted", "unknown"])
def test_metadata_that_cannot_be_unpacked(tmp_path, method):
    """zlib.error, LZMAError, OSError, RuntimeError, NotImplementedError: each says that the download is not whole."""
    path = tmp_path / "sglang-9.9-py3-none-any.whl"
    packed = method if isinstance(method, int) else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", packed) as wheel:
        wheel.writestr("sglang/srt/models/toy.py", "x = 1\n" * 50)
        wheel.writestr("sglang-9.9.dist-info/METADATA", "Name: sglang\nVersion: 9.9\n" + "Filler\n" * 200)
        info = wheel.getinfo("sglang-9.9.dist-info/METADATA")
    data = bytearray(path.read_bytes())
    start, entry = info.header_offset + 30 + len(info.filename), data.rindex(b"PK\x01\x02")
    if method == "encrypted":
        data[info.header_offset + 6] |= 1
        data[entry + 8] |= 1
    elif method == "unknown":
        data[info.header_offset + 8] = data[entry + 10] = 99
    else:
        data[start : start + 24] = b"\xff" * 24
    path.write_bytes(bytes(data))
    with pytest.raises(SourceError, match=r"METADATA cannot be read: .*is the download whole"):
        parse_engine(f"sglang@{path}")


@pytest.mark.parametrize("kind", ["sdist", "checkout", "site-packages", "package", "environment"])
def test_the_same_answer_from_every_place(tmp_path, kind):
    files = toy_files()
    inner = {"checkout": "checkout/python/sglang", "environment": "venv/lib/python3.12/site-packages/sglang"}
    root = tmp_path / inner.get(kind, "place/sglang")
    if kind == "sdist":
        place = tmp_path / "sglang-0.9.1.tar.gz"
        with tarfile.open(place, "w:gz") as archive:
            members = {f"sglang-0.9.1/python/sglang/{f}": t for f, t in files.items()}
            for name, text in {**members, "sglang-0.9.1/PKG-INFO": "Name: sglang\nVersion: 0.9.1\n"}.items():
                info = tarfile.TarInfo(name)
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
    else:
        for file, text in {**files, "version.py": '__version__ = "0.9.1"'}.items():
            (root / file).parent.mkdir(parents=True, exist_ok=True)
            (root / file).write_text(text)
        places = {"checkout": tmp_path / "checkout", "site-packages": root.parent, "package": root, "environment": tmp_path / "venv"}
        place = places[kind]
    fed = engine_wiring(nested([2, 15, 27]), TOY, f"sglang@{place}")
    assert (fed.engine.version, fed.boundaries, fed.assumptions) == ("0.9.1", (3, 16, 28), ())


def test_inheritance_delegation_and_names_handed_on(tmp_path):
    """An outer class that hands on to an inner one, whose class its subclass chooses by a parameter."""
    outer = """
from torch import nn
from sglang.srt.models.toy import ToyForCausalLM, ToyModel

class Other(ToyModel):
    def forward(self, input_ids, positions):
        return super().forward(input_ids, positions)

class Outer(nn.Module):
    def __init__(self, config, inner=ToyForCausalLM):
        self.language_model = inner(config.text_config)

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if self.language_model is None or not hasattr(self.language_model, "set_eagle3_layers_to_capture"):
            raise AttributeError("not supported")
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

class Chosen(ToyForCausalLM):
    def __init__(self, config):
        self.model = Other(config)

class OuterChoosing(Outer):
    def __init__(self, config, other=Chosen):
        super().__init__(config, other)

class Unsupported(Outer):
    def __init__(self, config):
        super().__init__(config, inner=Other)

EntryClass = [Outer, OuterChoosing, Unsupported]
"""
    source = open_source("sglang", toy_wheel(tmp_path, {**toy_files(), "srt/models/outer.py": outer}))
    for name in ("Outer", "OuterChoosing"):
        assert target(source, name).run([2, 6], 12).boundaries == (3, 7)
    assert target(source, "Unsupported").run([2, 6], 12).error == "start-up: AttributeError: not supported"


def test_rows_out_of_two_wheels(tmp_path):
    old, new = toy_wheel(tmp_path, version="0.9.1"), toy_wheel(tmp_path, toy_files(USUAL.replace("i + 1", "i")), version="0.9.2")
    rows = rows_of(dict(words_of("sglang", wheel) for wheel in (new, old)), "sglang")
    assert [(r.get("since"), r.get("after"), r["rule"]) for r in rows] == [(None, None, "plus_one"), ("0.9.2", "0.9.1", "as_is")]
    assert 'rule = "as_is"' in as_toml(rows)


def test_a_disagreement_with_the_table_is_found(tmp_path):
    text = toy_model(USUAL.replace("i + 1", "i + 3")).replace("ToyForCausalLM", LLAMA)
    patched = Engine("sglang", "0.5.23", toy_wheel(tmp_path, {**toy_files(), "srt/models/toy.py": text}, version="0.5.23"))
    found = disagreement(patched, LLAMA, [2, 15, 24], 30)
    assert isinstance(found, Disagreement)
    assert (found.own.boundaries, found.by_table.boundaries) == ((5, 18, 27), (3, 16, 25))
    assert disagreement(patched, LLAMA, None, 30) is None
    assert disagreement(Engine("sglang", "0.5.23"), LLAMA, [2, 15, 24], 30) is None
    assert disagreement(Engine("sglang", "0.5.23", published("0.5.23")), LLAMA, [2, 15, 24], 30) is None


def test_the_keys_come_from_the_source_or_are_said_to_be_assumed(tmp_path):
    files = toy_files()
    del files["srt/model_executor/model_runner.py"]
    fed = engine_wiring(nested([2, 15, 27]), TOY, f"sglang@{toy_wheel(tmp_path, files)}")
    assert "the table's keys are assumed" in fed.assumptions[0]
    deaf = toy_files()
    deaf["srt/model_executor/model_runner.py"] = deaf["srt/model_executor/model_runner.py"].replace(
        'eagle_config.get("use_aux_hidden_state", True)', "True"
    )
    wheel = toy_wheel(tmp_path, deaf, version="0.9.2")
    fed = engine_wiring(nested([2, 15, 27], use_aux_hidden_state=False), TOY, f"sglang@{wheel}")
    assert fed.boundaries == (3, 16, 28)
    assert "which SGLang 0.9.2 does not read: it captures all the same" in " ".join(fed.notes)
    fed = engine_wiring(nested([2, 15, 27], use_aux_hidden_state=False), TOY, f"sglang@{toy_wheel(tmp_path, version='0.9.3')}")
    assert fed.boundaries == (FINAL,)


def test_a_case_names_the_source(tmp_path):
    wheel = toy_wheel(tmp_path)
    (tmp_path / "case.toml").write_text(f'[engine]\nname = "sglang"\nsource = "{Path(wheel).name}"\n')
    assert open_case(tmp_path).engine.spec == f"sglang@{wheel}"
    (tmp_path / "case.toml").write_text('[engine]\nname = "sglang"\nsource = "installed"\n')
    assert open_case(tmp_path).engine.spec == "sglang@installed"
    (tmp_path / "case.toml").write_text(f'[engine]\nname = "sglang@{Path(wheel).name}"\n')
    assert open_case(tmp_path).engine.spec == f"sglang@{wheel}"
    (tmp_path / "case.toml").write_text('[engine]\nname = "sglang@gone.whl"\n')
    with pytest.raises(CaseError, match=r"gone\.whl.*: nothing at"):
        open_case(tmp_path)
    for name in ("sglang@0.5.23", "sglang@installed", "sglang==0.5.23"):
        (tmp_path / "case.toml").write_text(f'[engine]\nname = "{name}"\n')
        assert open_case(tmp_path).engine.spec == name
    (tmp_path / "case.toml").write_text('[engine]\nname = "sglang"\nsource = "gone.whl"\n')
    with pytest.raises(CaseError, match=r"\[engine\] source = 'gone.whl': nothing at"):
        open_case(tmp_path)


# --------------------------------------------------------------------------------------------------------------------------- vLLM
VLLM = next(iter(Path(__file__).parents[1].glob(".live/vllm/lib/python3*/site-packages")), None)
needs_vllm = pytest.mark.skipif(VLLM is None, reason="no vLLM in .live/vllm: `make .live/vllm/.ready` installs it")


VLLM_LISTED = sorted({a for row in table()["rows"] if row["family"] == "vllm" for a in row["architectures"] if a != "*"})


@needs_vllm
@pytest.mark.parametrize("architecture", VLLM_LISTED)
def test_vllm_as_it_is_installed(architecture):
    engine = parse_engine(f"vllm@{VLLM}")
    row, asked = table_convention(Engine("vllm", "0.32.0"), architecture), vllm.target(open_source("vllm", str(VLLM)), architecture)
    assert (engine.version, row.assumptions) == ("0.32.0", ())
    for ids in ([2, 9, 14], None, [9, 2, 2], [5, 24], [0, 9], [24], [30, 2], [-1, 3]):
        own, fed = asked.run(ids, 24), row.feed(ids, 24)
        if "TypeError" in own.error:
            assert "unpatched, it raises" in " ".join(fed.notes)
            continue
        assert (own.error, list(own.boundaries)) == ("", [b for b in fed.boundaries if b is not None]), (ids, own, fed)
    convention = convention_for(engine, architecture)
    if architecture != "DeepseekV4ForCausalLM":  # what its forward takes is a mean: said to be assumed
        assert convention.assumptions == ()
    assert (convention.rule, convention.embedding, convention.bug) == (row.rule, row.embedding, None)


@needs_vllm
def test_every_class_that_vllm_registers():
    found = {a: cls for a, cls in vllm.registered(Package(open_source("vllm", str(VLLM)))).items() if cls and not is_drafter(a)}
    without = {a for a, cls in found.items() if cls.find("set_aux_hidden_state_layers") is None}
    assert without == no_capture("vllm")
    assert not without & set(VLLM_LISTED)


@needs_vllm
def test_a_class_that_does_not_tell_by_itself_takes_the_tables_row(monkeypatch):
    """Asking the engine makes no `cannot tell` of what the table knows for this very version; what it does not know stays assumed."""
    known = vllm.VLLMTarget.run

    def lost(self, ids, num_layers):
        raise CannotTell("a test")

    engine = parse_engine(f"vllm@{VLLM}")
    pixtral = convention_for(engine, "PixtralForConditionalGeneration")
    assert "does not say by itself" in pixtral.assumptions[0]
    monkeypatch.setattr(vllm.VLLMTarget, "run", lost)
    source_convention.cache_clear()
    convention = convention_for(engine, "Qwen2ForCausalLM")
    monkeypatch.setattr(vllm.VLLMTarget, "run", known)
    source_convention.cache_clear()
    assert convention.assumptions == ()
    assert (
        "does not say by itself what it captures (a test): the table's row for this version is taken" in convention.feed([2], 30).notes[-1]
    )


@needs_vllm
def test_vllms_two_runners_read_different_keys():
    older, newer, reads, run_reader = vllm.OLDER, vllm.NEWER, vllm.reads, vllm.run_reader
    package = Package(open_source("vllm", str(VLLM)))
    assert reads(package, older) == (KEY, f"eagle_config.{KEY}")
    assert reads(package, newer) == (KEY,)
    for runner in (older, newer):
        assert run_reader(package, runner, {KEY: [3, 1, 1]}) == (3, 1, 1)
        assert run_reader(package, runner, {"dflash_config": {"target_layer_ids": [1, 5]}}) == (2, 6)
        assert run_reader(package, runner, {KEY: []}) is None
    for key, add in table()["families"]["vllm"]["newer_keys"].items():
        *outer, name = key.split(".")
        config = {outer[0]: {name: [3, 9]}} if outer else {name: [3, 9]}
        assert run_reader(package, newer, config) == (3 + add, 9 + add)
        assert run_reader(package, older, config) is None


@pytest.mark.parametrize("engine", ["vllm==0.32.0", pytest.param(f"vllm@{VLLM}", marks=needs_vllm)])
def test_vllm_sorts_drops_twins_and_shifts_dflash(engine):
    llama = {"architectures": [LLAMA], "num_hidden_layers": 30}
    assert engine_wiring({**DRAFT, KEY: [27, 3, 3]}, llama, engine).boundaries == (3, 27, None)
    fed = engine_wiring({**DRAFT, "dflash_config": {"target_layer_ids": [1, 14, 26]}}, llama, engine)
    assert fed.boundaries == (2, 15, 27)
    assert any("dflash_config.target_layer_ids = [1, 14, 26] counts layers' outputs" in note for note in fed.notes)
    assert engine_wiring({**DRAFT, KEY: [], "dflash_config": {}}, llama, engine).boundaries == (2, 15, 27)


# --------------------------------------------------------------------------------------------------- wrappers, odd ids, in sentences
def test_the_inner_config_of_a_multimodal_target(tmp_path):
    kimi = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": {"num_hidden_layers": 61, "architectures": [DEEPSEEK]}}
    fed = engine_wiring(nested([2, 30, 58]), kimi, f"sglang@{published('0.5.23')}")
    assert json.loads(json.dumps(fed.to_json()))["wiring"]["engine"] == [2, 30, 58]
    assert (fed.target.num_layers, fed.assumptions) == (61, ())


@pytest.mark.parametrize(
    ("ids", "boundaries", "note"),
    [
        ([-1, 2, 15], [0, 3, 16], None),
        (
            [2, 15, 29],
            [3, 16, None],
            "id 29 (boundary 30) is the last layer's output: SGLang 0.5.23 never captures it and does not say so.",
        ),
        ([2, 15, 40], [3, 16, None], "id 40 (boundary 41) is outside 0..30"),
        ([15, 2, 27], [3, 16, 28], "concatenates in layer order whatever the order of the ids"),
        ([2, 2, 15], [3, 16, None], "name a layer twice: SGLang 0.5.23 captures it once"),
    ],
)
@pytest.mark.parametrize("by", ["table", "own code"])
def test_odd_ids_in_plain_sentences(ids, boundaries, note, by):
    engine = "sglang==0.5.23" if by == "table" else f"sglang@{published('0.5.23')}"
    fed = engine_wiring(nested(ids), {"architectures": [LLAMA], "num_hidden_layers": 30}, engine)
    assert fed.to_json()["wiring"]["engine"] == boundaries
    assert note is None or note in " ".join(fed.notes)


def test_flags_on_layers_count_from_the_end():
    """`self.layers[-1]`: id -2 marks the last layer, and nothing says so."""
    own = setters("0.5.23")[QWEN3_MOE].run([-2, 3], 94)
    fed = table_convention(Engine("sglang", "0.5.23"), QWEN3_MOE).feed([-2, 3], 94)
    assert own.boundaries == fed.boundaries == (4, 93)
    assert "-2 marks the last layer, boundary 93" in fed.notes[0]
