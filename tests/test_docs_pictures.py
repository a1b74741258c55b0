"""Pictures of the documents: each is there, small, made by the script, described, and says nothing but its pixels."""

import importlib.util
import json
import struct
import sys
from io import BytesIO

import pytest
from docs_pages import ROOT, TOLD, Page
from PIL import Image
from PIL.PngImagePlugin import PngInfo

SPEC = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "make_pictures.py")
make_pictures = importlib.util.module_from_spec(SPEC)
sys.modules["make_pictures"] = make_pictures  # dataclasses look their module up
SPEC.loader.exec_module(make_pictures)

USED = sorted({((page.parent / address).resolve(), alt) for page in TOLD for alt, address in Page.of(page).pictures})
FILES = sorted((ROOT / "docs" / "images").glob("*"))
PLAIN = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}
"""Kinds of PNG chunk that hold pixels and nothing else."""


def chunks(data):
    """(kind, content) of each chunk of a PNG."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place, found = 8, []
    while place < len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        found.append((kind, data[place + 8 : place + 8 + length]))
        place += 12 + length
    return found


def test_every_picture_that_a_page_shows_is_there_and_described():
    assert len(USED) >= 7
    for file, alt in USED:
        assert file.is_file(), file
        assert len(alt) > 20, f"{file.name}: alt text {alt!r}"


def test_the_script_makes_the_pictures_that_are_shown_and_no_others():
    made = {f"{p.name}.png" for p in make_pictures.PICTURES}
    assert {f.name for f in FILES} == made
    assert {f.name for f, _ in USED} == made


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_a_picture_is_small_and_holds_pixels_alone(file):
    data = file.read_bytes()
    assert len(data) <= make_pictures.MOST_BYTES
    assert {kind for kind, _ in chunks(data)} <= PLAIN


def test_all_pictures_together_are_small():
    assert sum(f.stat().st_size for f in FILES) <= make_pictures.MOST_TOGETHER


def test_small_leaves_metadata_behind():
    told, out = PngInfo(), BytesIO()
    told.add_text("Author", "somebody")
    Image.new("RGB", (8, 8), "red").save(out, "PNG", pnginfo=told)
    assert b"somebody" in out.getvalue()
    assert {kind for kind, _ in chunks(make_pictures.small(out.getvalue(), "x"))} <= PLAIN


def test_the_mended_copy_is_the_tutorials(tmp_path):
    """The change in the pictures is the one that the tutorial makes by commands."""
    case = make_pictures.mended_copy(tmp_path / "mended")
    config = json.loads((case / "drafter" / "config.json").read_text())
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [2, 15, 27]
    text = (case / "case.toml").read_text()
    assert "sglang-right.jsonl" in text
    assert "\nlog" not in text
