"""`check --explain`, `--only`, and the reference of all checks: one source, held against the code and against real output."""

import json
import re
import shutil
from pathlib import Path

import pytest

from eaglelab.checks import CHECKS
from eaglelab.checks.explain import KEYS, chosen, entries, explanation, reference
from eaglelab.cli import main

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "data" / "example"
FAMILIES = "wiring|config|drafter|served|flags|dump|text|replay|training|triangle|lost|context|errors|engine|timing|cost"


def finding_ids():
    """Ids that stand in the code where findings are made: the first argument, or `id=`."""
    found = set()
    for file in [
        *(ROOT / "eaglelab/checks").glob("*.py"),
        *(ROOT / "eaglelab/engines/lint").glob("*.py"),
        ROOT / "eaglelab/engines/training.py",
    ]:
        text = file.read_text()
        found |= set(re.findall(rf'(?:Finding\(\s*|id=)f?"((?:{FAMILIES})(?:\.[a-z_{{}}.\[\]\']+)?)"', text))
    return {re.sub(r"\{.*", "*", i) for i in found}


def test_every_check_and_every_finding_is_explained():
    ids = finding_ids()
    assert len(ids) > 50  # the search finds them
    for id in ids | {c.id for c in CHECKS}:
        assert explanation(id).told["looks_at"]


def test_no_entry_is_of_a_finding_that_is_gone():
    files = [f for folder in ("checks", "engines") for f in (ROOT / "eaglelab" / folder).rglob("*.py")]
    code = "".join(f.read_text() for f in files)
    for id in entries():
        assert re.search(rf"""["']{re.escape(id.removesuffix("*"))}""", code), id


@pytest.mark.parametrize("id", entries())
def test_an_entry_is_whole(id):
    told = entries()[id].told
    assert set(KEYS) <= set(told) <= {*KEYS, "by"}
    assert told["needs"]
    assert all(isinstance(n, str) for n in told["needs"])
    assert told["looks_at"].endswith((".", "?"))
    assert told["rule"].endswith(".")
    assert not told["source"] or re.fullmatch(r"[\w.-]+/[\w.-]+[#@][\w]+(, [\w.-]+/[\w.-]+[#@][\w]+)*", told["source"])
    for how in ("pass", "fail"):
        assert not told[how].endswith(".")


def shape(title):
    return re.sub(r"\d[\d.,]*", "0", title)


def test_examples_of_titles_are_what_comes_out(capsys, tmp_path):
    """On the shipped case, the checks that need no torch: each example's words, whatever its numbers."""
    assert main(["check", str(EXAMPLE / "case.toml"), "--cheap", "--json"]) == 1
    came = {f["id"]: (f["status"], f["title"]) for f in json.loads(capsys.readouterr().out)["findings"]}
    compared = 0
    for id in ("wiring.engine", "wiring.versions", "drafter.complete", "served.acceptance", "served.flags", "served.log", "cost.worth"):
        status, title = came[id]
        assert shape(explanation(id).told[status]) == shape(title), id
        compared += 1
    assert compared == 7


def test_docs_are_made_from_the_same_source():
    assert (ROOT / "docs/checks.md").read_text() == reference(), "python -m eaglelab.checks.explain > docs/checks.md"


# -- the command ----------------------------------------------------------------------------------------------------------------------


def said(capsys, *arguments):
    code = main(["check", *map(str, arguments)])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_explain_needs_no_case(capsys):
    code, out, _ = said(capsys, "--explain", "wiring.match")
    assert code == 0
    assert out.startswith("wiring.match: Does the engine feed what the dump holds?\n  looks at: ")
    assert "    - the target's config.json: `[target] config`" in out
    assert "  source: sgl-project/sglang#32226" in out
    assert "made by the check served.log" in said(capsys, "--explain", "served.log.trend")[1]
    assert said(capsys, "--explain", "wiring.claims.slot0.2")[1].startswith("wiring.claims.*")
    assert said(capsys, "--explain", "engine.known")[0] == 0
    assert json.loads(said(capsys, "--explain", "replay.works", "--json")[1])["reads"] == "the drafter, run"


def test_explain_alone_lists_all(capsys):
    lines = said(capsys, "--explain")[1].splitlines()
    assert len(lines) == len(entries())
    assert any(line.split(None, 1) == ["replay.works", "Does the drafter work, on its own, on these samples?"] for line in lines)


@pytest.mark.parametrize("arguments", [("--explain", "wirng.match"), (EXAMPLE, "--only", "wirng.match")])
def test_an_unknown_id_names_the_nearest(capsys, arguments):
    code, _, err = said(capsys, *arguments)
    assert code == 2
    assert "no check and no finding is called 'wirng.match'; did you mean wiring.match" in err


@pytest.mark.parametrize("only", ["", " , ", "x" * 5000, "wiring.match,,nonsense.of.somebody", "\x1b[31m"])
def test_only_with_what_names_no_check(capsys, only):
    code, _, err = said(capsys, EXAMPLE, "--only", only)
    assert code == 2
    assert "\x1b" not in err


def test_cheap_leaves_nothing_of_what_was_asked(capsys):
    code, _, err = said(capsys, EXAMPLE, "--only", "replay.works,replay.order", "--cheap")
    assert code == 2
    assert "--cheap leaves out all that --only names (replay.order, replay.works)" in err
    out = said(capsys, EXAMPLE, "--only", "wiring,wiring", "--cheap")[1]
    assert "Looked at wiring.engine, wiring.versions only" in out
    assert "Looked at wiring.engine only" in said(capsys, EXAMPLE, "--only", "wiring.engine,wiring.engine")[1]


def test_a_family_is_listed(capsys):
    lines = said(capsys, "--explain", "served")[1].splitlines()
    assert len(lines) > 8
    assert all(line.startswith("served.") for line in lines)


def test_only_chooses_checks_families_and_what_a_check_makes_beside():
    assert chosen("replay.works") == {"replay.works"}
    assert {"wiring.engine", "wiring.dump", "wiring.match"} <= chosen("wiring")
    assert chosen("wiring.anomalies") == {"wiring.dump"}
    assert chosen("config.rope, flags.tree") == {"config", "flags"}
    assert "drafter.vocabulary.coverage" in chosen("drafter.vocabulary")


def test_what_is_not_given_stands_behind_what_is_known(capsys):
    code, out, _ = said(capsys, EXAMPLE, "--only", "timing.verify,timing.phases,served.flags")
    lines = [line for line in out.splitlines() if line.startswith(("[", "Not given", "2 ok"))]
    assert [line[:5] for line in lines] == ["[ok] ", "[ok] ", "Not g", "[not ", "2 ok,"]
    assert lines[2] == "Not given (1), with how to get it:"
    assert lines[4] == "2 ok, 1 not given"
    assert code == 0
    assert "not given" not in said(capsys, EXAMPLE, "--only", "served.flags")[1].lower()


def test_only_looks_at_these_only_and_says_so(capsys):
    code, out, _ = said(capsys, EXAMPLE, "--only", "wiring.engine,served.flags")
    assert code == 0
    assert "(served.flags)" in out
    assert "(served.acceptance)" not in out
    assert "Looked at wiring.engine, served.flags only" in out
    assert "Everything but wiring.engine, served.flags: run `eaglelab check CASE` without --only." in out
    code, out, _ = said(capsys, EXAMPLE, "--only", "cost.worth", "--json")
    data = json.loads(out)
    assert code == 1
    assert [f["id"] for f in data["findings"]] == ["cost.worth"]
    assert data["wiring"]["dump"] is None


# -- writing in place -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def drafter(tmp_path):
    folder = tmp_path / "drafter"
    shutil.copytree(EXAMPLE / "drafter", folder)
    return folder


def wiring(capsys, folder, *arguments):
    command = ["wiring", folder, "--target", EXAMPLE / "target-config.json", "--engine", "sglang==0.5.23", *arguments]
    code = main([str(c) for c in command])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_in_place_keeps_the_old_file_and_its_indent(capsys, drafter):
    file = drafter / "config.json"
    old = json.dumps(json.loads(file.read_text()) | {"name": "é"}, indent=4, ensure_ascii=False) + "\n"
    file.write_text(old)
    file.chmod(0o640)
    code, out, _ = wiring(capsys, drafter, "--boundaries", "3,16,28", "--in-place")
    assert code == 0
    assert f"written: {file} (as it was: {file}.bak)" in out
    assert (drafter / "config.json.bak").read_text() == old
    new = file.read_text()
    assert json.loads(new)["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 15, 27]
    assert new == json.dumps(json.loads(new), indent=4, ensure_ascii=False) + "\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert not list(drafter.glob(".*.part"))
    again = wiring(capsys, drafter, "--boundaries", "3,16,28", "--in-place")
    assert "already so" in again[1]
    assert not (drafter / "config.json.bak.1").exists()
    wiring(capsys, drafter, "--boundaries", "3,16,27", "--in-place")
    assert (drafter / "config.json.bak").read_text() == old  # never written over
    assert (drafter / "config.json.bak.1").read_text() == new


def test_without_in_place_the_config_stays(capsys, drafter):
    before = (drafter / "config.json").read_bytes()
    assert wiring(capsys, drafter, "--boundaries", "3,16,28", "--write")[0] == 0
    assert (drafter / "config.json").read_bytes() == before
    assert not list(drafter.glob("*.bak*"))


def test_in_place_refuses_links_and_what_is_read_only(capsys, drafter, tmp_path):
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "config.json").symlink_to(drafter / "config.json")
    before = (drafter / "config.json").read_bytes()
    code, _, err = wiring(capsys, linked, "--boundaries", "3,16,28", "--in-place")
    assert code == 2
    assert "is a link to" in err
    (drafter / "config.json").chmod(0o444)
    code, _, err = wiring(capsys, drafter, "--boundaries", "3,16,28", "--in-place")
    assert code == 2
    assert "is read-only" in err
    assert (drafter / "config.json").read_bytes() == before
    assert wiring(capsys, drafter, "--in-place")[2].startswith("eaglelab wiring: --in-place needs --boundaries")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('{"a": 1}', '{"a": 2}'),
        ('{\n\t"a": 1\n}\n', '{\n\t"a": 2\n}\n'),
        ('{\r\n  "a": 1\r\n}\r\n', '{\r\n  "a": 2\r\n}\r\n'),
        ('{\n  "a": 1\n}', '{\n  "a": 2\n}'),
    ],
)
def test_the_texts_form_is_kept(old, new, tmp_path):
    from eaglelab.engines.in_place import write_in_place

    file = tmp_path / "config.json"
    file.write_bytes(old.encode())
    write_in_place(file, {"a": 2})
    assert file.read_bytes() == new.encode()


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path, monkeypatch):
    from eaglelab.engines import in_place
    from eaglelab.engines.wiring_report import CorrectedConfigError

    file = tmp_path / "config.json"
    file.write_text('{"a": 1}')

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(in_place.os, "replace", full)
    with pytest.raises(CorrectedConfigError, match="it is as it was"):
        in_place.write_in_place(file, {"a": 2})
    assert file.read_text() == '{"a": 1}'
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "config.json.bak"]


def test_round_trip_after_in_place_the_check_matches(capsys, tmp_path, monkeypatch):
    """The command that wiring.match names, run in the case's folder with --in-place: then the engine feeds what the dump holds."""
    case = tmp_path / "example"
    shutil.copytree(EXAMPLE, case, ignore=shutil.ignore_patterns("target", "*.trace*", "bench", "timing"))
    lines = [line for line in (case / "case.toml").read_text().splitlines() if not re.match(r"path = \"target\"|trace =|table =", line)]
    (case / "case.toml").write_text("\n".join(lines) + "\n")
    options = ("--only", "wiring.match", "--max-samples", "2", "--json")
    before = json.loads(said(capsys, case, *options)[1])["findings"][0]
    assert before["status"] == "fail"
    command = before["next"].split("`")[1].split()[1:]
    monkeypatch.chdir(case)
    assert main([*command, "--in-place"]) == 0
    capsys.readouterr()
    code, out, _ = said(capsys, case, *options)
    assert json.loads(out)["findings"][0]["status"] == "pass"
    assert code == 0
