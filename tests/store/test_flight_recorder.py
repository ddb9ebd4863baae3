"""The flight recorder's dumps are read without loading code, and damage never spreads."""

import os
import pickle

import pytest
import torch

from flight_dumps import dump_bytes, entry
from traceml.model.errors import UnreadableRecords
from traceml.store.flight_recorder import read_dump


def write(tmp_path, content):
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content, protocol=2))
    return path


def test_a_dump_names_its_collectives(tmp_path):
    content = dump_bytes(
        entry(1206, state="completed"), entry(1207, sizes=[[4 << 20]]), ranks=(0, 1, 2, 3)
    )
    dump = read_dump(write(tmp_path, content), 3, "/home/me/job")
    done, waited = dump.calls
    assert (done.number, done.is_complete) == (1206, True)
    assert (waited.number, waited.is_complete) == (1207, False)
    assert (waited.name, waited.group_words) == ("all_reduce", "default_pg")
    assert waited.size_bytes == 16 << 20
    assert waited.where == "train.py:88 in load_batch"
    assert dump.groups == {"0": (0, 1, 2, 3)}


def test_the_status_of_the_group_tells_what_is_complete_where_entries_do_not(tmp_path):
    content = dump_bytes(entry(1), entry(2), entry(3), last_completed=2)
    dump = read_dump(write(tmp_path, content), 0)
    assert [call.is_complete for call in dump.calls] == [True, True, False]


def test_what_torch_writes_itself_is_read(tmp_path):
    """gloo keeps the same record as NCCL, in the same form."""
    write_dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace", None)
    if write_dump is None:
        pytest.skip("this torch has no flight recorder for gloo")
    store = torch.distributed.HashStore()
    group = torch.distributed.ProcessGroupGloo(store, 0, 1)
    for _ in range(3):
        group.allreduce([torch.ones(1024)]).wait()
    dump = read_dump(write(tmp_path, write_dump()), 0)
    last = dump.calls[-1]
    assert (last.name, last.size_bytes) == ("all_reduce", 4096)
    assert last.number >= 3
    assert dump.calls[0].is_complete  # of the last one it may not have been noted yet


def test_messages_between_two_ranks_are_left_out(tmp_path):
    content = dump_bytes(entry(1), {**entry(2), "is_p2p": True})
    assert [call.number for call in read_dump(write(tmp_path, content), 0).calls] == [1]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x80\x02", id="cut"),
        pytest.param(b"not a pickle at all", id="text"),
        pytest.param([1, 2], id="a list"),
        pytest.param({"entries": "many"}, id="no list of entries"),
        pytest.param({"entries": {1: 2}}, id="entries by name"),
        pytest.param(pickle.dumps({"entries": [print]}), id="a function"),
        pytest.param(b"\x80\x02cbuiltins\nexec\n(X\x01\x00\x00\x001tR.", id="a call"),
        pytest.param(b"\x80\x02ctorch.jit._pickle\nbuild_tensor\n.", id="something else of torch"),
    ],
)
def test_what_is_no_dump_is_refused_in_words(tmp_path, content):
    with pytest.raises(UnreadableRecords, match="nccl_trace_rank_3"):
        read_dump(write(tmp_path, content), 3)


def test_a_pickle_that_would_run_a_command_runs_none(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    with pytest.raises(UnreadableRecords):
        read_dump(write(tmp_path, {"entries": [Evil()]}), 0)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "damage",
    [
        {"collective_seq_id": "x"},
        {"collective_seq_id": -5},
        {"collective_seq_id": True},
        {"process_group": None},
        {"process_group": ()},
        {"input_sizes": [["a"]]},
        {"input_sizes": 7},
        {"input_dtypes": ["Unheard"]},
        {"time_created_ns": None},
        {"frames": [1, {"filename": 3}]},
        {"profiling_name": None},
    ],
    ids=str,
)
def test_a_damaged_entry_spoils_nothing(tmp_path, damage):
    content = dump_bytes({**entry(1), **damage}, entry(2))
    numbers = [call.number for call in read_dump(write(tmp_path, content), 0).calls]
    assert numbers[-1] == 2


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "nccl_trace_rank_3")
    with pytest.raises(UnreadableRecords):
        read_dump(tmp_path / "nccl_trace_rank_3", 3)
