"""A rank says which GPU it trains on, in the words that NVML has for it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from traceml.store.rings import RingReader
from traceml.trace.session import Session, _describe

UUID = "12345678-1234-1234-1234-123456789abc"


@pytest.mark.parametrize(
    ("known", "visible", "name"),
    [
        pytest.param({"uuid": UUID}, None, f"GPU-{UUID}", id="as torch writes it"),
        pytest.param({"uuid": f"GPU-{UUID}"}, "1", f"GPU-{UUID}", id="with NVML's prefix"),
        pytest.param({}, None, "", id="a torch that does not tell"),
        pytest.param({}, "2,3", "", id="and numbers, which may be anybody's"),
        pytest.param({}, "GPU-77,GPU-88", "GPU-88", id="and names in the environment"),
        pytest.param({}, "GPU-77", "", id="and fewer names than devices"),
    ],
)
def test_the_uuid_of_a_device(
    monkeypatch: pytest.MonkeyPatch, known: dict[str, str], visible: str | None, name: str
) -> None:
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=100, **known)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert _describe("cuda:1") == ("NVIDIA H200", 100, name)


def test_a_cpu_has_none() -> None:
    assert _describe("cpu") == ("", None, "")


def test_a_gpu_that_is_found_after_the_first_explicit_step_began_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traceml.trace.gpu.CudaTimeline", lambda ring, index: None)
    monkeypatch.setattr("traceml.trace.session._describe", lambda device: (device, 7, "GPU-3"))
    session = Session(tmp_path, None, None)
    session.identify()
    session.follow_cuda(1)
    assert session.ring is not None
    with RingReader(session.ring.path) as ring:
        rank = ring.head().rank
    assert (rank.device, rank.device_uuid, rank.device_total_bytes) == ("cuda:1", "GPU-3", 7)
    session.stop()
