from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from layer_runs import kernel_step, layer_records
from traceml.facts.layers import Bound, layer_profile
from traceml.model.settings import Settings

BF16 = Settings(autocast_dtype="bfloat16")


def by_name(profile):
    return {layer.name: layer for layer in profile.layers}


def test_a_layer_s_total_holds_all_below_its_name():
    own = {"": 1.0, "encoder": 0.5, "encoder.0": 2.0, "encoder.0.attn": 3.0, "head": 4.0}
    layers = by_name(layer_profile([layer_records(forward_ms=own)], {}))
    totals = {name: round(layer.total_s * 1e3, 6) for name, layer in layers.items()}
    assert totals == {
        "": 10.5,
        "encoder": 5.5,
        "encoder.0": 5.0,
        "encoder.0.attn": 3.0,
        "head": 4.0,
    }


def test_phases_add_up_and_one_that_was_not_measured_is_missing():
    profile = layer_profile([layer_records(forward_ms={"": 1.0, "a": 2.0})], {})
    assert profile.clock == "cpu" and profile.steps == 4
    assert profile.phase_s("forward") == pytest.approx(0.003)
    assert profile.phase_s("backward") is None
    assert set(by_name(profile)["a"].own_s) == {"forward"}


def test_the_standard_error_says_how_well_a_layer_s_time_is_known():
    covered = 0
    for seed in range(200):
        numbers = np.random.default_rng(seed)
        record = layer_records(steps=12, forward_ms={"a": 10.0})
        record.times_ns["host_forward"][:, 0] = 10e6 + 1e6 * numbers.standard_normal(12)
        (layer,) = layer_profile([record], {}).layers
        covered += abs(layer.time_s - 0.010) <= stats.t.ppf(0.975, 11) * layer.stderr_s
    assert 180 <= covered <= 199  # 95 %


def test_the_standard_error_counts_a_row_as_often_as_it_has_steps():
    """Eight steps of their own, then rows that are means of 16."""
    covered = 0
    sizes = np.array([1] * 8 + [16] * 8)
    for seed in range(200):
        numbers = np.random.default_rng(seed)
        record = layer_records(steps=len(sizes), forward_ms={"a": 10.0})
        noise = numbers.standard_normal(len(sizes)) / np.sqrt(sizes)
        record.times_ns["host_forward"][:, 0] = 10e6 + 1e6 * noise
        (layer,) = layer_profile([replace(record, row_steps=sizes)], {}).layers
        assert layer.stderr_s == pytest.approx(0.001 / np.sqrt(sizes.sum()), rel=0.7)
        covered += abs(layer.time_s - 0.010) <= stats.t.ppf(0.975, 15) * layer.stderr_s
    assert 180 <= covered <= 199  # 95 %


def test_a_single_step_has_no_standard_error():
    (layer,) = layer_profile([layer_records(steps=1, forward_ms={"a": 10.0})], {}).layers
    assert layer.stderr_s is None


def test_the_rank_on_which_a_layer_is_slow_is_named():
    records = [
        layer_records(pid=pid, forward_ms={"": 1.0, "a": 9.0 if pid == 12 else 3.0, "b": 2.0})
        for pid in (10, 11, 12, 13)
    ]
    layers = by_name(layer_profile(records, {10: 0, 11: 1, 12: 2, 13: 3}))
    assert layers["a"].worst_rank == 2
    assert layers["a"].worst_s == pytest.approx(0.009)
    assert layers["a"].median_s == pytest.approx(0.003)


def test_ranks_with_other_layers_are_added_by_name():
    """The stages of a pipeline."""
    first = layer_records(pid=1, forward_ms={"": 1.0, "0": 2.0})
    second = layer_records(pid=2, forward_ms={"": 1.0, "1": 4.0})
    layers = by_name(layer_profile([first, second], {1: 0, 2: 1}))
    assert list(layers) == ["", "0", "1"]
    assert layers["1"].own_s["forward"] == pytest.approx(0.004)


def test_the_stages_of_a_pipeline_are_no_zeros_in_one_another_s_layers():
    """Four stages, each with a layer of its own beside the model itself."""
    counted = {
        "forward_flops": np.array([0, 1_000_000_000_000]),
        "backward_flops": np.zeros(2, np.int64),
        "forward_bytes": np.array([0, 1_000_000]),
        "backward_bytes": np.zeros(2, np.int64),
    }
    stages = [
        layer_records(
            pid=stage,
            clock="gpu",
            forward_ms={"": 1.0, f"layers.{stage}": 4.0},
            held={"parameters": [0, 100 + stage]},
            counted=counted,
            kernels=(kernel_step(4.0, [("gemm", 2, 3_900_000, 1)], (0.0, 3.9)),),
        )
        for stage in range(4)
    ]
    profile = layer_profile(stages, {0: 0, 1: 1, 2: 2, 3: 3}, "NVIDIA H200", BF16)
    layers = by_name(profile)
    for stage in range(4):
        layer = layers[f"layers.{stage}"]
        assert layer.own_s["forward"] == layer.total_s == pytest.approx(0.004)
        assert (layer.worst_rank, layer.worst_s, layer.median_s) == (None, None, None)
        assert layer.busy_s == pytest.approx(0.0039) and layer.kernels == 1
        assert layer.flops == 1e12 and layer.bound is Bound.COMPUTE
        assert layer.peak_share == pytest.approx(1e12 / 0.0039 / 989e12)
        assert layer.held_bytes == {"parameters": 100 + stage}
    assert layers[""].total_s == pytest.approx(0.017)
    assert layers[""].worst_rank is not None and layers[""].median_s == pytest.approx(0.001)


def test_a_stage_that_two_ranks_share_is_compared_between_these():
    took_ms = {0: {"first": 2.0}, 1: {"first": 6.0}, 2: {"second": 9.0}, 3: {"second": 9.0}}
    records = [layer_records(pid=rank, forward_ms=own) for rank, own in took_ms.items()]
    first = by_name(layer_profile(records, {rank: rank for rank in took_ms}))["first"]
    assert first.worst_rank == 1 and first.total_s == pytest.approx(0.004)
    assert (first.worst_s, first.median_s) == (pytest.approx(0.006), pytest.approx(0.004))


def test_what_was_not_measured_of_a_layer_s_memory_is_missing():
    one, other = (
        layer_records(pid=pid, forward_ms={"a": 1.0, "b": 1.0}, held={"parameters": [1, 1]})
        for pid in (0, 1)
    )
    one.held_bytes["saved"] = np.array([np.nan, 30.0])
    other.held_bytes["saved"] = np.array([np.nan, np.nan])
    layers = by_name(layer_profile([one, other], {0: 0, 1: 1}))
    assert layers["a"].held_bytes == {"parameters": 1}
    assert layers["b"].held_bytes == {"parameters": 1, "saved": 30}


def test_times_of_the_gpu_are_taken_where_all_ranks_have_them():
    gpu = layer_records(clock="gpu", forward_ms={"a": 3.0})
    host = layer_records(clock="host", forward_ms={"a": 1.0})
    gpu.times_ns.update(host.times_ns)
    assert layer_profile([gpu], {}).clock == "gpu"
    assert layer_profile([gpu, host], {}).clock == "cpu"


def test_what_limits_a_layer():
    """On a device with 989 TFLOP/s and 4.8 TB/s."""
    own = {"matmul": 2.0, "norm": 2.0, "tiny": 2.0}
    counted = {
        "forward_flops": np.array([1_000_000_000_000, 1_000, 1_000]),
        "backward_flops": np.zeros(3, np.int64),
        "forward_bytes": np.array([1_000_000, 5_000_000_000, 1_000]),
        "backward_bytes": np.zeros(3, np.int64),
    }
    busy = kernel_step(4.0, [("gemm", 2, 2_000_000, 0)], (2.0, 2.0, 0.1))
    record = layer_records(clock="gpu", forward_ms=own, counted=counted, kernels=(busy,))
    profile = layer_profile([record], {}, "NVIDIA H200", BF16)
    layers = by_name(profile)
    assert {name: layer.bound for name, layer in layers.items()} == {
        "matmul": Bound.COMPUTE,
        "norm": Bound.BANDWIDTH,
        "tiny": Bound.LAUNCH,
    }
    assert layers["matmul"].peak_share == pytest.approx(1e12 / 0.002 / 989e12)
    assert profile.flops == 1_000_000_002_000
    assert profile.activity.kernels[0].layer == "matmul"


def test_what_is_computed_again_is_in_the_limit_of_a_layer_but_not_in_its_utilisation():
    """Operations that nearly take as long as the bytes, and do with those of checkpointing."""
    counted = {
        "forward_flops": np.array([900_000_000_000]),
        "recompute_flops": np.array([900_000_000_000]),
        "backward_flops": np.array([0]),
        "forward_bytes": np.array([5_000_000_000]),
        "recompute_bytes": np.array([1_000_000_000]),
        "backward_bytes": np.array([0]),
    }
    record = layer_records(clock="gpu", forward_ms={"a": 4.0}, counted=counted)
    profile = layer_profile([record], {}, "NVIDIA H200", BF16)
    (layer,) = profile.layers
    assert (layer.flops, layer.recompute_flops, layer.moved_bytes) == (9e11, 9e11, 6e9)
    assert layer.bound is Bound.COMPUTE
    assert layer.peak_share == pytest.approx(9e11 / 0.004 / 989e12)
    assert (profile.flops, profile.recompute_flops) == (9e11, 9e11)


def test_nothing_is_said_about_the_limits_of_an_unknown_device():
    record = layer_records(clock="gpu", forward_ms={"a": 1.0})
    profile = layer_profile([record], {}, "Some GPU 9000", BF16)
    assert profile.peak_flops is None and profile.layers[0].bound is None


def test_notes_are_said_once_and_without_steps_there_are_no_layers():
    records = [
        layer_records(pid=pid, steps=0, forward_ms={"a": 1.0}, notes=("why",)) for pid in (1, 2)
    ]
    profile = layer_profile(records, {})
    assert profile.notes == ("why",) and profile.layers == () and profile.clock is None
