"""Signals and asynchronous exceptions into a loop of hooks and garbage: every one arrives."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import traceml

STORM = """\
import ctypes, functools, io, json, logging, os, pathlib, random, signal, sys, threading, time

sys.path[:0] = [{source!r}]
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import traceml

SENT_EACH, MAX_S = 120, 4.0
session = None
if sys.argv[1:]:
    from traceml.trace import current, hooks

    session = current.start(pathlib.Path(sys.argv[1]), None, None)
    hooks.install(session)

class Stopped(Exception):
    pass

def time_out(seconds, signum, frame):
    raise TimeoutError("after so many seconds")

class Terminated:
    # Puts back what was there before, as people do who want only one signal.
    def __call__(self, signum, frame):
        signal.signal(signum, signal.SIG_IGN)
        sys.exit("terminated")

HANDLERS = {{
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: Terminated(),
    signal.SIGALRM: functools.partial(time_out, 5),
}}
set_exception = ctypes.PyDLL(None).PyThreadState_SetAsyncExc
set_exception.argtypes = [ctypes.c_ulong, ctypes.py_object]
main = threading.get_ident()
KINDS = {{
    "SIGINT": (KeyboardInterrupt, lambda: signal.pthread_kill(main, signal.SIGINT)),
    "SIGTERM": (SystemExit, lambda: signal.pthread_kill(main, signal.SIGTERM)),
    "SIGALRM": (TimeoutError, lambda: signal.pthread_kill(main, signal.SIGALRM)),
    "asynchronous": (Stopped, lambda: set_exception(main, Stopped)),
}}

class Node:
    pass

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 1)

    def forward(self, inputs):
        return self.inner(inputs)

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.ones(32, 4)), batch_size=8)
logging.logMultiprocessing = False  # while Python asks for it, it drops whatever is raised
logger = logging.getLogger("storm")
logger.propagate = False
logger.addHandler(logging.NullHandler())

@traceml.trace_time("garbage")
def leave_garbage():
    for _ in range(300):
        node = Node()
        node.itself = node

def train():
    torch.set_grad_enabled(True)  # an optimizer that is left halfway leaves it off
    for (inputs,) in loader:
        loss = model(inputs).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        logger.warning("a step")
        traceml.log_metrics({{"loss": 1.0}})
        leave_garbage()
    # As a dict: while an OrderedDict is pickled, `copyreg` drops whatever is raised.
    torch.save(dict(model.state_dict()), io.BytesIO())

def storm(kind, send):
    # One at a time, and the next only when the loop is being run again: each must arrive.
    ready, over = threading.Event(), False
    sent = arrived = 0

    def fire():
        nonlocal sent, over
        moments = random.Random(0)
        deadline = time.monotonic() + MAX_S
        while sent < SENT_EACH and time.monotonic() < deadline:
            ready.wait()
            ready.clear()
            time.sleep(moments.uniform(0, 0.002))
            sent += 1
            send()
            if not ready.wait(60.0):
                break  # it is lost
        over = True

    thread = threading.Thread(target=fire)
    thread.start()
    while not over:
        try:
            for number, handler in HANDLERS.items():
                signal.signal(number, handler)
            ready.set()
            while not over:
                train()
        except kind:
            arrived += 1
    thread.join()
    return sent, arrived

sys.unraisablehook = lambda _: None  # what is discarded is counted
sys.setswitchinterval(0.0005)
train()
counted = {{}}
for name, (kind, send) in KINDS.items():
    sent, arrived = storm(kind, send)
    before = session.count_steps() if session else 0
    train()
    train()
    seen = session.count_steps() - before if session else 8
    counted[name] = [sent, arrived, seen, session._failures if session else 0]
print(json.dumps(counted))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("storm")
    script = folder / "storm.py"
    script.write_text(STORM.format(source=str(Path(traceml.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["SIGINT", "SIGTERM", "SIGALRM", "asynchronous"])
def test_whatever_is_sent_into_a_loop_of_hooks_and_garbage_arrives(counted, kind):
    sent, arrived, steps_seen_afterwards, failures = counted[kind]
    assert sent > 10
    assert arrived == sent
    assert failures == 0
    assert steps_seen_afterwards >= 7  # the hooks are as they were
