"""Runs training scripts as copies of one process that has torch, each in a run of its own.

usage: warm_torch.py AT_ONCE

What to run is read from its input: a list of what `warm_jobs.WarmJob` tells. Torch, and the
compiler that every optimizer of torch imports, take two seconds of CPU to load: most of what a
short script costs. Here they are loaded once; then a process is forked for each job, calls
`traceml.init` as a user's would, unless the job is not to be traced, and runs the script as its
main program. A line `NUMBER STATUS` is printed when it has ended.
"""

import gc
import json
import os
import runpy
import sys
from pathlib import Path

import torch
import torch._dynamo  # noqa: F401

import traceml


def run_as_main(job):
    """In the copy: all that a new interpreter would do, and end as one does."""
    for descriptor, name in ((1, job["stdout"]), (2, job["stderr"])):
        opened = os.open(name, os.O_CREAT | os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.chdir(job["cwd"])
    sys.argv = job["words"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    if job["run_name"] is not None:
        traceml.init(run_name=job["run_name"], logs_dir=job["logs"])
    runpy.run_path(sys.argv[0], run_name="__main__")


def wait_for_one(running):
    ended, status = os.wait()
    print(running.pop(ended), os.waitstatus_to_exitcode(status), flush=True)


def main():
    jobs, at_once = json.load(sys.stdin), int(sys.argv[1])
    gc.freeze()  # what all copies share is not looked through in each of them
    running = {}
    for number, job in enumerate(jobs):
        if len(running) >= at_once:
            wait_for_one(running)
        sys.stdout.flush()
        child = os.fork()
        if not child:
            run_as_main(job)
            return
        running[child] = number
    while running:
        wait_for_one(running)


if __name__ == "__main__":
    main()
