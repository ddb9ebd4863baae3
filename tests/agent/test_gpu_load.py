"""A rank's GPU is found among the sampled ones by number, or by what the script may see."""

from dataclasses import replace

import numpy as np
import pytest

from factories import make_rank
from traceml.agent.gpus import gpu_share
from traceml.model.rank import Rank
from traceml.model.sample import GpuSample
from traceml.store.records import STEP_DTYPE

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
    assert gpu_share(rank_on(device), GPUS, visible) == share


@pytest.mark.parametrize(
    ("uuid", "share"),
    [
        pytest.param("GPU-3abc", 0.3, id="whatever its number is"),
        pytest.param("GPU-2a", 0.2, id="by the beginning of it"),
        pytest.param("GPU-77", None, id="a part of one, by MIG"),
    ],
)
def test_a_rank_that_knows_its_gpu_is_taken_at_its_word(uuid: str, share: float | None) -> None:
    assert gpu_share(rank_on("cuda:0", uuid), GPUS, "1") == share


def rank_on(device: str, uuid: str = "") -> Rank:
    rank = make_rank(np.zeros(0, STEP_DTYPE)).rank
    return replace(rank, device=device, device_uuid=uuid)
