"""Whether torch is compiling the code that runs: then it must see nothing of us."""

from __future__ import annotations

import torch

is_compiling = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
"""Torch's own function under its older name where need be: the compiler knows it by identity."""
