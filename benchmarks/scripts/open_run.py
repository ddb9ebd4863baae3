"""Opens a run folder as a view does, page and a closer look; prints how long that took, as JSON.

usage: open_run.py FOLDER FIRST_STEP LAST_STEP
"""

import json
import sys
import time
from pathlib import Path

began = time.perf_counter()

import msgspec  # noqa: E402 - imports are timed too

from traceml.api.watch import RunWatch  # noqa: E402

imported = time.perf_counter()
watch = RunWatch(Path(sys.argv[1]))
page = watch.page()
drawn = time.perf_counter()
content = msgspec.json.encode(page)
encoded = time.perf_counter()
figures = watch.detail(int(sys.argv[2]), int(sys.argv[3]))
closer = time.perf_counter()

# Of this process alone: `getrusage` would tell the peak of the one that started it.
status = Path("/proc/self/status").read_text()
peak_bytes = int(status.partition("VmHWM:")[2].split()[0]) * 1024

print(
    json.dumps(
        {
            "import_s": imported - began,
            "page_s": drawn - imported,
            "encode_s": encoded - drawn,
            "open_s": encoded - imported,
            "detail_s": closer - encoded,
            "page_bytes": len(content),
            "detail_bytes": len(msgspec.json.encode(figures)),
            "peak_bytes": peak_bytes,
            "steps": page.head.steps,
        }
    )
)
