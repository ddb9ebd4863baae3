"""Saying which interpreter trains leaves the GPU alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

SCRIPT = """\
import sys
from pathlib import Path
import torch
from traceml.trace.interpreter import introduce
introduce(Path(sys.argv[1]), "trainer.json")
print(torch.cuda.is_initialized())
"""


def test_cuda_is_not_initialised_by_it(tmp_path: Path) -> None:
    """A script may fork after importing torch, and CUDA does not survive that."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
    assert (tmp_path / "marks" / "trainer.json").is_file()
