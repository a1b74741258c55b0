"""docs/images/*.png: what the example's pages look like in a browser, for the README and the documents.

    make pictures

Needs chromium and playwright (`pip install -e '.[notebooks,example,dev]'`). Runs the report of the example, and of a copy in which the tutorial's
change is made, into a temporary folder.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "data" / "example"
IMAGES = ROOT / "docs" / "images"
WIDTH, HEIGHT = 1280, 900
MARGIN = 12
"""Pixels around what is shown from a heading on."""
MOST_BYTES, MOST_TOGETHER = 200_000, 1_200_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


@dataclass(frozen=True)
class Picture:
    name: str
    page: str
    """The page's file: of the run of the example, or `index.html`, `compare`."""
    shows: str = ""
    """A figure's caption, or a heading; "" is the top of the page."""
    height: int = HEIGHT
    """Of what is shown from the top or from a heading on; a figure has its own."""


PICTURES = (
    Picture("verdict", "08_verdict.html"),
    Picture("index", "index.html", height=420),
    Picture("comparison", "compare"),
    Picture("norms", "02_norm_fingerprints.html", "Norm by slot"),
    Picture("heatmap", "03_identify_layers.html", "Slot against boundary"),
    Picture("strip", "04_replay_drafter.html", "Where, in a real text?"),
    Picture("cost", "07_step_sweep.html", "Accept length against what breaks even"),
)


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("no chromium on the PATH: apt-get install chromium, or its like")
    with tempfile.TemporaryDirectory() as place:
        pages = written_pages(Path(place))
        made = {p.name: small(png, p.name) for p, png in shots(chromium, pages)}
    together = sum(map(len, made.values()))
    if together > MOST_TOGETHER:
        raise SystemExit(f"the pictures have {together:,} bytes together, expected at most {MOST_TOGETHER:,}")
    IMAGES.mkdir(parents=True, exist_ok=True)
    for name, data in made.items():
        (IMAGES / f"{name}.png").write_bytes(data)
        print(f"docs/images/{name}.png: {len(data):,} bytes")


def written_pages(place: Path) -> dict[str, Path]:
    """Page's name as in `Picture.page` -> its file, of a fresh run of both cases."""
    from eaglelab.reports.compare import compare_runs, write_page
    from eaglelab.reports.run import run_reports

    mended = mended_copy(place / "mended")
    fleet = run_reports([EXAMPLE, mended], out=place / "reports", notebooks=ROOT / "notebooks", say=print)
    if fleet.exit_code:
        raise SystemExit("a notebook broke: the pictures are left as they are")
    before, after = (fleet.runs[name].directory for name in ("example", "mended"))
    compared = write_page(compare_runs(before, after))
    pages = {p.page: before / p.page for p in PICTURES}
    return pages | {"index.html": place / "reports" / "index.html", "compare": compared}


def mended_copy(case: Path) -> Path:
    """The example with the change that the tutorial makes: the right ids, and the recording of the server that had them."""
    shutil.copytree(EXAMPLE, case, ignore=shutil.ignore_patterns("target"))
    if (EXAMPLE / "target").exists():
        (case / "target").symlink_to(EXAMPLE / "target")
    config = case / "drafter" / "config.json"
    told = json.loads(config.read_text(encoding="utf-8"))
    told["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [2, 15, 27]
    config.write_text(json.dumps(told, indent=2), encoding="utf-8")
    lines = (case / "case.toml").read_text(encoding="utf-8").splitlines()
    kept = [line.replace("claimed.jsonl", "right.jsonl") for line in lines if not line.startswith("log")]
    (case / "case.toml").write_text("\n".join(kept) + "\n", encoding="utf-8")
    return case


def shots(chromium: str, pages: dict[str, Path]):
    """(picture, PNG) of each, in light colours, with no network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
        tab = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True, color_scheme="light").new_page()
        for picture in PICTURES:
            tab.goto(pages[picture.page].absolute().as_uri())
            yield picture, shot(tab, picture)
        browser.close()


def shot(tab: Page, picture: Picture) -> bytes:
    """PNG of a figure, of the part below a heading, or of the page's top. Raises SystemExit where the page has no such thing."""
    if not picture.shows:
        return tab.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": picture.height})
    figure = tab.locator("figure", has=tab.locator("figcaption", has_text=picture.shows))
    if figure.count():
        return figure.first.locator("img, svg").first.screenshot()
    heading = tab.locator("h2, h3", has_text=picture.shows)
    if not heading.count():
        raise SystemExit(f"{picture.page} has neither a figure nor a heading {picture.shows!r}: correct it in PICTURES")
    left, top = heading.first.evaluate("e => [e.getBoundingClientRect().left, e.getBoundingClientRect().top + window.scrollY]")
    clip = {"x": left - MARGIN, "y": top - MARGIN, "width": WIDTH - left, "height": picture.height}
    return tab.screenshot(full_page=True, clip=clip)


def small(png: bytes, name: str) -> bytes:
    """The picture in 256 colours, without metadata. Raises SystemExit when it is still too large."""
    out = io.BytesIO()
    # An octree keeps the red and green of the badges; the median cut does not.
    colours = {"colors": 256, "method": Image.Quantize.FASTOCTREE, "dither": Image.Dither.NONE}
    Image.open(io.BytesIO(png)).convert("RGB").quantize(**colours).save(out, "PNG", optimize=True)
    if out.tell() > MOST_BYTES:
        raise SystemExit(f"{name}.png has {out.tell():,} bytes, expected at most {MOST_BYTES:,}: show less, or fewer colours")
    return out.getvalue()


if __name__ == "__main__":
    main()
