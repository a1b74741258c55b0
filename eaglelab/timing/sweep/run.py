"""The whole sweep: plan, a server for each setting, results on disk as they come; the same call goes on where an earlier one ended."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eaglelab.live.prompts import Prompts
from eaglelab.live.run import new_tokens, now
from eaglelab.live.server import Server, ServerError
from eaglelab.opened import NotGiven
from eaglelab.provenance import collect
from eaglelab.timing.acceptance import Expected, ReplayedAcceptance
from eaglelab.timing.errors import TimingError
from eaglelab.timing.measured import Measured
from eaglelab.timing.predict import Acceptance
from eaglelab.timing.setting import Setting
from eaglelab.timing.sweep.choose import setting_of
from eaglelab.timing.sweep.command import Command, Template
from eaglelab.timing.sweep.machine import accelerated, machine
from eaglelab.timing.sweep.measure import WARM_UP_TOKENS, asked, check_setting, measure, numbers, run_batch, same_text
from eaglelab.timing.sweep.plan import CPU_NODES, Bounds, Candidate, Knowledge, auto_settings, decide, possible
from eaglelab.timing.sweep.report import SweepReport
from eaglelab.timing.sweep.served import served_less
from eaglelab.timing.sweep.servers import (
    BOOT_SECONDS,
    Interrupted,
    Running,
    SettingFailed,
    check_free,
    free_port,
    interruptible,
    wait_ready,
)
from eaglelab.timing.sweep.store import Store
from eaglelab.timing.sweep.streaming import Client

if TYPE_CHECKING:
    from eaglelab.investigation import Investigation

FOLDER = "sweep"
"""In the case's folder, unless told otherwise."""
NEW_TOKENS = 256
DYING = 1.0
"""Seconds within which a server whose connection broke is seen to be gone."""


@dataclass(frozen=True)
class Options:
    settings: tuple[Setting, ...] | None = None
    """None: those of `plan.auto_settings` that could win."""
    batches: tuple[int, ...] = (1, 4, 16)
    repeats: int = 1
    max_new_tokens: int = NEW_TOKENS
    requests: int | None = None
    """Requests of a repeat; None: every prompt once."""
    environment: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """(variable, its values): every combination is swept."""
    flags: tuple[tuple[str, ...], ...] = ()
    """Words that are added to the launch line: swept without and with each."""
    boot_timeout: float = BOOT_SECONDS
    timeout: float = 600.0
    """Seconds that one answer may take."""
    max_runs: int | None = None
    """Servers that this call starts at most."""


@dataclass(frozen=True)
class Variant:
    """One environment of the server."""

    environment: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """ "" for the launch line as it is."""
        return " ".join([*(f"{k}={v}" for k, v in self.environment.items()), *self.flags])


def variants(options: Options) -> list[Variant]:
    names = [name for name, _ in options.environment]
    values = itertools.product(*(values for _, values in options.environment))
    flags = itertools.product(*(((), words) for words in options.flags))
    return [Variant(dict(zip(names, v, strict=True)), tuple(itertools.chain(*f))) for v, f in itertools.product(values, list(flags))]


def run_name(setting: Setting, variant: Variant) -> str:
    """A folder's name."""
    tail = re.sub(r"[^A-Za-z0-9._=-]+", "_", variant.name)
    if len(tail) > 80 or tail != variant.name.replace(" ", "_"):
        tail = f"{tail[:60]}-{hashlib.sha256(variant.name.encode()).hexdigest()[:8]}"
    return f"{setting.name}+{tail}" if variant.name else setting.name


def ordered(settings: Sequence[Setting]) -> list[Setting]:
    """Off, then chains and trees from small to large: what is measured early bounds the later."""
    return sorted(dict.fromkeys((Setting(0), *settings)), key=lambda s: (not s.off, not s.chain, s.verified, s.steps, s.topk))


def on_cpu(template: Template) -> str:
    """Why the server is taken to run on a CPU; empty where it is not."""
    device = template.launch.given.get("device")
    if isinstance(device, str) and device:
        return "the launch line says --device cpu" if device == "cpu" else ""
    return "" if accelerated() else "this machine has no accelerator"


class Sweep:
    """One call. `plan` starts nothing."""

    def __init__(
        self,
        inv: Investigation,
        template: Template,
        options: Options,
        *,
        out: Path | None = None,
        bounds: Bounds | None = None,
        key: str | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """key: the server's, where the launch line does not tell it. bounds: another model's, in place of the sweep's own."""
        self.inv, self.template, self.options, self.bounds, self.say = inv, template, options, bounds, say
        self.out = out or inv.case.root / FOLDER
        self.key = template.api_key or key
        self.notes = list(template.notes)
        self.settings = ordered(options.settings or auto_settings(template.engine))
        self.cpu = on_cpu(template)
        self.candidates: dict[str, list[Candidate]] = {}
        self.started = 0
        template.check_environment([name for name, _ in options.environment])

    # -- what is known ------------------------------------------------------------------------------------------------------------

    def acceptance(self) -> Acceptance:
        """The replay's accept lengths; nothing, with a note, where the case has no replay."""
        if self.inv.case.dump.path is None or self.inv.case.drafter.path is None:
            self.notes.append(
                "No accept length is known before something is served: the replay of `[dump] path` by `[drafter] path` would tell it"
            )
            return lambda setting: None
        replay = ReplayedAcceptance(self.inv)
        wanted = [s for s in self.settings if not s.off and possible(s, self.template.engine)]
        if self.cpu and self.options.settings is None:
            wanted = [s for s in wanted if s.verified <= CPU_NODES]
        found: dict[Setting, Expected | None] = {}
        failed: dict[str, list[str]] = {}
        for group in ([s for s in wanted if s.chain], *([s] for s in wanted if not s.chain)):
            try:
                found |= {s: replay(s) for s in group}
            except (NotGiven, ValueError, OSError) as why:
                failed.setdefault(str(why), []).extend(s.name for s in group)
        self.notes += [f"No replayed accept length of {', '.join(names)}: {why}" for why, names in failed.items()]
        if any(found.values()) and (warning := served_less(self.inv, found.get, self.template.engine)):
            self.notes.append(warning)
        return found.get

    def table(self) -> list[Measured]:
        """The case's measured table, where it has one of a single model and machine."""
        if self.inv.case.timing.table is None:
            return []
        from eaglelab.timing.measured import read_measured

        try:
            rows = read_measured(self.inv.case.timing.table).rows
        except TimingError as why:
            self.notes.append(f"`[timing] table` does not help to plan: {why}")
            return []
        if len({m.group for m in rows if not m.setting.off}) > 1:
            self.notes.append("`[timing] table` does not help to plan: it holds several models, machines or drafters")
            return []
        return [m for m in rows if m.batch_told]

    def knowledge(self, variant: Variant, rows: Sequence[dict[str, Any]]) -> Knowledge:
        """rows: of this sweep."""
        own = [r for r in rows if r["group"] == variant.name]
        counted: dict[Setting, list[int]] = {}
        for row in own:
            setting = setting_of(row)
            if setting.chain and row["joint"] and row["verify_passes"]:
                last = row["joint"][setting.steps - 1] if len(row["joint"]) >= setting.steps else 0
                of = counted.setdefault(setting, [0, 0])
                of[0] += last
                of[1] += row["verify_passes"]
        measured = [Measured(r["batch"], setting_of(r), r["tok_s"], r["accept_length"]) for r in own]
        return Knowledge(measured, self._before, {s: a / n for s, (a, n) in counted.items()}, self._accept)

    def _decide(self, setting: Setting, known: Knowledge) -> Candidate:
        options = {"asked_for": self.options.settings is not None, "engine": self.template.engine, "bounds": self.bounds, "cpu": self.cpu}
        return decide(setting, self.options.batches, known, **options)

    # -- plan and run -------------------------------------------------------------------------------------------------------------

    def prepare(self, *, replayed: bool) -> None:
        """replayed: whether the replay is asked, which may take minutes. What is measured anyway does not hang on it."""
        self._accept, self._before = (self.acceptance() if replayed else lambda setting: None), self.table()

    def plan(self, prompts: Prompts | None = None) -> SweepReport:
        """What would be tried, as far as it can be said before anything is measured. prompts: None where they are not known."""
        self.prepare(replayed=True)
        for variant in variants(self.options):
            known = self.knowledge(variant, ())
            self.candidates[variant.name] = [self._decide(s, known) for s in self.settings]
        commands = {run_name(s, v): self._command(s, v, 0).shown.replace("--port 0", "--port PORT") for v, s in self._planned()}
        return self._report((), (), commands=commands, planned=self._means(prompts))

    def _means(self, prompts: Prompts | None) -> dict[str, Any]:
        """`servers`, and `requests` of each, by batch size: warm-ups not counted."""
        each, options = {}, self.options
        if prompts is not None:
            each = {b: options.repeats * len(asked(prompts.prompts, b, options.requests)) for b in options.batches}
        servers = len(self._planned())
        return {"servers": servers, "requests": servers * sum(each.values()) if each else None, "requests_of_each": each}

    def _planned(self) -> list[tuple[Variant, Setting]]:
        return [(v, c.setting) for v in variants(self.options) for c in self.candidates[v.name] if c.tried]

    def _command(self, setting: Setting, variant: Variant, port: int) -> Command:
        return self.template.command(setting, port, variant.flags)

    def run(self, prompts: Prompts) -> SweepReport:
        """Measure what is worth it and not there yet. Raises TimingError where it cannot begin or go on; what was measured is kept."""
        self.prompts = prompts
        self.notes += prompts.notes
        if max(self.options.batches) > len(prompts.prompts):
            self.notes.append(
                f"{len(prompts.prompts)} prompts for up to {max(self.options.batches)} streams: the same prompt runs several times at once, which may flatter a mixture of "
                "experts and caches"
            )
        if self.template.own_port:  # said before anything else is done
            check_free(self.template.own_port)
        self._command(Setting(1), Variant(), 1), self._command(Setting(0), Variant(), 1)  # raises for a line that cannot be edited
        store, stopped = Store(self.out), None
        with store.held(self._about()):
            self.notes += store.notes
            with interruptible():
                try:
                    before = len(self.notes)
                    self.prepare(replayed=self.options.settings is None)
                    for note in self.notes[before:]:  # before hours are spent
                        self.say(note)
                    for variant in variants(self.options):
                        self._run_variant(store, variant)
                except KeyboardInterrupt as signal:
                    stopped = f"interrupted ({signal})" if isinstance(signal, Interrupted) else "interrupted"
        return self._report(store.rows, store.failures, stopped=stopped)

    def _about(self) -> dict[str, Any]:
        bound = self.options.max_new_tokens
        sent = json.dumps([[p.token_ids, new_tokens(p, bound)] for p in self.prompts.prompts])
        told = {"source": self.prompts.source, "count": len(self.prompts.prompts), "sha256": hashlib.sha256(sent.encode()).hexdigest()}
        about = {"launch": self.template.shown, "engine": self.template.engine, "prompts": told}
        about |= {"max_new_tokens": bound, "requests": self.options.requests, "created": now(), "machine": machine()}
        about["command"] = self._command(Setting(1), Variant(), 0).shown  # names the drafter where the launch line does not
        about["provenance"] = {k: v for k, v in collect().items() if k != "device"}  # torch's, and the server may use another
        return about

    def _run_variant(self, store: Store, variant: Variant) -> None:
        found = self.candidates.setdefault(variant.name, [])
        for setting in self.settings:
            known = self.knowledge(variant, store.rows)
            todo = self._todo(store, setting, variant)
            candidate = self._decide(setting, known)
            if not todo:
                found.append(Candidate(setting, True, "measured before", candidate.accept, candidate.bounds))
                continue
            if candidate.tried and not setting.off and not any(m.setting.off for m in known.own):
                candidate = Candidate(setting, False, "off could not be measured: there would be nothing to compare with", candidate.accept)
            elif candidate.tried and self.options.max_runs is not None and self.started >= self.options.max_runs:
                candidate = Candidate(setting, False, "left to the next call (--max-runs)", candidate.accept, candidate.bounds)
            found.append(candidate)
            if candidate.tried:
                self._run_setting(store, setting, variant, todo)

    def _todo(self, store: Store, setting: Setting, variant: Variant) -> list[tuple[int, int]]:
        """(batch, repeat) that no result is there of."""
        have = {(r["batch"], r["repeat"]) for r in store.rows if r["run"] == run_name(setting, variant)}
        return [(b, r) for b in self.options.batches for r in range(self.options.repeats) if (b, r) not in have]

    def _run_setting(self, store: Store, setting: Setting, variant: Variant, todo: Sequence[tuple[int, int]]) -> None:
        name = run_name(setting, variant)
        log = _new_log(store.run(name))
        self.started += 1
        running = None
        if self.template.own_port:
            check_free(self.template.own_port)
        try:
            command = self._command(setting, variant, free_port())
            self.say(f"{name}: {command.shown}")
            with Running(command, log, variant.environment) as running:
                self._measure(store, setting, variant, todo, running)
        except SettingFailed as why:
            row = {
                "run": name,
                **setting.to_json(),
                "group": variant.name,
                "env": variant.environment,
                "flags": variant.flags,
                "error": str(why),
            }
            row |= {"log": str(log.relative_to(store.folder)), "log_tail": running.tail() if running is not None else "", "time": now()}
            store.failure(row)
            self.say(f"{name}: failed: {why}")

    def _measure(self, store: Store, setting: Setting, variant: Variant, todo: Sequence[tuple[int, int]], running: Running) -> None:
        began = time.monotonic()
        prompts, options, name = self.prompts.prompts, self.options, run_name(setting, variant)
        shortest = min(prompts, key=lambda p: len(p.token_ids))
        server = wait_ready(running, shortest, engine=self.template.engine, key=self.key, seconds=options.boot_timeout)
        self._same_engine(store, server)
        notes = check_setting(server, setting, options.batches)
        common = {"run": name, "group": variant.name, "env": variant.environment, "flags": variant.flags, "engine": str(server.engine)}
        common |= {
            "setting": setting.name,
            "command": running.command.shown,
            "boot_seconds": round(time.monotonic() - began, 1),
            "notes": notes,
        }
        client = Client(server, running.command.host, running.command.port, self.key, _model(server), options.timeout)
        try:
            for batch in dict.fromkeys(b for b, _ in todo):
                sent = asked(prompts, batch, options.requests)
                run_batch(client, sent[:batch], batch, options.max_new_tokens, most=WARM_UP_TOKENS)
                for repeat in (r for b, r in todo if b == batch):
                    started = now()
                    found = measure(client, setting, sent, batch, options.max_new_tokens)
                    running.tree.look()
                    base = store.read_answers(run_name(Setting(0), variant), batch, 0) if not setting.off or repeat else {}
                    row = {
                        "batch": batch,
                        "steps": setting.steps,
                        "topk": setting.topk,
                        "draft_tokens": setting.draft_tokens,
                        **numbers(found),
                    }
                    row |= {
                        "source": f"sweep, run {name}, repeat {repeat}",
                        "repeat": repeat,
                        "same_text": same_text(found.answers, base),
                        **common,
                    }
                    store.answers(name, [_answer(a, batch, repeat) for a in found.answers])
                    store.result(row | {"started": started})
                    length = f", accept length {row['accept_length']:.3f}" if row["accept_length"] is not None else ""
                    self.say(f"{name}, batch {batch}, repeat {repeat}: {row['tok_s']:.4g} tok/s ({row['tok_s_of']}){length}")
        except SettingFailed as why:
            until = time.monotonic() + DYING
            while time.monotonic() < until:
                try:
                    running.check()
                except SettingFailed as gone:
                    raise SettingFailed(f"{why}; {gone}") from None
                time.sleep(0.05)
            raise

    def _same_engine(self, store: Store, server: Server) -> None:
        before = {r["engine"] for r in store.rows} - {str(server.engine)}
        if before:
            raise TimingError(
                f"{store.folder} holds results of {', '.join(sorted(before))}, the server now is {server.engine}: give another folder, --out DIR"
            )

    def _report(self, rows: Sequence[dict[str, Any]], failures: Sequence[dict[str, Any]], **more: Any) -> SweepReport:
        names = {(v.name, s): run_name(s, v) for v in variants(self.options) for s in self.settings}
        measured = {(r["run"], r["batch"], r["repeat"]) for r in rows}
        whole = {
            run for run in names.values() if all((run, b, r) in measured for b in self.options.batches for r in range(self.options.repeats))
        }
        open_failures = {f["run"]: f for f in failures if f.get("run") not in whole}
        return SweepReport(self.out, self.candidates, tuple(rows), tuple(open_failures.values()), tuple(self.notes), **more)


def _answer(answer: Any, batch: int, repeat: int) -> dict[str, Any]:
    """A line of answers.jsonl. Times in seconds since the request was sent."""
    arrivals = [[round(t - answer.sent, 6), n] for t, n in answer.arrivals]
    told = {"batch": batch, "repeat": repeat, "prompt": answer.prompt, "token_ids": answer.token_ids, "finish_reason": answer.finish_reason}
    told["text"] = answer.text
    counts = answer.counts
    told |= {} if counts is None else {"verify_passes": counts.verify_steps, "accepted": counts.accepted, "joint": counts.joint}
    return told | {"sent": round(answer.sent, 6), "arrivals": arrivals}


def _model(server: Server) -> str | None:
    """vLLM's name of what it serves."""
    models = None
    with suppress(ServerError):
        models = server.info().get("models")
    return models[0].get("id") if isinstance(models, list) and models and isinstance(models[0], dict) else None


def _new_log(folder: Path) -> Path:
    """server.log, or server-2.log, … where a run before has left its own."""
    return next(p for n in itertools.count(1) if not (p := folder / ("server.log" if n == 1 else f"server-{n}.log")).exists())
