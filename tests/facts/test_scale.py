"""Many ranks are as right as one: a thousand of them summarise like their mean."""

import pytest

from factories import make_rank, make_run
from traceml.facts.gather import gather
from traceml.model import record_layout
from traceml.store.records import STEP_DTYPE
from traceml.store.step_records import WIDE


def test_the_wide_fields_lie_side_by_side_at_the_beginning_of_a_record() -> None:
    """What lets a thousand ranks be read as tables of numbers without copying."""
    assert [STEP_DTYPE.fields[name][1] for name in WIDE] == [8 * n for n in range(len(WIDE))]
    assert set(record_layout.FOLDED) <= {*WIDE, "samples"}


def test_a_thousand_ranks_agree_with_one_of_them() -> None:
    (one,) = make_run(steps=50, noise=0).ranks
    ranks = tuple(make_rank(one.steps, rank, 1024) for rank in range(1024))
    run = make_run(steps=0)
    alone = gather(type(run)(run.manifest, (one,)))
    many = gather(type(run)(run.manifest, ranks))
    assert len(many.ranks_used) == 1024
    assert many.mean.step_s == pytest.approx(alone.mean.step_s)
    assert many.mean.p99_s == pytest.approx(alone.mean.p99_s)
    assert many.window == alone.window
