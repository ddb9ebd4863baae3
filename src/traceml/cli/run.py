"""`traceml run`: a training script, or any command, with tracing."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from traceml.api.run import RunOptions, run
from traceml.launch import command as commands
from traceml.launch import supervise
from traceml.launch.display_mode import MODES, choose
from traceml.launch.messages import say, write
from traceml.launch.views import make_report
from traceml.model.errors import UsageError
from traceml.store import folder as folders
from traceml.store.regular_files import read_regular

_USAGE = """traceml run [options] SCRIPT [options] [--args …]
       traceml run [options] -- COMMAND …"""
_EPILOG = """\
Everything after --args goes to the script. The exit status is the training command's own.
"""


def main(words: list[str]) -> int:
    """Runs the command; returns the training command's status."""
    words, command, script_arguments = _split(words)
    options = _parser().parse_args(words)
    cluster = _cluster(options)
    if command and options.script:
        raise UsageError(f"pass either a script ({options.script}) or a command after --, not both")
    if command:
        if cluster.world_size > 1:
            raise UsageError("--nproc-per-node and --nnodes are for a script; let the command say")
        commands.require_command(command)
        subject = commands.subject(command)
    elif options.script:
        command = commands.for_script(options.script, script_arguments, cluster)
        subject = options.script
    else:
        raise UsageError("nothing to run: pass a SCRIPT, or a command after --")
    if options.disable_traceml:
        return supervise.run_untraced(command, commands.untraced_environment(os.environ))
    status, folder = run(command, subject, _run_options(options, cluster))
    show(folder)
    if options.html_report and folder is not None:
        _write_report(folder)
    return status


def _split(words: list[str]) -> tuple[list[str], list[str], list[str]]:
    """Returns our own options, the command after `--`, and the script's arguments after
    `--args`."""
    for index, word in enumerate(words):
        if word == "--args":
            return words[:index], [], words[index + 1 :]
        if word == "--":
            return words[:index], words[index + 1 :], []
    return words, [], []


class _Parser(argparse.ArgumentParser):
    """Reports usage errors in one line, like every other error of ours."""

    def error(self, message: str) -> NoReturn:
        hint = "traceml run --help lists the options"
        if message.startswith("unrecognized arguments"):
            hint = "the script's own arguments go after --args; " + hint
        raise UsageError(f"{message}; {hint}")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="traceml run", usage=_USAGE, epilog=_EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("script", nargs="?", help="the training script")
    add("--mode", choices=MODES, default="auto", help="what is shown, and when")
    add("--run-name", metavar="NAME", help="the run's folder under the logs folder")
    add("--logs-dir", metavar="DIR", default="logs", help="where runs are kept (default: logs)")
    add("--nproc-per-node", metavar="N", type=_positive, default=1, help="processes per machine")
    add("--nnodes", metavar="N", type=_positive, default=1, help="machines")
    add("--node-rank", metavar="N", type=int, default=0, help="which machine this is")
    add("--master-addr", metavar="A", help="where the machines meet")
    add("--master-port", metavar="P", type=int, help="the port where they meet")
    add("--profile", choices=("essential",), default="essential", help="how much is traced")
    add("--html-report", action="store_true", help="write report.html into the run folder")
    add("--save-output", action="store_true", help="keep what the script prints in the run folder")
    add("--trace-max-steps", metavar="N", type=_positive, help="stop tracing after N steps")
    add("--disable-traceml", action="store_true", help="run the command without any tracing")
    add("--overwrite", action="store_true", help="replace a run of the same name")
    return parser


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def _cluster(options: argparse.Namespace) -> commands.Cluster:
    return commands.Cluster(
        processes_per_node=options.nproc_per_node,
        nodes=options.nnodes,
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
    )


def _run_options(options: argparse.Namespace, cluster: commands.Cluster) -> RunOptions:
    return RunOptions(
        run_name=options.run_name,
        logs_dir=Path(options.logs_dir),
        mode=choose(options.mode),
        profile=options.profile,
        max_steps=options.trace_max_steps,
        save_output=options.save_output,
        overwrite=options.overwrite,
        world_size=cluster.world_size if options.script else None,
        nodes=cluster.nodes,
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
