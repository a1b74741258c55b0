"""SGLang's published wheels for the tests (`make wheels` fetches them), and small wheels made up on the spot."""

import zipfile
from pathlib import Path

import pytest

VERSIONS = (Path(__file__).parent / "engines" / "wheels.txt").read_text(encoding="utf-8").split()
CACHE = Path(__file__).parents[1] / ".cache" / "engines"


def published(version: str) -> str:
    """The wheel of a version, as `open_source` takes it; the test is skipped where it was not fetched."""
    found = sorted(CACHE.glob(f"sglang-{version}-*.whl"))
    if not found:
        pytest.skip(f"SGLang's wheel {version} is not in {CACHE}: `make wheels` fetches it")
    return str(found[0])


MODEL = """
from torch import nn

def shifted(ids):
    return [i + 1 for i in ids]

class ToyDecoderLayer(nn.Module):
    def forward(self, positions, hidden_states, residual):
        return hidden_states, residual

class ToyModel(nn.Module):
    def __init__(self, config):
        self.layers = make_layers(config.num_hidden_layers, lambda i: ToyDecoderLayer(config))
        self.layers_to_capture = []

    def forward(self, input_ids, positions):
        hidden_states, residual, aux_hidden_states = self.embed(input_ids), None, []
        for i in range(len(self.layers)):
            if i in self.layers_to_capture:
                aux_hidden_states.append(hidden_states if residual is None else hidden_states + residual)
            hidden_states, residual = self.layers[i](positions, hidden_states, residual)
        return hidden_states, aux_hidden_states

class ToyForCausalLM(nn.Module):
    def __init__(self, config):
        self.config = config
        self.model = ToyModel(config)

    def set_eagle3_layers_to_capture(self, layer_ids=None):
        num_layers = self.config.num_hidden_layers
        {body}

EntryClass = ToyForCausalLM
"""
USUAL = "self.model.layers_to_capture = [2, num_layers // 2, num_layers - 3] if layer_ids is None else [i + 1 for i in layer_ids]"
READER = """
def resolve(draft):
    try:
        eagle_config = getattr(draft.hf_config, "eagle_config", None)
        use = eagle_config.get("use_aux_hidden_state", True)
        ids = eagle_config["eagle_aux_hidden_state_layer_ids"]
    except Exception:
        ids = None
"""


def toy_model(body: str = USUAL) -> str:
    """A module with one architecture, ToyForCausalLM, whose setter has this body."""
    return MODEL.replace("{body}", body.replace("\n", "\n        "))


def toy_files(body: str = USUAL) -> dict[str, str]:
    return {"__init__.py": "", "srt/models/toy.py": toy_model(body), "srt/model_executor/model_runner.py": READER}


def toy_wheel(
    folder: Path, files: dict[str, str] | None = None, version: str = "0.9.1", name: str = "sglang", project: str = "sglang"
) -> str:
    """A wheel that holds these files of a package; its path as text."""
    path = folder / f"{project}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in (toy_files() if files is None else files).items():
            wheel.writestr(f"{name}/{file}", text)
        wheel.writestr(f"{project}-{version}.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {project}\nVersion: {version}\n\nText")
    return str(path)
