"""Cases and dumps as commands get them: by a path."""

from __future__ import annotations

import argparse
from pathlib import Path


def investigation(args: argparse.Namespace):
    """The case of a command that reads samples and runs the drafter."""
    options = {"max_samples": args.max_samples or None, "seed": args.seed, "device": args.device, "dtype": args.dtype, "steps": args.steps}
    return case_investigation(args.case, way=getattr(args, "way", "auto"), **options)


def case_investigation(case, **options):
    """case: a path, or a `Case`."""
    from eaglelab.investigation import Investigation

    return Investigation(str(case) if isinstance(case, Path) else case, **options)


def is_case(path: Path) -> bool:
    return path.suffix == ".toml" or (path / "case.toml").is_file()


def dump_of(path: Path):
    """The dump of a case (a case.toml or its folder), or a folder of samples."""
    from eaglelab.dumps import open_dump

    if is_case(path):
        dump = case_investigation(path).dump
        if dump is None:
            raise ValueError(f"{path}: the case gives no dump; `[dump] path` names the folder of hidden states")
        return dump
    return open_dump(path)
