"""The time of collections is added up, and no signal gets lost where one begins or ends."""

import gc
import subprocess
import sys
from threading import get_ident
from time import perf_counter_ns

import pytest

from traceml.trace.garbage_collection import CollectionTime

STORM = """
import gc, random, signal, sys, time
from threading import get_ident
from traceml.trace.garbage_collection import CollectionTime

class Raised(Exception):
    pass

raised = caught = 0

def handler(number, frame):
    global raised
    raised += 1
    raise Raised

collections = CollectionTime()
collections.threads.add(get_ident())
gc.callbacks.append(collections.callback)
gc.set_threshold(50)
sys.unraisablehook = lambda lost: None
signal.signal(signal.SIGALRM, handler)
began = time.perf_counter_ns()
while raised < 2000:
    try:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(2e-5, 6e-4))
        end = time.time() + 0.003
        while time.time() < end:
            ring = []
            ring.append(ring)
    except Raised:
        caught += 1
signal.setitimer(signal.ITIMER_REAL, 0)
took_ns = time.perf_counter_ns() - began
print(raised - caught, 0 < collections.total_ns[0] < took_ns)
"""


def test_what_a_handler_raises_during_collections_arrives() -> None:
    done = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True)
    assert done.stdout.split() == ["0", "True"], done.stderr


@pytest.mark.parametrize("counts", [True, False], ids=["this thread", "another"])
def test_collections_of_given_threads_are_added_up(counts: bool) -> None:
    collections = CollectionTime()
    if counts:
        collections.threads.add(get_ident())
    gc.callbacks.append(collections.callback)
    try:
        began = perf_counter_ns()
        for _ in range(3):
            gc.collect()
        took = perf_counter_ns() - began
    finally:
        gc.callbacks.remove(collections.callback)
    assert took / 2 < collections.total_ns[0] <= took if counts else collections.total_ns[0] == 0
