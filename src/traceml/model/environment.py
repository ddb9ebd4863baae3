"""The variables and marks by which `traceml run` and the processes below it know of each other."""

RUN_FOLDER = "TRACEML_RUN_FOLDER"
RING_FOLDER = "TRACEML_RING_FOLDER"
MAX_STEPS = "TRACEML_MAX_STEPS"
PROFILE = "TRACEML_PROFILE"
"""Set by `traceml run --profile` and `traceml.init(profile=…)`: how much is traced …"""
PROFILES = ESSENTIAL, DEEP = "essential", "deep"
"""… which is one of these."""
OOM_SNAPSHOT = "TRACEML_OOM_SNAPSHOT"
"""Set to 1 by `traceml run --oom-snapshot`: a process whose GPU memory runs out saves a snapshot of
its allocator."""
KINETO = "TRACEML_KINETO"
"""Set by `traceml run --kineto`: of how many steps each rank keeps a trace of torch's profiler."""
MAX_KINETO_STEPS = 20
LOG_TO = "TRACEML_LOG_TO"
"""Set by `traceml run --log-to`: the trackers that the run is logged to, with commas between."""
DISABLED = "TRACEML_DISABLED"
"""Set by `traceml run --disable-traceml`: `traceml.init` does nothing either."""
SCRIPT = "TRACEML_SCRIPT"
"""Set by each script and each rank for what it starts: its pid, and the rank that it was given."""
WITHOUT_C = "TRACEML_WITHOUT_C"
"""Set to 1 by people: hooks run in Python alone (see `trace/recorder.c`), and none is built."""
TOKEN = "TRACEML_TOKEN"
"""Set by people: what `traceml ui` asks of readers from other machines, and with `--head` the head
of other nodes."""
HEAD_CERTIFICATE = "TRACEML_HEAD_CERTIFICATE"
"""Set by people: a PEM file; with it nodes send their records to the head over TLS. On the head it
holds the certificate and its key; elsewhere it is needed with `--head` alone, as what to trust."""

NOTIFY = "TRACEML_NOTIFY"
"""Set by people, and by `traceml run --notify` for the agent alone: webhooks and commands, one in
each line. It may hold secrets: it is not passed on to the training, and never written down."""
UI_URL = "TRACEML_UI_URL"
"""Set by people: where their `traceml ui` is, for the link of a notification."""

HEAD = "TRACEML_HEAD"
"""Set for ranks on other machines where it is known in advance: how the head is reached, as JSON of
a `HeadAddress`."""

MARKS = "marks"
"""A folder in the run's, for small files by which interpreters say how far they came."""
PYTHON_MARK = "python"
TORCH_MARK = "torch"
NO_TORCH_MARK = "no-torch"
"""An interpreter was asked for torch and has none."""
TROUBLE_MARK = "trouble"
"""Why tracing is off in a process below, in words for people."""
WANTED_NAME_MARK = "wanted-name"
"""The name that the user gave a run over several machines, where another of them has taken it."""
MOVED_MARK = "moved"
"""Why the folder is not in the logs folder that was asked for, in words for people."""
INTERPRETER_MARK = "interpreter.json"
"""Describes the first interpreter that imported torch: a launcher's, perhaps."""
TRAINER_MARK = "trainer.json"
"""Describes the interpreter of the first process that took a training step."""
SCRIPT_MARK = "script-"
"""Before a pid and the machine's name, `script-12-node-a`: the interpreter of a script, or of a
rank, was started. Earlier versions left the machine out. It holds the rank that a launcher gave it,
how often that had started its ranks again, and the time; `-` where nobody said."""
FAILURE_MARK = "failure-"
"""Before the same: the exception that ended the interpreter of a script, of a rank, or of the last
helper that failed below one (`failure-below-`)."""
CLOSING_MARK = "closing"
"""What `traceml.init` says at the end on a machine whose records are part of a run elsewhere."""
LEAVING_MARK = "leaving"
"""The first rank of a machine has ended, and the one whose `traceml.init` made the run is gone: the
run is over as soon as no rank trains any more."""
AGENT_MARK = "agent"
"""The agent's process number and its host: who a training process may allow to look into it."""
MESSAGES_MARK = "messages"
"""What the agent has to say to people, a line each; it is printed at the end."""
SUMMARY_MARK = "summary-written"
"""The agent has written the summary of all steps, or left it to the head; what is left to do is to
deliver it to trackers, webhooks and the like."""

ENDING = "ending.json"
"""The file of a run folder that an agent writes as soon as the run is over."""

AGENT_LACKED_ROOM = 75
"""The agent's exit status where it wrote the summary, but the disk had no room for all steps."""

AGENT = """\
import sys
sys.path.insert(0, sys.argv[1])
from traceml.cli import main
sys.exit(main(["agent", *sys.argv[2:]]))
"""
"""The agent's program: it runs from the package that starts it, whatever the environment says."""

TRACKER = AGENT.replace('"agent"', '"tracker"')
"""The same for the process that logs a run to a tracker."""

LOGGED_SAMPLES = "logged-samples-{pid}.jsonl"
"""The file of a run folder that holds what a process logged with `log_samples`."""
MEMORY_SNAPSHOT = "memory-snapshot-{pid}.pickle"
"""The file of a run folder that holds the snapshot of a process's CUDA allocator."""
LAYERS = "layers-{pid}.jsonl"
"""The file of a run folder that holds what the deep profile saw of a process's layers."""
STEP_TRACES = "kineto-{pid}.jsonl"
"""The file of a run folder that says which steps a process recorded with torch's profiler."""
STEP_TRACE = "kineto-rank-{rank}-step-{step}-pid-{pid}.json.gz"
"""The file of a run folder that holds such a step."""
