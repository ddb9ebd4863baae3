"""Which steps are recorded, and which recordings are kept."""

import pytest

from traceml.trace.step_choice import (
    FIRST_STEP,
    TYPICAL,
    WORST,
    KeptSteps,
    RecordedStep,
    StepWatch,
)

MS = 1_000_000


def watched(times_ms):
    watch = StepWatch()
    for took in times_ms:
        watch.see(took * MS)
    return watch


def test_the_next_slow_step_is_expected_where_slow_ones_recur():
    every_tenth = [50 if number % 10 == 0 else 10 for number in range(1, 63)]
    watch = watched(every_tenth)
    assert watch.usual_ns == 10 * MS and watch.next_slow == 70
    for _ in range(9):
        watch.see(10 * MS)
    assert watch.seen == 71 and watch.next_slow is None  # the slow one did not come


@pytest.mark.parametrize(
    "times_ms",
    [
        [10] * 100,
        [50 if number in (20, 33, 41, 60) else 10 for number in range(1, 101)],
        [10] * 40 + [50] * 60,
    ],
    ids=["none is slow", "at no distance of their own", "slow from some step on"],
)
def test_no_slow_step_is_expected_where_none_recurs(times_ms):
    assert watched(times_ms).next_slow is None


def test_a_recorded_step_is_slow_by_what_recorded_ones_take():
    watch = watched([10] * (FIRST_STEP + 5))
    for _ in range(4):
        watch.see_recorded(18 * MS, 18 * MS)
        watch.see(10 * MS)
    assert watch.next_slow is None


def record(kept, times_ms):
    """Records steps 1, 2, … of these times, as far as they are worth keeping."""
    written = 0
    for step, took in enumerate(times_ms, start=1):
        is_kept, instead_of = kept.replaced_by(took * MS)
        if is_kept:
            kept.keep(RecordedStep(step, took * MS, f"{step}"), instead_of)
            written += 1
    return written


def roles(kept):
    found = kept.roles()
    return [(each.took_ns // MS, found[each.step]) for each in kept.kept]


def test_a_typical_step_and_the_slowest_are_kept():
    kept = KeptSteps(2)
    record(kept, [28, 30, 90, 29, 40, 28, 95, 31, 122])
    assert sorted(roles(kept)) == [(28, TYPICAL), (122, WORST)]


def test_of_one_step_the_typical_one_is_kept():
    kept = KeptSteps(1)
    record(kept, [90, 30, 29, 31, 30, 95])
    ((took_ms, role),) = roles(kept)
    assert abs(took_ms - 30) <= 1 and role == TYPICAL


def test_half_of_the_kept_steps_are_the_slowest():
    kept = KeptSteps(5)
    record(kept, [10, 11, 10, 40, 10, 50, 11, 60, 10])
    assert [took for took, role in sorted(roles(kept)) if role == WORST] == [50, 60]
    assert len(kept.kept) == 5


def test_steps_that_are_much_alike_are_not_written_again_and_again():
    kept = KeptSteps(2)
    assert record(kept, [100 + number % 7 for number in range(500)]) == 2


def test_steps_that_were_chosen_for_being_slow_do_not_say_what_is_typical():
    kept = KeptSteps(2)
    record(kept, [90, 80])
    for step, took in enumerate([91, 30, 92, 31, 93, 30, 94, 31], start=3):
        is_kept, instead_of = kept.replaced_by(took * MS, was_expected_slow=took > 90)
        if is_kept:
            kept.keep(RecordedStep(step, took * MS), instead_of)
    assert kept.usual_ns == 31 * MS
    assert sorted(roles(kept))[0] in [(30, TYPICAL), (31, TYPICAL)]
