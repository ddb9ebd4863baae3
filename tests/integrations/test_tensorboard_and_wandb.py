"""Runs as TensorBoard's writer and W&B's offline mode leave them, listed and compared."""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from processes import PYTHON, run
from traceml.api.fetch_runs import FetchedRuns
from traceml.api.query_runs import RunQuery, Runs
from traceml.api.store_search import search_store
from traceml.cli import main
from traceml.model.errors import RunNotFound, UsageError
from traceml.store.run_sources import open_source

RATES = (0.1, 0.01)
STEPS = 1200
"""So many that a W&B file has several blocks."""
WRITE_WANDB = f"""\
import wandb
for place, rate in enumerate({RATES}):
    settings = wandb.Settings(mode="offline", silent=True)
    config = dict(lr=rate, optimizer="adam", net=dict(width=32, layers=[1, 2]))
    with wandb.init(project="p", name=f"w{{place}}", config=config, tags=["good"], notes="first",
                    settings=settings) as run:
        for step in range({STEPS}):
            run.log({{"val/loss": 1 / (step + 1) + rate, "nested": {{"x": step}}}})
        run.log({{"nan": float("nan"), "inf": float("inf")}})
        run.summary["best"] = 0.5
        run.config.update({{"late": True}})
"""


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    place = tmp_path_factory.mktemp("events")
    for number, rate in enumerate(RATES):
        writer = SummaryWriter(str(place / f"run-{number}"))
        for step in range(STEPS):
            writer.add_scalar("val/loss", 1 / (step + 1) + rate, step)
        writer.add_scalar("bad", math.nan, 1)
        writer.add_text("words", "are no metric")
        writer.add_hparams({"lr": rate, "optimizer": "adam", "width": 32}, {"hparam/acc": 0.9})
        writer.close()
    return place


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("wandb")
    place = tmp_path_factory.mktemp("offline")
    settings = {"WANDB_DIR": str(place), "WANDB_CACHE_DIR": str(place), "WANDB_DISABLE_GIT": "true"}
    done = run([PYTHON, "-c", WRITE_WANDB], place, env={**os.environ, **settings})
    assert done.status == 0, done.stderr
    return place / "wandb"


def listed(word: str, query: str | None = None) -> Runs:
    return search_store(word, RunQuery(query, "lr desc"))


def test_event_folders_are_listed_with_parameters_and_metrics(events: Path) -> None:
    found = listed(f"tensorboard:{events}")
    assert found.names == ["run-0", "run-1"]
    first = found[0]
    assert (first["params.lr"], first["params.optimizer"], first["params.width"]) == (
        pytest.approx(0.1),
        "adam",
        32,
    )
    assert first["metrics.val/loss"] == pytest.approx(1 / STEPS + 0.1)
    assert first["metrics.val/loss.max"] == pytest.approx(1.1)
    assert first["hparam/acc"] == pytest.approx(0.9)
    assert math.isnan(float(str(first["metrics.bad"])))
    assert first.get("step_time_ms") is None and first.get("verdict") is None
    assert listed(f"tensorboard:{events}", "val/loss < 0.05").names == ["run-1"]


def test_offline_runs_are_listed_with_parameters_and_metrics(offline: Path) -> None:
    found = listed(f"wandb:{offline}")
    assert found.names == ["w0", "w1"]
    first = found[0]
    assert (first["params.lr"], first["params.net.width"], first["params.late"]) == (0.1, 32, True)
    assert first["params.net.layers"] == "[1, 2]"
    assert (first["status"], first["tags"], first["note"]) == ("finished", ("good",), "first")
    assert first["metrics.val/loss"] == 1 / STEPS + 0.1
    assert (first["metrics.val/loss.max"], first["metrics.nested.x"]) == (1.1, STEPS - 1)
    assert first["metrics.best"] == 0.5
    assert math.isinf(float(str(first["metrics.inf"])))
    assert math.isnan(float(str(first["metrics.nan"])))
    assert listed(f"wandb:{offline}", "lr < 0.05").names == ["w1"]


@pytest.mark.parametrize("tool", ["tensorboard", "wandb"])
def test_two_runs_are_compared(
    tool: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place: Path = request.getfixturevalue({"tensorboard": "events", "wandb": "offline"}[tool])
    monkeypatch.chdir(tmp_path)
    words = ["compare", f"{tool}:{place}", "--metric", "val/loss", "--format", "json"]
    assert main(words) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    change = found["sections"]["logged"]["metrics"]["val/loss"]
    assert change["delta"] == pytest.approx(-0.09)
    assert found["verdict"]["status"] == "IMPROVEMENT"
    assert found["sections"]["step_time"]["metrics"].get("step_time_ms", {}).get("lhs") is None


def test_every_step_of_a_history_is_read(events: Path, offline: Path) -> None:
    for word in (f"tensorboard:{events}", f"wandb:{offline}"):
        for each in open_source(word).find_runs():
            points = each.histories["val/loss"]
            assert [point.step for point in points] == list(range(STEPS))
            assert all(point.unix_s for point in points)


def test_one_file_and_one_run_folder_will_do(offline: Path) -> None:
    (path, *_) = sorted(offline.glob("offline-run-*/run-*.wandb"))
    (by_file,) = open_source(f"wandb:{path}").find_runs()
    (by_folder,) = open_source(f"wandb:{path.parent}").find_runs()
    assert by_file.params == by_folder.params and by_file.name == "w0"


def test_files_that_break_off_or_are_damaged_are_read_as_far_as_they_go(
    events: Path, offline: Path, tmp_path: Path
) -> None:
    (path, *_) = sorted(offline.glob("offline-run-*/run-*.wandb"))
    content = path.read_bytes()
    cut, damaged = tmp_path / "run-cut.wandb", tmp_path / "run-damaged.wandb"
    cut.write_bytes(content[: len(content) // 2])
    value = repr(1 / (STEPS // 2) + RATES[0]).encode()
    assert value in content
    damaged.write_bytes(content.replace(value, bytes(len(value))))
    (half,) = open_source(f"wandb:{cut}").find_runs()
    assert half.status == "lost" and 0 < len(half.histories["val/loss"]) < STEPS
    (most,) = open_source(f"wandb:{damaged}").find_runs()
    steps = [point.step for point in most.histories["val/loss"]]
    assert steps == [step for step in range(STEPS) if step != STEPS // 2 - 1]
    (source, *_) = (events / "run-0").glob("events*")
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / source.name).write_bytes(source.read_bytes()[:20_000])
    (torn,) = open_source(f"tensorboard:{tmp_path / 'tb'}").find_runs()
    assert 0 < len(torn.histories["val/loss"]) < STEPS


def test_what_holds_no_run_is_said(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    pytest.importorskip("tensorboard")
    for word in (f"tensorboard:{tmp_path}", f"wandb:{tmp_path}"):
        with pytest.raises(RunNotFound, match="there is no"):
            open_source(word).find_runs()
    (tmp_path / "run-x.wandb").write_bytes(b"something else")
    with pytest.raises(UsageError, match="is no run of Weights & Biases"):
        open_source(f"wandb:{tmp_path}").find_runs()


def _wandb_file(path: Path, *records: Any) -> Path:
    content = struct.pack("<4sHB", b":W&B", 0xBEE1, 0)
    for record in records:
        payload = record.SerializeToString()
        checksum = zlib.crc32(payload, zlib.crc32(b"\x01"))
        content += struct.pack("<IHB", checksum, len(payload), 1) + payload
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("moment", ["1e400", "-1", "NaN", "1" + "0" * 400])
def test_numbers_that_no_run_can_have_are_read(tmp_path: Path, moment: str) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    record = Record()
    said = {"_step": "1" + "0" * 30, "_timestamp": moment, "loss": "1" + "0" * 400, "other": "1"}
    for key, value in said.items():
        record.history.item.add(key=key, value_json=value)
    path = _wandb_file(tmp_path / "run-x.wandb", record)
    (found,) = open_source(f"wandb:{path}").find_runs()
    assert found.histories == {"loss": ((math.inf, 0, None),), "other": ((1.0, 0, None),)}
    with FetchedRuns() as fetched:
        (summary,) = fetched.local_words([f"wandb:{path}"])
        assert json.loads(Path(summary).read_text())["metrics"]["other"]["last"] == 1


def test_a_moment_that_no_run_can_have_is_left_out_of_events(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(tmp_path / "run"))
    for moment in (math.inf, 1e20, 1.7e9):
        writer.add_scalar("loss", 1.0, 1, walltime=moment)
    writer.close()
    with FetchedRuns() as fetched:
        (summary,) = fetched.local_words([f"tensorboard:{tmp_path}"])
        assert json.loads(Path(summary).read_text())["metrics"]["loss"]["count"] == 3
