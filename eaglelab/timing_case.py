"""The timing side of a case: phases of its trace, seconds of its timers, cost of what was measured, and the setting to use.

The checks, notebooks 06 and 07 and the CLI read from here. Only accept lengths of settings that nobody served run the drafter.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from eaglelab.cache import kept
from eaglelab.opened import NotGiven
from eaglelab.timing.errors import TimingError
from eaglelab.timing.phases import COLUMNS
from eaglelab.timing.setting import Setting

if TYPE_CHECKING:  # pandas and torch load with the parts that need them
    import pandas as pd

    from eaglelab.engines.effective import FlagAudit
    from eaglelab.investigation import Investigation
    from eaglelab.timing.acceptance import ReplayedAcceptance
    from eaglelab.timing.cost import CostRow
    from eaglelab.timing.cost_report import CostReport
    from eaglelab.timing.measured import MeasuredTable
    from eaglelab.timing.timers import TimerSplit
    from eaglelab.timing.trace import TraceReport

TRACE = (
    "`[timing] trace` names a profiler trace. SGLang: `curl -X POST URL/start_profile -d '{\"num_steps\": 20}'`; vLLM: start it with "
    "`--profiler-config`, then POST /start_profile and /stop_profile"
)
METRICS = (
    "`[timing] metrics` names two scrapes of /metrics in one file. SGLang counts seconds by phase where it was started with "
    "SGLANG_ENABLE_METRICS_DEVICE_TIMER=1 and --enable-metrics"
)
TABLE = (
    "`[timing] table` names a CSV with batch, steps, topk, draft_tokens, tok_s, accept_length (a row with steps 0 is the run without speculation), a "
    "benchmark's JSON lines, or the folder of `eaglelab sweep CASE`, which measures it"
)
LAUNCH = "`[engine] launch` holds the server's command line"
"""How to get each input, for messages."""


class TimingCase:
    """`Investigation.timing`. Every part raises NotGiven where the case lacks its input, TimingError where it cannot be used."""

    def __init__(self, inv: Investigation) -> None:
        self.inv = inv

    # -- flags --------------------------------------------------------------------------------------------------------------------

    @cached_property
    def flags(self) -> FlagAudit:
        """What the launch line leads to, with the largest batch that the log shows. Configs and logs that cannot be read count as not given:
        other checks say so."""
        from eaglelab.engines.effective import audit

        inv = self.inv
        if inv.launch is None:
            raise NotGiven("the server's launch line", LAUNCH)
        if inv.engine is None or not inv.engine.is_engine:
            raise NotGiven("the engine that reads the launch line", "`[engine] name` and `version` name it")
        target = draft = None
        with suppress(ValueError):
            target = inv.target_config
        with suppress(ValueError):
            draft = inv.draft_config
        running, graphs = self._running
        return audit(inv.launch, inv.engine, target_config=target, draft_config=draft, running=running, graphs=graphs)

    @property
    def _running(self) -> tuple[int | None, bool]:
        """(The most requests that ran at the same time, as the log says; whether graphs are left to the flags: the log does not tell which batches
        had one, and it was no CPU. Where it tells, `served.log.graphs` says it.)"""
        try:
            log = self.inv.served.log
        except ValueError:
            return None, True
        rows = log.rows if log is not None else ()
        told = any(row.event == "decode" and row.graph is not None for row in rows)
        return max((row.running for row in rows if row.running), default=None), not (told or self.inv.served.on_cpu)

    @property
    def setting(self) -> Setting | None:
        """The setting that the case's server runs with: of its launch line, as the engine reads it. None: not told."""
        try:
            effective = self.flags.effective
        except (NotGiven, ValueError):
            return None
        steps, topk = effective.get("num_steps"), effective.get("eagle_topk") or 1
        if not steps or (topk > 1 and not effective.get("num_draft_tokens")):
            return None
        return Setting(steps, topk, effective.get("num_draft_tokens") or 0)

    # -- where the milliseconds go ------------------------------------------------------------------------------------------------------

    @cached_property
    def trace(self) -> TraceReport:
        """`[timing] trace`: a file, or a folder with one a rank."""
        if self.inv.case.timing.trace is None:
            raise NotGiven("a profiler trace", TRACE)
        return self._trace()

    @kept("the trace's phases", by_path=True)
    def _trace(self) -> TraceReport:
        from eaglelab.timing.trace import read_trace

        return read_trace(self.inv.case.timing.trace)

    @cached_property
    def timers(self) -> TimerSplit:
        """`[timing] metrics`: scrapes of /metrics."""
        if self.inv.case.timing.metrics is None:
            raise NotGiven("two scrapes of the server's metrics", METRICS)
        from eaglelab.timing.timers import read_timers

        return read_timers(self.inv.case.timing.metrics)

    def phase_table(self) -> pd.DataFrame:
        """Mean milliseconds by phase, which sum to the mean cycle (medians would not), one row a batch size of the trace, or a rank where several ran
        one batch size: for `plots.timing.phase_bars`.

        Raises NotGiven where there are no cycles.
        """
        import pandas as pd

        if not self.trace.speculative:
            raise NotGiven("speculative cycles", f"the trace has none: {self.trace.summary}")
        cycles = self.trace.cycles
        key = "rank" if cycles["batch"].nunique(dropna=False) == 1 and cycles["rank"].nunique() > 1 else "batch"
        groups = cycles.groupby(key, dropna=False)
        table = groups[list(COLUMNS.values())].mean()
        table = table.rename(columns={column: str(phase) for phase, column in COLUMNS.items()})
        table.index = [("batch ?" if pd.isna(label) else f"batch {label}") if key == "batch" else str(label) for label in table.index]
        table = table.loc[:, table.sum() > 0]
        return table.assign(cycles=groups.size().to_numpy())

    def verify_over_decode(self) -> pd.DataFrame:
        """The target's verify pass beside plain decode steps of the same trace, one row a batch size that has both (`trace.beside`). Raises NotGiven
        where none has, or only launching was timed."""
        from eaglelab.timing.trace.beside import beside_decode
        from eaglelab.timing.trace.report import NO_KERNELS

        if self.trace.device == "host":
            raise NotGiven("kernels of the verify passes", NO_KERNELS)
        table, missing = beside_decode(self.trace, None if self.setting is None else self.setting.verified)
        if table.empty:
            raise NotGiven("plain decode steps beside the verify passes", missing)
        return table

    # -- what breaks even ---------------------------------------------------------------------------------------------------------------

    @cached_property
    def measured(self) -> MeasuredTable:
        """`[timing] table`."""
        if self.inv.case.timing.table is None:
            raise NotGiven("measured throughputs of settings", TABLE)
        from eaglelab.timing.measured import read_measured

        return read_measured(self.inv.case.timing.table, setting=self.setting)

    @cached_property
    def rows(self) -> tuple[CostRow, ...]:
        """Every measured setting beside the baseline of its batch size."""
        from eaglelab.timing.cost import cost_rows

        return cost_rows(self.measured)

    @cached_property
    def acceptance(self) -> ReplayedAcceptance:
        """Accept length by setting, from the drafter alone. Raises NotGiven without a dump and a drafter."""
        from eaglelab.timing.acceptance import ReplayedAcceptance

        if self.inv.dump is None or self.inv.case.drafter.path is None:
            raise NotGiven("a dump and a drafter to replay", "`[dump] path` and `[drafter] path` name them")
        return ReplayedAcceptance(self.inv)

    @cached_property
    def cost(self) -> CostReport:
        """The cost model of what was measured, and the best setting per batch size: by measured runs alone."""
        return self._cost(None)

    @cached_property
    def cost_with_replay(self) -> CostReport:
        """The same, with the drafter's own accept lengths for settings that nobody ran. Raises NotGiven without a dump and a drafter."""
        return self._cost(self.acceptance)

    @property
    def best_cost(self) -> CostReport:
        """`cost_with_replay` where the drafter can be replayed, else `cost`."""
        self.measured  # noqa: B018 - an absent table is what is said first
        try:
            return self.cost_with_replay
        except (NotGiven, ValueError):
            return self.cost

    def _cost(self, acceptance: Any) -> CostReport:
        from eaglelab.timing.cost_report import cost_report
        from eaglelab.timing.experts import experts_of

        config = self.inv.target_config
        experts = None if config is None else experts_of(config)
        return cost_report(self.measured, experts=experts, acceptance=acceptance, lm_head=self._lm_head, **self.traced)

    @cached_property
    def traced(self) -> dict[str, Any]:
        """What the trace tells the cost model; {} without one that can be used."""
        from eaglelab.timing.traced import shares_of

        try:
            return shares_of(self.trace)
        except (NotGiven, TimingError):
            return {}

    @property
    def _lm_head(self) -> float | None:
        from eaglelab.timing.what_if import lm_head_share

        try:
            return None if self.inv.drafter_config is None else lm_head_share(self.inv.drafter_config)
        except ValueError:  # `drafter.complete` says why
            return None

    # -- for figures ------------------------------------------------------------------------------------------------------------------

    def speedups(self, report: CostReport | None = None) -> pd.DataFrame:
        """Measured and predicted speedups for `plots.timing.speedup_by_batch`: batch, name, speedup, low, high, measured."""
        import pandas as pd

        from eaglelab.timing.predict import MEASURED

        report = self.cost if report is None else report
        rows = [
            (o.batch, o.name, o.speedup, o.low, o.high, o.source == MEASURED)
            for r in report.recommendations
            for o in r.outlooks
            if not o.setting.off and o.speedup is not None
        ]
        table = pd.DataFrame(rows, columns=["batch", "name", "speedup", "low", "high", "measured"])
        return table.astype({"speedup": float, "low": float, "high": float})

    def cost_table(self) -> pd.DataFrame:
        """One row a measured setting: name, batch, tok_s, accept_length, baseline_tok_s, speedup, r, pass_ms."""
        import pandas as pd

        columns = ["name", "batch", "tok_s", "accept_length", "baseline_tok_s", "speedup", "r", "pass_ms"]
        rows = [
            (
                c.measured.setting.name,
                c.measured.batch,
                c.measured.tok_s,
                c.measured.accept_length,
                c.baseline_tok_s,
                c.speedup,
                c.r,
                c.pass_ms,
            )
            for c in self.rows
        ]
        return pd.DataFrame(rows, columns=columns)

    def accept_lengths(self) -> pd.DataFrame:
        """Replayed accept length of chains: steps, accept_length, low, high (95 % over samples)."""
        import pandas as pd

        from eaglelab.timing.acceptance import DEEPEST

        told = {k: self.acceptance(Setting(k)) for k in range(1, DEEPEST + 1)}
        rows = [(k, e.accept_length, e.low, e.high) for k, e in told.items() if e is not None]
        if not rows:
            raise NotGiven("answers long enough to walk through", "samples with a loss mask and answers of some dozen tokens")
        return pd.DataFrame(rows, columns=["steps", "accept_length", "low", "high"])

    def what_ifs(self, verify_faster: float = 0.27, accept_longer: float = 0.3) -> pd.DataFrame:
        """What a change would bring for the fastest measured setting of each batch size: batch, setting, what if, speedup and break-even before and
        after, assuming. How the cycle is divided is the trace's to say; without one all of it counts as verify."""
        import pandas as pd

        from eaglelab.timing.what_if import what_ifs

        rows = []
        for row, one in what_ifs(self.rows, faster=verify_faster, longer=accept_longer, lm_head=self._lm_head, **self.traced):
            before, after = one.before, one.after
            then = (None, None) if after is None else (after.speedup, after.break_even)
            numbers = (before.speedup, then[0], before.break_even, then[1])
            rows.append((row.measured.batch, row.measured.setting.name, one.name, *numbers, "; ".join(one.assumptions)))
        columns = ["batch", "setting", "what if", "speedup", "speedup then", "break-even", "break-even then", "assuming"]
        return pd.DataFrame(rows, columns=columns).astype({"speedup then": float, "break-even then": float})

    def left_out(self) -> pd.DataFrame:
        """Each measured setting predicted from the others: name, batch, measured and predicted speedup (r of the model; of one r for all as `constant`)."""
        import pandas as pd

        speedup = {(c.measured.batch, c.measured.setting, c.measured.group): c for c in self.rows}
        rows = []
        for one in self.cost.left_out:
            for missed in one.rows:
                m = missed.measured
                found = speedup.get((m.batch, m.setting, m.group))
                if found is None or found.speedup is None or missed.model is None:
                    continue
                rows.append((m.setting.name, m.batch, found.speedup, m.accept_length / missed.model, m.accept_length / missed.constant))
        return pd.DataFrame(rows, columns=["name", "batch", "measured", "predicted", "constant"]).drop_duplicates(["name", "batch"])
