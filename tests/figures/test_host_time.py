"""The flame graph of the host's time has every call once, in the colour of its phase."""

from __future__ import annotations

from traceml.figures.host_time import host_time_part
from traceml.figures.page import FlameBox, FlameGraph, Part
from traceml.summaries.host_time_record import (
    HostCallSummary,
    HostPhaseSummary,
    HostPlaceSummary,
    HostTimeSummary,
)

CALLS = (
    HostCallSummary("main", "train.py", 40, True, -1, 80, 0),
    HostCallSummary("__next__", "torch/utils/data/dataloader.py", 700, False, 0, 80, 10),
    HostCallSummary("load", "train.py", 5, True, 1, 20, 20),
    HostCallSummary("collate", "train.py", 9, True, 1, 50, 50),
)
PLACES = (
    HostPlaceSummary("collate", "train.py", 9, 50, 0.625, 0.51, 0.72, called_by="main"),
    HostPlaceSummary("main", "train.py", 40, 10, 0.125, 0.07, 0.21, "__next__ (torch/x.py)"),
)
INPUT = HostPhaseSummary(80, 0.8, 10.0, PLACES, CALLS)
FOUND = HostTimeSummary(
    looks=100,
    outside=3,
    torn=2,
    by="py-spy",
    rate_hz=31.4,
    core_share=0.01,
    phases={"input": INPUT},
)


def part_of(**phases: HostPhaseSummary) -> Part:
    part = host_time_part(HostTimeSummary(looks=100, phases={"input": INPUT, **phases}))
    assert part is not None
    return part


def boxes(part: Part, view: int, figure: int = 0) -> tuple[FlameBox, ...]:
    graph = part.figures[figure]
    assert isinstance(graph, FlameGraph)
    return graph.views[view].boxes


def shape(found: tuple[FlameBox, ...]) -> list[tuple[str, int, int]]:
    return [(box.label, box.parent, box.value) for box in found]


def test_without_samples_there_is_no_part() -> None:
    assert host_time_part(None) is None
    assert host_time_part(HostTimeSummary(looks=3)) is None


def test_all_calls_have_the_wider_ones_first() -> None:
    found = boxes(part_of(), view=1)
    assert shape(found) == [
        ("Input wait", -1, 80),
        ("main", 0, 80),
        ("__next__", 1, 80),
        ("collate", 2, 50),
        ("load", 2, 20),
    ]
    assert [box.is_pale for box in found] == [False, False, True, False, False]
    assert {box.colour for box in found} == {"input"}


def test_of_the_users_code_alone_calls_in_packages_are_left_out() -> None:
    found = boxes(part_of(), view=0)
    assert shape(found) == [
        ("Input wait", -1, 80),
        ("main", 0, 80),
        ("collate", 1, 50),
        ("load", 1, 20),
    ]
    assert found[2].place == "train.py:9"


def test_a_box_says_its_share_its_time_and_its_samples() -> None:
    root, _, collate, _ = boxes(part_of(), view=0)
    assert root.words == "80% of the training thread's samples · 10.0 ms per step · 80 samples"
    assert collate.words == "62% of the phase (52–72%) · 6.2 ms per step · 50 samples"


def test_workers_and_threads_have_a_graph_of_their_own() -> None:
    part = part_of(workers=HostPhaseSummary(30, None, None, (), CALLS[3:]))
    assert [figure.id for figure in part.figures] == ["host-flame", "beside-flame"]
    assert shape(boxes(part, view=1, figure=1)) == [("Loader workers", -1, 30), ("collate", 0, 50)]


def test_the_part_says_how_much_was_looked_at() -> None:
    part = host_time_part(FOUND)
    assert part is not None
    assert part.note == "100 stack samples, 31 per second · by py-spy · 1.0% of another core"
    (table,) = part.tables
    first, second = table.rows
    assert first.cells[:4] == ("collate (train.py:9)", "Input wait", "62%", "51–72%")
    assert second.cells[0] == "main (train.py:40) in __next__"


def test_a_call_that_names_a_later_one_as_its_caller_is_drawn_at_the_top() -> None:
    odd = HostCallSummary("odd", "train.py", 1, True, 7, 5, 5)
    assert shape(boxes(part_of(input=HostPhaseSummary(80, calls=(odd,))), view=1)) == [
        ("Input wait", -1, 80),
        ("odd", 0, 5),
    ]
