"""The one tree of exceptions that a surface prints as a message instead of a traceback."""

from __future__ import annotations


class TraceMLError(Exception):
    """Something a user can act on; the message says what was found, expected, and what to do."""


class UsageError(TraceMLError):
    """The command line or an argument cannot be carried out as asked."""


class RunNotFound(TraceMLError):
    """A path or name that leads to no run."""


class UnreadableRecords(TraceMLError):
    """A ring or record file that is not ours, is damaged, or is of a newer format."""


class UnreadableSummary(TraceMLError):
    """A file that was passed as a run summary and is none."""


class UnreadableArtifact(TraceMLError):
    """A logged file cannot be read as what it is; the text says why, without the file's name."""
