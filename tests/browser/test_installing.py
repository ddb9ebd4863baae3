"""What is said where there is no browser, and none can be installed."""

from __future__ import annotations

import shutil
from pathlib import Path

from processes import run

INSTALL = Path(__file__).parents[2] / ".ci" / "browser"


def test_without_a_browser_one_line_says_that_its_tests_are_skipped_and_why(tmp_path: Path):
    bash = shutil.which("bash")
    assert bash is not None
    done = run([bash, INSTALL], tmp_path, env={"PATH": str(tmp_path)})
    assert done.status == 0, "the other tests run all the same"
    (line,) = done.stderr.splitlines()
    assert line.startswith("browser tests are skipped: there is no chromium, and no apt-get")
