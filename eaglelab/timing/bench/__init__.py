"""The drafter's step and the target's verify pass, measured standalone on the machine at hand.

`run.bench` measures a grid of batch sizes, contexts and tokens; `result.BenchResult` holds what came out and needs no torch. These are the
times of plain torch and transformers: an engine's own kernels are faster, so ratios carry over better than milliseconds, and neither is
a substitute for a trace of the engine.
"""
