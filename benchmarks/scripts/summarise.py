"""Reads a run folder and builds its summary and text; prints how long that took, as JSON.

usage: summarise.py FOLDER
"""

import json
import resource
import sys
import time
from pathlib import Path

began = time.perf_counter()

from traceml.agent.close import without_garbage_collection  # noqa: E402 - imports are timed too
from traceml.diagnose.all_rules import all_rules  # noqa: E402
from traceml.store.load import load_run  # noqa: E402
from traceml.summaries.build import build  # noqa: E402
from traceml.text.summary import summary_text  # noqa: E402

all_rules()  # loads their files, which the first diagnosis would do otherwise
imported = time.perf_counter()
used_s = time.process_time()
with without_garbage_collection():  # as where the agent does it
    records = load_run(Path(sys.argv[1]))
    loaded = time.perf_counter()
    summary = build(records, generated_unix_s=0.0, version="benchmark")
    built = time.perf_counter()
    text = summary_text(summary)
written = time.perf_counter()

print(
    json.dumps(
        {
            "import_s": imported - began,
            "load_s": loaded - imported,
            "build_s": built - loaded,
            "text_s": written - built,
            "total_s": written - imported,
            "cpu_s": time.process_time() - used_s,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "ranks": len(records.ranks),
            "steps": summary.tracer.steps_recorded,
            "lines": len(text.splitlines()),
            "layers": 0 if summary.layers is None else len(summary.layers.layers),
        }
    )
)
