"""What changed between two images, and a picture of it: A, B, and their difference."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from traceml.compare.artifact_details import ImageChange

GAP_PIXELS = 8
MIN_VISIBLE = 64
"""The brightness that the largest difference has at least in the picture, of 255."""

Pixels = npt.NDArray[np.uint8]
"""Rows, columns, and red, green and blue."""


def compare_images(a: Pixels, b: Pixels) -> ImageChange:
    """Returns how many pixels differ, and by how much; `None` where the sizes differ."""
    lhs_size, rhs_size = (a.shape[1], a.shape[0]), (b.shape[1], b.shape[0])
    if lhs_size != rhs_size or not a.size:
        return ImageChange(lhs_size, rhs_size)
    difference = _difference(a, b)
    return ImageChange(
        lhs_size,
        rhs_size,
        changed_share=float((difference.max(axis=2) > 0).mean()),
        mean_difference=float(difference.mean() / 255),
        max_difference=float(difference.max() / 255),
    )


def side_by_side(a: Pixels, b: Pixels) -> Pixels:
    """Returns A, B and, where they have one size, their difference beside each other.

    A faint difference is made brighter: all of it by the same factor.
    """
    panels = [a, b]
    if a.shape == b.shape:
        difference = _difference(a, b).astype(np.float64)
        largest = difference.max(initial=0.0)
        factor = MIN_VISIBLE / largest if 0 < largest < MIN_VISIBLE else 1.0
        panels.append((difference * factor).astype(np.uint8))
    height = max(panel.shape[0] for panel in panels)
    width = sum(panel.shape[1] for panel in panels) + GAP_PIXELS * (len(panels) - 1)
    picture = np.full((height, width, 3), 255, np.uint8)
    left = 0
    for panel in panels:
        picture[: panel.shape[0], left : left + panel.shape[1]] = panel
        left += panel.shape[1] + GAP_PIXELS
    return picture


def _difference(a: Pixels, b: Pixels) -> Pixels:
    return np.where(a > b, a - b, b - a)
