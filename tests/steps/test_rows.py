"""Rows wait for the GPU: in order, complete, and not for ever."""

from traceml.model import record_layout
from traceml.model.record_layout import NOT_MEASURED
from traceml.steps.events import FORWARD, H2D, INPUT
from traceml.steps.rows import Bounds, Rows, gpu_times

FIELDS = [name for name, _ in record_layout.STEP]


def row(number):
    values = dict.fromkeys(FIELDS, NOT_MEASURED)
    return list((values | {"sequence": number}).values())


def numbers(rows):
    return [each[-1] for each in rows.done]


def told(rows, *marks):
    for mark in marks:
        rows.reach(mark, 10)


def test_a_row_waits_for_its_marks_and_those_after_it_wait_with_it():
    rows = Rows()
    rows.add(row(1), None, [])
    rows.add(row(2), Bounds(1, 4, 0, True), [(INPUT, 1, 2, None), (FORWARD, 2, 3, None)])
    rows.add(row(3), None, [])
    assert numbers(rows) == [1]
    told(rows, 1, 2, 3)
    assert numbers(rows) == [1]
    told(rows, 4)
    assert numbers(rows) == [1, 2, 3]
    found = dict(zip(FIELDS, rows.done[1], strict=True))
    assert (found["gpu_input_ns"], found["gpu_body_ns"], found["gpu_forward_ns"]) == (10, 20, 10)
    assert found["gpu_backward_ns"] == NOT_MEASURED


def test_marks_that_are_lost_leave_a_row_without_the_gpus_times():
    rows = Rows()
    rows.add(row(1), Bounds(1, 3, 0, False), [])
    told(rows, 1)
    rows.lose(3)
    assert numbers(rows) == [1]
    assert dict(zip(FIELDS, rows.done[0], strict=True))["gpu_body_ns"] == NOT_MEASURED


def test_at_the_end_everything_comes_out_with_what_is_known():
    rows = Rows()
    rows.add(row(1), Bounds(1, 2, 0, False), [])
    rows.add(row(2), Bounds(2, 3, 0, False), [])
    rows.add(row(3), None, [])
    told(rows, 1, 2)
    rows.flush()
    bodies = [dict(zip(FIELDS, each, strict=True))["gpu_body_ns"] for each in rows.done]
    assert bodies == [10, NOT_MEASURED, NOT_MEASURED]


def test_a_phase_inside_another_is_charged_once():
    moments = {mark: 10 * mark for mark in range(1, 7)}
    spans = [(H2D, 3, 4, FORWARD), (FORWARD, 2, 5, None)]
    waited, body, copied, forward, *_ = gpu_times(Bounds(1, 6, 0, True), spans, moments)
    assert (waited, body, copied, forward) == (0, 50, 10, 20)


def test_input_before_an_explicit_body_is_not_taken_from_it():
    moments = {mark: 10 * mark for mark in range(1, 7)}
    spans = [(INPUT, 1, 2, None), (INPUT, 4, 5, None)]
    waited, body, *_ = gpu_times(Bounds(3, 6, 1, True), spans, moments)
    assert (waited, body) == (20, 20)


def test_marks_of_a_step_that_is_not_timed_are_forgotten_with_it():
    """A step of very many marks ends without the GPU's times; the next one begins at its end."""
    rows = Rows()
    told(rows, *range(1, 601))
    rows.add(row(1), None, [], end_mark=600)
    assert len(rows.as_plain()["moments"]) == 1
    rows.add(row(2), Bounds(600, 602, 0, False), [])
    told(rows, 601, 602)
    assert dict(zip(FIELDS, rows.done[1], strict=True))["gpu_body_ns"] == 20
