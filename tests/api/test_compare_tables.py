"""Arms of live traffic as people keep them: one file or several, with or without a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.api.compare_tables import read_arms
from traceml.model.errors import UsageError


def table(folder: Path, text: str, name: str = "traffic.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_control_comes_first_and_outcomes_are_in_order_of_time(tmp_path: Path) -> None:
    text = (
        "when,variant,time,converted\n"
        "x,new,2026-11-02T09:00,1\nx,new,2026-11-01T09:00,0\nx,Control,2026-11-01,1\n"
        "x,Control,2026-11-03,\n"
    )
    outcome, (first, second) = read_arms([table(tmp_path, text)], None)
    assert outcome == "converted"
    assert (first.name, first.outcomes, first.days) == ("Control", [1.0], ["2026-11-01"])
    assert (second.outcomes, second.days) == ([0.0, 1.0], ["2026-11-01", "2026-11-02"])


@pytest.mark.parametrize(
    ("arms", "first"),
    [
        (["a", "b", "control"], "control"),
        (["baseline", "Control"], "Control"),
        (["a", "baseline"], "baseline"),
        (["new", "a"], "new"),
    ],
)
def test_the_arm_to_compare_with(tmp_path: Path, arms: list[str], first: str) -> None:
    rows = "".join(f"{arm},1\n" for arm in arms)
    _, found = read_arms([table(tmp_path, f"arm,outcome\n{rows}")], None)
    assert found[0].name == first


@pytest.mark.parametrize(
    ("moments", "days"),
    [
        pytest.param(["1793577600", "1793664000"], ["2026-11-02", "2026-11-03"], id="seconds"),
        pytest.param(["1793577600000"] * 2, ["2026-11-02"] * 2, id="milliseconds"),
        pytest.param(["02/11/2026", "11/02/2026"], (), id="which is the month?"),
        pytest.param(["2026-11-02", ""], (), id="one without"),
    ],
)
def test_days_are_known_or_left_out(
    tmp_path: Path, moments: list[str], days: list[str] | tuple[()]
) -> None:
    rows = "".join(f"{arm},{moment},1\n" for arm in "ab" for moment in moments)
    _, (first, _) = read_arms([table(tmp_path, f"arm,time,outcome\n{rows}")], None)
    assert first.days == days and len(first.outcomes) == 2


def test_a_file_for_each_arm(tmp_path: Path) -> None:
    paths = [table(tmp_path, "outcome\n1\n0\n", f"{name}.csv") for name in ("old", "new")]
    _, arms = read_arms(paths, None)
    assert [arm.name for arm in arms] == ["old", "new"]


@pytest.mark.parametrize(
    ("text", "outcome", "why"),
    [
        ("arm,x,y\na,1,2\nb,1,2\n", None, "name it with --metric"),
        ("arm,outcome\na,1\nb,2\n", "gone", "no column 'gone'"),
        ("arm,outcome\na,good\nb,bad\n", None, "no column 'outcome' of numbers"),
        ("arm,outcome\na,1\n", None, "only one arm"),
    ],
)
def test_what_is_no_traffic_is_refused(
    tmp_path: Path, text: str, outcome: str | None, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        read_arms([table(tmp_path, text)], outcome)
