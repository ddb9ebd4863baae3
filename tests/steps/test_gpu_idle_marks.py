"""What the host did while the simulated GPU had nothing to do: the cause, and how long."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated_gpu import MS, SimulatedLoop
from traceml.model.record_layout import IDLE_CAUSES, NOT_MEASURED
from traceml.steps import events, gpu_idle_marks
from traceml.steps.gpu_idle_marks import IdleAccount

Loop = SimulatedLoop
STEPS = 12
EXACT_MS = 0.15
"""A few launch latencies in each step."""


def trained(step: Callable[[Loop], object], **clock: float) -> Loop:
    loop = Loop(**clock)
    for _ in range(STEPS):
        step(loop)
    return loop.ends()


def quick_host(loop: Loop, fetch_ms: float = 0.1) -> Loop:
    """A step of 12 ms on the GPU that the host launches in 3 ms."""
    loop.fetch(fetch_ms).forward((10, 0.4, 0.1)).launches(1, 0.05)
    return loop.backward((10, 0.7, 0.1)).optimizer((10, 0.1, 0.05)).runs(0.2)


def reading(loop: Loop, after_ms: float = 2.0) -> Loop:
    """The loss is read after every forward pass, and something is done with it."""
    loop.fetch(0.1).forward((10, 0.4, 0.1)).launches(1, 0.05).reads().runs(after_ms)
    return loop.backward((10, 0.7, 0.1)).optimizer((10, 0.1, 0.05))


def sleeping(loop: Loop) -> Loop:
    return quick_host(loop).runs(30)


def collecting(loop: Loop) -> Loop:
    return quick_host(loop).spends(events.GC, 30)


def logging(loop: Loop) -> Loop:
    return quick_host(loop).spends(events.LOGGING, 30)


def compiling_in_forward(loop: Loop) -> Loop:
    loop.fetch(0.1).begin(events.BEGIN_FORWARD, 3).spends(events.COMPILE, 30).launches(10, 0.4)
    loop.end(events.END_FORWARD, 3)
    return loop.backward((10, 0.7, 0.1)).optimizer((10, 0.1, 0.05))


def small_kernels(loop: Loop) -> Loop:
    """Kernels of 5 µs that take the host 50 µs each."""
    loop.fetch(0.1).forward((200, 0.005, 0.05))
    return loop.backward((200, 0.005, 0.05)).optimizer((20, 0.005, 0.05))


def waiting_for_data(loop: Loop) -> Loop:
    """Batches come late, and the loss is read in every step."""
    return quick_host(loop, fetch_ms=40).reads()


def losses_outside(loop: Loop) -> Loop:
    """The loss takes the GPU 8 ms outside the model, and is read before backward."""
    loop.fetch(0.1).forward((10, 0.4, 0.1)).launches(4, 2.0).reads()
    return loop.backward((10, 0.7, 0.1)).optimizer((10, 0.1, 0.05))


def averages(loop: Loop) -> Loop:
    """An average of the weights takes the GPU 20 ms after each step; then something is read."""
    return quick_host(loop).launches(20, 1.0).reads()


@pytest.mark.parametrize("step", [losses_outside, averages])
def test_a_gpu_at_work_while_the_host_waits_is_not_idle(step: Callable[[Loop], object]) -> None:
    loop = trained(step)
    idle = loop.mean_idle_ms()
    assert loop.true_idle_ms() < 0.3
    assert idle["sync"] + idle["python"] < 0.3


@pytest.mark.parametrize("mode", [0, 2], ids=["without gradients", "with gradients"])
def test_passes_of_an_evaluation_without_fetches_are_one_evaluation(mode: int) -> None:
    """What the host does between them is no idle time of a step."""

    def step(loop: Loop) -> None:
        loop.forward((10, 0.4, 0.1)).backward((10, 0.7, 0.1)).optimizer((10, 0.1, 0.05)).runs(0.2)
        for _ in range(5):
            loop.begin(events.BEGIN_FORWARD, mode).launches(10, 0.4, 0.05)
            loop.end(events.END_FORWARD, mode).reads().runs(5)

    idle = trained(step).mean_idle_ms()
    # After its last pass the host may do anything: that is the step's.
    assert idle["sync"] + idle["python"] == pytest.approx(5.1, abs=0.3)


def test_time_outside_explicit_steps_uses_up_the_lead_of_the_host() -> None:
    def step(loop: Loop) -> None:
        loop.runs(30).enters().runs(5).forward((10, 0.4, 0.1)).backward((10, 0.7, 0.1))
        loop.optimizer((10, 0.1, 0.05)).reads().exits()

    idle = trained(step).mean_idle_ms()
    assert idle["sync"] == pytest.approx(0.0, abs=EXACT_MS)
    assert idle["python"] == pytest.approx(5.0, abs=EXACT_MS)


def sleeping_in_closure(loop: Loop) -> Loop:
    """Lightning runs the whole of a training step inside the optimizer's."""

    def closure(loop: Loop) -> Loop:
        return loop.runs(30).forward((10, 0.4, 0.1)).backward((10, 0.7, 0.1))

    return loop.fetch(0.1).optimizer((10, 0.1, 0.05), closure=closure).runs(0.2)


CAUSED = [
    pytest.param(sleeping, "python", id="the script sleeps"),
    pytest.param(sleeping_in_closure, "python", id="it sleeps in the optimizer's closure"),
    pytest.param(collecting, "gc", id="garbage is collected"),
    pytest.param(logging, "logging", id="something is logged"),
    pytest.param(compiling_in_forward, "compile", id="forward compiles"),
    pytest.param(reading, "sync", id="the loss is read"),
    pytest.param(small_kernels, "launching", id="many small kernels"),
]


@pytest.mark.parametrize(("step", "cause"), CAUSED)
def test_idle_time_has_the_cause_that_was_planted(step, cause: str) -> None:
    loop = trained(step)
    idle = loop.mean_idle_ms()
    if cause != "launching":
        del idle["launching"]  # an upper limit: what is launched after a wait is worked on
    assert idle[cause] > 0.95 * sum(idle.values())
    assert idle[cause] == pytest.approx(loop.true_idle_ms(), rel=0.15, abs=EXACT_MS)


@pytest.mark.parametrize("drift", [-5e-5, 5e-5], ids=["a fast clock", "a slow clock"])
@pytest.mark.parametrize(("step", "cause"), CAUSED)
def test_clocks_that_run_apart_change_nothing(step, cause: str, drift: float) -> None:
    expected = trained(step).mean_idle_ms()
    found = trained(step, drift=drift).mean_idle_ms()
    assert found == pytest.approx(expected, rel=0.05, abs=EXACT_MS)


@pytest.mark.parametrize("drift", [-5e-5, 5e-5], ids=["a fast clock", "a slow clock"])
def test_clocks_that_ran_apart_for_two_minutes_are_aligned_again(drift: float) -> None:
    """By 6 ms, of the 18 ms that the GPU idles in each step."""
    loop = Loop(drift=drift)
    for number in range(2 * STEPS):
        sleeping(loop).runs(120_000 if number == STEPS else 0)
    idle_ns = [row["gpu_idle_python_ns"] for row in loop.ends().steps][STEPS:]
    assert len(idle_ns) > 5
    expected_ms = trained(sleeping).mean_idle_ms()["python"]
    for idle in idle_ns:
        assert idle / MS == pytest.approx(expected_ms, abs=EXACT_MS)


def test_a_host_that_is_ahead_leaves_no_idle_time() -> None:
    """Its own code and its pauses are hidden, though there is a rest with work of the GPU's."""
    loop = trained(lambda loop: quick_host(loop).spends(events.GC, 1).runs(2).launches(20, 0.2))
    assert sum(loop.mean_idle_ms().values()) < EXACT_MS
    assert loop.mean_ms("gpu_input_ns") < EXACT_MS


@pytest.mark.parametrize("max_ahead_ms", [25, 40, 90])
def test_a_queue_that_is_never_empty_is_not_taken_for_one(monkeypatch, max_ahead_ms) -> None:
    """The clocks are aligned by marks that the GPU had not passed when the tracer asked."""
    monkeypatch.setattr(gpu_idle_marks, "DRIFTS_ONE_IN", 100)  # as if 100 times as many steps
    loop = Loop(max_ahead_ms=max_ahead_ms)
    for _ in range(200):
        quick_host(loop).runs(1).launches(20, 0.2)
    rows = loop.ends().steps[100:]
    idle_ns = sum(row[f"gpu_idle_{cause}_ns"] for row in rows for cause in IDLE_CAUSES)
    assert idle_ns / len(rows) / MS < EXACT_MS


def test_missing_data_is_the_inputs_whatever_the_host_read_before() -> None:
    loop = trained(waiting_for_data)
    assert loop.mean_ms("gpu_input_ns") > 35
    assert loop.mean_idle_ms()["sync"] < 0.5


def test_reading_costs_no_more_than_the_lead_that_it_took() -> None:
    """The GPU had nothing to do anyway: the read is short, and what follows is the script's."""

    def step(loop: Loop) -> None:
        small_kernels(loop).reads().runs(10)

    idle = trained(step).mean_idle_ms()
    assert idle["sync"] < 0.3
    assert idle["python"] == pytest.approx(10, abs=0.3)


def test_a_pause_is_idle_time_only_as_far_as_the_gpu_had_caught_up() -> None:
    """20 ms of collecting, of which 9 ms pass while the GPU works off its queue."""
    loop = trained(lambda loop: quick_host(loop).spends(events.GC, 20).reads())
    assert loop.mean_idle_ms()["gc"] == pytest.approx(loop.true_idle_ms(), rel=0.15)


def test_on_the_gpu_a_closure_is_no_part_of_the_optimizer() -> None:
    """Its forward and backward passes take 11 ms there, and the optimizer 1 ms."""
    loop = trained(sleeping_in_closure)
    assert loop.mean_ms("gpu_forward_ns") + loop.mean_ms("gpu_backward_ns") >= 11
    assert loop.mean_ms("gpu_optimizer_ns") == pytest.approx(1, abs=EXACT_MS)


def test_explicit_steps_have_the_same_account() -> None:
    def step(loop: Loop) -> None:
        loop.enters().runs(8).forward((10, 0.4, 0.1)).spends(events.GC, 25)
        loop.backward((10, 0.7, 0.1)).optimizer((10, 0.1, 0.05)).exits()

    idle = trained(step).mean_idle_ms()
    assert idle["gc"] == pytest.approx(22, abs=1.5)  # forward takes the GPU 3 ms longer
    assert idle["python"] == pytest.approx(1.4, abs=0.2)  # of 8 ms, the GPU has work for the rest
    assert idle["compile"] == idle["logging"] == idle["sync"] == 0


def test_evaluation_and_checkpoints_are_no_idle_time_of_a_step() -> None:
    def step(loop: Loop) -> None:
        quick_host(loop).begin(events.BEGIN_FETCH, 2).runs(5).end(events.END_FETCH, 8)
        loop.begin(events.BEGIN_FORWARD, 0).launches(5, 0.1).runs(30)
        loop.end(events.END_FORWARD, 0).runs(10)
        loop.begin(events.BEGIN, events.CHECKPOINT).runs(40).end(events.END, events.CHECKPOINT)

    loop = trained(step)
    assert loop.mean_ms("evaluation_ns") > 30 and loop.mean_ms("checkpoint_ns") >= 39
    idle = loop.mean_idle_ms()
    assert sum(idle.values()) - idle["launching"] < 2 * EXACT_MS
    assert idle["launching"] < 3  # the GPU has nothing left to do when the next step begins


def test_micro_batches_without_fetches_have_the_same_account() -> None:
    """Four forward and backward passes per step, and a pause of 8 ms after each that shows."""

    def step(loop: Loop) -> None:
        for _ in range(4):
            loop.forward((4, 0.4, 0.05)).backward((4, 0.7, 0.05)).reads().runs(8)
        loop.optimizer((5, 0.1, 0.05))

    loop = trained(step)
    assert loop.mean_idle_ms()["sync"] + loop.mean_idle_ms()["python"] == pytest.approx(32, abs=1)
    assert loop.mean_idle_ms()["sync"] > 15  # each read took the lead of a pass, 4 ms


def test_the_work_of_a_replayed_graph_is_launched_at_once() -> None:
    held = events.graph_contents(1, 1)

    def step(loop: Loop) -> None:
        loop.begin(events.BEGIN_REPLAY, 7).launches(1, 20.0).replayed(7).runs(30)

    loop = Loop().told(events.HOLD_IN_GRAPH, held, 7).told(events.HOLD_OPTIMIZER, 1, 7)
    for _ in range(STEPS):
        step(loop)
    idle = loop.ends().mean_idle_ms()
    assert idle["python"] == pytest.approx(10, abs=0.3)
    assert idle["launching"] < 0.1


def test_of_short_steps_those_that_are_timed_have_the_account() -> None:
    loop = Loop()
    for number in range(40):
        sleeping(loop)
        loop.is_timed = number % 5 in (3, 4)  # a step that is timed needs its beginning, too
    loop.ends()
    timed = [row for row in loop.steps if row["gpu_body_ns"] >= 0]
    others = [row for row in loop.steps if row["gpu_body_ns"] < 0]
    assert len(timed) > 4 and len(others) > 10
    assert {row["gpu_idle_python_ns"] for row in others} == {NOT_MEASURED}
    assert all(row["gpu_idle_python_ns"] > 15 * MS for row in timed)


def test_a_saved_account_goes_on_as_it_was() -> None:
    loop, twin = Loop(), Loop()
    for number in range(STEPS):
        for each in (loop, twin):
            reading(each)
        if number % 3 == 1:
            plain = json.loads(json.dumps(twin.machine.rows.idle.as_plain()))
            twin.machine.rows.idle = IdleAccount.from_plain(plain)
    assert loop.ends().rows == twin.ends().rows


def test_nothing_is_kept_of_steps_that_are_gone() -> None:
    loop = trained(reading)
    plain = loop.machine.rows.idle.as_plain()
    assert len(plain["put"]) + len(plain["spent"]) < 30


def test_what_a_saved_account_keeps_of_a_mark_is_short() -> None:
    """A GPU may be a thousand marks behind, and the state has to fit its slot of 64 KiB."""
    account = IdleAccount()
    for mark in range(1_000):
        account.see_mark(mark + 5_000, 10**15 + mark * 3_123_456)
    assert len(json.dumps(account.as_plain(), separators=(",", ":"))) < 12_000


def test_numbers_of_marks_that_make_no_sense_cost_nothing() -> None:
    account = IdleAccount()
    last = (1 << 32) - 1
    account.see_mark(last, 100)
    account.spend(7, events.GC, 50)
    idle = account.account(1, last, [(events.FORWARD, 1, last, None)], {1: 0, last: 40})
    assert sum(idle) <= 40


kernels = st.tuples(st.integers(0, 20), st.floats(0.001, 1.0), st.floats(0.002, 0.3))
spent_ms = st.one_of(st.just(0.0), st.floats(0.1, 20.0))


@st.composite
def steps(draw: st.DrawFn) -> Callable[[Loop], object]:
    """Any loop, with anything that the host may do besides."""
    fetch_ms, code_ms = draw(spent_ms), draw(spent_ms)
    forward, backward, optimizer = draw(kernels), draw(kernels), draw(kernels)
    pauses = draw(
        st.lists(
            st.tuples(st.sampled_from([events.GC, events.LOGGING, events.COMPILE]), spent_ms),
            max_size=3,
        )
    )
    reads, copies = draw(st.integers(0, 3)), draw(st.booleans())

    def step(loop: Loop) -> None:
        loop.fetch(fetch_ms)
        if copies:
            loop.copy(0.5)
        loop.forward(forward).runs(code_ms)
        for _ in range(reads):
            loop.reads().runs(0.05)
        for cause, ms in pauses:
            loop.spends(cause, ms)
        loop.backward(backward).optimizer(optimizer)

    return step


@settings(max_examples=150, deadline=None)
@given(steps(), st.floats(-2e-5, 2e-5))
def test_the_account_holds_all_idle_time_and_fits_the_step(step, drift: float) -> None:
    """What is told is no less than what the GPU truly idled, and no more than the step leaves.

    Nothing is called idle that was not, but for launching, which is an upper limit.
    """
    loop = trained(step, drift=drift)
    elsewhere = ("input", "h2d", "communication")
    for row in loop.steps:
        idle = [row[f"gpu_idle_{cause}_ns"] for cause in IDLE_CAUSES]
        assert min(idle) >= 0
        phases = sum(max(0, row[f"gpu_{name}_ns"]) for name in elsewhere[1:])
        assert sum(idle) <= row["gpu_body_ns"] - phases + 2_000
        for cause in ("gc", "logging", "compile"):
            assert row[f"gpu_idle_{cause}_ns"] <= row[f"{cause}_ns"]
        launched = sum(row[f"gpu_{name}_ns"] for name in ("forward", "backward", "optimizer"))
        assert row["gpu_idle_launching_ns"] <= launched + 2_000
    told = sum(loop.mean_idle_ms().values()) + sum(
        max(0.0, loop.mean_ms(f"gpu_{name}_ns")) for name in elsewhere
    )
    slack_ms = EXACT_MS + 0.02 * (loop.mean_ms("gpu_body_ns") + loop.mean_ms("gpu_input_ns"))
    assert told >= loop.true_idle_ms() - slack_ms
    assert told - loop.mean_idle_ms()["launching"] <= loop.true_idle_ms() + slack_ms
