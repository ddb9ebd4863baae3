"""`python -m benchmarks [NAME …] [--json FILE]`: measures, and prints one table."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

from benchmarks.figure import machine, table

NAMES = (
    *("cost", "startup", "tail_latency", "fast_loop", "large_summary", "open_large_run"),
    *("calibration", "repeated_runs", "noise", "compare_speed", "dashboard", "source_size"),
    *("run_index", "run_list", "layer_summary", "many_nodes", "peer_cost"),
)


def main() -> None:
    """Run the benchmarks that were named, or all of them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(NAMES)}")
    figures, remarks = [], []
    for name in options.names or NAMES:
        print(f"{name} …", flush=True)
        module = import_module(f"benchmarks.{name}")
        found = module.run()
        print(table(found) + "\n", flush=True)
        figures += found
        if hasattr(module, "breakdown"):
            remarks.append(module.breakdown(found))
    print(f"{machine()}\n\n{table(figures)}")
    print("\n".join(remarks))
    if options.json:
        content = {"machine": machine(), "figures": [asdict(figure) for figure in figures]}
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
