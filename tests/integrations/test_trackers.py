"""`--log-to` with the real packages of trackers, offline: what arrives where people look."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from processes import PATIENCE_S, PYTHON, TRACEML, Finished, run, started, wait_until
from receivers import receiving
from traceml.model.tracked_run import TrackedRun
from traceml.store.run_sources import open_source
from traceml.trace.open_trackers import _find_tensorboard

for package in ("tensorboard", "wandb"):
    pytest.importorskip(package)

HAS_TRACKIO = find_spec("trackio") is not None
NAMES = ["wandb", "tensorboard", *(["trackio"] if HAS_TRACKIO else [])]
needs_trackio = pytest.mark.skipif(not HAS_TRACKIO, reason="trackio is not installed")
LIVE, FINAL = "traceml/live/step_time_ms", "traceml/step_time_ms"
FILES = {"report.html", "final_summary.json", "final_summary.txt"}
TRAIN = """
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    loss = model(torch.randn(32, 64)).pow(2).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
"""
WITH_RUNS = f"""{TRAIN}
import time
from pathlib import Path
import wandb
from torch.utils.tensorboard import SummaryWriter
run = wandb.init(project="demo", name="mine", mode="offline")
writer = SummaryWriter("events")
if {HAS_TRACKIO}:
    import trackio
    trackio.init(project="demo", name="mine", auto_log_cpu=False)
count, deadline = 0, time.monotonic() + {PATIENCE_S}
def train():
    global count
    time.sleep(0.01)
    loss = step()
    run.log({{"loss": loss, "count": count}}) if wandb.run else None
    writer.add_scalar("loss", loss, count)
    if {HAS_TRACKIO}:
        trackio.log({{"loss": loss}}, step=count)
    count += 1
while not (Path("stop").exists() and {LIVE!r} in run.summary.keys()):
    assert time.monotonic() < deadline
    train()
Path("rows").write_text(str(count))
run.finish()  # training goes on
for _ in range(50):
    train()
"""
LEFT_OPEN = f"""{TRAIN}
import time
from pathlib import Path
from traceml.trace import ask_agent
import wandb
ask_agent.PATIENCE_S = {PATIENCE_S}
run = wandb.init(project="demo", name="left open", mode="offline", dir=".")
run.log({{"mine": 1}})
deadline = time.monotonic() + {PATIENCE_S}
while not Path("logs/open/marks/tracker-run-wandb").exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
    step()
for _ in range(30):
    step()
"""
SWITCHED_OFF = f"""{TRAIN}
import time
from pathlib import Path
import wandb
wandb.init(mode="disabled")
deadline = time.monotonic() + {PATIENCE_S}
while not Path("logs/off/marks/tracker-run-wandb").exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
    step()
"""
FOLDERS_GONE = """
import os
from pathlib import Path
from traceml.store.tracker_writer import LoggedEnd, LoggedRun
from traceml.store.wandb_writer import WandbWriter, why_disabled
here = Path.cwd()
gone, working = here / "gone", {working!r}
gone.mkdir()
os.chdir(gone)
gone.rmdir()
theirs = dict(id="abc", project="demo", name="mine", mode="offline", folder=str(gone))
for name, script_run in (("alone", {{}}), ("beside", theirs)):
    run = LoggedRun(name, str(len(name)) * 32, here, 0.0, working, script_run)
    assert why_disabled(run, {{}}) is None
    WandbWriter(run).finish(LoggedEnd(1, {{"traceml/steps": 7}}, {{}}, "", (), False))
"""
WITHOUT_SERVICE = """
from pathlib import Path
from traceml.store.tracker_writer import LoggedRun
from traceml.store.wandb_writer import WandbWriter
folder = str(Path.cwd())
writer = WandbWriter(LoggedRun("late", "0" * 32, Path(folder), 0.0, folder))
print(writer.where)
writer.close()
"""
OF_ANOTHER_SERVER = """
from pathlib import Path
from traceml.store.tracker_writer import LoggedEnd, LoggedRun
from traceml.store.wandb_writer import WandbWriter
import wandb
from traceml.trace.open_trackers import _find_wandb
folder = str(Path.cwd())
wandb.init(project="demo", mode="offline", settings=wandb.Settings(base_url=SERVER))
found = _find_wandb()
wandb.finish()
wandb.teardown()
assert "secret" not in str(found)
theirs = {**found, "mode": "online"}
writer = WandbWriter(LoggedRun("mine", "0" * 32, Path(folder), 0.0, folder, theirs))
writer.finish(LoggedEnd(1, {}, {}, "", (), False))
"""
TRACKIO_RUNS_OF_ONE_NAME = """
from pathlib import Path
import trackio
from traceml.store.tracker_writer import LoggedEnd, LoggedFinding, LoggedRun
from traceml.store.trackio_writer import TrackioWriter
from traceml.trace.open_trackers import _find_trackio
def log(number, theirs={}):
    writer = TrackioWriter(LoggedRun("mine", number * 32, Path.cwd(), 0.0, "", theirs))
    writer.log_values({"traceml/live/step_time_ms": float(number)}, 1)
    writer.log_finding(LoggedFinding("SLOW", "warn", "It is slow.", 1))
    files = (Path("write.py"),)
    writer.finish(LoggedEnd(2, {"traceml/steps": float(number)}, {}, "", files, False))
for day in (1, 2):
    options = dict(config={"day": day}, group="days", auto_log_cpu=False)
    mine = trackio.init(project="theirs", name="mine", **options)
    found = _find_trackio()
    if day == 1:
        mine.log({"day": 1}, step=0)
        mine.finish()
    log(str(day), found)
    if day == 2:  # logs for the first time after us
        mine.log({"day": 2}, step=0)
        mine.finish()
for number in "344":
    log(number)
"""
TRACKIO_FOLDER_OF_THE_SCRIPT = f"""
import os
os.environ["TRACKIO_DIR"] = "mine"  # as scripts do that keep everything in one place
import trackio
{TRAIN}
import time
from pathlib import Path
trackio.init(project="demo", name="mine", auto_log_cpu=False)
deadline = time.monotonic() + {PATIENCE_S}
while not Path("logs/a/marks/tracker-run-trackio").exists():
    assert time.monotonic() < deadline
    time.sleep(0.01)
    step()
trackio.log({{"loss": step()}})
trackio.finish()
"""
SETTINGS_FILE = "[default]\nmode = {}\nproject = from-the-file\n"
TRAINS = f"{TRAIN}\nfor _ in range(3):\n    step()\n"
OPENED = ["wandb/offline-run-*", "logs/alone/tensorboard/events*"]
OPENED += ["trackio/traceml.db"] if HAS_TRACKIO else []
"""What trackers leave when they open a run of ours. Training goes on until all of it is there: from
its end on they have a bounded time."""
WITHOUT_RUNS = f"""{TRAIN}
import time
from pathlib import Path
import traceml
traceml.init(run_name="alone")
traceml.log_to(*{NAMES})
deadline = time.monotonic() + {PATIENCE_S}
while not all(any(Path().glob(pattern)) for pattern in {OPENED}):
    assert time.monotonic() < deadline
    time.sleep(0.01)
    step()
"""


def environment(place: Path) -> dict[str, str | None]:
    """Nobody is logged in anywhere; what trackers keep goes into a folder of the test's."""
    return {
        "HOME": str(place),
        "HF_HUB_OFFLINE": "1",
        "TRACKIO_DIR": str(place / "trackio"),
        "WANDB_API_KEY": None,
        "WANDB_DIR": str(place),
        "WANDB_BASE_URL": "http://127.0.0.1:9",  # nothing listens there
    }


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A script that has runs of its own open."""
    place = tmp_path_factory.mktemp("beside")
    words = ["run", "--mode=summary", "--run-name", "mine", "--log-to", ",".join(NAMES)]
    command = [TRACEML, *words, "train.py"]
    with started(command, place, WITH_RUNS, environment(place)) as running:
        if HAS_TRACKIO:
            wait_until(lambda: LIVE in logged_to_trackio(place, "demo"), "trackio has live values")
        wait_until(lambda: has_events(place), "there are live values in an event file")
        (place / "stop").touch()
        finished = running.finish()
    assert finished.status == 0, finished.stderr
    return finished


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A script under plain python that has none, and asks for trackers itself."""
    place = tmp_path_factory.mktemp("alone")
    (place / "train.py").write_text(WITHOUT_RUNS)
    finished = run([PYTHON, "train.py"], place, env=environment(place))
    assert finished.status == 0, finished.stderr
    return finished


def events(folder: Path) -> TrackedRun:
    (found,) = open_source(f"tensorboard:{folder}").find_runs()
    return found


def has_events(place: Path) -> bool:
    folder = place / "events/traceml"
    return folder.is_dir() and LIVE in events(folder).histories


def wandb_runs(place: Path) -> dict[str, TrackedRun]:
    return {run.name: run for run in open_source(f"wandb:{place / 'wandb'}").find_runs()}


def trackio_storage(place: Path, folder: str = "trackio") -> Any:
    from trackio import sqlite_storage, utils

    sqlite_storage.TRACKIO_DIR = utils.TRACKIO_DIR = place / folder
    return sqlite_storage.SQLiteStorage


def logged_to_trackio(
    place: Path, project: str, run: str = "mine", folder: str = "trackio"
) -> dict[str, Any]:
    """The last value of everything that was logged."""
    if not (place / folder / f"{project}.db").exists():
        return {}
    rows = trackio_storage(place, folder).get_logs(project, run)
    return {name: value for row in rows for name, value in row.items()}


def lines(finished: Finished) -> list[str]:
    return [line for line in finished.lines_of_ours() if "logged to" in line]


def test_live_values_join_the_rows_of_the_scripts_own_wandb_run(beside: Finished) -> None:
    mine = wandb_runs(beside.cwd)["mine"]
    rows = int((beside.cwd / "rows").read_text())
    assert [point.step for point in mine.histories["loss"]] == list(range(rows))
    live = mine.histories[LIVE]
    assert live and all(point.value > 0 for point in live)
    assert {point.step for point in live} <= set(range(rows + 1))
    assert [point.value for point in mine.histories["traceml/live/step"]][-1] <= rows
    assert "traceml/live/steps_per_s" in mine.histories


def test_the_end_goes_to_a_wandb_run_beside_it(beside: Finished) -> None:
    runs = wandb_runs(beside.cwd)
    ours = runs["mine-traceml"]
    assert ours.params["traceml_run"] == "mine"
    assert str(ours.params["script_run"]).startswith("demo/")
    summary = beside.summary
    assert ours.last_values[FINAL] == summary["step_time"]["global"]["average"]["step_time_ms"]
    assert files_in_artifact(beside.cwd) == FILES
    assert any("wandb sync" in line for line in lines(beside))


def test_a_wandb_run_that_the_script_closes_has_numbers_and_verdict(beside: Finished) -> None:
    """Those of then: training goes on."""
    mine = wandb_runs(beside.cwd)["mine"]
    assert mine.last_values[FINAL] > 0
    assert mine.last_values["traceml/steps"] < beside.steps
    (said,) = [line for line in lines(beside) if "wandb sync" in line]
    folders = said.partition("wandb sync ")[2].partition(")")[0].split()
    assert len(folders) == 2 and all(list(Path(folder).glob("*.wandb")) for folder in folders)


def test_a_wandb_run_that_is_open_at_the_end_has_them_too(tmp_path: Path) -> None:
    """Its folder is named relative to the script's, as by Lightning's logger; the line for people
    is to be copied anywhere."""
    place = tmp_path / "of my own"
    place.mkdir()
    (place / "train.py").write_text(LEFT_OPEN)
    words = ["run", "--mode=summary", "--run-name", "open", "--log-to", "wandb", "train.py"]
    finished = run([TRACEML, *words], place, env=environment(place))
    assert finished.status == 0, finished.stderr
    mine = wandb_runs(place)["left open"]
    (said,) = [line for line in lines(finished) if "wandb sync" in line]
    command = said.partition("(offline: ")[2].removesuffix(")")
    _, sync, *folders = map(Path, shlex.split(command))
    assert str(sync) == "sync" and len(folders) == 2
    assert all(folder.is_absolute() and list(folder.glob("*.wandb")) for folder in folders)
    assert mine.last_values[FINAL] > 0
    assert mine.last_values["traceml/steps"] == finished.steps
    assert mine.last_values["mine"] == 1


def files_in_artifact(place: Path) -> set[str]:
    """The files of the one artifact that was logged, from what W&B kept on disk."""
    from traceml.store.wandb_runs import _import_record, _payloads

    (path,) = place.glob("wandb/offline-run-*/run-traceml-*.wandb")
    records = map(_import_record().FromString, _payloads(path.read_bytes()))
    (artifact,) = [record.artifact for record in records if record.HasField("artifact")]
    return {entry.path for entry in artifact.manifest.contents}


def test_tensorboard_shows_ours_below_the_scripts(beside: Finished) -> None:
    theirs, ours = events_of(beside.cwd / "events")
    assert LIVE not in theirs.histories and len(theirs.histories["loss"]) > 50
    average = beside.summary["step_time"]["global"]["average"]
    assert ours.histories[FINAL][-1].value == pytest.approx(average["step_time_ms"])
    assert {path.name for path in (beside.cwd / "events/traceml").iterdir()} >= FILES


def events_of(folder: Path) -> tuple[TrackedRun, TrackedRun]:
    found = {run.name: run for run in open_source(f"tensorboard:{folder}").find_runs()}
    return found["events"], found["traceml"]


@needs_trackio
def test_everything_is_in_the_scripts_own_trackio_run(beside: Finished) -> None:
    logged = logged_to_trackio(beside.cwd, "demo")
    assert {"loss", LIVE, FINAL} <= logged.keys()
    assert logged["traceml/verdict"] == beside.summary["primary_diagnosis"]["status"]
    alerts = trackio_storage(beside.cwd).get_alerts("demo")
    assert alerts and all(alert["run"] == "mine" for alert in alerts)
    stored = [path for path in (beside.cwd / "trackio/artifacts").rglob("*") if path.is_file()]
    sizes = {path.stat().st_size for path in stored}
    assert (beside.folder / "report.html").stat().st_size in sizes


@needs_trackio
def test_of_trackio_runs_with_one_name_each_has_its_own_values(tmp_path: Path) -> None:
    """The script's, also before it has logged anything, and ours; the script's keep what they were
    made with."""
    (tmp_path / "write.py").write_text(TRACKIO_RUNS_OF_ONE_NAME)
    finished = run([PYTHON, "write.py"], tmp_path, env=environment(tmp_path))
    assert finished.status == 0, finished.stderr
    storage = trackio_storage(tmp_path)
    for project, expected in (("theirs", [1.0, 2.0]), ("traceml", [3.0, 4.0])):
        runs = storage.get_run_records(project)
        logs = [storage.get_logs(project, run["name"], run_id=run["id"]) for run in runs]
        of_runs = [{name: row[name] for row in rows for name in row} for rows in logs]
        assert sorted(values["traceml/steps"] for values in of_runs) == expected
        assert all(
            values["traceml/live/step_time_ms"] == values.get("day", values["traceml/steps"])
            for values in of_runs
        )
        alerts = [storage.get_alerts(project, run["name"], run_id=run["id"]) for run in runs]
        assert all(alerts)
        configs = [storage.get_run_config(project, run["name"], run_id=run["id"]) for run in runs]
        if project == "theirs":
            assert sorted(config["day"] for config in configs) == [1, 2]
            assert {config["_Group"] for config in configs} == {"days"}


@needs_trackio
def test_trackios_folder_is_the_one_that_the_script_has_chosen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRACKIO_FOLDER_OF_THE_SCRIPT)
    words = ["run", "--mode=summary", "--run-name", "a", "--log-to", "trackio", "train.py"]
    finished = run([TRACEML, *words], tmp_path, env=environment(tmp_path))
    assert finished.status == 0, finished.stderr
    assert {"loss", FINAL} <= logged_to_trackio(tmp_path, "demo", folder="mine").keys()
    assert not (tmp_path / "trackio").exists()


def test_without_runs_of_the_scripts_there_are_ours(alone: Finished) -> None:
    average = alone.summary["step_time"]["global"]["average"]["step_time_ms"]
    ours = wandb_runs(alone.cwd)["alone"]
    assert ours.last_values[FINAL] == average
    if HAS_TRACKIO:
        assert logged_to_trackio(alone.cwd, "traceml", "alone")[FINAL] == average
    found = events(alone.folder / "tensorboard")
    assert found.histories[FINAL][-1].value == pytest.approx(average)
    assert (alone.folder / "report.html").is_file()


def test_who_is_not_logged_in_logs_offline(alone: Finished) -> None:
    (wandb,) = [line for line in lines(alone) if "wandb" in line]
    assert "offline: wandb sync" in wandb
    assert len(lines(alone)) == len(NAMES)
    assert not any("not logged" in line for line in lines(alone))


def test_nothing_stays_behind(beside: Finished, alone: Finished) -> None:
    for finished in (beside, alone):
        finished.wait_until_none_is_left()
        assert not finished.left()


def test_wandb_that_the_script_switched_off_gets_nothing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SWITCHED_OFF)
    words = ["run", "--mode=summary", "--run-name", "off", "--log-to", "wandb", "train.py"]
    finished = run([TRACEML, *words], tmp_path, env=environment(tmp_path))
    assert finished.status == 0, finished.stderr
    (said,) = [line for line in finished.lines_of_ours() if "W&B is disabled" in line]
    assert said.endswith("W&B is disabled (the script's run has mode=disabled), nothing was logged")
    assert not list(tmp_path.glob("wandb/*run-*"))


def test_a_wandb_service_that_is_gone_does_not_keep_our_run_from_disk(tmp_path: Path) -> None:
    """The variable is inherited from a script that had W&B open and was killed."""
    gone = {
        "WANDB_SERVICE": f"3-999999-unix-{tmp_path}/no-such-socket",
        "WANDB_API_KEY": "0" * 40,  # who is not logged in is asked for that before
    }
    (tmp_path / "write.py").write_text(WITHOUT_SERVICE)
    finished = run([PYTHON, "write.py"], tmp_path, env={**environment(tmp_path), **gone})
    assert finished.status == 0, finished.stderr
    assert "(offline: wandb sync" in finished.stdout
    assert "late" in wandb_runs(tmp_path)


@pytest.mark.parametrize("mode", ["disabled", "offline", "online"])
def test_wandbs_settings_in_the_scripts_folder_hold_for_our_run(tmp_path: Path, mode: str) -> None:
    """`wandb disabled` and `wandb offline` leave them there. A server that refuses our key does not
    keep the run from disk."""
    (tmp_path / "train.py").write_text(TRAINS)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb/settings").write_text(SETTINGS_FILE.format(mode))
    words = ["run", "--mode=summary", "--run-name", "a", "--log-to", "wandb", "train.py"]
    with receiving() as server:
        server.statuses += [401] * 100
        reached = {"WANDB_BASE_URL": server.url, "WANDB_API_KEY": "0" * 40}
        env = {**environment(tmp_path), **reached}
        finished = run([TRACEML, *words], tmp_path, env=env)
    assert finished.status == 0, finished.stderr
    (said,) = [line for line in finished.lines_of_ours() if "W&B is" in line or "wandb" in line]
    assert ("W&B is disabled (its settings have mode=disabled" in said) == (mode == "disabled")
    assert ("logged to wandb: from-the-file/" in said) == (mode != "disabled")
    assert ("(offline: wandb sync" in said) == (mode != "disabled")
    assert bool(server.received) == (mode == "online")


def test_our_run_goes_to_the_server_that_the_scripts_run_is_at(tmp_path: Path) -> None:
    """A server that stands in the script alone: ours would be at another, perhaps a public one."""
    with receiving() as theirs, receiving() as other:
        theirs.statuses += [401] * 100
        other.statuses += [401] * 100
        address = theirs.url.replace("http://", "http://me:secret@")
        (tmp_path / "write.py").write_text(f"SERVER = {address!r}\n{OF_ANOTHER_SERVER}")
        reached = {"WANDB_BASE_URL": other.url, "WANDB_API_KEY": "0" * 40}
        finished = run([PYTHON, "write.py"], tmp_path, env={**environment(tmp_path), **reached})
    assert finished.status == 0, finished.stderr
    assert theirs.received and not other.received


@pytest.mark.parametrize("working", ["", "/no/such/folder"])
def test_our_run_is_written_where_the_scripts_folders_are_gone(
    tmp_path: Path, working: str
) -> None:
    """A temporary folder that the script has removed, and the one that it was started in."""
    (tmp_path / "write.py").write_text(FOLDERS_GONE.format(working=working))
    env = {**environment(tmp_path), "WANDB_DIR": None}
    finished = run([PYTHON, "write.py"], tmp_path, env=env)
    assert finished.status == 0, finished.stderr
    runs = wandb_runs(tmp_path)
    assert [runs[name].last_values["traceml/steps"] for name in ("alone", "mine-traceml")] == [7, 7]


@pytest.mark.parametrize("module", ["torch.utils.tensorboard", "tensorboardX"])
def test_a_summary_writer_of_each_package_is_found_until_it_is_closed(
    tmp_path: Path, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = pytest.importorskip(module)
    monkeypatch.chdir(tmp_path)
    assert _find_tensorboard() is None
    writer = package.SummaryWriter("events")
    writer.add_scalar("loss", 1.0, 0)
    assert _find_tensorboard() == {"folder": str(tmp_path / "events")}
    writer.close()
    wait_until(lambda: _find_tensorboard() is None, "its thread has ended")
