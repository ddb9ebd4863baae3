"""The phases a training step is divided into."""

from __future__ import annotations

from enum import Enum


class Phase(str, Enum):
    """A part of a step; the value is the key used in files."""

    INPUT = "input"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    RESIDUAL = "residual"


COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
