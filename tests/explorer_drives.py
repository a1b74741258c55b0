"""How a person uses each explorer of the notebooks, by mouse and by keyboard, and what must then stand in its view."""

from __future__ import annotations

import re

SOON = 20_000  # milliseconds, on a machine that does other things


class Explorer:
    """An explorer in a notebook's tab, found by the beginning of its title."""

    def __init__(self, tab, title: str) -> None:
        self.keys = tab.page.keyboard
        self.box = tab.page.locator(".el-explore").filter(has=tab.page.locator(".el-explore-title", has_text=title))
        self.box.scroll_into_view_if_needed()
        self.view = self.box.locator(".el-explore-view")

    def field(self, label: str, kind: str = "input, select, [role=slider]"):
        """The control with this label."""
        return (
            self.box.locator(".widget-inline-hbox, .widget-checkbox")
            .filter(has_text=re.compile(rf"^[\s\u200b]*{re.escape(label)}"))
            .locator(kind)
            .first
        )

    def says(self, pattern: str) -> None:
        self.view.filter(has_text=re.compile(pattern)).first.wait_for(timeout=SOON)

    def drawn(self, change) -> None:
        """Do something after which the figure must be another one, described in other words or not."""
        before = self.view.locator("img").first.get_attribute("src")
        change()
        self.view.locator(f"img:not([src='{before}'])").first.wait_for(timeout=SOON)

    def error(self, pattern: str) -> None:
        self.box.locator("[role=alert]").filter(has_text=re.compile(pattern)).wait_for(timeout=SOON)

    def calm(self) -> None:
        self.box.locator("[role=alert]").wait_for(state="detached", timeout=SOON)

    def type(self, label: str, text: str) -> None:
        """By the keyboard: all that stood there gives way."""
        self.field(label).focus()
        self.keys.press("Control+a")
        self.keys.type(text)
        self.keys.press("Enter")


def dump_browser(tab) -> None:
    it = Explorer(tab, "Dump browser")
    first = it.view.locator("table").last.locator("tbody tr").first
    it.type("First row", "3")
    first.filter(has_text=re.compile("^3")).wait_for(timeout=SOON)
    it.box.get_by_role("button", name="Jump to the mask's start").click()
    first.filter(has_text=re.compile("^35")).wait_for(timeout=SOON)
    it.field("Slot").select_option(index=2)
    it.view.locator("table").last.locator("tbody tr").nth(1).filter(has_text=re.compile("^36")).wait_for(timeout=SOON)  # a row a token now
    it.field("Sample").focus()
    it.keys.press("ArrowDown")
    it.says(r"data_1\.pt: T = \d+ tokens")
    it.calm()


def norms(tab) -> None:
    it = Explorer(tab, "Norm fingerprint")
    it.drawn(lambda: it.field("Scale").select_option("linear"))
    it.drawn(lambda: it.type("to token", "40"))
    it.drawn(lambda: (it.field("Slot").focus(), it.keys.press("ArrowDown")))
    it.drawn(lambda: it.field("Target's boundaries behind").click())
    it.calm()


def heatmap(tab) -> None:
    it = Explorer(tab, "Slot against boundary")
    it.drawn(lambda: it.field("Measure").select_option("cosine"))
    it.drawn(lambda: (it.field("Sample").focus(), it.keys.press("ArrowDown")))
    it.drawn(lambda: it.field("Box what is claimed").click())
    before = it.view.inner_text()
    it.field("Slot in the table").select_option(index=2)
    it.view.filter(has_not_text=before).wait_for(timeout=SOON)
    it.calm()


def wiring(tab) -> None:
    it = Explorer(tab, "Wiring playground")
    it.box.get_by_role("button", name="What the drafter wants").click()
    tab.page.wait_for_function("e => e.value === '2, 15, 27'", arg=it.field("Layer ids").element_handle(), timeout=SOON)
    it.says(r"\[3, 16, 28\]")
    it.type("Layer ids", "[3, 16, 28]")
    it.says(r"\[4, 17, 29\]")
    it.type("Layer ids", "the last three")
    it.error("the last three")
    it.field("Engine").select_option("vLLM")
    it.type("Layer ids", "3, 16, 28")
    it.says(r"\[3, 16, 28\]")
    it.calm()
    it.box.get_by_role("button", name="As the config has it").press("Enter")
    it.view.filter(has_not_text="✓ same as the dump").first.wait_for(timeout=SOON)


def cost(tab) -> None:
    it = Explorer(tab, "Cost playground")
    slider, shown = it.box.locator("[role=slider]").first, it.box.locator(".widget-readout").first
    before = float(shown.inner_text())
    slider.focus()
    it.drawn(lambda: it.keys.press("ArrowLeft"))
    assert float(shown.inner_text()) < before
    verify = it.box.locator("[role=slider]").nth(1)
    it.drawn(lambda: (verify.focus(), it.keys.press("ArrowRight")))
    it.drawn(lambda: it.type("Steps", "1"))
    it.type("tok/s without", "-4")
    it.error("-4|above 0|positive")
    it.box.get_by_role("button", name="As the case has it").click()
    it.calm()


def strip(tab) -> None:
    it = Explorer(tab, "Token strip")
    it.says("step 0")
    row = it.field("Row t", "input").input_value()
    it.box.get_by_role("button", name="Next rejection").click()
    it.view.filter(has_not_text=f"Row {row}, step 0").wait_for(timeout=SOON)
    it.box.locator("[role=slider]").first.focus()
    it.keys.press("ArrowRight")
    it.says("step 1")
    it.says("The drafter's first five")
    it.says("The target's first five")
    it.field("Feed").select_option("the engine's feed")
    it.says("The engine's feed, step 1")
    it.calm()


DRIVES = {
    "01_inspect_dump": [dump_browser],
    "02_norm_fingerprints": [norms],
    "03_identify_layers": [heatmap, wiring],
    "04_replay_drafter": [strip],
    "07_step_sweep": [cost],
}
