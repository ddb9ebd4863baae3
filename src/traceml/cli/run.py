"""`traceml run`: a training script, or any command, with tracing."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from traceml.api.run import RunOptions, named_head, run
from traceml.cli.misplaced_words import join_words, refuse_launcher_option, refuse_misplaced
from traceml.cli.parser import (
    CommandParser,
    add_logs_dir,
    in_braces,
    one_of,
    some_text,
    whole_number,
)
from traceml.launch import command as commands
from traceml.launch import supervise
from traceml.launch.display_mode import MODES, choose
from traceml.launch.messages import say, write
from traceml.launch.views import make_report
from traceml.model.environment import ESSENTIAL, MAX_KINETO_STEPS, NOTIFY, PROFILES
from traceml.model.errors import UsageError
from traceml.model.launcher_place import place_in_environment
from traceml.model.printable import shell_word
from traceml.model.tracker import TRACKERS, parse_trackers, require_installed
from traceml.store import folder as folders
from traceml.store.regular_files import read_regular

_USAGE = """traceml run [options] SCRIPT [options] [--args …]
       traceml run [options] -- COMMAND …"""
_MODE_HELP = "what is shown, and when"
_EPILOG = """\
Everything after --args goes to the script. The exit status is the training command's own.
"""


def main(words: list[str]) -> int:
    """Runs the command; returns the training command's status."""
    words, command, script_arguments = _split(words)
    options = _parser().parse_args(words)
    cluster = _cluster(options)
    _check_targets(options.notify)
    if command and options.script:
        raise UsageError(
            f"both a script ({options.script}) and a command after -- were given; expected one; "
            "the script's own arguments go after --args: traceml run "
            f"{shell_word(options.script)} --args …"
        )
    if command:
        if cluster.world_size > 1:
            raise UsageError(
                "--nproc-per-node and --nnodes are for a script, and a command was given after --; "
                "give them to the command: traceml run -- torchrun --nproc-per-node=2 train.py"
            )
        commands.require_command(command)
        subject = commands.subject(command)
    elif options.script:
        refuse_misplaced(words, options.script)
        command = commands.for_script(options.script, script_arguments, cluster)
        subject = options.script
    else:
        raise UsageError(
            "nothing to run: no script and no command was given; "
            "say traceml run train.py, or traceml run -- torchrun train.py"
        )
    is_named = options.head is not None and not options.disable_traceml
    head = named_head(options.head, command) if is_named else None
    if cluster.nodes > 1:
        say(
            f"this is machine {cluster.node_rank} of {cluster.nodes} (counted from 0): training "
            f"starts when all have reached {cluster.meeting_point}"
        )
    if options.disable_traceml:
        return supervise.run_untraced(command, commands.untraced_environment(os.environ))
    run_options = replace(_run_options(options, cluster), head=head)
    status, folder = run(command, subject, run_options)
    show(folder)
    if options.html_report and folder is not None:
        _write_report(folder)
    return status


def _check_targets(given: list[str]) -> None:
    """Raises UsageError for what can be notified neither by --notify nor by the environment."""
    if given or os.environ.get(NOTIFY):
        from traceml.agent.notify_targets import parse_target, targets_in

        targets_in(os.environ)
        for text in given:
            parse_target(text)


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns our own options, the command after `--`, and the script's arguments after
    `--args`."""
    for index, word in enumerate(words):
        if word == "--args":
            return words[:index], [], words[index + 1 :]
        if word == "--":
            return words[:index], words[index + 1 :], []
    return words, [], []


class _Parser(CommandParser):
    """The parser of `run`, whose users mix our options with Python's, torchrun's and their own."""

    def refuse(self, options: argparse.Namespace, words: list[str], unknown: list[str]) -> NoReturn:
        """Raises UsageError with the command line that was probably meant."""
        refuse_misplaced(words, options.script)
        name = next((word for word in unknown if word.startswith("-")), unknown[0]).partition("=")[
            0
        ]
        refuse_launcher_option(name, words)
        near = self.nearest_option(name) if name.startswith("-") else ""
        what = f"there is no option {name}{near}" if near else f"{name!r} is not an option of ours"
        script = options.script if options.script and Path(options.script).exists() else "SCRIPT"
        own = [word for word in unknown if word != script]
        if script == "SCRIPT":
            own = [name, "…"]
        raise UsageError(
            f"{what}; the script's own arguments go after --args: "
            f"traceml run {script} --args {join_words(own)}"
        )


def _parser() -> _Parser:
    parser = _Parser("run", usage=_USAGE, epilog=_EPILOG)
    add = parser.add_argument
    machine, port = whole_number(0), whole_number(1, 65535)
    add("script", nargs="?", type=some_text, help="the training script")
    add("--mode", type=one_of(*MODES), metavar=in_braces(MODES), default="auto", help=_MODE_HELP)
    add(
        "--run-name",
        metavar="NAME",
        help="the run's folder under the logs folder",
    )
    add_logs_dir(parser)
    add("--nproc-per-node", metavar="N", type=_count, default=1, help="processes per machine")
    add("--nnodes", metavar="N", type=_count, default=1, help="machines")
    add("--node-rank", metavar="N", type=machine, help="which machine this is, from 0 on")
    add("--master-addr", metavar="A", type=some_text, help="the address of machine 0")
    add("--master-port", metavar="P", type=port, help="the port where they meet")
    add(
        "--head",
        metavar="HOST:PORT",
        type=some_text,
        help="the machine that gets all records, where the job has no process group to say so",
    )
    add(
        "--profile",
        type=one_of(*PROFILES),
        metavar=in_braces(PROFILES),
        default=ESSENTIAL,
        help="how much is traced; deep: a few steps layer by layer",
    )
    add(
        "--oom-snapshot",
        action="store_true",
        help="save the CUDA allocator's snapshot where GPU memory runs out",
    )
    add(
        "--kineto",
        metavar="STEPS",
        type=whole_number(1, MAX_KINETO_STEPS),
        help="keep traces of torch's profiler of so many steps: typical ones and the worst",
    )
    add(
        "--notify",
        metavar="URL|COMMAND",
        action="append",
        default=[],
        help="tell a webhook, or a command by its stdin, of critical findings, hangs, failures and "
        "the end, as JSON; may be given several times",
    )
    add(
        "--log-to",
        metavar="NAMES",
        type=_trackers,
        default=(),
        help=f"log the run to trackers: {', '.join(TRACKERS)}, with commas between",
    )
    add("--html-report", action="store_true", help="write report.html into the run folder")
    add("--save-output", action="store_true", help="keep what the script prints in the run folder")
    add("--trace-max-steps", metavar="N", type=whole_number(1), help="stop tracing after N steps")
    add("--disable-traceml", action="store_true", help="run the command without any tracing")
    add("--overwrite", action="store_true", help="replace a run of the same name")
    return parser


def _trackers(text: str) -> tuple[str, ...]:
    """The trackers that are named, if they can be logged to."""
    names = parse_trackers(text)
    require_installed(names)
    return names


def _count(text: str) -> int:
    """A number of processes or machines; torchrun alone knows `gpu`, `auto` and `1:4`."""
    try:
        return whole_number(1)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"{error}; for torchrun's other forms say traceml run -- torchrun … train.py"
        ) from None


def _cluster(options: argparse.Namespace) -> commands.Cluster:
    commands.require_machines(options.nnodes, options.node_rank, options.master_addr)
    return commands.Cluster(
        processes_per_node=options.nproc_per_node,
        nodes=options.nnodes,
        node_rank=options.node_rank or 0,
        master_addr=options.master_addr,
        master_port=options.master_port,
    )


def _run_options(options: argparse.Namespace, cluster: commands.Cluster) -> RunOptions:
    return RunOptions(
        run_name=options.run_name,
        logs_dir=Path(options.logs_dir),
        mode=choose(options.mode),
        profile=options.profile,
        oom_snapshot=options.oom_snapshot,
        kineto=options.kineto,
        log_to=options.log_to,
        max_steps=options.trace_max_steps,
        save_output=options.save_output,
        overwrite=options.overwrite,
        world_size=cluster.world_size if options.script else None,
        nodes=cluster.nodes,
        node_rank=cluster.node_rank or place_in_environment().node,
        notify=tuple(options.notify),
    )


def show(folder: Path | None) -> None:
    """Prints the summary on stderr: stdout belongs to the script."""
    if folder is None:
        return
    try:
        write("\n" + read_regular(folder / folders.TEXT).decode())
    except OSError:
        return  # why there is none has been said


def _write_report(folder: Path) -> None:
    """Writes the report; a failure does not change the exit status."""
    try:
        trouble = make_report(folder)
    except (OSError, KeyboardInterrupt) as error:
        trouble = str(error) or "interrupted"
    if trouble is None:
        say(f"the report is {folder / 'report.html'}")
    else:
        say(f"the report could not be written: {trouble}")
