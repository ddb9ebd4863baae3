"""Builds the part of the summary about the model's layers."""

from __future__ import annotations

from dataclasses import dataclass

from traceml.facts.facts import Facts
from traceml.facts.gpu_activity import GpuActivity
from traceml.facts.gradient_curves import NormCurves
from traceml.facts.gradients import GradientFacts
from traceml.facts.layer_means import LayerFacts
from traceml.facts.layers import LayerProfile
from traceml.facts.slow_layers import SlowedLayer, SlowLayer
from traceml.model.phase import Phase
from traceml.summaries.layer_record import (
    ActivitySummary,
    BadValueSummary,
    GradientRiseSummary,
    GradientsSummary,
    KernelSummary,
    LayersSummary,
    LayerSummary,
    NormCurvesSummary,
    SlowedLayerSummary,
    SlowLayerSummary,
)


@dataclass(frozen=True, slots=True)
class StepMeans:
    """Means of all steps in seconds, beside which layers stand; `None` is not measured."""

    step_s: float | None = None
    forward_s: float | None = None
    backward_s: float | None = None


def layers_summary(facts: Facts) -> LayersSummary | None:
    """Returns the layers of a run; `None` where it had no deep profile."""
    means = StepMeans(facts.mean.step_s, facts.mean_s(Phase.FORWARD), facts.mean_s(Phase.BACKWARD))
    return profile_summary(facts.layers, means)


def profile_summary(found: LayerProfile, means: StepMeans) -> LayersSummary | None:
    """Returns the layers of a profile; `None` where it is empty."""
    gradients = _gradients(found.gradients)
    if not found.layers and not found.notes and gradients is None:
        return None
    forward_s, backward_s = found.phase_s("forward"), found.phase_s("backward")
    return LayersSummary(
        clock=found.clock,
        steps=found.steps,
        slowed_by_looking=_rounded_ratio(found.slowed_by_looking),
        forward_ms=_ms(forward_s),
        backward_ms=_ms(backward_s),
        recompute_ms=_ms(found.phase_s("recompute")),
        rest_forward_ms=_ms(found.rest_s.get("forward")),
        rest_backward_ms=_ms(found.rest_s.get("backward")),
        communication_ms=_ms(found.communication_s),
        rest_communication_ms=_ms(found.rest_s.get("communication")),
        mean_forward_ms=_ms(None if forward_s is None else means.forward_s),
        mean_backward_ms=_ms(None if backward_s is None else means.backward_s),
        flops_per_step=found.flops,
        recompute_flops_per_step=found.recompute_flops,
        flops_per_s=_flops_per_s(found, means.step_s),
        peak_flops_per_s=found.peak_flops,
        mfu=_mfu(found, means.step_s),
        layers={layer.name: _layer(layer, found.gradients) for layer in found.layers},
        activity=None if found.activity is None else _activity(found.activity),
        gradients=gradients,
        slow_on_rank=tuple(map(_slow_layer, (*found.slow_on_rank, *found.slow_kernels))),
        slowed_down=tuple(map(_slowed_layer, (*found.slowed_down, *found.slowed_kernels))),
        notes=found.notes,
    )


def _layer(layer: LayerFacts, gradients: GradientFacts) -> LayerSummary:
    own, held = layer.own_s, layer.held_bytes
    return LayerSummary(
        kind=layer.kind,
        calls=round(layer.calls, 3),
        forward_ms=_ms(own.get("forward")),
        backward_ms=_ms(own.get("backward")),
        recompute_ms=_ms(own.get("recompute")),
        own_stderr_ms=_ms(layer.stderr_s),
        communication_ms=_ms(layer.communication_s),
        total_ms=_ms(layer.total_s),
        **{f"{name}_bytes": count for name, count in held.items()},
        gradient_norm=(gradients.layer_norms or {}).get(layer.name),
        busy_ms=_ms(layer.busy_s),
        kernels=None if layer.kernels is None else round(layer.kernels, 3),
        flops=layer.flops,
        recompute_flops=layer.recompute_flops,
        flops_per_s=None if layer.flops_per_s is None else round(layer.flops_per_s),
        moved_bytes=layer.moved_bytes,
        bound=None if layer.bound is None else layer.bound.value,
        peak_share=None if layer.peak_share is None else round(layer.peak_share, 6),
        worst_rank=layer.worst_rank,
        worst_ms=_ms(layer.worst_s),
        median_ms=_ms(layer.median_s),
        other_rank=layer.other_rank,
        compiled=layer.compiled,
    )


def _rounded_ratio(ratio: float | None) -> float | None:
    return None if ratio is None else round(ratio, 3)


def _flops_per_s(found: LayerProfile, step_s: float | None) -> float | None:
    """Returns how many operations a mean step does per second."""
    return None if found.flops is None or not step_s else round(found.flops / step_s)


def _mfu(found: LayerProfile, step_s: float | None) -> float | None:
    """Returns the share of the device's operations per second that a mean step achieves."""
    if found.flops is None or found.peak_flops is None or not step_s:
        return None
    return round(found.flops / step_s / found.peak_flops, 6)


def _activity(found: GpuActivity) -> ActivitySummary:
    return ActivitySummary(
        steps=found.steps,
        busy_ms=round(found.busy_s * 1e3, 6),
        kernels_per_step=round(found.kernels_per_step, 3),
        copies_ms=round(found.copies_s * 1e3, 6),
        copies_alone_ms=_ms(found.copies_alone_s),
        communication_ms=round(found.communication_s * 1e3, 6),
        communication_alone_ms=round(found.communication_alone_s * 1e3, 6),
        kernels=tuple(
            KernelSummary(each.name, round(each.calls, 3), round(each.time_s * 1e3, 6), each.layer)
            for each in found.kernels
        ),
    )


def _slow_layer(found: SlowLayer) -> SlowLayerSummary:
    return SlowLayerSummary(
        layer=found.layer,
        rank=found.rank,
        factor=round(found.factor, 4),
        interval=_rounded(found.interval),
        rank_ms=round(found.rank_s * 1e3, 6),
        others_ms=round(found.others_s * 1e3, 6),
        excess_ms=round(found.excess_s * 1e3, 6),
        high_bursts=found.high_bursts,
        bursts=found.bursts,
        rank_factor=round(found.rank_factor, 4),
        kernel=found.kernel,
    )


def _slowed_layer(found: SlowedLayer) -> SlowedLayerSummary:
    return SlowedLayerSummary(
        layer=found.layer,
        rank=found.rank,
        since_step=found.since_step,
        factor=round(found.factor, 4),
        interval=_rounded(found.interval),
        before_ms=round(found.before_s * 1e3, 6),
        after_ms=round(found.after_s * 1e3, 6),
        excess_ms=round(found.excess_s * 1e3, 6),
        bursts_before=found.bursts_before,
        bursts_after=found.bursts_after,
        also_ranks=found.also_ranks,
        other_ranks=found.other_ranks,
        kernel=found.kernel,
    )


def _rounded(interval: tuple[float, float]) -> tuple[float, float]:
    return round(interval[0], 4), round(interval[1], 4)


def _gradients(found: GradientFacts) -> GradientsSummary | None:
    bad, rise = found.bad_value, found.rise
    if not found.steps and bad is None and rise is None:
        return None
    return GradientsSummary(
        steps=found.steps,
        first_norm=found.first,
        usual_norm=found.usual,
        last_norm=found.last,
        last_norm_step=found.last_step,
        bad_value=None
        if bad is None
        else BadValueSummary(bad.step, bad.phase, bad.layer, bad.rank, bad.finite_step),
        rise=None
        if rise is None
        else GradientRiseSummary(
            step=rise.step,
            usual=rise.usual,
            norm=rise.norm,
            layer=rise.layer,
            layer_step=rise.layer_step,
            layer_usual=rise.layer_usual,
            layer_norm=rise.layer_norm,
            rank=rise.rank,
        ),
        curves=None if found.curves is None else _curves(found.curves),
    )


def _curves(found: NormCurves) -> NormCurvesSummary:
    return NormCurvesSummary(
        steps=found.steps,
        steps_per_point=found.steps_per_point,
        whole=tuple(map(_four_digits, found.whole)),
        layers={name: tuple(map(_four_digits, norms)) for name, norms in found.layers.items()},
        not_finite=found.not_finite,
    )


def _four_digits(norm: float | None) -> float | None:
    return None if norm is None else float(f"{norm:.4g}")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 6)
