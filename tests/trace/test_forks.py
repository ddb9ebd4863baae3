"""A forked child touches, frees and finalises nothing that it inherits from us."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from traceml.model.record_layout import NO_STEP
from traceml.store.load import drain_rings
from traceml.store.record_file import RankFiles

HEAD = f"""\
import gc, io, json, logging, multiprocessing, os, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import torch
from torch import nn
from torch.utils.data import DataLoader
import fake_cuda
import traceml
from traceml.trace import current, hooks

folder = pathlib.Path(sys.argv[1])
session = current.start(folder, None, None)
hooks.install(session)
fake_cuda.follow(session, folder / "notes")
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def take_steps(batches):
    for inputs in batches:
        with traceml.trace_time("region", use_gpu=True):
            loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

LOADERS = (
    HEAD
    + """
class Data(torch.utils.data.Dataset):
    # Touches, in a worker, what the hooks stand around.
    def __len__(self):
        return 12

    def __getitem__(self, index):
        logging.getLogger("data").warning("a sample")
        torch.save(torch.ones(2), io.BytesIO())
        with torch.enable_grad():
            (torch.ones(2, requires_grad=True) * 2).sum().backward()
        if not index:  # once in each worker: there is much to look through
            gc.collect()
        return torch.ones(4)

logging.getLogger("data").addHandler(logging.NullHandler())
logging.getLogger("data").propagate = False
train = DataLoader(Data(), batch_size=4, num_workers=1)
validate = DataLoader(Data(), batch_size=6, num_workers=1, persistent_workers=True)
for epoch in range(2):
    take_steps(train)
    model.eval()
    with torch.no_grad():
        for inputs in validate:
            model(inputs)
    model.train()
"""
)

CHILDREN = (
    HEAD
    + """
def train_in_child():
    take_steps([torch.ones(2, 4)] * 3)
    gc.collect()

def fork(child):
    pid = os.fork()
    if not pid:
        child()
        sys.exit(0)
    return os.waitpid(pid, 0)[1]

def start(method):
    process = multiprocessing.get_context(method).Process(target=train_in_child)
    process.start()
    process.join()
    return process.exitcode

if __name__ == "__main__":
    take_steps([torch.ones(2, 4)] * 5)
    ended = {
        "does nothing and exits": fork(lambda: None),
        "collects its garbage and exits": fork(gc.collect),
        "trains and exits": fork(train_in_child),
        "logs and exits": fork(lambda: traceml.log_metrics({"loss": 1.0})),
        "ends tracing and exits": fork(current.end),
        "forks again": fork(lambda: sys.exit(fork(train_in_child))),
        "forked inside a step": None,
        "multiprocessing": start("fork"),
    }
    with traceml.trace_step(model):
        take_steps([torch.ones(2, 4)])
        ended["forked inside a step"] = fork(train_in_child)
    take_steps([torch.ones(2, 4)] * 5)
    pending = session.recorder.gpu.outstanding, len(session.regions._pending)
    print(json.dumps([ended, pending, fake_cuda.FakeEvent.made]))
"""
)


def run(script, folder):
    (folder / "run.json").write_text('{"run_name": "here", "started_unix_s": 0}')
    path = folder / "script.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, str(path), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    notes = folder / "notes"
    found = sorted(set(notes.read_text().split())) if notes.exists() else []
    assert (found, done.returncode) == ([], 0), done.stderr
    return done.stdout


def test_loaders_fork_workers_after_steps_that_were_timed_on_the_gpu(tmp_path):
    run(LOADERS, tmp_path)
    drain_rings(tmp_path, everything=True)
    (files,) = RankFiles.all_in(tmp_path)
    steps = files.read_steps()
    assert (steps[(steps["flags"] & int(NO_STEP)) == 0]["gpu_body_ns"] > 0).any()
    assert files.head().counters["failures"] == 0, files.head().counters["last_failure"]


@pytest.fixture(scope="module")
def children(tmp_path_factory):
    folder = tmp_path_factory.mktemp("children")
    ended, pending, events = json.loads(run(CHILDREN, folder))
    drain_rings(folder, everything=True)
    return ended, pending, events, RankFiles.all_in(folder)


def test_children_of_every_kind_end_as_they_would_without_us(children):
    ended, (steps, regions), events, _ = children
    assert set(ended.values()) == {0}, ended
    assert events > 20
    assert steps and regions  # there was something to finalise


def test_a_forked_child_that_trains_is_recorded_in_a_ring_of_its_own(children):
    *_, ranks = children
    counted = []
    for files in ranks:
        steps = files.read_steps()
        counted.append(((steps["flags"] & int(NO_STEP)) == 0).sum())
        assert files.head().counters["failures"] == 0, files.head().counters["last_failure"]
    # The parent, up to its explicit step; four children that trained; one that only logged.
    assert sorted(counted) == [0, 3, 3, 3, 3, 6]
