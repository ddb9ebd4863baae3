"""Files with scores by example: what is read, and what is refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceml.model.errors import UsageError
from traceml.store.logged_samples import as_numbers, read_logged_samples, read_sample_file


def table(folder: Path, text: str, name: str = "a.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8-sig")
    return path


def test_a_csv_file(tmp_path: Path) -> None:
    text = "ID,segment,correct,loss,answer\n1,day,True,0.5,yes it is\n2,night,false,,no\n"
    found = read_sample_file(table(tmp_path, text))
    assert found.scores == {"correct": {"1": 1.0, "2": 0.0}, "loss": {"1": 0.5}}
    assert found.segments == {"1": "day", "2": "night"}


@pytest.mark.parametrize(("name", "delimiter"), [("a.tsv", "\t"), ("a.csv", ";")])
def test_other_delimiters(tmp_path: Path, name: str, delimiter: str) -> None:
    text = "id,score\n1,0.5\n".replace(",", delimiter)
    assert read_sample_file(table(tmp_path, text, name)).scores == {"score": {"1": 0.5}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("score\n1\n", "no column 'id'"),
        ("id,score\n1,2\n1,3\n", "'1' twice"),
        ("id,answer\n1,good\n", "no column of numbers"),
        ("id,score\n1\n", "1 values in row 2 and 2 columns"),
        ("id,id\n1,2\n", "two columns of one name"),
    ],
)
def test_what_is_no_table_of_samples_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        read_sample_file(table(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_sample_file(tmp_path / "gone.csv")
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(UsageError, match="UTF-8"):
        read_sample_file(tmp_path / "binary.csv")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 not")
    with pytest.raises(UsageError, match=r"pyarrow|not a Parquet file"):
        read_sample_file(tmp_path / "bad.parquet")


def test_a_parquet_file(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"id": [1, 2], "correct": [True, False], "segment": ["a", None], "loss": [0.5, None]}
    parquet.write_table(arrow.table(columns), tmp_path / "a.parquet")
    found = read_sample_file(tmp_path / "a.parquet")
    assert found.scores == {"correct": {"1": 1.0, "2": 0.0}, "loss": {"1": 0.5}}
    assert found.segments == {"1": "a"}


def test_a_column_of_text_is_no_score() -> None:
    assert as_numbers(["1", " 2.5 ", "n/a", "inf"]) == [1.0, 2.5, None, None]
    assert as_numbers(["1", "one"]) is None
    assert as_numbers(["", "nan"]) is None


def test_damaged_lines_of_a_run_are_left_out(tmp_path: Path) -> None:
    lines = [
        '{"name":"t","ids":[1],"scores":{"s":[0.5]},"unix_ns":1}',
        '{"name":"t","ids":[2],"scores":{"s":[0.',
        '{"name":"t","ids":"x","scores":3}',
        '{"name":"t","ids":[3,4],"scores":{"s":[0.25]},"segments":["a","b","c"]}',
    ]
    (tmp_path / "logged-samples-7.jsonl").write_text("\n".join(lines))
    (tmp_path / "logged-samples-8.jsonl").mkdir()
    found = read_logged_samples(tmp_path)["t"]
    assert found.scores == {"s": {"1": 0.5, "3": 0.25}}
