"""Where the host's time goes, as text: no place without its file and line."""

import pytest

from traceml.summaries.host_time_record import (
    HostPhaseSummary,
    HostPlaceSummary,
    HostTimeSummary,
)
from traceml.text.host_time import host_time_lines

FOLDERS = "/home/someone/projects/a-model/training/"


def lines_of(function: str, file: str, inside: str | None = None) -> list[str]:
    place = HostPlaceSummary(function, file, 138, 30, 1.0, 0.97, 1.0, inside=inside)
    phase = HostPhaseSummary(looks=30, share=1.0, per_step_ms=34.7, places=(place,))
    return host_time_lines(HostTimeSummary(looks=30, phases={"input": phase}))[1:]


@pytest.mark.parametrize(
    ("function", "file", "inside", "end"),
    [
        pytest.param(
            "f", "t.py", "sleep (a.py)", "100% (97–100%) 34.7 ms f (t.py:138) in sleep", id="short"
        ),
        pytest.param(
            "collate",
            "train.py",
            "_single_tensor_adam (torch/optim/adam.py)",
            "100% (97–100%) 34.7 ms collate (train.py:138)",
            id="what it is in goes first",
        ),
        pytest.param(
            "collate",
            FOLDERS + "train.py",
            None,
            "100% (97–100%) 34.7 ms collate (…/train.py:138)",
            id="then the folders",
        ),
        pytest.param(
            "Pictures.__getitem__",
            FOLDERS + "train.py",
            None,
            "100% 34.7 ms Pictures.__getitem__ (…/train.py:138)",
            id="then the interval",
        ),
    ],
)
def test_what_is_too_long_leaves_out_what_matters_least(
    function: str, file: str, inside: str | None, end: str
) -> None:
    (line,) = lines_of(function, file, inside)
    assert line.endswith("  " + end)
    assert len(line) <= 80


def test_a_very_long_function_keeps_its_ends_and_its_line() -> None:
    (line,) = lines_of("CarvanaDataset." + "very_" * 20 + "long", FOLDERS + "data_loading.py")
    assert " Carvana" in line
    assert "…" in line
    assert line.endswith("long (…/data_loading.py:138)")
    assert len(line) == 80
