"""Signals and asynchronous exceptions into a loop of hooks and garbage: every one arrives.

Python itself drops some: a weak reference's callback and `__del__` cannot raise, and a few of its
own functions catch everything. What is dropped has a traceback of the frames that it came through:
where none of these is ours, it is not we who dropped it.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import traceml

STORM = """\
import ctypes, functools, gc, io, json, logging, os, pathlib, random, signal, sys, threading, time
import traceback

sys.path[:0] = [{source!r}]
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import traceml

SENT_EACH, MAX_S, LONGEST_S = 120, 60.0, 0.02
session = None
if sys.argv[1:]:
    from traceml.trace import current, hooks

    session = current.start(pathlib.Path(sys.argv[1]), None, None)
    hooks.install(session)

class Stopped(Exception):
    pass

raised = None  # by the last handler

def time_out(seconds, signum, frame):
    global raised
    raised = TimeoutError("after so many seconds")
    raise raised

class Terminated:
    # Puts back what was there before, as people do who want only one signal.
    def __call__(self, signum, frame):
        global raised
        signal.signal(signum, signal.SIG_IGN)
        raised = SystemExit("terminated")
        raise raised

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
    # Without tensors: each is pickled with an OrderedDict, and while one of those is, Python's
    # `copyreg` catches everything, every time.
    torch.save([each.untyped_storage() for each in model.parameters()], io.BytesIO())

def set_handlers():
    for number, handler in HANDLERS.items():
        signal.signal(number, handler)

def storm(kind, send):
    # One at a time, and the next only when the last has arrived, or cannot arrive any more.
    ready, over = threading.Event(), False
    sent = arrived = rounds = 0
    dropped = []  # where, of each that did not arrive

    def fire():
        nonlocal sent, over
        moments = random.Random(0)
        deadline = time.monotonic() + MAX_S
        while sent < SENT_EACH and time.monotonic() < deadline:
            ready.wait()
            ready.clear()
            forget()
            time.sleep(moments.uniform(0, LONGEST_S))
            sent += 1
            send()
            before = rounds
            while not ready.wait(0.01):
                if rounds > before + 2:  # it was raised long ago
                    dropped.append(passed())
                    ready.set()
        over = True

    thread = threading.Thread(target=fire)
    thread.start()
    while not over:
        try:
            set_handlers()
            ready.set()
            while not over:
                train()
                set_handlers()  # one that was dropped may have put itself out
                rounds += 1
        except kind:
            arrived += 1
    thread.join()
    return sent, arrived, dropped

unraisable = None  # the last that Python could not pass on

def discard(found):
    global unraisable
    unraisable = found.exc_value

def forget():
    global raised, unraisable
    raised = unraisable = None

def passed():
    # The frames that the last one came through: the last is where it was raised, the first is
    # where it was dropped. None where it left no trace.
    lost = unraisable or raised
    frames = traceback.walk_tb(lost.__traceback__) if lost else ()
    return [f"{{frame.f_code.co_filename}}:{{line}}" for frame, line in frames]

sys.unraisablehook = discard
sys.setswitchinterval(0.0005)
gc.set_threshold(20)  # many collections, for many signals to meet one
train()
counted = {{}}
for name, (kind, send) in KINDS.items():
    sent, arrived, dropped = storm(kind, send)
    before = session.count_steps() if session else 0
    train()
    train()
    seen = session.count_steps() - before if session else 8
    failures = session._failures if session else 0
    counted[name] = [sent, arrived, dropped, seen, failures]
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
    sent, arrived, dropped, steps_seen_afterwards, failures = counted[kind]
    assert sent > 10
    # Where it left no trace, nobody knows whose it was.
    ours = [frames for frames in dropped if not frames or any(map(is_ours, frames))]
    assert not ours, f"dropped on the way: {ours}"
    assert arrived + len(dropped) == sent
    assert arrived > 0.9 * sent
    assert failures == 0
    assert steps_seen_afterwards >= 7  # the hooks are as they were


def is_ours(frame):
    return frame.startswith(str(Path(traceml.__file__).parent))
