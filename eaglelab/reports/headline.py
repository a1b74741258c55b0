"""The finding as a heading: one line for a page, for a run in the index, in `report.md` and in a comparison.

Headlines are text as cases and logs wrote it, with code between backticks: `parts.prose` sets them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from textwrap import shorten
from typing import Any

from eaglelab.findings import Change, Finding, Status, Verdict, by_severity, own_changes
from eaglelab.reports.stored import read_verdict

MOST = 170
"""Characters of a headline; longer titles end at a word, and the finding below has all of it."""
CHANGE = 90
"""Characters of a change that is said in the headline."""


def of_verdict(item: Verdict) -> str:
    """`Wiring is at fault (sure): set `eagle_config.…` = `[2, 15, 27]``, or what stands in its place without a change."""
    if item.stage == "none found":
        return f"No fault found ({item.confidence})"
    if item.stage == "cannot tell":
        return "Cannot tell which stage is at fault"
    stages = item.stage.split(" and ")
    verb = "is" if len(stages) == 1 else "are"
    return cut(f"{item.stage[:1].upper()}{item.stage[1:]} {verb} at fault ({item.confidence}): {_what(item)}".rstrip(": "))


def _what(item: Verdict) -> str:
    """The first change that fits a heading, else the first fault's first sentence."""
    own = own_changes(item.changes)
    if own and len(edit(own[0])) <= CHANGE:
        more = len({c.key for c in own}) - 1
        return f"set {edit(own[0])}" + (f", and {more} more change{'s' if more > 1 else ''}" if more > 0 else "")
    said = item.faults[0].text if item.faults else item.text
    said = re.sub(r"^(?:\w+ faults?[^.]*\. )?(?:\(1\) )?(?:Wiring|Dump|Training|Engine|Cost): ", "", said)
    return re.split(r"(?<=[\w)`\]])\.(?=\s)", said, maxsplit=1)[0].rstrip(".")


def edit(item: Change) -> str:
    """`` `key` = `value` `` of a change, as `prose` sets it."""
    value = json.dumps(item.value, ensure_ascii=False, default=str)
    return f"`{item.key.replace('`', chr(39))}` = `{value.replace('`', chr(39))}`"


def of_findings(items: Iterable[Finding]) -> str | None:
    """The title of the finding that leads: what fails, else what cannot be told, else a result; of those, one that says what to do. None
    without one."""
    leading = by_severity(f for f in items if f.status is not Status.NOT_APPLICABLE)
    alike = [f for f in leading if f.status is leading[0].status]
    doing = [f for f in alike if f.next and f.status in (Status.FAIL, Status.CANNOT_TELL)]
    return cut((doing or alike)[0].title) if leading else None


def of_run(data: Mapping[str, Any]) -> str:
    """The headline of a whole run, from its `findings.json`."""
    if data.get("verdict"):
        return of_verdict(read_verdict(data["verdict"]))
    broken = [n["name"] for n in data.get("notebooks", ()) if n["error"] is not None]
    if broken and not data["findings"]:
        return f"No verdict: {', '.join(broken)} broke"
    return of_findings(map(Finding.from_json, data["findings"])) or "No verdict and no findings in this run"


def cut(text: str) -> str:
    """Text as one line of a heading; backticks stay in pairs."""
    line = " ".join(text.split())
    if len(line) > MOST:
        line = shorten(line, MOST, placeholder=" …") if " " in line[:MOST] else f"{line[: MOST - 2]} …"
        line += "`" if line.count("`") % 2 else ""
    return line
