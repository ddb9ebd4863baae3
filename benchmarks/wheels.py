"""Installs from a folder of wheels what this Python lacks: for machines without a network."""

from __future__ import annotations

import argparse
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def main() -> None:
    """Unpack the missing ones into a folder of their own, to be put on PYTHONPATH."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wheels", description=__doc__)
    parser.add_argument("wheels", type=Path, help="the folder that `make wheels` filled")
    parser.add_argument("target", type=Path, help="where to install")
    options = parser.parse_args()
    missing = [str(wheel) for wheel in sorted(options.wheels.glob("*.whl")) if is_missing(wheel)]
    if missing:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
        subprocess.run(
            [*install, "--upgrade", "--target", str(options.target), *missing], check=True
        )


def is_missing(wheel: Path) -> bool:
    """Whether no version of a wheel's package is installed."""
    try:
        version(wheel.name.partition("-")[0])
    except PackageNotFoundError:
        return True
    return False


if __name__ == "__main__":
    main()
