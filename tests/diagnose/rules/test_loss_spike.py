"""A jump of a smooth loss is named; losses that are noisy by nature are left in peace."""

from dataclasses import replace

import numpy as np
import pytest

from factories import make_run
from failing import with_loss
from traceml.diagnose.rules import loss_spike
from traceml.facts.gather import gather
from traceml.model.finding import Kind, Severity
from traceml.store.records import LoggedMetric, RunRecords


def smooth(steps: int = 400, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """A loss that falls from 4 to 1, each batch a little off."""
    random = np.random.default_rng(seed)
    level = 1 + 3 * np.exp(-np.arange(steps) / 100)
    return level * np.exp(noise * random.standard_normal(steps))


def with_jump(values: np.ndarray, at: int, times: float, length: int) -> np.ndarray:
    changed = values.copy()
    changed[at : at + length] *= times
    return changed


@pytest.mark.parametrize(
    ("run", "severity"),
    [
        pytest.param(with_loss(with_jump(smooth(), 300, 8, 1)), Severity.INFO, id="one batch"),
        pytest.param(with_loss(with_jump(smooth(), 300, 4, 5)), Severity.INFO, id="a few batches"),
        pytest.param(
            with_loss(with_jump(smooth(), 300, 20, 5)), Severity.INFO, id="above the start"
        ),
        pytest.param(
            with_loss(with_jump(smooth(), 300, 60, 5)), Severity.WARNING, id="far above the start"
        ),
        pytest.param(
            with_loss(with_jump(smooth(800), 300, 6, 100)), Severity.INFO, id="a warm restart"
        ),
        pytest.param(
            with_loss(with_jump(30 * smooth() ** 2, 300, 4, 100)),
            Severity.INFO,
            id="harder data: it stays up, far below where it began",
        ),
        pytest.param(
            with_loss(with_jump(smooth(), 300, 6, 100)), Severity.WARNING, id="it stays up"
        ),
        pytest.param(
            with_loss(with_jump(smooth(), 200, 6, 200), every=4),
            Severity.WARNING,
            id="seen now and then",
        ),
    ],
)
def test_must_fire(run: RunRecords, severity: Severity) -> None:
    finding = loss_spike.check(gather(run))
    assert finding is not None
    assert (finding.kind, finding.severity) == (Kind.LOSS_SPIKE, severity)


def _noise(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda seed: smooth(seed=seed), id="a falling loss"),
        pytest.param(lambda seed: smooth(noise=0.3, seed=seed), id="small batches"),
        pytest.param(lambda seed: np.exp(_noise(seed).standard_normal(2000)), id="a critic's loss"),
        pytest.param(
            lambda seed: _noise(seed).standard_normal(2000), id="a policy's loss, around zero"
        ),
        pytest.param(
            lambda seed: 0.7 + np.abs(_noise(seed).standard_t(3, 2000)), id="a generator's loss"
        ),
        pytest.param(
            lambda seed: smooth(2000) * 10.0 ** -(np.arange(2000) / 200), id="one that vanishes"
        ),
        pytest.param(
            lambda seed: np.exp(np.cumsum(0.1 * _noise(seed).standard_normal(2000)) / 5),
            id="one that wanders",
        ),
        pytest.param(lambda seed: np.full(100, 2.0), id="one that stands still"),
        pytest.param(lambda seed: with_jump(smooth(), 300, 2.2, 1), id="a batch that is hard"),
        pytest.param(lambda seed: smooth(35), id="too few values"),
    ],
)
def test_must_stay_silent(values, seed: int) -> None:
    assert loss_spike.check(gather(with_loss(values(seed)))) is None


def test_a_loop_without_a_loader_is_told_that_its_target_may_have_moved() -> None:
    """The batches of reinforcement learning come from an environment or a replay buffer."""
    for input_ms, is_said in ((None, True), (1.0, False)):
        run = with_loss(with_jump(smooth(), 300, 6, 100), input_ms=input_ms)
        finding = loss_spike.check(gather(run))
        assert finding is not None
        assert finding.severity is Severity.WARNING
        assert ("moving target" in finding.action) is is_said


def windows(sizes: list[int], divisor: list[int], level: float = 6.137) -> RunRecords:
    """A flat loss of an accumulating loop, as its first micro-batch passes it to backward."""
    noise = np.exp(0.01 * _noise(1).standard_normal(len(sizes)))
    return with_loss(level * noise / np.array(divisor), micro_batches=sizes)


EPOCH = [8] * 30 + [1]


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(windows(EPOCH * 4, EPOCH * 4), id="divided by the window: its last is short"),
        pytest.param(windows(EPOCH * 4, [8] * 124), id="divided by a number that is always 8"),
        pytest.param(windows(EPOCH * 4, [1] * 124), id="not divided"),
        pytest.param(windows([8] * 60 + [1] * 60, [8] * 60 + [1] * 60), id="from 8 to 1 for good"),
        pytest.param(windows([8] * 40 + [1], [8] * 40 + [1]), id="one short window at the end"),
    ],
)
def test_the_size_of_an_accumulation_window_is_no_spike(run: RunRecords) -> None:
    assert loss_spike.check(gather(run)) is None


def test_a_real_spike_of_a_divided_loss_is_told_on_the_scale_of_the_step() -> None:
    sizes = np.array(EPOCH * 4)
    values = 2.0 / sizes
    values[75] *= 5
    finding = loss_spike.check(gather(with_loss(values, micro_batches=sizes.tolist())))
    assert finding is not None
    assert finding.claim == "loss jumped from 2 to 10 at step 76 and came back."


def test_what_the_script_logs_is_the_better_source() -> None:
    history = tuple(enumerate(np.full(100, 2.0).tolist(), 1))
    metric = LoggedMetric("loss", 100, 2.0, 2.0, 2.0, 2.0, 1, 100, first=2.0, history=history)
    seen = with_loss(with_jump(smooth(), 300, 60, 5))
    assert loss_spike.check(gather(replace(seen, metrics=(metric,)))) is None


def test_without_a_loss_nothing_is_said() -> None:
    assert loss_spike.check(gather(make_run())) is None


def test_the_claim_says_from_what_to_what_and_when() -> None:
    values = np.full(100, 2.0)
    finding = loss_spike.check(gather(with_loss(with_jump(values, 60, 5, 1))))
    assert finding is not None
    assert finding.claim == "loss jumped from 2 to 10 at step 61 and came back."


def test_the_step_of_a_logged_loss_is_called_so() -> None:
    values = with_jump(smooth(), 300, 8, 1)
    history = tuple((9000 + place, float(value)) for place, value in enumerate(values))
    metric = LoggedMetric("loss", len(values), 1.0, 1.0, 9.0, 2.0, 9000, 9399, history=history)
    finding = loss_spike.check(gather(replace(make_run(), metrics=(metric,))))
    assert finding is not None
    assert "at logged step 9,300 and came back" in finding.claim
    assert finding.evidence["numbering"] == "logged"


@pytest.mark.parametrize(
    ("after", "said"),
    [
        pytest.param([1.0] * 20, " and came back.", id="usual values follow"),
        pytest.param([np.nan] * 20, ", and then became NaN or infinite.", id="it is lost"),
        pytest.param([np.nan] * 3 + [1.0] * 20, " and came back.", id="lost, and then back"),
        pytest.param([60.0] * 12 + [np.nan] * 5, "became NaN or infinite.", id="high, then lost"),
        pytest.param([60.0] * 2, ", and there the run ended.", id="the run ends"),
        pytest.param([60.0] * 20, " and stayed there.", id="it stays"),
    ],
)
def test_it_came_back_only_where_usual_values_follow(after: list[float], said: str) -> None:
    values = np.concatenate([smooth(noise=0), [50.0], after])
    finding = loss_spike.check(gather(with_loss(values)))
    assert finding is not None and finding.claim.endswith(said), finding


def test_a_loss_that_begins_anew_with_an_attempt_is_no_spike() -> None:
    """It had all but vanished before the ranks were started again without a checkpoint."""
    vanishing = 4.0 * np.exp(-np.arange(300) / 100)
    run = with_loss(np.concatenate([vanishing, vanishing]))
    assert loss_spike.check(gather(run)) is not None
    assert loss_spike.check(gather(replace(run, attempt_firsts=(0, 300)))) is None


def test_a_jump_that_an_attempt_ended_with_did_not_stay() -> None:
    diverged, good = with_jump(smooth(), 300, 6, 100), smooth()
    run = with_loss(np.concatenate([diverged, good]))
    finding = loss_spike.check(gather(replace(run, attempt_firsts=(0, 400))))
    assert finding is not None
    assert finding.severity is Severity.INFO
    assert "at step 301 and stayed there until the ranks were started again" in finding.claim


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_logged_loss_whose_steps_begin_again_is_no_spike(ranks: int) -> None:
    vanishing = 4.0 * np.exp(-np.arange(300) / 100)
    side_by_side = [(step, vanishing[step]) for step in range(300) for _ in range(ranks)]
    if ranks > 1:  # one of them logs a step behind
        behind = [side_by_side[max(0, at - ranks)] for at in range(1, len(side_by_side), ranks)]
        side_by_side[1::ranks] = behind
    history = tuple(side_by_side * 2)
    metric = LoggedMetric("loss", len(history), 0, 0, 4, 1, 0, 299, history=history)
    assert loss_spike.check(gather(replace(make_run(), metrics=(metric,)))) is None
