"""The history of a command in words."""

import pytest

from traceml.compare.history_record import OtherSeries
from traceml.model.run_values import RunValue
from traceml.text.run_history import MAX_VALUES_SHOWN, other_words


@pytest.mark.parametrize(
    ("params", "end"),
    [
        pytest.param(0, "train.py", id="the command alone"),
        pytest.param(MAX_VALUES_SHOWN, "params.p5 = 5", id="as many as are shown"),
        pytest.param(168, "params.p5 = 5, and 162 more", id="very many"),
    ],
)
def test_another_series_is_told_by_its_first_parameters(params: int, end: str) -> None:
    different: dict[str, RunValue | None] = {
        f"params.p{number}": str(number) for number in range(params)
    }
    words = other_words(OtherSeries(command="python train.py", runs=2, different=different))
    assert words.startswith("2 runs: python train.py")
    assert words.endswith(end)
