"""`eaglelab cost`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.commands.arguments import count, samples, where
from eaglelab.commands.terminal import show, visible

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation
    from eaglelab.timing.cost_report import CostReport
    from eaglelab.timing.experts import Experts
    from eaglelab.timing.predict import Acceptance
    from eaglelab.timing.setting import Setting

SHOWN = 40
"""Rows that are printed; `--json` has all."""
OF_TABLES = {
    "target_config": None,
    "case": None,
    "trace": None,
    "verify_share": None,
    "max_samples": 32,
    "seed": 0,
    "device": "auto",
    "dtype": "auto",
}
"""Options that say nothing of --numbers, with their defaults."""


def add(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("cost", run, "cost ratio, break-even accept length and speedup of measured settings; the best setting per batch size")
    text = (
        "tables (CSV with batch, steps, topk, draft_tokens, tok_s, accept_length; a row with steps 0 is the baseline), benchmarks' JSON lines, "
        "servers' logs, or a sweep's folder; all together are one table (default: none, with --numbers)"
    )
    sub.add_argument("tables", type=Path, nargs="*", metavar="TABLE", help=text)
    text = "in place of a table: tokens a second, accept length, and tokens a second without speculation (default: tables)"
    sub.add_argument("--numbers", type=float, nargs=3, metavar=("TOK_S", "ACCEPT_LENGTH", "BASELINE"), help=text)
    text = "requests at the same time, of rows that do not tell (default: 1, without milliseconds; with --numbers 1)"
    sub.add_argument("--batch", type=count, metavar="N", help=text)
    text = "steps-topk-draft tokens, as in 3-1-4, or off: of rows and logs that do not tell (default: such rows are left out); with --numbers of them"
    sub.add_argument("--setting", metavar="S", help=text)
    text = "accept lengths leave the bonus token out: add 1 (default: they count it, as engines do)"
    sub.add_argument("--no-bonus", action="store_true", help=text)
    text = "the target's config.json: of a mixture of experts the fit counts experts in place of tokens (default: the case's with --case, else "
    text += "tokens)"
    sub.add_argument("--target-config", type=Path, metavar="FILE", help=text)
    text = "replay this case's drafter for the accept lengths of settings that were not run (default: bounds from measured chains)"
    sub.add_argument("--case", type=Path, metavar="CASE", help=text)
    text = (
        "a profiler trace of the same server: verify's share of a cycle, and the time in collectives (default: the case's with --case; else all of "
        "a cycle is counted as verify)"
    )
    sub.add_argument("--trace", type=Path, metavar="FILE", help=text)
    text = "verify's share of a cycle, 0 to 1, for what a verify 27 %% faster would give (default: the trace's)"
    sub.add_argument("--verify-share", type=float, metavar="X", help=text)
    samples(sub, 32)
    where(sub, "the drafter's (default: auto = bfloat16 on CUDA, float32 on the CPU)")


def run(args: argparse.Namespace) -> int:
    if bool(args.numbers) == bool(args.tables):
        raise ValueError(
            "expected tables, or --numbers TOK_S ACCEPT_LENGTH BASELINE; got both" if args.tables else "no table and no --numbers"
        )
    data, text = _numbers(args) if args.numbers else _tables(args)
    show(args, data, visible(text))
    return 0


def _setting(args: argparse.Namespace) -> Setting | None:
    from eaglelab.timing.errors import TimingError
    from eaglelab.timing.tables.names import setting_in

    if args.setting is None:
        return None
    setting = setting_in(args.setting)
    if setting is None:
        raise TimingError(f"--setting {args.setting}: expected steps-topk-draft tokens, as in 3-1-4, or off")
    return setting


def _numbers(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from eaglelab.timing.cost import conclusion, two_numbers
    from eaglelab.timing.errors import TimingError

    idle = [f"--{name.replace('_', '-')}" for name, default in OF_TABLES.items() if getattr(args, name) != default]
    if idle:
        raise TimingError(
            f"{', '.join(idle)}: of no use with --numbers, expected with tables; leave {'it' if len(idle) == 1 else 'them'} out"
        )
    tok_s, length, baseline = args.numbers
    length += args.no_bonus
    batch = args.batch or 1
    told = two_numbers(tok_s, length, baseline, batch)
    setting = _setting(args)
    said = conclusion(told, length, setting)
    which = {} if setting is None else setting.to_json()
    row = {"batch": batch, **which, "tok_s": tok_s, "accept_length": length, "baseline_tok_s": baseline, **told.to_json()}
    text = (
        f"a cycle costs {told.r:.2f} decode steps ({told.pass_ms:.4g} ms against {told.baseline_ms:.4g} ms): it breaks even at accept length "
        f"{told.break_even:.2f}, has {length:g}, and gives {told.speedup:.3f} x\n{said}"
    )
    return {"rows": [row], "conclusion": said, "notes": []}, text


def _tables(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from eaglelab.timing.cost_report import cost_report
    from eaglelab.timing.measured import merged, read_measured

    setting = _setting(args)
    case = _case(args)
    experts, told = _experts(args, case), _traced(args, case)
    if args.verify_share is not None:
        told |= {"verify_share": args.verify_share, "draft_share": 0.0, "share_source": "--verify-share"}
    table = merged([read_measured(path, setting=setting, batch=args.batch, no_bonus=args.no_bonus) for path in args.tables])
    report = cost_report(table, experts=experts, acceptance=_acceptance(case), **told)
    return report.to_json(), _text(report)


def _case(args: argparse.Namespace) -> Investigation | None:
    if args.case is None:
        return None
    from eaglelab.investigation import Investigation

    options = {"max_samples": args.max_samples or None, "seed": args.seed, "device": args.device, "dtype": args.dtype}
    return Investigation(str(args.case), **options)


def _experts(args: argparse.Namespace, case: Investigation | None) -> Experts | None:
    from eaglelab.engines.target_config import read_target_config
    from eaglelab.timing.experts import experts_of

    config = read_target_config(args.target_config, None) if args.target_config is not None else case and case.target_config
    return experts_of(config) if config else None


def _traced(args: argparse.Namespace, case: Investigation | None) -> dict[str, Any]:
    """What a trace tells of the cycle; {} without one."""
    path = args.trace or (case and case.case.timing.trace)
    if path is None:
        return {}
    from eaglelab.timing.errors import TimingError
    from eaglelab.timing.trace import read_trace
    from eaglelab.timing.traced import shares_of

    report = read_trace(path)
    told = shares_of(report)
    if args.trace is not None and not told:
        raise TimingError(f"{path} tells nothing of a cycle: {report.summary}")
    return told


def _acceptance(case: Investigation | None) -> Acceptance | None:
    return None if case is None else case.timing.acceptance


def _text(report: CostReport) -> str:
    import pandas as pd

    def cell(value: float | None, digits: str) -> str:
        return "" if value is None else format(value, digits)

    lines = []
    if report.rows:
        table = pd.DataFrame(
            [
                {
                    **({"group": row.measured.group} if any(r.measured.group for r in report.rows) else {}),
                    "batch": row.measured.batch if row.measured.batch_told else "?",
                    "setting": row.measured.setting.name,
                    "tok_s": f"{row.measured.tok_s:.5g}",
                    "accept_length": cell(row.measured.accept_length, ".2f"),
                    "baseline": cell(row.baseline_tok_s, ".5g"),
                    "r = break-even": cell(row.r, ".2f"),
                    "speedup": cell(row.speedup, ".3f"),
                    "interval": f"{row.speedup_interval[0]:.3f} to {row.speedup_interval[1]:.3f}" if row.speedup_interval else "",
                    "cycle ms": cell(row.pass_ms, ".4g"),
                }
                for row in report.rows[:SHOWN]
            ]
        )
        lines.append("Settings are steps-top-k-draft tokens: 3-1-4 drafts 3 steps of 1 token and verifies 4, the bonus token's included.")
        lines.append(table.to_string(index=False))
        if len(report.rows) > SHOWN:
            lines.append(f"… {len(report.rows) - SHOWN:,} more settings (--json has all)")
    for fit in report.fits:
        lines += ["", f"Pass time{f' ({fit.group})' if fit.group else ''}: {len(fit.rows)} rows, {_error(fit.error)}"]
        lines += [f"  {t.name}: {_term(t)}" for t in fit.terms if t.ms is not None] if fit.ms_told else []
        open_ = [t.name for t in fit.terms if t.ms is None] if fit.ms_told else []
        lines += [f"  not determined by these rows: {', '.join(open_)}"] if open_ else []
    lines += [f"  by {one.feature}, {one.text}" for one in report.left_out]
    if report.recommendations:
        lines += ["", "Best setting:"]
        lines += [f"  {r.text}" for r in report.recommendations]
        lines += [f"  assumed: {text}" for text in dict.fromkeys(a for r in report.recommendations for a in r.assumptions)]
    if report.what_if:
        lines += ["", f"What if ({report.share}):", *[f"  {w.text}" for w in report.what_if]]
    lines += ["", *[f"note: {note}" for note in report.notes]] if report.notes else []
    return "\n".join(lines)


def _error(error: float | None) -> str:
    return "no more than there are terms to find, so that its error is not known" if error is None else f"relative error {error:.1%}"


def _term(term) -> str:
    span = f" ({term.interval[0]:.3g} to {term.interval[1]:.3g})" if term.interval else ""
    return f"{term.ms:.3g} ms{span}"
