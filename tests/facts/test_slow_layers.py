"""A layer that is slow on one rank, or since some step, is found; what noise makes is not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from layer_runs import burst_records, kernel_step
from traceml.facts.burst_times import BurstTimes
from traceml.facts.layers import layer_profile
from traceml.facts.slow_layers import slow_on_one_rank, slowed_down
from traceml.model.settings import Settings
from traceml.store.layer_records import LayerRecords

RANKS = {pid: pid for pid in range(16)}
PLANTED = 122


def profile(*records, settings=None):
    return layer_profile(records, RANKS, settings=settings or Settings())


def made_bursts(seed, ranks=4, layers=PLANTED, bursts=14, noise=0.05, load=0.1, spikes=0.02):
    """Equal ranks on a busy machine: heavy-tailed noise, spells in which a whole rank is slow,
    devices that differ, and single layers that were interrupted."""
    random = np.random.default_rng(seed)
    own_s = np.exp(random.normal(-7, 1.2, layers))
    found = []
    for rank in range(ranks):
        device = math.exp(random.normal(0, 0.15))
        spell = np.zeros(bursts)
        for burst in range(bursts):
            spell[burst] = 0.8 * spell[max(burst - 1, 0)] + random.normal(0, load)
        seconds = own_s * device * np.exp(spell)[:, None]
        seconds = seconds * np.exp(noise * random.standard_t(4, seconds.shape))
        seconds += (random.random(seconds.shape) < spikes) * random.exponential(
            0.05 * own_s.sum(), seconds.shape
        )
        steps = np.arange(bursts) * 13 + 4
        found.append(BurstTimes(rank, steps, seconds, np.ones(layers)))
    names = [f"layer{place}" for place in range(layers)]
    return names, own_s, found


@pytest.mark.parametrize("noise", [0.05, 0.2], ids=["quiet", "noisy"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_ranks_on_a_busy_machine_stay_silent(ranks, noise):
    for seed in range(40):
        names, _, found = made_bursts(seed, ranks, noise=noise, load=2 * noise, spikes=noise / 2)
        assert slow_on_one_rank(names, found) == ()
        assert slowed_down(names, found) == ()


def test_a_slow_layer_of_one_rank_is_found_and_no_other():
    hits = 0
    for seed in range(40):
        names, own_s, found = made_bursts(seed)
        place = int(np.argsort(-own_s)[2])
        found[3].seconds[:, place] *= 2.0
        told = slow_on_one_rank(names, found)
        assert all((each.layer, each.rank) == (names[place], 3) for each in told)
        hits += len(told)
        for each in told:
            assert each.interval[0] < each.factor < each.interval[1]
            assert each.peers == (0, 1, 2) and each.bursts == 14
    assert hits >= 36


def test_the_interval_holds_the_planted_factor():
    held = told = 0
    for seed in range(60):
        names, own_s, found = made_bursts(seed, spikes=0.0)
        place = int(np.argsort(-own_s)[2])
        found[3].seconds[:, place] *= 2.0
        for each in slow_on_one_rank(names, found):
            told += 1
            held += each.interval[0] <= 2.0 <= each.interval[1]
    assert told >= 50 and held >= 0.93 * told


def test_a_layer_that_became_slow_is_found_with_its_step():
    hits = 0
    for seed in range(40):
        names, own_s, found = made_bursts(seed, bursts=20)
        place = int(np.argsort(-own_s)[2])
        found[1].seconds[10:, place] *= 1.8
        told = slowed_down(names, found)
        assert all((each.layer, each.rank) == (names[place], 1) for each in told)
        hits += bool(told)
        for each in told:
            assert abs(each.since_step - found[1].steps[10]) <= 13
            assert each.other_ranks == (0, 2, 3) and each.also_ranks == ()
    assert hits >= 36


def test_few_bursts_show_a_tenfold_slowdown_and_name_no_other_layer():
    hits = 0
    for seed in range(40):
        names, own_s, found = made_bursts(seed, ranks=2, layers=13, bursts=8)
        place = int(np.argsort(-own_s)[2])
        found[0].seconds[5:, place] *= 10.0
        told = slowed_down(names, found)
        assert all((each.layer, each.rank) == (names[place], 0) for each in told)
        hits += bool(told)
    assert hits >= 36


@pytest.mark.parametrize("bursts", [6, 8, 10])
def test_interruptions_in_a_row_are_no_slowdown(bursts):
    for seed in range(40):
        names, _, found = made_bursts(seed, 2, 122, bursts, noise=0.2, load=0.4, spikes=0.1)
        assert slowed_down(names, found) == ()


def test_one_slow_layer_in_the_records_of_a_run():
    records = [burst_records(pid) for pid in range(3)]
    records.append(burst_records(3, slow={"blocks.5.mlp": 2.0}))
    (found,) = profile(*records).slow_on_rank
    assert (found.layer, found.rank, found.high_bursts) == ("blocks.5.mlp", 3, 14)
    assert found.factor == pytest.approx(2.0, rel=0.05)
    assert found.excess_s == pytest.approx(0.002, rel=0.1)
    assert found.rank_factor == pytest.approx(1.0, abs=0.03)


SLOW = {"blocks.5.mlp": 2.0}


@pytest.mark.parametrize(
    "records",
    [
        pytest.param([burst_records(pid) for pid in range(4)], id="equal ranks"),
        pytest.param([burst_records(0), burst_records(1, device=1.5)], id="a slow device"),
        pytest.param([burst_records(0), burst_records(1, 3, slow=SLOW)], id="three bursts"),
        pytest.param([burst_records(0), burst_records(1, 1, slow=SLOW)], id="one burst"),
        pytest.param([burst_records(0, slow=SLOW)], id="one rank"),
        pytest.param(
            [burst_records(0), burst_records(1, slow=SLOW, slow_from=5)], id="in half of the bursts"
        ),
        pytest.param(
            [burst_records(0), burst_records(1, slow={"blocks.5.mlp": 1.2})], id="just below 1.25"
        ),
        pytest.param(
            [
                burst_records(
                    pid,
                    own_ms={"big": 500.0, "other": 300.0, "third": 90.0, "tiny": 3.0},
                    slow=slow,
                )
                for pid, slow in enumerate(({}, {"tiny": 2.0}))
            ],
            id="too little to matter",
        ),
        pytest.param(
            [
                burst_records(pid, own_ms={"a": 3.0, "b": 3.0}, slow=slow)
                for pid, slow in enumerate(({}, {"a": 2.0}))
            ],
            id="two layers: which one is unlike the other is not known",
        ),
    ],
)
def test_nothing_is_said_of_ranks_that(records):
    assert profile(*records).slow_on_rank == ()


def test_a_slow_device_hides_no_slow_layer():
    records = [burst_records(0), burst_records(1), burst_records(2, device=1.4, slow=SLOW)]
    (found,) = profile(*records).slow_on_rank
    assert (found.layer, found.rank) == ("blocks.5.mlp", 2)
    assert found.rank_factor == pytest.approx(1.4, rel=0.05)
    assert found.factor == pytest.approx(2.0, rel=0.07)


def test_ranks_that_call_a_layer_a_different_number_of_times_do_different_work():
    records = [burst_records(pid, slow=SLOW if pid == 3 else None) for pid in range(4)]
    records[3].calls[:, records[3].names.index("blocks.5.mlp")] = 2
    assert profile(*records).slow_on_rank == ()


def test_a_layer_that_no_other_rank_has_is_compared_with_none():
    own_ms = {f"stage.{n}": 2.0 for n in range(8)}
    other = {**dict.fromkeys(list(own_ms)[:5], 2.0), "only.here": 50.0}
    records = [burst_records(0, own_ms=own_ms), burst_records(1, own_ms=other)]
    assert profile(*records).slow_on_rank == ()


def test_a_process_that_is_no_rank_is_compared_with_none():
    """Such as one of an earlier attempt, whose rank another process has now."""
    earlier = burst_records(77, slow=SLOW)
    assert profile(burst_records(0), burst_records(1), earlier).slow_on_rank == ()


def test_of_sharded_models_no_layer_is_told():
    records = [burst_records(pid, slow=SLOW if pid == 3 else None) for pid in range(4)]
    assert profile(*records, settings=Settings(parallelism="FSDP2")).slow_on_rank == ()
    assert profile(*records, settings=Settings(parallelism="DDP")).slow_on_rank != ()
    slowed = [burst_records(pid, 20, slow=SLOW, slow_from=10) for pid in range(2)]
    assert profile(*slowed, settings=Settings(parallelism="FSDP2")).slowed_down == ()


@pytest.mark.parametrize(
    ("records", "also", "others"),
    [
        pytest.param([burst_records(0, 20, slow=SLOW, slow_from=10)], (), (), id="one rank"),
        pytest.param(
            [burst_records(0, 20), burst_records(1, 20, slow=SLOW, slow_from=10)],
            (),
            (0,),
            id="one of two ranks",
        ),
        pytest.param(
            [burst_records(pid, 20, slow=SLOW, slow_from=10) for pid in range(3)],
            None,
            (),
            id="all ranks",
        ),
    ],
)
def test_a_layer_slows_down_on(records, also, others):
    (found,) = profile(*records).slowed_down
    assert found.layer == "blocks.5.mlp" and found.since_step == 5 + 13 * 10
    assert found.factor == pytest.approx(2.0, rel=0.06)
    assert (found.bursts_before, found.bursts_after) == (10, 10)
    assert found.other_ranks == others
    assert len(found.also_ranks) == 2 if also is None else found.also_ranks == also


def whole_slowdown():
    found = burst_records(0, 20)
    found.times_ns["host_forward"][20:] *= 2.0
    return found


def with_spike():
    found = burst_records(0, 20)
    found.times_ns["host_forward"][20:26, 3] *= 3.0
    return found


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(burst_records(0, 20), id="nothing changes"),
        pytest.param(whole_slowdown(), id="all layers slow down"),
        pytest.param(with_spike(), id="slow for a while"),
        pytest.param(burst_records(0, 20, slow=SLOW, slow_from=16), id="four bursts after"),
        pytest.param(
            burst_records(0, 20, slow={"blocks.5.mlp": 1.2}, slow_from=10), id="1.2 times"
        ),
    ],
)
def test_no_layer_slows_down_where(record):
    assert profile(record).slowed_down == ()


def with_kernels(pid, factor=1.0, recorded=12, name="nvjet_tst_128x256"):
    """Two layers that launch the same kernel, and one that waits for other ranks."""
    random = np.random.default_rng(pid)
    steps = []
    for number in range(recorded):
        took = 1e6 * np.exp(0.03 * random.standard_normal(6))
        took[1] *= factor
        kernels = [(name, 2, int(took[0]), 0), (name, 2, int(took[1]), 1)]
        kernels += [(f"elementwise{n}", 4, int(took[n]), n) for n in (2, 3, 4)]
        kernels.append(("ncclDevKernel_AllReduce", 1, int(5e6 * (1 + pid)), -1))
        steps.append(kernel_step(6.0, kernels, [1.0] * 12, step=9 + 30 * number))
    return replace(burst_records(pid), kernels=tuple(steps))


def test_a_kernel_that_is_slow_in_one_layer_of_one_rank_is_named():
    records = [with_kernels(0), with_kernels(1), with_kernels(2, factor=2.1)]
    (found,) = profile(*records).slow_kernels
    assert (found.kernel, found.layer, found.rank) == ("nvjet_tst_128x256", "blocks.0.mlp", 2)
    assert found.factor == pytest.approx(2.1, rel=0.06) and found.bursts == 12


def test_a_kernel_that_becomes_slow_is_named():
    fast, slow = with_kernels(0, recorded=8), with_kernels(0, 2.1, recorded=8)
    later = tuple(replace(step, step=step.step + 240) for step in slow.kernels)
    record = replace(fast, kernels=(*fast.kernels, *later))
    (found,) = profile(record).slowed_kernels
    assert (found.kernel, found.layer) == ("nvjet_tst_128x256", "blocks.0.mlp")
    assert found.since_step == 249 and found.factor == pytest.approx(2.1, rel=0.06)


def test_kernels_of_equal_ranks_and_waiting_for_others_are_not():
    assert profile(*map(with_kernels, range(4))).slow_kernels == ()
    few = [with_kernels(0), with_kernels(1, 2.1, recorded=3)]
    assert profile(*few).slow_kernels == ()


def with_shared_kernel_rows(random, sizes, factor=1.0):
    """Rows of kernels, each the mean of so many steps; one is interrupted now and then."""
    steps = []
    for number, size in enumerate(sizes):
        took = 1e6 * np.exp(0.02 * random.standard_normal((size, 5)))
        took[:, 3] *= np.where(random.random(size) < 0.3, 8.0, 1.0)
        took[:, 1] *= factor
        kernels = [(f"kernel{n}", 1, int(took[:, n].mean()), n) for n in range(5)]
        step = kernel_step(6.0, kernels, [1.0] * 12, step=9 + 30 * number)
        steps.append(replace(step, steps=size))
    return tuple(steps)


def test_a_kernel_that_is_interrupted_now_and_then_does_not_slow_down_where_steps_share_rows():
    for seed in range(10):
        random = np.random.default_rng(seed)
        kernels = with_shared_kernel_rows(random, [1] * 200 + [16] * 24)
        assert profile(replace(burst_records(0), kernels=kernels)).slowed_kernels == ()
        other = with_shared_kernel_rows(random, [1] * 200)  # it has written less
        both = (kernels, other)
        records = [replace(burst_records(pid), kernels=each) for pid, each in enumerate(both)]
        assert profile(*records).slow_kernels == ()


def test_a_kernel_that_is_slow_is_named_where_steps_share_rows():
    random = np.random.default_rng(0)
    records = [
        replace(burst_records(pid), kernels=with_shared_kernel_rows(random, sizes, factor))
        for pid, (sizes, factor) in enumerate(
            [([1] * 160 + [16] * 8, 1.0), ([1] * 160 + [16] * 8, 2.0)]
        )
    ]
    (found,) = profile(*records).slow_kernels
    assert (found.kernel, found.rank) == ("kernel1", 1)
    assert found.factor == pytest.approx(2.0, rel=0.06)


def made_rows(random, sizes):
    """Rows of a long run, each the mean of so many steps; one layer is interrupted now and then."""
    own_ns = np.array([5e5, 1e6, 2e6, 1e6, 5e5, 2e6])
    rows = []
    for size in sizes:
        steps = own_ns * np.exp(random.normal(0, 0.02, (size, 6)))
        steps[:, 3] *= np.where(random.random(size) < 0.15, 8.0, 1.0)
        rows.append(steps.mean(axis=0))
    return np.array(rows)


def long_run(pid, random, single=120, shared=40, steps_per_row=16):
    """A run whose first steps have rows of their own, two by two; later ones share rows."""
    sizes = [1] * single + [steps_per_row] * shared
    first = [20 * (row // 2) + row % 2 + 1 for row in range(single)]
    later = [20 * single + 20 * steps_per_row * row for row in range(shared)]
    names = ("", "one", "two", "three", "four", "five")
    return LayerRecords(
        pid=pid,
        names=names,
        kinds=("Linear",) * 6,
        steps=(*first, *later),
        row_steps=np.array(sizes, np.int64),
        calls=np.ones((len(sizes), 6), np.int64),
        times_ns={"host_forward": made_rows(random, sizes)},
    )


def test_a_layer_that_is_interrupted_now_and_then_does_not_slow_down_where_steps_share_rows():
    for seed in range(10):
        random = np.random.default_rng(seed)
        one = long_run(0, random)
        assert profile(one).slowed_down == ()
        other = long_run(1, random, single=120, shared=0)  # it has written less
        assert profile(one, other).slow_on_rank == ()


def test_a_layer_that_slows_down_in_a_long_run_is_found():
    record = long_run(0, np.random.default_rng(0))
    record.times_ns["host_forward"][140:, 2] *= 2.0
    (found,) = profile(record).slowed_down
    assert found.layer == "two" and found.factor == pytest.approx(2.0, rel=0.1)
    assert found.since_step == pytest.approx(record.steps[140], abs=20 * 32)
