"""`eaglelab report` used wrongly: what it says, and that nothing is run."""

import pytest

from eaglelab.cli import main


@pytest.fixture
def case(tmp_path, monkeypatch):
    (tmp_path / "case.toml").write_text('[dump]\npath = "."\n')
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[" * 3000, "cannot be read as YAML or JSON: nested too deeply"),
        ("", "got an empty file, expected names with values"),
        ("1: 2", "got the name 1, expected names with values"),
        ("[1]", "got list, expected names with values"),
        ("a: [", "cannot be read as YAML or JSON: while parsing"),
        ("max_samples: {a: 1}", "parameter max_samples: got {'a': 1}, expected int"),
    ],
)
def test_a_wrong_file_of_parameters(case, tmp_path, capsys, content, said):
    (tmp_path / "p.yaml").write_text(content)
    assert main(["report", case, "-f", "p.yaml"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-p", "max_samples", "4", "-p", "max_samples", "5"], "-p max_samples: got both '4' and '5', expected one value"),
        (["--only", ""], "no notebook chosen: got '', expected numbers as in 02,04"),
        (["--only", "00", "--out", "case.toml"], "A file lies where the folder of reports should be: give another folder with --out"),
        (["--compare", "a", "b"], "--compare takes two runs and nothing else"),
    ],
)
def test_wrong_arguments(case, capsys, arguments, said):
    assert main(["report", case, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_comparison_takes_no_parameters(capsys):
    for more in (["-f", "x"], ["--jobs", "3"], ["--fresh"]):
        assert main(["report", "--compare", "a", "b", *more]) == 2
        assert "--compare takes two runs and nothing else" in capsys.readouterr().err


def test_a_count_that_is_no_number(case, capsys):
    with pytest.raises(SystemExit):
        main(["report", case, "--jobs", "x"])
    assert "argument --jobs: 'x' is not a whole number" in capsys.readouterr().err
