"""What devices can do at most, as their makers state it: operations and bytes per second.

Dense figures, without sparsity; matrix units where the dtype has them, with 32-bit accumulation. A
device that is missing here is not guessed: add a line, or state it (`TRACEML_DEVICE_PEAKS`).
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

TERA = 1e12
STATED_BY = "TRACEML_DEVICE_PEAKS"
"""The variable by which people state what their device can do: `bf16=989,memory=3.35`."""


class UnknownPeaks(ValueError):
    """What people stated of their device cannot be read."""


class DevicePeak(NamedTuple):
    """The most that a device does per second; `None` is not known."""

    fp16: float | None = None
    """Operations in float16 …"""
    bf16: float | None = None
    """… and in bfloat16, which older devices have no matrix units for."""
    tf32: float | None = None
    """In float32 where matrix products may use TF32; where the device has none, as `fp32`."""
    fp32: float | None = None
    """In float32 proper."""
    fp64: float | None = None
    memory: float | None = None
    """Bytes to and from its memory."""

    def operations(self, dtype: str | None, has_tf32: bool) -> float | None:
        """The most for numbers of this type; `None` where it is not known."""
        if dtype == "float32" and has_tf32:
            return self.tf32
        by_dtype = {
            "float16": self.fp16,
            "bfloat16": self.bf16,
            "float32": self.fp32,
            "float64": self.fp64,
        }
        return by_dtype.get(dtype or "")


NO_PEAK = DevicePeak()


def _peak(half: float, tf32: float, fp32: float, memory: float) -> DevicePeak:
    """A device with matrix units for both kinds of half precision."""
    half *= TERA
    return DevicePeak(half, half, tf32 * TERA, fp32 * TERA, None, memory * TERA)


def _without_bf16(fp16: float, fp32: float, memory: float) -> DevicePeak:
    """One that has neither TF32 nor matrix units for bfloat16."""
    return _peak(fp16, fp32, fp32, memory)._replace(bf16=None)


_UNLIKE = re.compile(
    r"\bMIG\b|-\d+[ABCQ]\b"  # a part of a device, whose share of it the name does not tell
    r"|\bLaptop\b|\bMobile\b|\bRTX \d{4} D\b|\bA100-SXM-64GB\b"
)
"""Devices named like others that can do more or less."""

_PEAKS = (
    (r"\bGB[23]00\b", _peak(2500, 1250, 80, 8.0)),
    (r"\bB300\b", _peak(2250, 1125, 75, 8.0)),
    (r"\bB200\b", _peak(2250, 1125, 75, 8.0)),
    (r"\bB100\b", _peak(1750, 875, 60, 8.0)),
    (r"\bGH200 144G", _peak(989, 494, 67, 4.9)),
    (r"\bGH200\b", _peak(989, 494, 67, 4.0)),
    (r"\bH200 NVL\b", _peak(835, 417, 60, 4.8)),
    (r"\bH200\b", _peak(989, 494, 67, 4.8)),
    (r"\bH100 NVL\b", _peak(835, 417, 60, 3.9)),
    (r"\bH[18]00 PCIe\b", _peak(756, 378, 51, 2.0)),
    (r"\bH100\b|\bH800\b", _peak(989, 494, 67, 3.35)),
    (r"\bH20\b", _peak(148, 74, 44, 4.0)),
    (r"\bA[18]00-SXM.*80GB", _peak(312, 156, 19.5, 2.039)),
    (r"\bA[18]00 80GB", _peak(312, 156, 19.5, 1.935)),
    (r"\bA[18]00\b", _peak(312, 156, 19.5, 1.555)),
    (r"\bA30\b", _peak(165, 82, 10.3, 0.933)),
    (r"\bA40\b", _peak(149.7, 74.8, 37.4, 0.696)),
    (r"\bA10G\b", _peak(70, 35, 35, 0.6)),
    (r"\bA10\b", _peak(125, 62.5, 31.2, 0.6)),
    (r"\bRTX A6000\b", _peak(154.8, 77.4, 38.7, 0.768)),
    (r"\bRTX 6000 Ada\b", _peak(364.2, 182.1, 91.1, 0.96)),
    (r"\bRTX PRO 6000 Blackwell Workstation\b", _peak(503.8, 251.9, 126, 1.792)),
    (r"\bRTX PRO 6000 Blackwell Max-Q\b", _peak(438.9, 219.5, 109.7, 1.792)),
    (r"\bL40S\b", _peak(362, 183, 91.6, 0.864)),
    (r"\bL40\b", _peak(181, 90.5, 90.5, 0.864)),
    (r"\bL20\b", _peak(119.5, 59.8, 59.8, 0.864)),
    (r"\bL4\b", _peak(121, 60, 30.3, 0.3)),
    (r"\bV100S-PCIE\b", _without_bf16(130, 16.4, 1.134)),
    (r"\bV100-PCIE\b", _without_bf16(112, 14, 0.9)),
    (r"\bV100\b", _without_bf16(125, 15.7, 0.9)),
    (r"\bT4\b", _without_bf16(65, 8.1, 0.32)),
    (r"\bRTX 5090\b", _peak(209.5, 104.8, 104.8, 1.792)),
    (r"\bRTX 4090\b", _peak(165.2, 82.6, 82.6, 1.008)),
    (r"\bRTX 3090 Ti\b", _peak(80, 40, 40, 1.008)),
    (r"\bRTX 3090\b", _peak(71, 35.6, 35.6, 0.936)),
    # AMD's since MI350 have no TF32. Of an MI250, torch sees each of its two halves as a device.
    (r"\bMI355X\b", _peak(2516.6, 157.3, 157.3, 8.0)),
    (r"\bMI350X\b", _peak(2306.9, 144.2, 144.2, 8.0)),
    (r"\bMI325X\b", _peak(1307, 654, 163, 6.0)),
    (r"\bMI300X\b", _peak(1307, 654, 163, 5.3)),
    (r"\bMI250X\b", _peak(191.5, 47.9, 47.9, 1.6)),
    (r"\bMI250\b", _peak(181, 45.3, 45.3, 1.6)),
)


def device_peak(name: str | None) -> DevicePeak | None:
    """Returns what a device of this name can do; `None` where it is not known."""
    if not name or _UNLIKE.search(name):
        return None
    return next((peak for pattern, peak in _PEAKS if re.search(pattern, name)), None)


def stated_peak(text: str, known: DevicePeak) -> DevicePeak:
    """Returns what is known of a device with what people stated, in units of 10¹² per second:
    `bf16=989,tf32=494,fp32=67,memory=3.35`; raises UnknownPeaks where that cannot be read."""
    found = {}
    for part in text.split(","):
        name, _, value = (each.strip().lower() for each in part.partition("="))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in DevicePeak._fields or not 0 < number < math.inf:
            raise UnknownPeaks(
                f"{STATED_BY} holds {part.strip()[:40]!r}; expected any of "
                f"{', '.join(DevicePeak._fields)}, each in 10¹² operations or bytes per second, "
                "as in bf16=989,memory=3.35"
            )
        found[name] = number * TERA
    return known._replace(**found)
