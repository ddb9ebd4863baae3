"""`python -m benchmarks.faults`: plants every fault and prints how often TraceML is right."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.faults.catalog import SCENARIOS, chosen
from benchmarks.faults.judge import Judgement, judge
from benchmarks.faults.report import as_json, report
from benchmarks.faults.runner import run
from benchmarks.faults.scenario import Scenario
from benchmarks.figure import machine
from benchmarks.jobs.scripts.gpu_turn import waited_s


def main() -> None:
    """Run the scenarios that were asked for, one at a time, and report."""
    options = _options()
    if options.list:
        print("\n".join(each.name for each in SCENARIOS))
        return
    scenarios = chosen(options.only, options.gpu)
    judgements = []
    with _folder(options.keep) as folder:
        for repeat in range(options.repeats):
            for scenario in scenarios:
                judgement = examine(scenario, folder / f"{scenario.name}-{repeat}")
                print(_progress(judgement), flush=True)
                judgements.append(judgement)
    text = f"{machine()} · {options.repeats} repeats\n\n{report(judgements)}"
    print(f"\n{text}")
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.json:
        content = {"machine": machine(), **as_json(judgements)}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def examine(scenario: Scenario, folder: Path) -> Judgement:
    """Run it, right beside it without its fault where what-if is asked, and judge."""
    outcome = run(scenario, folder / "with")
    baseline = None
    if scenario.truth.what_if:
        baseline = run(scenario.without_fault(), folder / "without")
    waited = sum(waited_s(each.output) for each in (outcome, baseline) if each is not None)
    return replace(judge(scenario, outcome, baseline), waited_s=waited)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    parser.add_argument("--repeats", type=int, default=1, metavar="N", help="runs of each scenario")
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="WORD", help="scenarios with a word in their name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every judgement there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the report there")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the runs in this folder")
    parser.add_argument("--gpu", action="store_true", help="the scenarios that need a CUDA device")
    parser.add_argument("--list", action="store_true", help="print the scenarios' names")
    options = parser.parse_args()
    if not options.list and not chosen(options.only, options.gpu):
        parser.error(f"no scenario has {' or '.join(options.only)} in its name; see --list")
    if options.keep and options.keep.is_dir() and any(options.keep.iterdir()):
        parser.error(f"{options.keep} is not empty, and its runs are kept; name another folder")
    if options.gpu and not _cuda_is_there():
        parser.error("there is no CUDA device here; leave --gpu out")
    return options


def _cuda_is_there() -> bool:
    import torch

    return torch.cuda.is_available()


@contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="traceml-faults-") as folder:
        yield Path(folder)


def _progress(judgement: Judgement) -> str:
    mark = "right" if judgement.right else "WRONG"
    words = [judgement.scenario.name.ljust(40), mark, judgement.said, judgement.problem]
    return "  ".join(filter(None, words))


if __name__ == "__main__":
    main()
