"""The variables and marks by which `traceml run` and the processes below it know of each other."""

RUN_FOLDER = "TRACEML_RUN_FOLDER"
RING_FOLDER = "TRACEML_RING_FOLDER"
MAX_STEPS = "TRACEML_MAX_STEPS"
PROFILE = "TRACEML_PROFILE"
"""Set by `traceml run --profile`: how much is traced, `essential` or `deep`."""
ESSENTIAL, DEEP = "essential", "deep"
OOM_SNAPSHOT = "TRACEML_OOM_SNAPSHOT"
"""Set to 1 by `traceml run --oom-snapshot`: a process whose GPU memory runs out saves a snapshot of
its allocator."""
DISABLED = "TRACEML_DISABLED"
"""Set by `traceml run --disable-traceml`: `traceml.init` does nothing either."""
SCRIPT = "TRACEML_SCRIPT"
"""Set by each script and each rank for what it starts: its pid, and the rank that it was given."""
WITHOUT_C = "TRACEML_WITHOUT_C"
"""Set to 1 by people: hooks run in Python alone (see `trace/recorder.c`), and none is built."""
TOKEN = "TRACEML_TOKEN"
"""Set by people: what `traceml ui` asks of readers from other machines."""

MARKS = "marks"
"""A folder in the run's, for small files by which interpreters say how far they came."""
PYTHON_MARK = "python"
TORCH_MARK = "torch"
NO_TORCH_MARK = "no-torch"
"""An interpreter was asked for torch and has none."""
TROUBLE_MARK = "trouble"
"""Why tracing is off in a process below, in words for people."""
INTERPRETER_MARK = "interpreter.json"
"""Describes the first interpreter that imported torch: a launcher's, perhaps."""
TRAINER_MARK = "trainer.json"
"""Describes the interpreter of the first process that took a training step."""
SCRIPT_MARK = "script-"
"""Before a pid and the machine's name, `script-12-node-a`: the interpreter of a script, or of a
rank, was started. Earlier versions left the machine out."""
FAILURE_MARK = "failure-"
"""Before the same: the exception that ended the interpreter of a script, of a rank, or of the last
helper that failed below one (`failure-below-`)."""
AGENT_MARK = "agent"
"""The agent's process number and its host: who a training process may allow to look into it."""

AGENT_LACKED_ROOM = 75
"""The agent's exit status where it wrote the summary, but the disk had no room for all steps."""

AGENT = """\
import sys
sys.path.insert(0, sys.argv[1])
from traceml.cli import main
sys.exit(main(["agent", *sys.argv[2:]]))
"""
"""The agent's program: it runs from the package that starts it, whatever the environment says."""

LOGGED_SAMPLES = "logged-samples-{pid}.jsonl"
"""The file of a run folder that holds what a process logged with `log_samples`."""
MEMORY_SNAPSHOT = "memory-snapshot-{pid}.pickle"
"""The file of a run folder that holds the snapshot of a process's CUDA allocator."""
LAYERS = "layers-{pid}.jsonl"
"""The file of a run folder that holds what the deep profile saw of a process's layers."""
