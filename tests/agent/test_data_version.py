"""Data is known by what DVC says of it, or by its looks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from repositories import commit, git, make_repository
from traceml.agent import data_version
from traceml.agent.data_version import dvc_hashes, fingerprints, named_by, named_in
from traceml.agent.git import Git
from traceml.model.lineage import Fingerprint

TRACKED = """\
outs:
- md5: a304afb96060aad90176268345e10355.dir
  size: 37891850
  hash: md5
  path: images
"""
LOCK = """\
schema: '2.0'
stages:
  prepare:
    cmd: python prepare.py
    deps:
    - path: prepare.py
      hash: md5
      md5: f09ea0c15980b43010257ccb9f0055e2
      size: 1576
    outs:
    - path: prepared
      md5: '153aad06d376b6595932470e459ef42a.dir'
"""


def _looks(folder: Path, *names: str, apart: tuple[Path, ...] = ()) -> dict[str, Fingerprint]:
    return fingerprints(names, folder, apart, lambda: 60.0)


def _dvc(folder: Path) -> dict[str, str]:
    return dvc_hashes(folder, Git(folder, lambda: 60.0))


def test_dvc_files_say_which_data_they_stand_for(tmp_path: Path) -> None:
    make_repository(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "images.dvc").write_text(TRACKED)
    (tmp_path / "dvc.lock").write_text(LOCK)
    (tmp_path / "broken.dvc").write_bytes(b"\xff- path:\n  md5: \n: - -")
    commit(tmp_path)
    assert _dvc(tmp_path) == {
        "data/images": "a304afb96060aad90176268345e10355.dir",
        "prepare.py": "f09ea0c15980b43010257ccb9f0055e2",
        "prepared": "153aad06d376b6595932470e459ef42a.dir",
    }
    git(tmp_path, "rm", "--cached", "--quiet", "dvc.lock")
    assert list(_dvc(tmp_path)) == ["data/images"]


@pytest.mark.slow
def test_no_dvc(tmp_path: Path) -> None:
    assert _dvc(tmp_path) == {}


def test_a_folder_is_known_by_its_files(tmp_path: Path) -> None:
    inner = tmp_path / "data" / "inner"
    inner.mkdir(parents=True)
    for name, content in (("a", "1"), ("b", "22"), ("inner/c", "333")):
        (tmp_path / "data" / name).write_text(content)
        os.utime(tmp_path / "data" / name, (0, len(content)))
    (tmp_path / "data" / "broken").symlink_to("nowhere")
    assert _looks(tmp_path, "data") == {"data": Fingerprint(3, 6, 3)}


def test_a_small_file_is_known_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")
    os.utime(tmp_path / "b", (0, 7))
    looks = _looks(tmp_path, str(tmp_path / "a"), "b")
    assert looks["b"].newest_unix_s == 7
    assert looks["b"].sha256 == looks[str(tmp_path / "a")].sha256 is not None


def test_a_large_folder_is_seen_in_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_version, "MAX_FILES", 3)
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / str(number)).write_text("x" * (number + 1))
    looks = _looks(tmp_path, "data")["data"]
    assert (looks.files, looks.size_bytes, looks.complete) == (3, 6, False)


def test_what_is_no_path_or_no_data_is_left_out(tmp_path: Path) -> None:
    run, script = tmp_path / "logs" / "run", tmp_path / "train.py"
    run.mkdir(parents=True)
    script.touch()
    (tmp_path / "loop").symlink_to("loop")
    names = (".", "logs", "train.py", "0.1", "gone", "loop", "a\0b", "x" * 5000)
    assert _looks(tmp_path, *names, apart=(run, script)) == {}


def test_the_time_for_looking_may_be_over(tmp_path: Path) -> None:
    assert fingerprints(["."], tmp_path, (), lambda: 0.0) == {}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        pytest.param(["--data", "d", "--lr", "0.1"], ["d", "0.1"], id="options"),
        pytest.param(["--data=d", "data.root=e"], ["d", "e"], id="with equals signs"),
        pytest.param(["d", "--amp", "--data", "e"], ["d", "e"], id="without an option"),
        pytest.param(["-o", "o", "-i", "words.txt"], ["words.txt"], id="short options"),
        pytest.param(["--output-dir", "o", "--log_dir=l", "--save", "s"], [], id="what is written"),
        pytest.param(["--logdir", "l", "hydra.run.dir=r"], [], id="what is written, in one word"),
        pytest.param(["--catalog", "c", "--layout=y"], ["c", "y"], id="words that merely hold it"),
        pytest.param(["--data=", ""], [], id="nothing"),
    ],
)
def test_arguments_that_may_name_data(arguments: list[str], names: list[str]) -> None:
    assert list(named_in(arguments)) == names


def test_parameters_that_may_name_data() -> None:
    params = {"dataset": "d", "train_data": "t", "data_seed": 3, "lr": "0.1", "data": ""}
    assert list(named_by(params)) == ["d", "t"]
