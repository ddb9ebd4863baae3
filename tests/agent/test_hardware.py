"""The machine describes itself; what it does not say is unknown."""

from __future__ import annotations

import socket
from pathlib import Path

import psutil
import pytest

from traceml.agent import hardware
from traceml.agent.hardware import look_at_hardware


@pytest.fixture(autouse=True)
def _no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, _ in hardware._CONTAINER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def test_this_machine() -> None:
    found, _ = look_at_hardware()
    assert found.hostname == socket.gethostname()
    assert found.threads == psutil.cpu_count()
    assert found.ram_bytes == psutil.virtual_memory().total
    assert found.cpu and found.system and found.kernel


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        pytest.param("processor\t: 0\nmodel name\t: AMD EPYC 9654\n", "AMD EPYC 9654", id="x86"),
        pytest.param("processor\t: 0\nModel\t\t: Raspberry Pi 5\n", "Raspberry Pi 5", id="a board"),
    ],
)
def test_the_cpus_name(tmp_path: Path, text: str, cpu: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(text)
    assert look_at_hardware(tmp_path)[0].cpu == cpu


def test_containers_are_known_by_what_they_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert look_at_hardware(tmp_path)[0].container is None
    (tmp_path / ".dockerenv").touch()
    assert look_at_hardware(tmp_path)[0].container == "docker"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert look_at_hardware(tmp_path)[0].container == "kubernetes"


@pytest.mark.parametrize(
    ("text", "is_virtual"),
    [
        pytest.param("flags\t\t: fpu vme hypervisor avx2\n", True, id="a virtual machine"),
        pytest.param("flags\t\t: fpu vme avx2\n", False, id="a machine of its own"),
        pytest.param("Features\t: fp asimd\n", None, id="a processor that does not say"),
    ],
)
def test_a_virtual_machine_is_known_by_its_flag(
    tmp_path: Path, text: str, is_virtual: bool | None
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(text)
    assert look_at_hardware(tmp_path)[0].virtual is is_virtual
