"""NCCL's own flight recorder is asked and read; what is loaded on a GPU makes nobody wait."""

import os
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from traceml.agent.flight_recorder import FlightRecorder  # noqa: E402
from traceml.store import logged  # noqa: E402
from traceml.store.flight_recorder import read_dump  # noqa: E402
from traceml.store.record_file import RankFiles  # noqa: E402
from traceml.trace import resuming  # noqa: E402

TIMEOUT_S = 120.0
ONE_RANK = """\
import sys
import torch, torch.distributed as dist

torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(1 << 20, device="cuda"))
torch.cuda.synchronize()
print("ready", flush=True)
sys.stdin.read()
"""


def test_nccl_writes_its_collectives_when_it_is_asked(tmp_path):
    stem = str(tmp_path / "rank_")
    environment = {
        **os.environ,
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": stem,
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": stem,
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    }
    script = ONE_RANK.replace("127.0.0.1:0", f"127.0.0.1:{29000 + os.getpid() % 2000}")
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        cwd=tmp_path,
    ) as process:
        try:
            assert process.stdout.readline().strip() == b"ready"
            recorder = FlightRecorder()
            recorder.ask({0: process.pid})
            deadline_s = time.monotonic() + TIMEOUT_S
            while not (tmp_path / "rank_0").exists() and time.monotonic() < deadline_s:
                time.sleep(0.1)
            time.sleep(0.5)  # it is written in one go
            assert recorder.stuck() == ()  # all of them are complete
            dump = read_dump(tmp_path / "rank_0", 0)
        finally:
            process.kill()
    assert [call.number for call in dump.calls][-3:] == [1, 2, 3]
    assert {call.name for call in dump.calls} == {"all_reduce"}
    assert all(call.is_complete for call in dump.calls)
    assert dump.calls[-1].size_bytes == 4 << 20


def test_a_step_that_is_counted_on_the_gpu_is_not_waited_for(traced, tmp_path):
    model = nn.Linear(8, 8, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    state = optimizer.state_dict()
    state["state"] = {
        place: {
            "step": torch.tensor(7.0, device="cuda"),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        for place, parameter in enumerate(model.parameters())
    }
    torch.cuda.set_sync_debug_mode("error")
    try:
        assert resuming.counted_steps(state["state"][0]["step"]) is None
    finally:
        torch.cuda.set_sync_debug_mode("default")
    optimizer.load_state_dict(state)
    model(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
    traced()
    (files,) = RankFiles.all_in(tmp_path)
    found = logged.resumption(files.read_messages())
    assert found.has_loaded
    assert found.step is None
