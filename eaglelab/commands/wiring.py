"""`eaglelab wiring`: what an engine feeds with a drafter's config, and the config that makes it feed something else."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path

from eaglelab.commands.opening import is_case
from eaglelab.commands.terminal import show, visible


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("wiring", run, "what an engine feeds with a drafter's config (exits 0 whatever it is); ids for something else")
    sub.add_argument("config", type=Path, help="the drafter's config.json or its folder")
    sub.add_argument("--target", type=Path, required=True, metavar="CONFIG", help="the target's config.json or its folder (required)")
    text = "sglang==0.5.23, vllm, specforge, ...; sglang@PATH asks the code in a wheel, sdist or folder, sglang@installed this Python's (required)"
    sub.add_argument("--engine", required=True, help=text)
    sub.add_argument("--boundaries", metavar="B,B,B", help="what it should feed, as in 3,16,28 (default: say only what it feeds)")
    text = "write the corrected copy beside the config, which stays as it is (default: print the difference)"
    sub.add_argument("--write", action="store_true", help=text)
    text = "write into the config itself and keep the old one as config.json.bak (default: never)"
    sub.add_argument("--in-place", action="store_true", help=text)
    text = "the server's launch line, a file that holds it, or a case: its flags are kept (default: a bare command)"
    sub.add_argument("--launch", metavar="LINE", help=text)


def run(args: argparse.Namespace) -> int:
    from eaglelab.drafter.config import config_path, read_config
    from eaglelab.engines.conventions import RULES
    from eaglelab.engines.in_place import write_in_place
    from eaglelab.engines.launch import parse_launch
    from eaglelab.engines.server_command import server_command
    from eaglelab.engines.wiring_report import corrected_config, engine_wiring, write_corrected

    writes = args.write or args.in_place
    draft, target = read_config(args.config), read_config(args.target)
    fed = engine_wiring(draft, target, args.engine)
    result, text = fed.to_json(), [fed.headline]
    text += [f"  rule: {RULES[fed.convention.rule]}", f"  read: {fed.convention.read}"]
    ids = ["" if r["id"] is None else f"id {r['id']} -> " for r in fed.rows()]
    text += [f"  slot {r['slot']}: {id}{r['is']}" for r, id in zip(fed.rows(), ids, strict=True)]
    text += [f"  {line}" for line in (*fed.notes, *fed.assumptions)]
    new, wanted, written = draft, (), None
    if args.boundaries:
        wanted = parse_boundaries(args.boundaries)
        already = fed.boundaries == tuple(wanted) and fed.captures_boundaries
        new, diff = (draft, "") if already else corrected_config(draft, wanted, target, args.engine)
        result |= {"corrected": new, "diff": diff}
        text += ["", "already so: nothing to change" if already else diff]
        if args.in_place and not already:
            written, backup = write_in_place(args.config, new)
            result |= {"written": str(written), "backup": str(backup)}
            text.append(f"written: {written} (as it was: {backup})")
        elif args.write and not already:
            written = write_corrected(args.config, new, fed.engine)
            result["written"] = str(written)
            text.append(f"written: {written}")
    elif writes:
        raise ValueError(f"--{'in-place' if args.in_place else 'write'} needs --boundaries: what should the engine feed?")
    if writes or args.launch:
        commands = server_command(
            fed.engine,
            folder_of(args.target, "TARGET"),
            str(config_path(args.config).parent),
            parse_launch(launch_line(args.launch)) if args.launch else None,
            draft_config=new,
            target_config=target,
            boundaries=wanted,
            corrected=None if args.in_place else written,
        )
        result["commands"] = commands.to_json()
        text += ["", commands.text]
        text += ["  The corrected config is not written yet: add --write or --in-place."] if new is not draft and written is None else []
    show(args, result, visible("\n".join(text)))
    return 0


def launch_line(text: str) -> str:
    """A launch line as it stands, from a file, or from a case's `[engine] launch`. Raises ValueError for one word that is no such place."""
    path = Path(text)
    if len(text) > 1024 or "\n" in text or not path.exists():
        if not re.search(r"[\s(]", text.strip()):
            raise ValueError(f"--launch {text}: no such file, and no launch line; expected one of both, or a case with `[engine] launch`")
        return text
    if not is_case(path):
        if path.is_dir():
            raise ValueError(f"--launch {text}: a folder without case.toml; expected a launch line, a file that holds it, or a case")
        return path.read_text(encoding="utf-8")
    from eaglelab.case import open_case

    line = open_case(path).engine.launch
    if line is None:
        raise ValueError(f"{path}: the case gives no launch line; `[engine] launch` holds it")
    return line


def folder_of(path: Path, otherwise: str) -> str:
    """The folder that a config.json stands in; a word in its place where only a config of another name is at hand."""
    return str(path if path.is_dir() else path.parent) if path.is_dir() or path.name == "config.json" else otherwise


def parse_boundaries(text: str) -> list[int | str]:
    """`3,16,28` or `3,16,final`."""
    from eaglelab.wiring import FINAL

    try:
        return [part if part == FINAL else int(part) for part in text.replace(" ", "").split(",")]
    except ValueError:
        raise ValueError(f"--boundaries is {text!r}, expected numbers and 'final' with commas between: 3,16,28") from None
