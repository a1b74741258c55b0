"""The bench's page: one file, no scripts, readable in light and dark, in grey and to the colour-blind (blue for more, a number in every cell)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de; --ground: #ffffff; --blue: 0, 90, 160; --mark: #8a4b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9aa4af; --line: #3d444d; --ground: #0d1117; --blue: 90, 170, 255; --mark: #ffb454; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
p, caption { color: var(--soft); max-width: 60rem; } caption { text-align: left; padding: .4rem 0; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top; }
td.n { text-align: center; min-width: 2.2rem; padding: .25rem .1rem; font-variant-numeric: tabular-nums; } td.zero { color: var(--soft); opacity: .45; }
tbody th { white-space: nowrap; font-weight: 500; } th.turn { writing-mode: vertical-rl; transform: rotate(180deg); padding: .6rem .25rem; }
thead th { position: sticky; top: 0; background: var(--ground); } .mark { color: var(--mark); font-weight: 600; }
"""
ROWS = ("world", "seed", "kinds", "fault", "strength", "effect", "stage", "confidence", "outcome", "fails")


def page(rows: Sequence[dict[str, str]], about: dict[str, Any]) -> str:
    """The whole document. Everything that comes out of a row is escaped."""
    from faults.score import confusion, table

    head, *lines = table(rows)
    frozen = f" Rules and thresholds were frozen at commit {escape(about['frozen'])}." if about.get("frozen") else ""
    note = f"<p>{escape(about['note'])}</p>" if about.get("note") else ""
    commits = escape(", ".join(about.get("commits", ())) or "unknown")
    odd = [r for r in rows if r["outcome"] in ("noticed", "missed", "error", "false alarm") or r["wrong_and_sure"] == "1"]
    parts = [
        "<h1>Faults put into healthy cases: does eaglelab name them?</h1>",
        "<p>Tiny targets were trained on a small language, drafters on their states; each case is served by a small speculative loop, written to disk as an "
        "engineer would have it, and looked at by <code>eaglelab check</code>. A fault is put in as it happens in the field. It is <em>named</em> where a finding "
        "that stands for it fails and the verdict rests on it. Its effect is the change of the served accept length, by request; a fault of what the case says "
        f"or of what was trained on leaves the server alone and counts as above noise.{frozen} Measured at {commits}.</p>{note}",
        "<h2>In short</h2>",
        _table(head, lines, "Shares with their counts and 95 % intervals (Wilson). Held-out worlds, seeds and strengths were not looked at while rules were made."),
        "<h2>What was put in, and what the verdict named</h2>",
        _confusion(*confusion(rows)),
        "<h2>What went wrong</h2>",
        _table(ROWS, ([r[k] for k in ROWS] for r in odd), "Every fault that was not named (those said to be untellable aside), every false alarm, everything called sure "
               "and wrong.") if odd else "<p>Nothing: every fault was named or said to be untellable, and no healthy case raised an alarm.</p>",
        "<h2>All cases</h2>",
        _table(ROWS, ([r[k] for k in ROWS] for r in rows), "One row a fault; two rows of one case are a pair. The same rows are in cases.csv."),
    ]  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>eaglelab: injected faults</title><style>{STYLE}</style></head>\n<body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def _table(head: Iterable[str], lines: Iterable[Iterable[str]], caption: str) -> str:
    names = "".join(f'<th scope="col">{escape(h.replace("_", " "))}</th>' for h in head)
    body = "\n".join("<tr>" + "".join(_cell(c) for c in line) + "</tr>" for line in lines)
    return f'<div class="wide"><table><caption>{escape(caption)}</caption><thead><tr>{names}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _cell(value: str) -> str:
    odd = value in ("missed", "noticed", "error", "false alarm")
    return f"<td{' class=mark' if odd else ''}>{escape(value)}</td>"


def _confusion(names: list[str], lines: list[tuple[str, str, Any, int]]) -> str:
    head = "".join(f'<th scope="col">{escape(n)}</th>' for n in ("class", "injected", "cases"))
    head += "".join(f'<th scope="col" class="turn">{escape(n)}</th>' for n in names)
    body = []
    for cls, kind, counts, n in lines:
        cells = "".join(_shade(counts[f], n) for f in names)
        body.append(f'<tr><td>{escape(cls)}</td><th scope="row">{escape(kind)}</th><td class="n">{n}</td>{cells}</tr>')
    caption = "Single faults, and the healthy cases. A column is the family of the finding that leads a fault of the verdict; a case may name several. The darker, the more."
    return (
        f'<div class="wide"><table><caption>{caption}</caption><thead><tr>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(body)
        + "\n</tbody></table></div>"
    )


def _shade(count: int, whole: int) -> str:
    if not count:
        return '<td class="n zero">·</td>'
    return f'<td class="n" style="background: rgba(var(--blue), {0.12 + 0.4 * count / whole:.2f})">{count}</td>'
