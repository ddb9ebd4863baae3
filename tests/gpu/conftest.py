import pytest

torch = pytest.importorskip("torch")


def pytest_collection_modifyitems(items):
    if torch.cuda.is_available():
        return
    reason = "needs a CUDA device: run `pytest tests/gpu` on a machine that has one"
    for item in items:
        if "gpu" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))
