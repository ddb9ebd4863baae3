"""Why is this PyTorch training job slow or unstable, and what changed between these runs?

Imports each public name on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from traceml.api.query_runs import runs
    from traceml.trace.ask_agent import final_summary, summary
    from traceml.trace.inference import time_inference
    from traceml.trace.init import init
    from traceml.trace.verbs import (
        log_artifact,
        log_metrics,
        log_params,
        log_samples,
        log_to,
        trace_model_instance,
        trace_step,
        trace_time,
    )
    from traceml.web.notebook import show

__all__ = [
    "__version__",
    "final_summary",
    "init",
    "log_artifact",
    "log_metrics",
    "log_params",
    "log_samples",
    "log_to",
    "runs",
    "show",
    "summary",
    "time_inference",
    "trace_model_instance",
    "trace_step",
    "trace_time",
]

_MODULES = {
    "final_summary": "traceml.trace.ask_agent",
    "init": "traceml.trace.init",
    "log_artifact": "traceml.trace.verbs",
    "log_metrics": "traceml.trace.verbs",
    "log_params": "traceml.trace.verbs",
    "log_samples": "traceml.trace.verbs",
    "log_to": "traceml.trace.verbs",
    "runs": "traceml.api.query_runs",
    "show": "traceml.web.notebook",
    "summary": "traceml.trace.ask_agent",
    "time_inference": "traceml.trace.inference",
    "trace_model_instance": "traceml.trace.verbs",
    "trace_step": "traceml.trace.verbs",
    "trace_time": "traceml.trace.verbs",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'traceml' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
