from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from factories import make_run
from layer_runs import kernel_step, layer_records, with_layers
from traceml.facts.gather import gather
from traceml.facts.layer_means import Bound
from traceml.facts.layers import layer_profile
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
    assert first.other_rank == 0
    assert (first.worst_s, first.median_s) == (pytest.approx(0.006), pytest.approx(0.002))


def test_the_median_rank_is_one_of_the_ranks():
    """No rank takes what is between two of them."""
    for took_ms in ([1.0, 2.0, 6.0, 9.0], [9.0, 2.0, 1.0]):
        records = [layer_records(pid=n, forward_ms={"a": ms}) for n, ms in enumerate(took_ms)]
        (layer,) = layer_profile(records, {n: n for n in range(len(records))}).layers
        assert (layer.worst_s, layer.median_s) == (pytest.approx(0.009), pytest.approx(0.002))
        assert layer.worst_rank == took_ms.index(9.0) and layer.other_rank is None


def waiting(pid, waits_ms, rest_ms, **more):
    """Layers that wait for other ranks beside their own time, in the second half of the steps."""
    found = layer_records(pid=pid, **more)
    half = np.array([np.nan, np.nan, 1.0, 1.0])
    waits = np.array([waits_ms.get(name, 0.0) for name in found.names]) * 2e6
    found.times_ns["host_communication"] = half[:, None] * waits
    outside = {"host_communication": half * 2e6 * rest_ms, "host_forward": np.full(4, 1e6)}
    return replace(found, outside_ns=outside)


def test_waiting_for_other_ranks_is_told_apart_from_what_layers_take():
    own = {"": 1.0, "a": 2.0}
    ranks = [waiting(0, {"a": 30.0}, 4.0, forward_ms=own), layer_records(pid=1, forward_ms=own)]
    profile = layer_profile(ranks, {0: 0, 1: 1})
    layers = by_name(profile)
    assert layers["a"].communication_s == pytest.approx(0.015)
    assert layers[""].communication_s is None
    assert profile.communication_s == pytest.approx(0.015)
    assert profile.rest_s["communication"] == pytest.approx(0.002)
    assert layers[""].total_s == pytest.approx(0.003) and profile.phase_s("forward") == 0.003
    alone = layer_profile([layer_records(forward_ms=own)], {})
    assert alone.communication_s is None and "communication" not in alone.rest_s


@pytest.mark.parametrize("kind", ["FSDP2", "DDP + FSDP2", "DeepSpeed"])
def test_layers_whose_parameters_are_spread_over_ranks_are_not_compared_between_these(kind):
    """What one of them takes longer may be waiting for the others."""
    records = [layer_records(pid=n, forward_ms={"a": 2.0 + 8 * n}) for n in (0, 1)]
    profile = layer_profile(records, {0: 0, 1: 1}, settings=Settings(parallelism=kind))
    (layer,) = profile.layers
    assert (layer.worst_rank, layer.worst_s, layer.median_s, layer.other_rank) == (None,) * 4
    assert any("are not compared between ranks" in note for note in profile.notes)
    (compared,) = layer_profile(records, {0: 0, 1: 1}, settings=Settings(parallelism="DDP")).layers
    assert compared.worst_rank == 1 and compared.other_rank == 0


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


def test_a_layer_with_operations_that_nobody_could_count_has_no_number_nor_limit():
    own = {"": 0.0, "blocks.0": 2.0, "blocks.1": 2.0, "head": 2.0}
    counted = {
        "forward_flops": np.array([0, 1, 1, 2]) * 1_000_000,
        "backward_flops": np.zeros(4, np.int64),
        "forward_bytes": np.full(4, 1_000),
        "backward_bytes": np.zeros(4, np.int64),
    }
    uncounted = {"mine::product": (1, 2), "aten::_linalg_svd": (-1,)}
    records = [
        layer_records(pid=pid, clock="gpu", forward_ms=own, counted=counted, uncounted=unknown)
        for pid, unknown in enumerate((uncounted, {}))  # also where only one rank met them
    ]
    profile = layer_profile(records, {0: 0, 1: 1}, "NVIDIA H200", BF16)
    layers = by_name(profile)
    for name in ("blocks.0", "blocks.1"):
        layer = layers[name]
        assert (layer.flops, layer.recompute_flops, layer.bound, layer.peak_share) == (None,) * 4
    assert layers["head"].flops == 2_000_000 and layers["head"].bound is not None
    assert (profile.flops, profile.recompute_flops) == (None, None)
    (note,) = profile.notes
    assert "not counted for aten::_linalg_svd, mine::product (in blocks.*)." in note


def _counted_layer(**more):
    counted = {
        "forward_flops": np.array([2_000_000_000]),
        "backward_flops": np.array([0]),
        "forward_bytes": np.array([1_000_000]),
        "backward_bytes": np.array([0]),
    }
    return layer_records(forward_ms={"a": 4.0}, counted=counted, **more)


def test_how_fast_a_layer_computes_is_told_where_its_time_is_that_of_its_device():
    for clock, device, speed in (
        ("host", None, 5e11),
        ("gpu", "NVIDIA H200", 5e11),
        ("gpu", "Some GPU 9000", 5e11),
        ("host", "NVIDIA H200", None),  # several devices: the host does not wait for them
    ):
        layer = layer_profile([_counted_layer(clock=clock)], {}, device, BF16).layers[0]
        assert layer.flops_per_s == (None if speed is None else pytest.approx(speed)), clock


def test_a_device_that_is_not_known_is_said_and_can_be_stated():
    profile = layer_profile([_counted_layer(clock="gpu")], {}, "Some GPU 9000", BF16)
    (note,) = profile.notes
    assert "Some GPU 9000" in note and "bfloat16" in note and "TRACEML_DEVICE_PEAKS" in note
    stated = _counted_layer(clock="gpu", stated_peaks="bf16=1,memory=2")
    profile = layer_profile([stated], {}, "Some GPU 9000", BF16)
    assert (profile.peak_flops, profile.notes) == (1e12, ())
    assert profile.layers[0].peak_share == pytest.approx(0.5)
    assert profile.layers[0].bound is Bound.COMPUTE
    # Without the memory's bandwidth it is not known what limits a layer.
    profile = layer_profile([replace(stated, stated_peaks="bf16=1")], {}, "Some GPU 9000", BF16)
    assert profile.layers[0].peak_share is not None and profile.layers[0].bound is None


def test_what_people_state_wrongly_is_said():
    stated = _counted_layer(clock="gpu", stated_peaks="bf16=much")
    profile = layer_profile([stated, stated], {}, "NVIDIA H200", BF16)
    assert profile.peak_flops == 989e12
    (note,) = profile.notes
    assert note.startswith("TRACEML_DEVICE_PEAKS holds 'bf16=much'")


def test_a_cpu_has_a_peak_where_people_state_it():
    stated = _counted_layer(stated_peaks="fp32=1")
    profile = layer_profile([stated], {}, "", Settings(parameter_dtype="float32"))
    assert profile.peak_flops == 1e12
    assert layer_profile([_counted_layer()], {}, "", BF16).notes == ()


@pytest.mark.parametrize(
    ("counted", "is_told"),
    [
        pytest.param(100, True, id="the same size"),
        pytest.param(109, True, id="a little less in the timed steps"),
        pytest.param(92, True, id="a little more"),
        pytest.param(112, False, id="less"),
        pytest.param(6_400, False, id="much less"),
        pytest.param(2, False, id="much more"),
        pytest.param(None, True, id="written by an older version"),
    ],
)
def test_operations_of_a_batch_of_another_size_are_not_those_of_a_mean_step(counted, is_told):
    given = np.array([50.0, 150.0, np.nan, 100.0]) if counted else np.zeros(0)
    layer = _counted_layer(
        clock="gpu",
        stated_peaks="bf16=1,memory=2",
        given_elements=given,
        counted_step=14,
        counted_elements=counted,
    )
    profile = layer_profile([layer], {}, "Some GPU 9000", BF16)
    (told,) = profile.layers
    known = profile.flops, told.flops, told.flops_per_s, told.bound, told.peak_share
    assert [each is not None for each in known] == [is_told] * 5
    notes = [each for each in profile.notes if "was given" in each]
    assert len(notes) == (not is_told)
    if counted == 6_400:
        assert "step 14, where the model was given 6,400 numbers;" in notes[0]
        assert "0.016 times as many on average" in notes[0]
    if counted == 2:
        assert "was given 2 numbers" in notes[0] and "50 times" in notes[0]


def test_sizes_that_nobody_knows_say_nothing():
    layer = _counted_layer(given_elements=np.full(4, np.nan), counted_step=14, counted_elements=100)
    assert layer_profile([layer], {}, "", BF16).flops is not None


def test_batches_of_uneven_sizes_over_ranks_may_be_alike_in_the_mean():
    layers = [
        _counted_layer(
            pid=pid,
            given_elements=np.full(4, given),
            counted_step=14,
            counted_elements=counted,
        )
        for pid, given, counted in ((0, 100.0, 150), (1, 150.0, 100))
    ]
    assert layer_profile(layers, {}, "", BF16).flops is not None


def test_why_operations_were_not_counted_is_said_once():
    records = [
        layer_records(pid=pid, forward_ms={"a": 1.0}, why_uncounted="it is compiled")
        for pid in (1, 2)
    ]
    said = ("Floating-point operations are not counted: it is compiled.",)
    assert layer_profile(records, {}).notes == said


@pytest.mark.parametrize("has_reason", [False, True])
def test_a_run_that_ended_before_operations_were_counted_says_so(has_reason):
    reason = "it is compiled" if has_reason else None
    run = with_layers(
        make_run(steps=40), layer_records(forward_ms={"a": 1.0}, why_uncounted=reason)
    )
    (note,) = gather(run).layers.notes
    assert ("the run ended before" in note) is not has_reason


def test_notes_are_said_once_and_without_steps_there_are_no_layers():
    records = [
        layer_records(pid=pid, steps=0, forward_ms={"a": 1.0}, notes=("why",)) for pid in (1, 2)
    ]
    profile = layer_profile(records, {})
    assert profile.notes == ("why",) and profile.layers == () and profile.clock is None


@pytest.mark.parametrize(
    ("took", "usual", "ratio", "is_noted"),
    [
        ([9, 9, 3, 3, 3, 3], [1, 1, 2, 2, 2, 2], 1.5, True),
        ([9, 9, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2], 1.0, False),
        ([9, 9, 500, 500], [1, 1, 2, 2], None, False),
        ([2.0, np.nan], [np.nan, 1.0], None, False),
        ([], [], None, False),
    ],
    ids=["slower", "no slower", "too few steps", "not known", "an older version's"],
)
def test_how_much_looking_slows_a_step_is_said(took, usual, ratio, is_noted):
    record = layer_records(forward_ms={"a": 1.0}, took_ns=np.array(took), usual_ns=np.array(usual))
    profile = layer_profile([record], {})
    assert profile.slowed_by_looking == ratio
    assert any(f"{ratio} times as long" in note for note in profile.notes) is is_noted
