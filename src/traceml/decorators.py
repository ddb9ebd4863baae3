"""The verbs under the path that older scripts import them from."""

from __future__ import annotations

import warnings
from typing import Any

from traceml.trace.verbs import trace_model_instance, trace_step, trace_time

__all__ = ["trace_model_instance", "trace_step", "trace_time", "trace_timestep"]


def trace_timestep(*arguments: Any, **options: Any) -> trace_time:
    """Deprecated: the name of `trace_time` in older scripts."""
    warnings.warn("trace_timestep is deprecated; use trace_time", DeprecationWarning, stacklevel=2)
    return trace_time(*arguments, **options)
