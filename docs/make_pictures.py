"""docs/images/verdict.png: the top of the example's verdict page, as a browser shows it.

    make pictures

Needs chromium and playwright (`pip install -e '.[notebooks,example,dev]'`); runs the example's report into a temporary folder.
"""

import io
import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from eaglelab.reports.run import run_report

ROOT = Path(__file__).resolve().parents[1]
PICTURE = ROOT / "docs" / "images" / "verdict.png"
WIDTH, HEIGHT = 1280, 900
MOST_BYTES = 200_000
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("no chromium on the PATH: apt-get install chromium, or its like")
    with tempfile.TemporaryDirectory() as place:
        # All pages, so that the picture shows the links to them.
        run = run_report(ROOT / "data" / "example", out=place, notebooks=ROOT / "notebooks", say=print)
        if run.exit_code:
            raise SystemExit("a notebook broke: the picture is left as it is")
        data = small(shot(chromium, run.directory / "08_verdict.html"))
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.write_bytes(data)
    print(f"{PICTURE.relative_to(ROOT)}: {len(data):,} bytes")


def shot(chromium: str, page: Path) -> bytes:
    """The top of a page as PNG, light colours."""
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=chromium, args=FLAGS)
        tab = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, offline=True, color_scheme="light").new_page()
        tab.goto(page.absolute().as_uri())
        png = tab.screenshot()
        browser.close()
    return png


def small(png: bytes) -> bytes:
    """The picture in 256 colours. Raises SystemExit when it is still too large for a README."""
    out = io.BytesIO()
    # An octree keeps the red and green of the badges; the median cut does not.
    colours = {"colors": 256, "method": Image.Quantize.FASTOCTREE, "dither": Image.Dither.NONE}
    Image.open(io.BytesIO(png)).convert("RGB").quantize(**colours).save(out, "PNG", optimize=True)
    if out.tell() > MOST_BYTES:
        raise SystemExit(f"the picture has {out.tell():,} bytes, expected at most {MOST_BYTES:,}: show less, or fewer colours")
    return out.getvalue()


if __name__ == "__main__":
    main()
