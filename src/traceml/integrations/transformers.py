"""The callback of `traceml.integrations.huggingface`, under the name of its library."""

from traceml.integrations.huggingface import TraceMLCallback

__all__ = ["TraceMLCallback"]
