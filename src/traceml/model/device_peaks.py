"""What devices can do at most, as their makers state it: operations and bytes per second.

Dense figures, without sparsity; matrix units where the dtype has them, with 32-bit accumulation. A
device that is missing here is not guessed: add a line.
"""

from __future__ import annotations

import re
from typing import NamedTuple

TERA = 1e12


class DevicePeak(NamedTuple):
    """The most that a device does per second."""

    half: float
    """Operations in bfloat16 or float16."""
    tf32: float
    """In float32 where matrix products may use TF32; where the device has none, as `single`."""
    single: float
    """In float32 proper."""
    memory: float
    """Bytes to and from its memory."""

    def operations(self, dtype: str | None, has_tf32: bool) -> float | None:
        """The most for numbers of this type; `None` where it is not known."""
        if dtype in ("bfloat16", "float16"):
            return self.half
        if dtype == "float32":
            return self.tf32 if has_tf32 else self.single
        return None


def _peak(half: float, tf32: float, single: float, memory: float) -> DevicePeak:
    return DevicePeak(half * TERA, tf32 * TERA, single * TERA, memory * TERA)


_PEAKS = (
    (r"\bB200\b", _peak(2250, 1125, 75, 8.0)),
    (r"\bB100\b", _peak(1750, 875, 60, 8.0)),
    (r"\bGH200\b|\bH200\b", _peak(989, 494, 67, 4.8)),
    (r"\bH100 NVL\b", _peak(835, 417, 60, 3.9)),
    (r"\bH100 PCIe\b", _peak(756, 378, 51, 2.0)),
    (r"\bH100\b|\bH800\b", _peak(989, 494, 67, 3.35)),
    (r"\bH20\b", _peak(148, 74, 44, 4.0)),
    (r"\bA100.*80GB|\bA800.*80GB", _peak(312, 156, 19.5, 2.0)),
    (r"\bA100\b|\bA800\b", _peak(312, 156, 19.5, 1.555)),
    (r"\bA30\b", _peak(165, 82, 10.3, 0.933)),
    (r"\bA40\b", _peak(149.7, 74.8, 37.4, 0.696)),
    (r"\bA10\b", _peak(125, 62.5, 31.2, 0.6)),
    (r"\bL40S\b", _peak(362, 183, 91.6, 0.864)),
    (r"\bL40\b", _peak(181, 90.5, 90.5, 0.864)),
    (r"\bL4\b", _peak(121, 60, 30.3, 0.3)),
    (r"\bV100\b", _peak(125, 15.7, 15.7, 0.9)),
    (r"\bT4\b", _peak(65, 8.1, 8.1, 0.32)),
    (r"\bRTX 5090\b", _peak(209.5, 104.8, 104.8, 1.792)),
    (r"\bRTX 4090\b", _peak(165.2, 82.6, 82.6, 1.008)),
    (r"\bRTX 3090\b", _peak(71, 35.6, 35.6, 0.936)),
    (r"\bMI300X\b", _peak(1307, 654, 163, 5.3)),
    (r"\bMI250X?\b", _peak(383, 95.7, 47.9, 3.2)),
)


def device_peak(name: str | None) -> DevicePeak | None:
    """Returns what a device of this name can do; `None` where it is not known."""
    for pattern, peak in _PEAKS if name else ():
        if re.search(pattern, name or ""):
            return peak
    return None
