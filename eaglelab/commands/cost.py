"""`eaglelab cost`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.commands.arguments import count, samples, where
from eaglelab.commands.terminal import show, visible

if TYPE_CHECKING:
    from eaglelab.timing.cost_report import CostReport
    from eaglelab.timing.predict import Acceptance

SHOWN = 40
"""Rows that are printed; `--json` has all."""


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
    text = "steps-topk-draft tokens, as in 3-1-4, or off: of rows and logs that do not tell (default: such rows are left out)"
    sub.add_argument("--setting", metavar="S", help=text)
    text = "accept lengths leave the bonus token out: add 1 (default: they count it, as engines do)"
    sub.add_argument("--no-bonus", action="store_true", help=text)
    text = "the target's config.json: of a mixture of experts the fit counts experts in place of tokens (default: tokens)"
    sub.add_argument("--target-config", type=Path, metavar="FILE", help=text)
    text = "replay this case's drafter for the accept lengths of settings that were not run (default: bounds from measured chains)"
    sub.add_argument("--case", type=Path, metavar="CASE", help=text)
    text = "verify's share of a cycle, 0 to 1, to see what a verify 27 %% faster would give (default: not shown)"
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


def _numbers(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from eaglelab.timing.cost import two_numbers

    tok_s, length, baseline = args.numbers
    length += args.no_bonus
    batch = args.batch or 1
    told = two_numbers(tok_s, length, baseline, batch)
    row = {"batch": batch, "tok_s": tok_s, "accept_length": length, "baseline_tok_s": baseline, **told.to_json()}
    text = (
        f"a cycle costs {told.r:.2f} decode steps ({told.pass_ms:.4g} ms against {told.baseline_ms:.4g} ms): it breaks even at accept length "
        f"{told.break_even:.2f}, has {length:g}, and gives {told.speedup:.3f} x"
    )
    return {"rows": [row], "notes": []}, text


def _tables(args: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from eaglelab.timing.cost_report import cost_report
    from eaglelab.timing.errors import TimingError
    from eaglelab.timing.measured import merged, read_measured
    from eaglelab.timing.tables.names import setting_in

    setting = None
    if args.setting is not None:
        setting = setting_in(args.setting)
        if setting is None:
            raise TimingError(f"--setting {args.setting}: expected steps-topk-draft tokens, as in 3-1-4, or off")
    experts = _experts(args.target_config) if args.target_config is not None else None
    table = merged([read_measured(path, setting=setting, batch=args.batch, no_bonus=args.no_bonus) for path in args.tables])
    report = cost_report(table, experts=experts, acceptance=_acceptance(args), verify_share=args.verify_share)
    return report.to_json(), _text(report)


def _experts(path: Path):
    from eaglelab.engines.target_config import read_target_config
    from eaglelab.timing.experts import experts_of

    return experts_of(read_target_config(path, None))


def _acceptance(args: argparse.Namespace) -> Acceptance | None:
    if args.case is None:
        return None
    from eaglelab.investigation import Investigation
    from eaglelab.timing.acceptance import ReplayedAcceptance

    options = {"max_samples": args.max_samples or None, "seed": args.seed, "device": args.device, "dtype": args.dtype}
    return ReplayedAcceptance(Investigation(str(args.case), **options))


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
        lines.append(table.to_string(index=False))
        if len(report.rows) > SHOWN:
            lines.append(f"… {len(report.rows) - SHOWN:,} more settings (--json has all)")
    for fit in report.fits:
        lines += ["", f"Pass time{f' ({fit.group})' if fit.group else ''}: {len(fit.rows)} rows, {_error(fit.error)}"]
        lines += [f"  {t.name}: {_term(t)}" for t in fit.terms] if fit.ms_told else []
    lines += [f"  by {one.feature}, {one.text}" for one in report.left_out]
    if report.recommendations:
        lines += ["", "Best setting:"]
        lines += [f"  {r.group + ', ' if r.group else ''}{r.text}" for r in report.recommendations]
        lines += [f"  assumed: {text}" for text in dict.fromkeys(a for r in report.recommendations for a in r.assumptions)]
    if report.what_if:
        lines += ["", "What if:", *[f"  {w.text}" for w in report.what_if]]
    lines += ["", *[f"note: {note}" for note in report.notes]] if report.notes else []
    return "\n".join(lines)


def _error(error: float | None) -> str:
    return "none to spare, so that the error is not known" if error is None else f"relative error {error:.1%}"


def _term(term) -> str:
    if term.ms is None:
        return "not determined by these rows"
    span = f" ({term.interval[0]:.3g} to {term.interval[1]:.3g})" if term.interval else ""
    return f"{term.ms:.3g} ms{span}"
