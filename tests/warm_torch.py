"""Runs training scripts as copies of one process that has torch, each with a run of its own.

usage: warm_torch.py LOGS AT_ONCE SCRIPT…

Torch, and the compiler that every optimizer of torch imports, take two seconds of CPU to load: most
of what a short script costs. Here they are loaded once; then a process is forked for each script,
calls `traceml.init` as a user's would, and runs the script as its main program. Its output is in
LOGS/NAME.out and LOGS/NAME.err; a line `NAME STATUS` is printed when it has ended.
"""

import gc
import os
import runpy
import sys
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401

import traceml


def run_as_main(script, logs):
    """In the copy: all that a new interpreter would do, and end as one does."""
    for descriptor, ending in ((1, "out"), (2, "err")):
        opened = os.open(logs / f"{script.stem}.{ending}", os.O_CREAT | os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(logs)
    sys.argv = [str(script)]
    sys.path[0] = str(script.parent)
    traceml.init(run_name=script.stem, logs_dir=logs)
    runpy.run_path(str(script), run_name="__main__")


def wait_for_one(running):
    ended, status = os.wait()
    print(running.pop(ended), os.waitstatus_to_exitcode(status), flush=True)


def main():
    logs, at_once = Path(sys.argv[1]), int(sys.argv[2])
    gc.freeze()  # what all copies share is not looked through in each of them
    running = {}
    for script in map(Path, sys.argv[3:]):
        if len(running) >= at_once:
            wait_for_one(running)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            run_as_main(script, logs)
            return
        running[child] = script.stem
    while running:
        wait_for_one(running)


if __name__ == "__main__":
    main()
