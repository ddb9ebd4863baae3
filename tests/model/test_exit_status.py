"""Exit statuses in words."""

import pytest

from traceml.model.run import end_words, signal_of, status_words


@pytest.mark.parametrize(
    ("status", "number", "end", "words"),
    [
        pytest.param(3, None, "ended with exit status 3", "status 3", id="its own"),
        pytest.param(128, None, "ended with exit status 128", "status 128", id="no signal is 0"),
        pytest.param(137, 9, "was killed by SIGKILL", "status 137 (SIGKILL)", id="a signal"),
        pytest.param(192, 64, "was killed by SIGRTMAX", "status 192 (SIGRTMAX)", id="the last one"),
        pytest.param(193, None, "ended with exit status 193", "status 193", id="above all signals"),
    ],
)
def test_a_status_is_told_as_a_shell_means_it(
    status: int, number: int | None, end: str, words: str
) -> None:
    assert (signal_of(status), end_words(status), status_words(status)) == (number, end, words)
