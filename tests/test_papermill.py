"""Plain papermill, without the report runner: from anywhere, by command line and by its Python API, readable in what it leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook

REPOSITORY = Path(__file__).resolve().parents[1]
REPLAY = REPOSITORY / "notebooks" / "04_replay_drafter.ipynb"
WIDGET = "application/vnd.jupyter.widget-view+json"
EXPLORES = """import ipywidgets
from eaglelab import notebook as nb
from eaglelab.explore.frame import Explorer, labelled
from eaglelab.progress import progress, watched
class Doubler(Explorer):
    title = "Doubler"
    def controls(self): return {"n": labelled(ipywidgets.IntSlider(value=2), "Number")}
    def view(self, n): return f"<p>{2 * n}</p>"
    def twin(self): return "<p>the twin</p>"
nb.explore(Doubler())
for _ in progress(range(3), "counted", delay=0): pass
print(watched())"""

pytestmark = pytest.mark.slow


def papermill(*arguments, cwd, **extra):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EAGLELAB")} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "papermill", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment | extra, capture_output=True, text=True, timeout=600)


def outputs(path):
    return [o for cell in nbformat.read(path, as_version=4).cells for o in cell.get("outputs", [])]


def shown(path):
    return "".join(o.get("data", {}).get("text/html", "") for o in outputs(path))


def readable(path):
    """No widget, no error, no bar that stands still, nothing but what an HTML page can show."""
    for output in outputs(path):
        assert output.output_type != "error", output
        assert WIDGET not in output.get("data", {})
        assert "  0%" not in output.get("text", "")
    assert not nbformat.read(path, as_version=4).metadata.get("widgets")


@pytest.mark.parametrize("cwd", [REPOSITORY, None], ids=["from the repository", "from another folder"])
def test_the_replay_notebook_by_the_command_line(tmp_path, cwd):
    case = "data/example/case.toml" if cwd else REPOSITORY / "data" / "example" / "case.toml"
    notebook = "notebooks/04_replay_drafter.ipynb" if cwd else REPLAY
    done = papermill(notebook, tmp_path / "out.ipynb", "-p", "case", case, "-p", "max_samples", 4, cwd=cwd or tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    readable(tmp_path / "out.ipynb")
    assert "el-finding" in shown(tmp_path / "out.ipynb")
    assert "replay.works" in shown(tmp_path / "out.ipynb")


def test_an_explorer_and_a_bar_under_papermill_and_with_a_person(tmp_path):
    """The same kernel code twice: papermill has nobody to ask, a front end that has somebody gets widgets beside the twin."""
    nbformat.write(new_notebook(cells=[new_code_cell(EXPLORES, metadata={"tags": []})]), tmp_path / "in.ipynb")
    script = "import papermill, sys; papermill.execute_notebook('in.ipynb', 'out.ipynb', kernel_name='python3', progress_bar=False)"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("EAGLELAB")}
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    readable(tmp_path / "out.ipynb")
    assert "<p>the twin</p>" in shown(tmp_path / "out.ipynb")
    assert [o.text for o in outputs(tmp_path / "out.ipynb") if o.get("name") == "stdout"] == ["False\n"]

    asked = ask_with_a_person(EXPLORES, environment, tmp_path)
    assert any(WIDGET in data and "<p>the twin</p>" in data["text/html"] for data in asked["data"])
    assert asked["stdout"].endswith("True\n")


def ask_with_a_person(code, environment, cwd):
    """Run code in a kernel as JupyterLab does, which answers `input()`."""
    script = """import json, sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="python3")
found = {"data": [], "stdout": ""}
def hook(message):
    if message["msg_type"] == "display_data": found["data"].append(message["content"]["data"])
    if message["msg_type"] == "stream" and message["content"]["name"] == "stdout": found["stdout"] += message["content"]["text"]
client.execute_interactive(sys.stdin.read(), allow_stdin=True, output_hook=hook, timeout=120)
client.stop_channels(); manager.shutdown_kernel(now=True)
print(json.dumps(found))"""
    done = subprocess.run([sys.executable, "-c", script], input=code, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
    return json.loads(done.stdout)
