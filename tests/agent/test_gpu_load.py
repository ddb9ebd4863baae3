"""A rank's GPU is found among the sampled ones by number, or by what the script may see."""

import pytest

from traceml.agent.gpu_load import gpu_share
from traceml.model.sample import GpuSample

GPUS = [GpuSample(index, f"GPU-{index}abc", "H200", utilisation=index / 10) for index in range(4)]


@pytest.mark.parametrize(
    ("device", "visible", "share"),
    [
        pytest.param("cuda:1", None, 0.1, id="all are visible"),
        pytest.param("cuda:1", "2,3", 0.3, id="some, by number"),
        pytest.param("cuda:0", "GPU-2a", 0.2, id="one, by the beginning of its name"),
        pytest.param("cuda:1", "2", None, id="more than the variable names"),
        pytest.param("cuda:0", "", None, id="none is visible"),
        pytest.param("cuda:0", "MIG-77", None, id="a part of one"),
        pytest.param("cuda:7", None, None, id="not sampled"),
        pytest.param("cpu", None, None, id="no GPU"),
    ],
)
def test_the_gpu_of_a_rank(device: str, visible: str | None, share: float | None) -> None:
    assert gpu_share(device, GPUS, visible) == share
