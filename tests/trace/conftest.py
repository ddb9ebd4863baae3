import sys

import pytest

from traceml.model.record_layout import NO_STEP
from traceml.store.load import drain_rings
from traceml.store.record_file import RankFiles
from traceml.trace import current, hooks
from traceml.trace import session as sessions
from traceml.trace.recorder import RecorderInPython, events_in_c, recorder_of

BOTH_WAYS = (
    "test_hooks",
    "test_interruptions",
    "test_loaders",
    "test_gpu_timeline",
    "test_loss_and_memory_sampler",
    "test_messages",
)
"""The tests of what `recorder.c` handles: they run with it and without it."""


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_WAYS and (
        {"traced", "traced_in"} & set(metafunc.fixturenames)
    ):
        metafunc.parametrize("hooks_in", ["C", "Python"], indirect=True)


@pytest.fixture
def hooks_in(request, monkeypatch):
    """Has sessions of this process use one of the two; by default the one there is."""
    wanted = getattr(request, "param", None)
    if wanted == "C":
        in_c = events_in_c()
        if in_c is None:
            pytest.skip("recorder.c is not built here")
        monkeypatch.setattr(sessions, "Recorder", recorder_of(in_c.Events))
    elif wanted == "Python":
        monkeypatch.setattr(sessions, "Recorder", RecorderInPython)


class Traced:
    """A session in the test's own process, and its records afterwards."""

    def __init__(self, folder):
        self.folder = folder
        self.session = None

    def start(self, max_steps=None):
        self.session = current.start(self.folder, None, max_steps)
        hooks.install(self.session)
        return self.session

    def finish(self):
        """End the session; its step records, which hold no failure of ours."""
        if current.current() is not None:
            current.end()
        drain_rings(self.folder, everything=True)
        found = RankFiles.all_in(self.folder)
        if not found:
            return []
        assert found[0].head().counters["failures"] == 0, found[0].head().counters["last_failure"]
        return found[0].read_steps()

    def complete(self):
        """End the session; its complete steps, without the time after the last one."""
        steps = self.finish()
        return steps[(steps["flags"] & int(NO_STEP)) == 0]

    def messages(self):
        (files,) = RankFiles.all_in(self.folder)
        return files.read_messages()


@pytest.fixture
def traced_in(hooks_in):
    """Begins a session in a folder; the one before it has to be finished."""

    def start(folder):
        (folder / "run.json").write_text('{"run_name": "here", "started_unix_s": 0}')
        here = Traced(folder)
        here.start()
        return here

    yield start
    current.end()


@pytest.fixture
def traced(tmp_path, traced_in):
    return traced_in(tmp_path)


@pytest.fixture(autouse=True)
def no_trace_of_compiling():
    """What a test compiled is forgotten before the next one: the hooks go by what is compiled."""
    forget_what_was_compiled()
    yield
    forget_what_was_compiled()


@pytest.fixture
def one_of_several_ranks():
    """A mesh of four ranks, of which this process is the first; the others are pretended."""
    import torch.distributed as dist  # few tests need it
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    ranks = 4
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    yield init_device_mesh("cpu", (ranks,))
    dist.destroy_process_group()


def forget_what_was_compiled():
    dynamo = sys.modules.get("torch._dynamo")  # importing it takes a second, and few tests need it
    if dynamo is not None and dynamo.utils.counters:
        dynamo.reset()
        dynamo.utils.counters.clear()


@pytest.fixture
def nothing_compiled(no_trace_of_compiling):
    """Nor anything that Dynamo does not count."""
    import torch._dynamo.utils

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
