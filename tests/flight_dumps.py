"""Makes dumps of torch's flight recorder, as version 2.10 of its format has them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

CREATED_UNIX_S = 1_800_000_000.0


def entry(
    number: int,
    name: str = "all_reduce",
    state: str = "scheduled",
    sizes: Sequence[Sequence[int]] = ((1024,),),
    group: tuple[str, str] = ("0", "default_pg"),
    created_unix_s: float = CREATED_UNIX_S,
) -> dict[str, Any]:
    """One collective."""
    return {
        "frames": [
            {
                "name": name,
                "filename": "/usr/lib/python3.12/site-packages/torch/distributed/c10d.py",
                "line": 3245,
            },
            {"name": "load_batch", "filename": "/home/me/job/train.py", "line": 88},
        ],
        "record_id": number,
        "pg_id": int(group[0]),
        "process_group": group,
        "thread_name": "python",
        "thread_id": "139692964412288",
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{name}",
        "time_created_ns": int(created_unix_s * 1e9),
        "input_sizes": [list(size) for size in sizes],
        "input_dtypes": ["Float"] * len(sizes),
        "output_sizes": [list(size) for size in sizes],
        "output_dtypes": ["Float"] * len(sizes),
        "state": state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
    }


def dump_bytes(
    *entries: dict[str, Any],
    ranks: Sequence[int] = (0, 1),
    last_completed: int = -1,
    group: str = "0",
) -> bytes:
    """The file of one rank."""
    return pickle.dumps(
        {
            "version": "2.10",
            "pg_config": {group: {"name": group, "desc": "default_pg", "ranks": str([*ranks])}},
            "comm_lib_version": "2.28.9",
            "pg_status": {group: {"last_completed_collective": last_completed}},
            "entries": list(entries),
        },
        protocol=2,
    )
