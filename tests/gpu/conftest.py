import pytest

torch = pytest.importorskip("torch")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    reason = "needs a CUDA device: run `pytest tests/gpu` on a machine that has one"
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def every_step(monkeypatch):
    """Time every step on the GPU, whatever it costs."""
    from traceml.trace import gpu  # needs torch

    monkeypatch.setattr(gpu, "GPU_TIMING_SHARE", 1e9)


@pytest.fixture
def turn_at_gpu():
    """Keeps the other programs of `make gpu` from the GPU: for tests that measure here, or start
    programs that know of no turns."""
    from gpu_programs import gpu_turn  # torch is the first thing to be missing

    with gpu_turn.turn():
        yield


@pytest.fixture
def traced(every_step, traced_as_usual):
    return traced_as_usual


@pytest.fixture
def traced_as_usual(tmp_path):
    """A session in this process; call the fixture's value to end it and get the steps."""
    from traceml.store.load import drain_rings
    from traceml.store.record_file import RankFiles
    from traceml.trace import current, hooks  # need torch

    (tmp_path / "run.json").write_text('{"run_name": "gpu", "started_unix_s": 0}')
    session = current.start(tmp_path, None, None)
    hooks.install(session)

    def steps():
        torch.cuda.synchronize()
        current.end()
        drain_rings(tmp_path, everything=True)
        (files,) = RankFiles.all_in(tmp_path)
        assert files.head().counters["failures"] == 0, files.head().counters["last_failure"]
        return files.read_steps()

    yield steps
    current.end()


@pytest.fixture
def begin_deep(traced, tmp_path):
    """Begins the deep profile of a session; returns what tells, when it is called, what the profile
    wrote."""
    from traceml.store.layer_records import read_layers
    from traceml.trace import current  # needs torch

    def begin():
        current.current().begin_deep_profile()
        return layers

    def layers():
        traced()
        (found,) = read_layers(tmp_path)
        return found

    return begin
