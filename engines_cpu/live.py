"""Serve the example with real engines on the CPU and hold what they count against what the replay predicts.

    make live        # vLLM, float32, chains of 3, right and claimed wiring
    make live-all    # SGLang too: chains of 3 and 5, trees, bf16; capture; the stand-in against SGLang's own kernels
    .venv/bin/python engines_cpu/live.py sglang-tree     # single runs, by name
    .venv/bin/python engines_cpu/live.py --all --record  # and write data/example/engine/

The predictions of float32 runs are made before anything is served, on the shipped recordings' text. Ends with status 1 and says what
differs. Everything that was served lies in .live/runs/, the result in .live/runs/result.{txt,json}.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from prediction import Predictor, recorded, tokens_of, uncounted
from runs import EXAMPLE, LIVE, RECORDED, ROOT, RUNS, SHORT, Run
from serving import EngineError, prompts, serve
from shipping import ship

from eaglelab.live.server import ServerError
from eaglelab.served.predict import Prediction
from eaglelab.served.recording import Recording

WITHIN = 0.02
"""Share by which the served accept length of a bf16 run may lie off the prediction: its near-ties are rounded another way."""


@dataclass
class Row:
    """One run, predicted and served."""

    run: str
    before: float | None
    """Accept length predicted before serving, on the shipped text."""
    answers: int = 0
    served: float | None = None
    predicted: float | None = None
    """Accept length predicted on the served text."""
    requests_equal: int = 0
    """Requests that the engine counted exactly as predicted: every step where it tells every step, else the histogram."""
    steps: int = 0
    """Verify steps compared."""
    tied: int = 0
    """Answer tokens whose two largest logits are nearly equal."""
    argmax: tuple[int, int] = (0, 0)
    """(answer tokens that are the float32 target's argmax, of n)."""
    same_text: int | None = None
    """Answers equal to the shipped recording's; None without one."""
    same_counts: int | None = None
    """Of these, requests that the engine counted as it did then."""
    seconds: int = 0
    faults: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"of {', '.join(RUNS)} (default: {', '.join(SHORT)})")
    parser.add_argument("--all", action="store_true", help="every run, the capture and the stand-in's own test")
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.relative_to(ROOT)}/ from what was served")
    parser.add_argument("--served", action="store_true", help="serve nothing: compare what lies in .live/runs")
    args = parser.parse_args()
    unknown = [name for name in args.runs if name not in RUNS]
    if unknown:
        parser.error(f"no run is called {unknown[0]}; known: {', '.join(RUNS)}")
    if not (EXAMPLE / "target" / "model.safetensors").exists():
        sys.exit("the example's target is not in data/example/target: `make target` fetches it")
    chosen = [RUNS[name] for name in (RUNS if args.all else args.runs or SHORT)]
    missing = sorted({run.engine for run in chosen if not run.python.exists()})
    if missing:
        sys.exit(f"no engine in .live/{missing[0]}: `make live` builds vLLM's environment, `make live-all` both")

    torch.set_num_threads(1)  # two threads on cores that others use wait for each other: 277 s instead of 25 were seen
    predictor, rows = Predictor(), []
    for run in chosen:
        rows.append(Row(run.name, predicted_before(run, predictor)))
        print(f"{run.name}: accept length predicted {number(rows[-1].before)}", flush=True)
    asked = prompts()
    for run, row in zip(chosen, rows, strict=True):
        served_and_compared(run, row, asked, predictor, serve_it=not args.served)
        if args.record and run.dtype == "float32" and not row.faults:  # the text of bf16 is this machine's own
            ship(run, LIVE / "runs" / run.name)
        print(f"{row.run}: served {number(row.served)}, {row.seconds} s{''.join('; ' + f for f in row.faults)}", flush=True)
    faults = [f"{row.run}: {fault}" for row in rows for fault in row.faults]
    if args.all:
        faults += stand_in() + captured()
    text = report(rows, faults)
    (LIVE / "runs" / "result.txt").write_text(text)
    (LIVE / "runs" / "result.json").write_text(json.dumps({"runs": [asdict(r) for r in rows], "faults": faults}, indent=2) + "\n")
    print("\n" + text)
    return bool(faults)


def predicted_before(run: Run, predictor: Predictor) -> float | None:
    """The accept length that the replay expects of a float32 run on the shipped text; None in bf16, whose text is its own."""
    texts = recorded(run) or recorded(RUNS["vllm-right"])
    if texts is None or run.dtype != "float32":
        return None
    return predictor(run, uncounted(run, texts)).predicted.accept_length


def served_and_compared(run: Run, row: Row, asked: list, predictor: Predictor, *, serve_it: bool) -> None:
    """Fills the row. An engine that fails is a fault of its row, not the end."""
    started, folder = time.monotonic(), LIVE / "runs" / run.name
    try:
        recording = Recording.load(serve(run, asked, folder) if serve_it else folder / "recording.jsonl")
    except (EngineError, ServerError, ValueError) as error:
        row.faults.append(str(error))
        return
    row.seconds = round(time.monotonic() - started)
    row.answers = len(recording.requests)
    if recording.failures:
        row.faults.append(f"{len(recording.failures)} of {len(asked)} prompts got no answer: {recording.failures[0].error}")
    if not recording.requests:
        return
    prediction = predictor(run, recording)
    row.predicted, row.served = prediction.predicted.accept_length, recording.counts.accept_length if recording.counts else None
    row.requests_equal, row.steps = sum(bool(r.equal) for r in prediction.requests), prediction.compared
    row.tied, row.argmax = prediction.near_ties, prediction.agrees
    row.faults += wrong(run, row, prediction)
    row.faults += unlike_recorded(run, row, recording)


def wrong(run: Run, row: Row, prediction: Prediction) -> list[str]:
    """What is not as predicted. float32: every request counted exactly, every token the argmax but for near-ties. bf16: the mean."""
    if row.served is None or row.predicted is None:
        return ["the engine told no accept counts"]
    if run.dtype != "float32":
        off = abs(row.served / row.predicted - 1)
        return [] if off <= WITHIN else [f"accept length {row.served:.3f}, predicted {row.predicted:.3f}: {off:.1%} off"]
    faults = []
    if row.requests_equal < row.answers:
        names = [str(r.index) for r in prediction.requests if not r.equal]
        faults.append(f"{len(names)} of {row.answers} requests are not counted as predicted: {', '.join(names[:8])}")
    right, n = row.argmax
    if n - right > row.tied:
        faults.append(f"{n - right} of {n} answer tokens are not the target's argmax, {row.tied} near-ties")
    return faults


def unlike_recorded(run: Run, row: Row, recording: Recording) -> list[str]:
    """Where the served text or counts differ from the shipped recording of the same run, made by the same engine's version."""
    before = recorded(run)
    if before is None:
        return []
    then = {tokens_of(r): r for r in before.requests}
    same = [(r, then[tokens_of(r)]) for r in recording.requests if tokens_of(r) in then]
    row.same_text = len(same)
    row.same_counts = sum((r.accepted or r.histogram) == (t.accepted or t.histogram) for r, t in same)
    if run.dtype != "float32":
        return []
    faults = []
    if len(recording.requests) - row.same_text > row.tied:
        faults.append(f"{len(recording.requests) - row.same_text} answers are not the shipped recording's, and {row.tied} near-ties")
    if row.same_counts < row.same_text:
        faults.append(f"{row.same_text - row.same_counts} requests with the shipped text are counted in another way than then")
    return faults


def stand_in() -> list[str]:
    """The stand-in's tree kernels against SGLang's own, in SGLang's environment."""
    environment = os.environ | {"PYTHONPATH": "engines_cpu/for_sglang", "TRITON_INTERPRET": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    command = [LIVE / "sglang" / "bin" / "python", "engines_cpu/against_triton.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    print((done.stdout.splitlines() or ["the stand-in's test printed nothing"])[-1], flush=True)
    return [f"stand-in: {done.stderr.strip().splitlines()[-1][:300]}"] if done.returncode else []


def captured() -> list[str]:
    """States captured from both engines against the example's dump."""
    from capture_parity import CAPTURES, SAMPLES, as_expected

    from eaglelab.investigation import Investigation

    inv, faults = Investigation(str(EXAMPLE), max_samples=SAMPLES), []
    for name, run in CAPTURES.items():
        try:
            faults += (
                [] if as_expected(run, inv) else [f"{name}: the captured states are not the expected boundaries, see .live/capture/{name}"]
            )
        except (EngineError, ValueError) as error:
            faults.append(f"{name}: {error}")
    return faults


def report(rows: list[Row], faults: list[str]) -> str:
    """The table and what differs, in plain text."""
    head = ("run", "before", "served", "predicted", "requests equal", "steps", "argmax", "near-ties", "text as shipped", "counts too", "s")
    lines = [
        (
            row.run,
            number(row.before),
            number(row.served),
            number(row.predicted),
            f"{row.requests_equal} of {row.answers}",
            f"{row.steps:,}",
            f"{row.argmax[0]:,} of {row.argmax[1]:,}",
            str(row.tied),
            "-" if row.same_text is None else f"{row.same_text} of {row.answers}",
            "-" if row.same_counts is None else f"{row.same_counts} of {row.same_text}",
            str(row.seconds),
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    table = [
        "  ".join(cell.rjust(w) if i else cell.ljust(w) for i, (cell, w) in enumerate(zip(line, widths, strict=True)))
        for line in (head, *lines)
    ]
    words = [
        "before: accept length predicted before serving, on the shipped text; predicted: on the text that was served",
        "requests equal: counted as predicted, at every verify step (vLLM) or by histogram (SGLang), a last step that the text cuts left out",
        "bf16: the text is the engine's own and near-ties round another way, so only the accept length is held, within 2%",
    ]
    end = ["", "DIFFERENT:", *(f"  {fault}" for fault in faults)] if faults else ["", "All as predicted."]
    return "\n".join([*table, "", *words, *end]) + "\n"


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    sys.exit(main())
