"""The page shows what the wall time went to, and the attempts of a restarted run."""

from dataclasses import replace

import pytest

from factories import STARTED_UNIX_S, make_run
from restarted_runs import Start, restarted
from traceml.figures.colours import PALETTE
from traceml.figures.goodput import COLOURS, MAX_ATTEMPTS, goodput_part
from traceml.figures.page import Bars, Part, Tree
from traceml.model.run_time import RunPart
from traceml.store.records import RunRecords
from traceml.summaries.build import build
from traceml.summaries.record import Summary


def summary_of(run: RunRecords) -> Summary:
    return build(run, STARTED_UNIX_S + 60, "1.0")


def part_of(run: RunRecords) -> Part:
    found = goodput_part(summary_of(run))
    assert found is not None
    return found


def test_every_part_has_a_colour_of_the_palette():
    assert set(COLOURS) == set(RunPart)
    assert set(COLOURS.values()) <= set(PALETTE)
    assert len(set(COLOURS.values())) == len(COLOURS)


def test_a_plain_run_has_one_bar_that_sums_to_its_wall_time():
    part = part_of(make_run(noise=0.0))
    (bar,) = part.figures
    assert isinstance(bar, Bars)
    assert sum(series.values[0] or 0.0 for series in bar.series) == pytest.approx(62.0, rel=1e-3)
    assert bar.x.unit == "s"
    assert part.tables == ()
    assert part.finding is None
    assert [tile.value for tile in part.tiles] == ["12%"]


def test_the_share_is_of_the_wall_time_and_beside_it_stands_that_of_the_gpu_hours():
    run = restarted(Start(400, ranks=4), Start(10, resumed=400, ranks=2, status=0), gpu=True)
    goodput = summary_of(run).goodput
    assert goodput is not None and goodput.gpu_hours and goodput.productive_gpu_hours
    whole, gpus = part_of(run).tiles[:2]
    assert (whole.value, whole.note) == ("77%", "of the wall time in productive steps")
    share = goodput.productive_gpu_hours / goodput.gpu_hours
    assert share > 0.80
    assert gpus.note == f"{share:.0%} in productive steps"


def test_a_restarted_run_shows_its_attempts_where_they_were():
    part = part_of(restarted(Start(45), Start(20, resumed=40, status=0)))
    _, tree = part.figures
    assert isinstance(tree, Tree)
    assert [branch.name for branch in tree.root.parts] == ["Attempt 1", "Attempt 2"]
    assert sum(branch.share for branch in tree.root.parts) == pytest.approx(1.0, abs=1e-3)
    assert part.finding is not None
    (table,) = part.tables
    assert "rank 1: ValueError: bad at train.py:7 in main" in table.rows[0].cells[1]
    assert "5 steps done again" in table.rows[0].cells[1]
    assert table.rows[1].cells[1] == "20 steps on 2 ranks, from step 40 on."


def test_of_very_many_attempts_those_in_the_middle_are_one_bar():
    starts = [Start(2, resumed=2 * number) for number in range(60)]
    part = part_of(restarted(*starts, Start(2, resumed=120, status=0)))
    _, tree = part.figures
    assert isinstance(tree, Tree)
    assert len(tree.root.parts) == MAX_ATTEMPTS + 1
    assert sum(branch.share for branch in tree.root.parts) == pytest.approx(1.0, abs=0.01)


def test_a_run_without_steps_and_a_foreign_summary_have_no_such_part():
    assert goodput_part(None) is None
    assert goodput_part(Summary()) is None
    assert goodput_part(summary_of(replace(make_run(), ranks=()))) is None
