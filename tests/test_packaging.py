"""The package as it is installed: one list of dependencies, a core without Jupyter or an engine, the repository's small files."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

REPOSITORY = Path(__file__).resolve().parents[1]
SEVEN = {"jupyterlab", "torch", "matplotlib", "pandas", "ipywidgets", "sglang", "papermill"}
NOTEBOOK_ONLY = (
    "jupyter",
    "jupyterlab",
    "notebook",
    "nbconvert",
    "nbformat",
    "papermill",
    "ipywidgets",
    "IPython",
    "ipykernel",
    "matplotlib",
)
ENGINES = ("sglang", "vllm")


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def requirements(project):
    """Every requirement of the package, core and extras, by name."""
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return {Requirement(line).name: Requirement(line) for line in lines}


def environment_lines():
    """The pip lines of environment.yml without their comments, and the conda lines."""
    lines = [line.split("#")[0].rstrip() for line in (REPOSITORY / "environment.yml").read_text().splitlines()]
    listed = [(len(line) - len(line.lstrip()), line.strip()[2:]) for line in lines if line.strip().startswith("- ")]
    deepest = max(indent for indent, _ in listed)
    return [text for indent, text in listed if indent == deepest], [text for indent, text in listed if indent < deepest]


def sources():
    return sorted((REPOSITORY / "eaglelab").rglob("*.py"))


# -- dependencies -------------------------------------------------------------------------------------------------------------------


def test_environment_yml_names_the_seven_packages():
    pip, _ = environment_lines()
    names = {Requirement(line).name for line in pip if not line.startswith("-e")}
    assert names >= SEVEN


def test_environment_yml_agrees_with_pyproject(project, requirements):
    """pyproject.toml is the one list: a line of environment.yml repeats a name of it, and any version it gives is the same."""
    pip, conda = environment_lines()
    for line in pip:
        if line.startswith("-e"):
            extras = re.search(r"\[(.*)\]", line)[1].split(",")
            assert set(extras) <= set(project["optional-dependencies"])
            continue
        wanted = Requirement(line)
        assert wanted.name in requirements, f"{line} is in environment.yml and not in pyproject.toml"
        assert not wanted.specifier or wanted.specifier == requirements[wanted.name].specifier
    floor = re.search(r">=(\d+\.\d+)", project["requires-python"])[1]
    assert any(line.startswith(f"python>={floor}") for line in conda)


def test_nothing_holds_an_engines_torch_back(requirements):
    """No upper pins: the core goes into an engine's container beside its torch 2.14.1 and transformers 5.19.0."""
    for name, held in (("torch", "2.14.1"), ("transformers", "5.19.0")):
        assert held in requirements[name].specifier
    for requirement in requirements.values():
        assert not [s for s in requirement.specifier if s.operator in ("<", "<=", "==", "~=", "===")], requirement


def test_the_core_has_no_notebook_and_no_engine_among_its_dependencies(project):
    core = {Requirement(line).name for line in project["dependencies"]}
    assert not core & ({n.lower() for n in NOTEBOOK_ONLY} | set(ENGINES))


def test_every_import_of_the_core_is_a_dependency(project):
    """What is imported at the top of a module outside the notebooks' rooms is installed with the core."""
    core = {Requirement(line).name for line in project["dependencies"]}
    for file in sources():
        room = file.relative_to(REPOSITORY / "eaglelab").parts[0]
        if room in ("plots", "reports", "redact", "notebook.py"):
            continue
        foreign = {name for name in top_level_imports(file) if name not in sys.stdlib_module_names and name != "eaglelab"}
        assert foreign <= core, f"{file.name} imports {foreign - core} on loading"


def top_level_imports(file):
    """Modules imported when the file is loaded: outside functions and outside `if TYPE_CHECKING`."""
    found = set()

    def walk(nodes):
        for node in nodes:
            if isinstance(node, ast.Import):
                found.update(alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                found.add(node.module.split(".")[0])
            elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
                walk(node.orelse)
            elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                walk([child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)])

    walk(ast.parse(file.read_text()).body)
    return found


def test_no_engine_is_imported_on_loading():
    for file in sources():
        assert not top_level_imports(file) & set(ENGINES), f"{file} imports an engine on loading"


# -- what loads what ----------------------------------------------------------------------------------------------------------------


def python(code, *arguments):
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "module", ["eaglelab", "eaglelab.case", "eaglelab.wiring", "eaglelab.findings", "eaglelab.cli", "eaglelab.engines.lint"]
)
def test_the_vocabulary_loads_nothing_heavy(module):
    code = f"import sys, {module}; sys.exit(str({{'torch', 'transformers', 'pandas', 'matplotlib', 'numpy'}} & set(sys.modules)))"
    assert python(code).stderr.strip() == "set()"


BLOCKED = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {NOTEBOOK_ONLY + ENGINES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (blocked by the test)", name=name)
sys.meta_path.insert(0, Blocked())
import torch; torch.set_num_threads(1)
from eaglelab.cli import main
case, config, target, world = sys.argv[1:]
commands = [
    ["check", case, "--cheap"], ["check", case], ["dump", case], ["identify", case], ["replay", case],
    ["identify", case + "/dump", "--target", world, "--up-to", "2"],
    ["sketch", world, "--dump", case, "--rows", "32", "--out", case + "/made.safetensors"],
    ["wiring", config, "--target", target, "--engine", "sglang==0.5.23", "--boundaries", "1,3,5"],
]
for command in commands:
    for form in ([], ["--json"]):
        code = main([*command, *form])
        assert code == 0 or (command[0] == "check" and code == 3), (command, code)  # 3: something cannot be told
assert main(["report", case]) == 2
print("all ran")
"""


def test_the_core_runs_without_jupyter_matplotlib_or_an_engine(tmp_path):
    from case_builder import build_case, make_world

    world = make_world(tmp_path, "llama", 6, seed=3)
    case = build_case(tmp_path / "case", world, slots=[1, 3, 5, "final"], ids=[0, 2, 4])
    done = python(BLOCKED, case, case / "drafter", case / "target-config.json", world.folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("all ran\n")
    assert "pip install 'eaglelab[notebooks]'" in done.stderr


# -- the repository's small files ---------------------------------------------------------------------------------------------------


def test_reports_are_ignored_but_for_their_readme():
    assert (REPOSITORY / "reports" / "README.md").is_file()
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    assert {"/reports/*", "!/reports/README.md", ".venv/"} <= set(ignored)


@pytest.mark.parametrize(
    "name", ["README.md", "LICENSE", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "environment.yml", "constraints/cpu.txt"]
)
def test_the_repository_has_its_papers(name):
    assert (REPOSITORY / name).stat().st_size > 100


def test_package_data_is_packaged():
    """Every file beside the code that the code reads goes into the wheel."""
    packaged = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["eaglelab"]
    suffixes = {Path(pattern).suffix for pattern in packaged}
    beside = {p.suffix for p in (REPOSITORY / "eaglelab").rglob("*") if p.is_file() and "__pycache__" not in p.parts}
    assert beside - {".py", ".md"} <= suffixes


def test_the_console_script_is_the_cli(project):
    assert project["scripts"] == {"eaglelab": "eaglelab.cli:main"}
    assert project["license"]["text"] == "Apache-2.0"
    assert "Apache License" in (REPOSITORY / "LICENSE").read_text()


def test_no_machine_path_or_registry_host_in_tracked_text():
    """Nothing of one machine: no home folders, no hosts of package registries."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    patterns = [r"/work" + r"/(main|shared|brief)", r"/home/\w+", r"(?<![\w$])/root/", r"index-url", r"pypi\." + "org"]
    bad = []
    for name in filter(None, listed.stdout.split("\0")):
        file = REPOSITORY / name
        if (
            file.suffix not in (".py", ".md", ".toml", ".txt", ".yml", ".ipynb", ".j2", ".json", "")
            or not file.is_file()
            or file.stat().st_size > 2e6
        ):
            continue
        text = file.read_text(encoding="utf-8", errors="ignore")
        bad += [f"{name}: {p}" for p in patterns if re.search(p, text) and file != Path(__file__)]
    assert not bad
