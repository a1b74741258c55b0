"""The kinds of fault that the bench injects, class by class. One module a family; how they are declared and what they share: `common`."""

from faults.kinds import context, cost, dump, launch, metrics, recordings, runtime, shapes, targets_served, text, training, weights, wiring
from faults.plan import Kind

KINDS: tuple[Kind, ...] = (
    *wiring.KINDS,
    *weights.KINDS,
    *text.KINDS,
    *recordings.TEXT,
    *training.KINDS,
    *cost.KINDS,
    *launch.KINDS,
    *launch.SAMPLED,
    *recordings.SAMPLED,
    *runtime.KINDS,
    *metrics.CONFUSED,
    *dump.KINDS,
    *shapes.KINDS,
    *context.KINDS,
    *targets_served.QUANTISED,
    *metrics.UNRESOLVED,
)
