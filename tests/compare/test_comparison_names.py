"""Names people recognise, and file names every file system takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.compare.comparison_names import default_base, group_names, many_base, run_names


@pytest.mark.parametrize(
    ("a", "b", "base"),
    [
        ("run_a.json", "x/run_b.json", "run_a_vs_run_b"),
        ("logs/slow/final_summary.json", "logs/fast/final_summary.json", "slow_vs_fast"),
        ("one/x.json", "two/x.json", "one_x.json_vs_two_x.json"),
        ("logs/one/final_summary.json", "logs/one/final_summary.json", "one_vs_one"),
        ("a b:c.json", "..json", "a_b_c_vs_run"),
    ],
)
def test_the_default_base(a: str, b: str, base: str) -> None:
    assert default_base(run_names(Path(a), Path(b))) == Path("compare") / base


def test_comparisons_of_different_runs_have_different_files() -> None:
    several = {many_base(names) for names in (["r1", "r2", "r3"], ["r1", "x", "r2"])}
    assert len(several) == 2
    assert all(base.name.startswith("r1_and_2_more-") for base in several)
    assert many_base(["r1", "r2", "r3"]) in several
    sides = [[["a1", "a2"], ["b"]], [["a1", "a3"], ["b"]], [["a1"], ["a2", "b"]]]
    names = group_names([Path("a1"), Path("a2")], [Path("b")], (["a1", "a2"], ["b"]))
    assert len({default_base(names, each) for each in sides}) == 3
    assert default_base(("a", "b"), [["a"], ["b"]]).name == "a_vs_b"
    long = "x" * 120
    assert default_base((f"{long}1", "b")) != default_base((f"{long}2", "b"))


def test_a_generic_name_takes_its_folders_name(tmp_path: Path) -> None:
    path = tmp_path / "baseline" / "final_summary.json"
    assert run_names(path, tmp_path / "other.json") == ("baseline", "other")


def test_no_name_is_too_long_or_unprintable() -> None:
    names = run_names(Path("é" * 120 + ".json"), Path("b\x1b[31m\udcff.json"))
    assert names[1] == "b?"
    base = default_base(names)
    assert len(base.name.encode()) <= 250 and "\x1b" not in base.name
