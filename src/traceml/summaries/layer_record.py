"""The layers of the model as `final_summary.json` has them."""

from __future__ import annotations

from msgspec import Struct


class LayerSummary(Struct, frozen=True, gc=False):
    """One layer; times are milliseconds per step, bytes those of the rank that holds the most."""

    kind: str | None = None
    """Its class."""
    calls: float | None = None
    """Per step."""
    forward_ms: float | None = None
    backward_ms: float | None = None
    recompute_ms: float | None = None
    """Its own time, without the layers below it; `recompute_ms` is forward again during backward
    (activation checkpointing)."""
    own_stderr_ms: float | None = None
    """The standard error of its own time in all phases; `None` with a single step."""
    communication_ms: float | None = None
    """How long it waited for other ranks, in none of its other times; `None` where for none."""
    total_ms: float | None = None
    """With every layer below its name."""
    parameters_bytes: int | None = None
    buffers_bytes: int | None = None
    gradients_bytes: int | None = None
    optimizer_bytes: int | None = None
    saved_bytes: int | None = None
    """Kept for the backward pass; `None` where that was not counted, as where a hook packs it
    (activation checkpointing, offloading to the host)."""
    gradient_norm: float | None = None
    """The median norm of its own gradient before clipping; `None` where it was not measured."""
    peak_bytes: int | None = None
    """The most that was allocated on the GPU while it was being called, where that was more than
    ever before; else `None`."""
    reached_bytes: int | None = None
    """The most that was taken when it, or a layer that it calls, began or returned: its peak is at
    least this. On a GPU what torch had allocated, on a CPU what the process held."""
    busy_ms: float | None = None
    """Time in which the kernels that it launched ran; `None` where that was not recorded."""
    kernels: float | None = None
    """How many those are."""
    flops: float | None = None
    """Floating-point operations per step of itself; `None` where they were not counted."""
    recompute_flops: float | None = None
    """Those that it does once more in backward (activation checkpointing), not in `flops`."""
    flops_per_s: float | None = None
    """How fast it does `flops`: while its kernels ran where that was recorded, else in its own
    time."""
    moved_bytes: float | None = None
    """Bytes that all its operations read and write per step, where each starts from memory."""
    bound: str | None = None
    """What limits it: `compute`, `bandwidth` or `launch`; `None` where that is not known."""
    peak_share: float | None = None
    """Its operations per second as a share of what the device can do, 0–1; without those that it
    does once more."""
    worst_rank: int | None = None
    worst_ms: float | None = None
    median_ms: float | None = None
    """On which rank it takes the longest, how long, and on the median rank (of an even number the
    faster of the two in the middle); `None` where fewer than two ranks have it, and where its
    parameters are spread over ranks."""
    other_rank: int | None = None
    """The other rank where two have it: `median_ms` is what that one takes."""
    compiled: str | None = None
    """`whole`: measured as one piece; `partly`: it calls compiled functions, a part of its own
    time; `inside`: below a compiled layer, its time is not known; `None`: not compiled."""


class KernelSummary(Struct, frozen=True):
    """The kernels of one name, per step."""

    name: str
    calls: float
    time_ms: float
    layer: str | None = None
    """The layer that launched most of them; `None` where none did."""


class ActivitySummary(Struct, frozen=True):
    """What the GPU did in a mean step, as it recorded it itself."""

    steps: int
    busy_ms: float
    """Time in which at least one kernel or copy ran."""
    kernels_per_step: float
    copies_ms: float
    communication_ms: float
    communication_alone_ms: float
    """Communication beside which nothing else ran."""
    kernels: tuple[KernelSummary, ...] = ()
    """The longest first."""
    copies_alone_ms: float | None = None
    """Copies and fills beside which nothing else ran; `None` in runs of older TraceMLs."""


class BadValueSummary(Struct, frozen=True):
    """The first value that was infinite or not a number, as far as it was looked for."""

    step: int
    phase: str
    """`forward`: a layer returned it; `backward`: a gradient, while the loss was finite;
    `optimizer`: parameters after the step, of which no gradient that was not finite is known;
    `start`: parameters before the first step. Further values may be added."""
    layer: str | None = None
    """The layer that made it, or holds them; `None` where only the step and the phase are known."""
    rank: int = 0
    after_step: int | None = None
    """The last step before it that was looked at."""


class GradientRiseSummary(Struct, frozen=True):
    """The gradient norm grew a hundredfold and did not come back."""

    step: int
    usual: float
    norm: float
    layer: str
    """The layer whose gradient rose first, at `layer_step`."""
    layer_step: int
    layer_usual: float
    layer_norm: float
    rank: int = 0


class NormCurvesSummary(Struct, frozen=True):
    """Norms of gradients before clipping over steps, at 120 points at most: the largest finite one
    of each point; `None` where none was measured."""

    steps: tuple[int, ...]
    """The first measured step of each point."""
    steps_per_point: int
    """How many measured steps a point stands for at most."""
    whole: tuple[float | None, ...]
    """Of the whole model."""
    layers: dict[str, tuple[float | None, ...]]
    """Of at most seven layers: those with the largest norms, and those whose norms changed the
    most."""
    not_finite: tuple[int, ...]
    """At how many measured steps of each point some norm was infinite or not a number."""


class GradientsSummary(Struct, frozen=True):
    """The norm of the whole model's gradient before clipping, and what went wrong with it."""

    steps: int = 0
    """How many steps were measured."""
    first_norm: float | None = None
    usual_norm: float | None = None
    last_norm: float | None = None
    """The median of the first ones, that of all finite ones, and the last finite one."""
    last_norm_step: int | None = None
    """The step of the last finite one."""
    bad_value: BadValueSummary | None = None
    rise: GradientRiseSummary | None = None
    curves: NormCurvesSummary | None = None
    """`None` where fewer than two steps were measured."""


class SlowLayerSummary(Struct, frozen=True):
    """A layer, or a kernel in it, that takes longer on one rank than on those that do the same."""

    layer: str
    rank: int
    factor: float
    """Without what slows all layers of the rank by `rank_factor`."""
    interval: tuple[float, float]
    """The 95 % confidence interval of the factor."""
    rank_ms: float
    others_ms: float
    """Per step, on this rank and on the median of the others."""
    excess_ms: float
    high_bursts: int
    """The bursts in which it took longer, of `bursts`."""
    bursts: int
    rank_factor: float
    kernel: str | None = None
    """`None` where it is the whole layer."""


class SlowedLayerSummary(Struct, frozen=True):
    """A layer that takes longer since some step, while the other layers do not."""

    layer: str
    rank: int
    since_step: int
    factor: float
    interval: tuple[float, float]
    """The 95 % confidence interval of the factor."""
    before_ms: float
    after_ms: float
    excess_ms: float
    """Per step since then."""
    bursts_before: int
    bursts_after: int
    also_ranks: tuple[int, ...] = ()
    """Other ranks on which it became slower then."""
    other_ranks: tuple[int, ...] = ()
    """Ranks on which it did not."""
    kernel: str | None = None
    """`None` where it is the whole layer."""


class LayersSummary(Struct, frozen=True):
    """What the deep profile saw of the model's layers."""

    clock: str | None = None
    steps: int = 0
    """How many steps were looked at."""
    slowed_by_looking: float | None = None
    """How long such a step takes, as a multiple of those just before; `None` where not known."""
    forward_ms: float | None = None
    backward_ms: float | None = None
    recompute_ms: float | None = None
    """How much of these phases lies in layers; `recompute_ms` is the part of backward in which
    layers are called again (activation checkpointing), and not in `backward_ms`."""
    rest_forward_ms: float | None = None
    rest_backward_ms: float | None = None
    """How much of the same phases of the same steps does not: wrappers, hooks, and functions
    outside of any module, such as a loss."""
    communication_ms: float | None = None
    rest_communication_ms: float | None = None
    """How long a rank waited for others in these phases, in layers and in none: it is in none of
    the times above. `None` where it waited for none, and in runs of older TraceMLs, which counted
    it there."""
    mean_forward_ms: float | None = None
    mean_backward_ms: float | None = None
    """How long these phases take in all steps, looked at or not, without waiting for other ranks
    as above."""
    flops_per_step: float | None = None
    """Floating-point operations of a rank's whole step; `None` where they were not counted."""
    recompute_flops_per_step: float | None = None
    """Those that are done once more in backward (activation checkpointing), not in
    `flops_per_step`; 0 in runs of older TraceMLs, which counted them there."""
    flops_per_s: float | None = None
    """How fast a mean step does `flops_per_step`."""
    peak_flops_per_s: float | None = None
    """What the device can do at most in the dtype in use; `None` where it is not known."""
    mfu: float | None = None
    """The share of that which `flops_per_step` achieve, 0–1 (model FLOPs utilisation)."""
    layers: dict[str, LayerSummary] = {}
    """By dotted name, outer ones first; the model itself has the empty name."""
    activity: ActivitySummary | None = None
    """`None` where the GPU's activity was not recorded."""
    gradients: GradientsSummary | None = None
    """`None` where no gradient was measured."""
    slow_on_rank: tuple[SlowLayerSummary, ...] = ()
    """Layers and kernels that are slow on one rank alone, the most expensive first."""
    slowed_down: tuple[SlowedLayerSummary, ...] = ()
    """Layers and kernels that became slower during the run, the most expensive first."""
    notes: tuple[str, ...] = ()
