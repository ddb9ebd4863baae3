"""On which machine a run was begun, as a process of it finds out."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from traceml.model.environment import RING_FOLDER, RUN_FOLDER
from traceml.store.folder import boot_id
from traceml.trace import place
from traceml.trace.place import is_begun_elsewhere

HERE, ELSEWHERE = socket.gethostname(), "another"
OWN_BOOT, OTHER_BOOT = boot_id(), "7"


@pytest.mark.skipif(not OWN_BOOT, reason="this system has no number of its boot")
@pytest.mark.parametrize(
    ("manifest", "is_elsewhere"),
    [
        pytest.param({"hostname": HERE, "boot_id": OWN_BOOT}, False, id="here"),
        pytest.param({"hostname": HERE}, False, id="here, by an older version"),
        pytest.param({"hostname": ELSEWHERE, "boot_id": OTHER_BOOT}, True, id="elsewhere"),
        pytest.param({"hostname": ELSEWHERE, "boot_id": OWN_BOOT}, True, id="in another container"),
        pytest.param({"hostname": HERE, "boot_id": OTHER_BOOT}, True, id="of the same name"),
        pytest.param(None, True, id="its folder is not here"),
        pytest.param([], True, id="a damaged manifest"),
    ],
)
def test_a_run_is_of_this_machine_or_of_another(
    manifest: object, is_elsewhere: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if manifest is not None:
        (tmp_path / "run.json").write_text(json.dumps(manifest))
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    monkeypatch.setenv(RING_FOLDER, str(tmp_path / "nothing"))
    assert is_begun_elsewhere() == is_elsewhere


def test_a_run_whose_shared_memory_is_here_is_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path / "nothing"))
    monkeypatch.setenv(RING_FOLDER, str(tmp_path))
    assert not is_begun_elsewhere()


def test_a_system_without_a_number_goes_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(place, "read_boot_id", (tmp_path / "nothing").read_text)
    (tmp_path / "run.json").write_text(json.dumps({"hostname": HERE, "boot_id": OTHER_BOOT}))
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path))
    monkeypatch.delenv(RING_FOLDER, raising=False)
    assert not is_begun_elsewhere()
