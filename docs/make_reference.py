"""The pages of docs/ that say what the code says: checks.md, cli.md, conventions.md, case.md.

    python -m docs.make_reference

writes all of them, in the root of the checkout; `tests/test_docs_reference.py` says when one is stale.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from eaglelab.case import TEMPLATE
from eaglelab.checks.explain import reference as checks_page
from eaglelab.cli import build_parser
from eaglelab.commands.report import INTERRUPTED
from eaglelab.engines.conventions import USUAL_DEFAULT, CannotFeed, convention_for, table

FOLDER = Path(__file__).resolve().parent
MADE = "This page is made by `python -m docs.make_reference`; do not edit it."


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
        print(f"docs/{name}")


def cell(text: Any) -> str:
    """Text for a cell of a table."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def rows(head: Sequence[str], lines: Iterable[Sequence[Any]]) -> list[str]:
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(map(cell, line))} |" for line in lines), ""]


# -- cli.md ---------------------------------------------------------------------------------------------------------------------

EXIT_CODES = (
    ("0", "every command", "done; of `wiring`, `flags`, `replay` and the like whatever they found"),
    ("1", "`check`", "something fails"),
    ("1", "`report`", "a notebook broke, or one of several cases has no report"),
    ("2", "every command", "unusable input; the message says what, and what was expected"),
    ("3", "`check`", "nothing fails, and something cannot be told"),
    (str(INTERRUPTED), "`report`", "interrupted; what was finished is kept, and the command that goes on is printed"),
)


def cli_page() -> str:
    """Every command with its arguments, as argparse has them."""
    parser = build_parser()
    commands = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction)).choices
    out = ["# Commands", "", f"{MADE} `eaglelab COMMAND --help` says the same.", ""]
    out += [f"- [`{name}`](#{name}): {sub.description}" for name, sub in commands.items()]
    out += ["", "`--json` of every command prints one JSON document in place of text. Progress goes to standard error.", ""]
    out += ["## Exit codes", "", *rows(("code", "of", "means"), EXIT_CODES)]
    for name, sub in commands.items():
        out += [f"## {name}", "", f"{sentence(sub.description)}", "", f"`{usage(name, sub)}`", ""]
        known = [a for a in sub._actions if "--help" not in a.option_strings and "--json" not in a.option_strings]
        out += rows(("argument", "is"), ((f"`{called(a)}`", helped(a)) for a in known)) if known else []
    return "\n".join(out).rstrip() + "\n"


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def usage(name: str, sub: argparse.ArgumentParser) -> str:
    """`eaglelab wiring --target CONFIG --engine ENGINE config [options]`: what must be given, and places."""
    given = [called(a) for a in sub._actions if a.option_strings and a.required]
    places = [f"[{called(a)}]" if a.nargs == "?" else called(a) for a in sub._actions if not a.option_strings]
    return " ".join(["eaglelab", name, *given, *places, "[options]"])


def called(action: argparse.Action) -> str:
    """`--steps K`, `case`."""
    if not action.option_strings:
        name = action.metavar or action.dest
        return f"[{name} ...]" if action.nargs == "*" else f"{name} ..." if action.nargs == "+" else str(name)
    values = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper())
    values = "" if action.nargs == 0 else f"[{values}]" if action.nargs == "?" else values
    return " ".join([", ".join(action.option_strings), *([values] if isinstance(values, str) else values)]).strip()


def helped(action: argparse.Action) -> str:
    return str(action.help).replace("%%", "%")


# -- conventions.md -----------------------------------------------------------------------------------------------------------------

STORY = (61, [2, 30, 58], "DeepseekV3ForCausalLM")
EXAMPLE = (30, [2, 15, 27], "LlamaForCausalLM")
ASKED = (
    "sglang==0.5.12",
    "sglang==0.5.23",
    "vllm==0.32.0",
    "specforge",
    "speculators==0.4.0",
    "speculators==0.9.0",
    "angelslim",
    "modelopt",
    "hf",
)
HEAD = """\
# Conventions: what a layer id means

{made} The facts are in `eaglelab/engines/conventions.toml`, each with the file and the version where it was read; SGLang's
and vLLM's rows come from running the engine's own functions on stand-ins.

A layer id is a number in somebody's config. *Boundary b* is the target's residual stream after b decoder layers: 0 is the embedding, N
the last layer's output before the final norm, *final* the state after it. The same id is another boundary in another engine, in another
version, and for another target architecture.

## One list of ids, many meanings

{story}
{example}
## The same boundaries, written for each

To be fed boundaries {wanted} of a LlamaForCausalLM with N = {layers}, write:

{written}
`eaglelab wiring CONFIG --target CONFIG --engine NAME==VERSION --boundaries B,B,B` does this for your config, key and all.

## How to read the tables

- *versions*: the ends are versions that were read. Between the end of one row and the begin of the next nobody looked. *on*: to the newest read.
- *id k is*: the boundary of id k. The two rules with *if* look at the whole list, and hold for all its ids. *not read*: the default is always
  taken. *nothing*: the ids are taken in and the target's forward does not act on them; the forward fails.
- *embedding*: what becomes of boundary 0 (id -1 where ids are k + 1). *raises*: the first forward stops, since the engine adds a residual that
  is still None.
- *boundary N*: what becomes of the last layer's output. *missing*: it is not captured and nothing says so, so that fc is given one slot too
  few. *error*: stops with a message. *index error*: stops at start-up. *final*: the state after the final norm comes in its place.
- *default*: boundaries taken when no ids are given: {usual} unless said.
- The order of the ids does not matter and doubles collapse, unless *order as given* is said.
- A target that is in no row gets *all others*. One that an engine registers without a way to capture has no row: its start-up fails, and
  `eaglelab wiring` says so.
"""


def conventions_page() -> str:
    """Conventions by engine and architecture, those of the same history together."""
    (n, ids, arch), (few, own, llama) = STORY, EXAMPLE
    boundaries = (3, 16, 28)
    head = HEAD.format(
        made=MADE,
        story="\n".join([f"Ids `{ids}` of a {arch} with N = {n} (DeepSeek-V3):", "", *meanings(ids, n, arch)]),
        example="\n".join([f"Ids `{own}` of a {llama} with N = {few} (the example):", "", *meanings(own, few, llama)]),
        wanted=", ".join(map(str, boundaries)),
        layers=few,
        written="\n".join(written(boundaries, few, llama)),
        usual=", ".join(USUAL_DEFAULT),
    )
    out = [head]
    for kind, title in (("engine", "Engines"), ("framework", "Training frameworks and naming schemes")):
        out += [f"## {title}", ""]
        for name, family in table()["families"].items():
            if family["kind"] == kind:
                out += [*of_family(name, family), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).rstrip() + "\n"


def meanings(ids: list[int], layers: int, arch: str) -> list[str]:
    """What every engine in `ASKED` takes one list of ids for."""
    lines = []
    for engine in ASKED:
        fed = convention_for(engine, arch).feed(ids, layers)
        is_ = ", ".join("nothing" if b is None else str(b) for b in fed.boundaries)
        lines.append((convention_for(engine, arch).engine.title, is_, fed.fails or ""))
    lines = [(", ".join(line[0] for line in alike), *same) for same, alike in grouped(lines, key=lambda line: line[1:])]
    return rows(("read by", "are boundaries", "and"), lines)


def written(boundaries: tuple[int, ...], layers: int, arch: str) -> list[str]:
    lines = []
    for engine in ASKED:
        rule = convention_for(engine, arch)
        try:
            ids = f"`{rule.ids_for(boundaries, layers)}`"
        except CannotFeed as error:
            ids = " ".join(error.reasons)
        key = rule.family.get("write_key") or next(iter(rule.family.get("keys", [])), "")
        lines.append((rule.engine.title, f"`{key}`" if key else "not in the config", ids))
    lines = [(", ".join(line[0] for line in alike), *same) for same, alike in grouped(lines, key=lambda line: line[1:])]
    return rows(("for", "key of the drafter's config.json", "ids"), lines)


def grouped(items: Iterable[Any], key: Callable[[Any], Any]) -> Iterator[tuple[Any, list[Any]]]:
    """Items with the same key together, in the order of their first."""
    found: dict[Any, list[Any]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    yield from found.items()


def of_family(name: str, family: dict[str, Any]) -> list[str]:
    keys, read = " or ".join(f"`{k}`" for k in family.get("keys", [])), family.get("read_versions", [])
    told = [f"Ids are read from {keys}." if keys else "It reads no ids from a config."]
    if read:
        told += [f"Read: {len(read)} versions, {read[0]} to {read[-1]}." if len(read) > 1 else f"Read: {read[0]}."]
    told += [family["key_note"]["text"]] if "key_note" in family else []
    mine = [row for row in table()["rows"] if row["family"] == name]
    architectures = sorted({a for row in mine for a in row.get("architectures", ["*"])}, key=lambda a: (a != "*", a))
    histories = {a: history(a, mine, read) for a in architectures}
    lines = []
    for told_alike, alike in grouped(architectures, key=lambda a: tuple(line[:-1] for line in histories[a])):
        names = ", ".join("**all others**" if a == "*" else a for a in alike)
        for place, line in enumerate(told_alike):
            read_in = "; ".join(dict.fromkeys(histories[a][place][-1] for a in alike))
            lines.append((*([] if len(architectures) == 1 else [names if place == 0 else "″"]), *line, read_in))
    head = ("versions", "id k is", "embedding", "boundary N", "also", "read in")
    return [f"### {family['title']}", "", " ".join(told), "", *rows(head if len(architectures) == 1 else ("target", *head), lines)]


def history(architecture: str, family_rows: list[dict[str, Any]], read: list[str]) -> list[tuple[str, ...]]:
    """What holds for one architecture, oldest first: versions, then the cells of `row_cells`."""
    mine = [row for row in family_rows if architecture in row.get("architectures", ["*"])]
    mine.sort(key=lambda row: Version(row.get("since", "0")))
    lines = []
    for row, following in zip(mine, [*mine[1:], None], strict=True):
        first = row.get("since") or (read[0] if read else "")
        last = following["after"] if following else ""
        span = "all" if not first else f"{first} on" if not last else first if first == last else f"{first} to {last}"
        lines.append((span, *row_cells(row)))
    return lines


UNHEARD = "What its setter sets, the forward of this target does not act on: nothing is captured, and the forward fails."


def row_cells(row: dict[str, Any]) -> tuple[str, ...]:
    """One row of the table in words: id k is, embedding, boundary N, also, read in."""
    read = row["read"].replace(", own functions run:", ":")
    if row["rule"] == "none":
        note = row.get("note", "")
        return ("nothing", "", "", "" if note == UNHEARD else note, read)
    also = [f"order {row['order'].replace('_', ' ')}"] if row.get("order", "ascending") != "ascending" else []
    also += (
        [{"wraps": "ids below -1 count from the end", "from_end": "ids below 0 count from the end"}[row["negative"]]]
        if "negative" in row
        else []
    )
    also += [f"default {', '.join(row['default'])}"] if tuple(row.get("default", USUAL_DEFAULT)) != USUAL_DEFAULT else []
    also += [row["note"]] if row.get("note") else []
    return (SHORT[row["rule"]], row.get("embedding", "captured"), row.get("last", "missing").replace("_", " "), "; ".join(also), read)


SHORT = {
    "as_is": "k",
    "plus_one": "k + 1",
    "plus_one_if_first_is_1": "k + 1 if the first is 1, else k",
    "as_is_if_max_is_N": "k if the largest is N, else k + 1",
    "fixed": "not read",
}
"""`RULES` of the conventions, for a cell."""


# -- case.md ------------------------------------------------------------------------------------------------------------------------

CASE_HEAD = """\
# case.toml

{made} `eaglelab new FOLDER` writes the file below. Uncomment what you have: one section is enough to begin with. Paths are relative to the
file. A key that is not known is an error that names the nearest. What is absent comes out as `not given`, with how to get it.

| you give | you learn |
|---|---|
| `[drafter]`, `[target] config`, `[engine] name`, `version` | which boundaries the engine feeds, which keys of the config it ignores: seconds, no weights are read |
| `[engine] log` or `counters` | the accept length that was reached, in tokens per verify pass; errors in the log |
| `[timing] table` | cost ratio, break-even accept length, the best setting |
| `[timing] trace` | where the milliseconds of a cycle go |
| `[dump]` | health, norms, loss mask |
| `[dump]`, `[target] path` or `sketch` | which boundary each slot holds |
| `[dump]`, `[drafter]`, `[target]` (or `[drafter] embed`) | whether the drafter works alone, and the accept length that it should reach |
| all of it | where the gap opens, and what to change |
| `[training]` | whether the trainer's number is the replay's |
| `[[claims]]` | whether a comment or a config says the truth about the slots |
"""


def case_page() -> str:
    """The template as it stands, behind what each part is good for."""
    return f"{CASE_HEAD.format(made=MADE)}\n```toml\n{TEMPLATE.read_text(encoding='utf-8').rstrip()}\n```\n"


PAGES: dict[str, Callable[[], str]] = {
    "checks.md": checks_page,
    "cli.md": cli_page,
    "conventions.md": conventions_page,
    "case.md": case_page,
}

if __name__ == "__main__":
    main()
