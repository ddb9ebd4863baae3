"""Runs of trackers as the training process finds them, with stand-ins for the trackers' modules;
`tests/integrations` has the real ones."""

import json
import os
import sys
import threading
import types
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import traceml
from processes import wait_until
from traceml.model.environment import LOG_TO, MARKS
from traceml.model.errors import UsageError
from traceml.model.tracker import LOG_TO_MARK, SCRIPT_RUN_MARK, STOPPED_MARK, WANDB_VALUES_MARK
from traceml.store.folder import write_mark
from traceml.trace import loss_and_memory_sampler, open_trackers
from traceml.trace.marks import read_mark


@pytest.fixture(autouse=True)
def _eager(monkeypatch):
    monkeypatch.setattr(loss_and_memory_sampler, "EVERY_NS", 0)
    monkeypatch.setattr(open_trackers, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(open_trackers, "VALUES_EVERY_S", 0.01)


class WandbRun:
    """What a run of W&B is asked for."""

    def __init__(self, name, raises=False):
        self.id, self.name, self.project = f"id-{name}", name, "demo"
        self.entity = self.group = ""
        self.disabled, self.offline = False, True
        self.rows, self.raises = [], raises

    def define_metric(self, name, step_metric):
        self.defined = name, step_metric

    def log(self, values, commit):
        assert commit is False
        assert threading.current_thread() is not threading.main_thread()
        self.rows.append(values)
        if self.raises:
            raise RuntimeError("the run is finished")


def train(steps=3):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


def found_of(folder, name):
    path = folder / MARKS / f"{SCRIPT_RUN_MARK}{name}"
    return json.loads(path.read_text()) if path.exists() else None


def leave_values(folder, number, run="first", **values):
    left = {"number": number, "run": f"id-{run}", "values": values}
    write_mark(folder, WANDB_VALUES_MARK, json.dumps(left))


@pytest.fixture
def asked(monkeypatch):
    monkeypatch.setenv(LOG_TO, "wandb,mlflow,tensorboard,trackio")


def test_nothing_is_looked_for_unless_asked(traced, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=WandbRun("mine")))
    session = traced.session
    train()
    assert session.on_memory_reading == [] and found_of(traced.folder, "wandb") is None


def test_nothing_is_imported(asked, traced):
    before = {name for name in sys.modules if name.split(".")[0] in ("wandb", "mlflow", "trackio")}
    train()
    after = {name for name in sys.modules if name.split(".")[0] in ("wandb", "mlflow", "trackio")}
    assert before == after


def test_the_address_of_a_server_is_left_without_its_user(asked, traced, monkeypatch):
    info = SimpleNamespace(run_id="1a2b", experiment_id="3")
    module = SimpleNamespace(
        active_run=lambda: SimpleNamespace(info=info),
        get_tracking_uri=lambda: "https://me:hunter2@mlflow.example/path",
    )
    monkeypatch.setitem(sys.modules, "mlflow", module)
    train()
    found = found_of(traced.folder, "mlflow")
    assert found["uri"] == "https://mlflow.example/path" and found["id"] == "1a2b"


def test_a_tracker_that_raises_harms_nothing_and_hides_no_other(asked, traced, monkeypatch):
    calls = []

    def fails():
        calls.append(1)
        raise ZeroDivisionError("https://me:hunter2@mlflow.example is broken")

    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=fails))
    variable = SimpleNamespace(
        current_run=SimpleNamespace(
            get=lambda: SimpleNamespace(
                project="p", name="n", _server_base_url="https://me:hunter2@trackio.example/"
            )
        )
    )
    monkeypatch.setitem(sys.modules, "trackio.context_vars", variable)
    monkeypatch.delitem(sys.modules, "trackio.utils", raising=False)
    train()
    expected = {"project": "p", "name": "n", "server": "https://trackio.example/"}
    assert found_of(traced.folder, "trackio") == expected
    assert calls == [1], "it is not asked again"
    reason = (traced.folder / MARKS / f"{STOPPED_MARK}mlflow").read_text()
    assert reason.startswith("ZeroDivisionError: ") and reason.endswith(" is broken")
    assert "hunter2" not in reason
    assert len(traced.complete()) == 3  # and no failure of ours


def test_the_folder_of_trackio_is_told_as_the_script_has_it(asked, traced, monkeypatch):
    run = SimpleNamespace(project="p", name="n")
    variables = SimpleNamespace(current_run=SimpleNamespace(get=lambda: run))
    monkeypatch.setitem(sys.modules, "trackio.context_vars", variables)
    utils = SimpleNamespace(TRACKIO_DIR=Path("mine"))
    monkeypatch.setitem(sys.modules, "trackio.utils", utils)
    train()
    expected = {"project": "p", "name": "n", "store": str(Path.cwd() / "mine")}
    assert found_of(traced.folder, "trackio") == expected


def test_other_ranks_leave_it_to_the_first(asked, traced, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=WandbRun("mine")))
    train()
    assert found_of(traced.folder, "wandb") is None


def test_values_join_the_open_run_until_it_is_closed(asked, traced, monkeypatch):
    first, second, looks = WandbRun("first"), WandbRun("second"), []
    module = SimpleNamespace(run=first)

    def read_counted(folder, name):
        looks.append(name)
        return read_mark(folder, name)

    monkeypatch.setattr(open_trackers, "read_mark", read_counted)
    monkeypatch.setitem(sys.modules, "wandb", module)
    train()
    assert found_of(traced.folder, "wandb")["id"] == "id-first"
    leave_values(traced.folder, 1, a=1.0)
    wait_until(lambda: first.rows, "the first values are logged")
    leave_values(traced.folder, 2, a=2.0)
    wait_until(lambda: len(first.rows) == 2, "the next values are logged, once each")
    module.run = second
    train()
    seen = len(looks)
    wait_until(lambda: len(looks) > seen + 2, "what was left for the first run is seen")
    leave_values(traced.folder, 3, run="second", a=3.0)
    wait_until(lambda: second.rows, "the values are logged to the run that is open now")
    assert first.rows == [{"a": 1.0}, {"a": 2.0}]
    assert second.rows == [{"a": 3.0}], "nothing that was left for the first run"
    assert first.defined == ("traceml/*", "traceml/live/step")
    module.run = None
    wait_until(lambda: not _threads(), "nobody logs to a closed run")
    assert not (traced.folder / MARKS / f"{STOPPED_MARK}wandb").exists()


def test_a_run_that_is_switched_off_is_told_and_gets_nothing(asked, traced, monkeypatch):
    off, real = WandbRun("off"), WandbRun("real")
    off.disabled = True
    module = SimpleNamespace(run=off)
    monkeypatch.setitem(sys.modules, "wandb", module)
    train()
    assert found_of(traced.folder, "wandb") == {"mode": "disabled"}
    assert not _threads()
    for run in (real, off):  # what was logged to stays known
        module.run = run
        train()
        assert found_of(traced.folder, "wandb")["id"] == "id-real"
    wait_until(lambda: not _threads(), "nobody logs to a closed run")


def test_a_run_that_refuses_values_is_left_alone(asked, traced, monkeypatch):
    run = WandbRun("mine", raises=True)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    train()
    leave_values(traced.folder, 1, run="mine", a=1.0)
    wait_until(lambda: not _threads(), "the thread has ended")
    train()
    assert len(run.rows) == 1 and not _threads()
    reason = (traced.folder / MARKS / f"{STOPPED_MARK}wandb").read_text()
    assert reason == "RuntimeError: the run is finished"


class LockingRun(WandbRun):
    """Holds a lock while it logs, as W&B's does; until a fork begins, or for ever."""

    def __init__(self, name):
        super().__init__(name)
        self.lock, self.entered, self.leave = threading.Lock(), threading.Event(), threading.Event()

    def log(self, values, commit):
        with self.lock:
            self.entered.set()
            self.leave.wait()
            super().log(values, commit)


class Samples(torch.utils.data.Dataset):
    """Its samples are read under that lock, as those of a dataset that logs to W&B itself."""

    def __init__(self, lock, patience_s):
        self.lock, self.patience_s = lock, patience_s

    def __len__(self):
        return 4

    def __getitem__(self, index):
        was_free = self.lock.acquire(timeout=self.patience_s)
        if was_free:
            self.lock.release()
        return torch.tensor(was_free)


@pytest.fixture
def locking(asked, traced, monkeypatch):
    """A run of W&B in whose `log` a thread of ours is."""

    def begin(max_wait_s):
        monkeypatch.setattr(open_trackers, "MAX_FORK_WAIT_S", max_wait_s)
        open_trackers._no_fork.cache_clear()
        run = LockingRun("mine")
        monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
        train()
        leave_values(traced.folder, 1, run="mine", a=1.0)
        wait_until(run.entered.is_set, "our thread holds the lock")
        return run

    yield begin
    open_trackers._no_fork.cache_clear()


def first_batch(run, patience_s):
    samples = Samples(run.lock, patience_s)
    loader = torch.utils.data.DataLoader(
        samples, 4, num_workers=1, multiprocessing_context="fork", timeout=120
    )
    return next(iter(loader)).tolist()


@pytest.mark.slow
def test_a_forked_worker_finds_the_locks_of_wandb_free(locking):
    run = locking(max_wait_s=60.0)
    os.register_at_fork(before=run.leave.set)  # called before what was registered earlier
    assert first_batch(run, patience_s=60.0) == [True] * 4
    wait_until(lambda: run.rows, "the values are logged")


@pytest.mark.slow
def test_wandb_that_never_answers_holds_up_no_fork(locking):
    run = locking(max_wait_s=0.01)
    assert first_batch(run, patience_s=0.01) == [False] * 4
    run.leave.set()
    wait_until(lambda: run.rows, "our thread goes on as if nobody had waited")
    with open_trackers._no_fork():
        assert first_batch(run, patience_s=60.0) == [True] * 4, "and the lock is nobody's"


def _threads():
    return [thread for thread in threading.enumerate() if thread.name == "traceml-wandb"]


def test_a_script_can_ask_for_trackers_itself(traced, monkeypatch):
    found = SimpleNamespace(origin="/its/__init__.py")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: found)
    session = traced.session
    traceml.log_to("wandb")
    traceml.log_to("mlflow", "wandb")
    assert (traced.folder / MARKS / LOG_TO_MARK).read_text() == "wandb,mlflow"
    assert len(session.on_memory_reading) == 1


def test_an_unknown_tracker_is_an_error_of_the_script_and_without_a_run_nothing_happens():
    with pytest.raises(UsageError, match="no tracker 'neptune'"):
        traceml.log_to("neptune")
    traceml.log_to("wandb")


@pytest.mark.parametrize("given", [5, None, ["wandb", "mlflow"], b"wandb"])
def test_what_is_no_name_of_a_tracker_is_the_same_kind_of_error(given):
    with pytest.raises(UsageError) as error:
        traceml.log_to(given)
    said = str(error.value)
    assert f"type {type(given).__name__};" in said and 'traceml.log_to("wandb", "mlflow")' in said


def test_a_package_that_is_missing_is_named_with_what_installs_it(traced, monkeypatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UsageError, match=r"pip install 'traceml-insight\[trackio\]'"):
        traceml.log_to("trackio")
    assert not (traced.folder / MARKS / LOG_TO_MARK).exists()


def test_a_script_that_puts_a_stub_in_a_trackers_place_goes_on(traced, monkeypatch):
    """Its process finds what is installed, and says at the end where that is nothing."""
    monkeypatch.setitem(sys.modules, "trackio", types.ModuleType("trackio"))
    traceml.log_to("trackio")
    assert (traced.folder / MARKS / LOG_TO_MARK).read_text() == "trackio"
