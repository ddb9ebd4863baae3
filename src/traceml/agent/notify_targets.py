"""Delivers notifications to webhooks and commands, each from a thread of its own that nobody waits
for.

What a target is called in messages never holds its secrets: of a URL the host alone, of a command
its program.
"""

from __future__ import annotations

import html
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from traceml.agent.web_address import has_scheme, opener, parse_web_address, post_request
from traceml.model.environment import NOTIFY
from traceml.model.errors import UsageError
from traceml.model.run import signal_name

WEBHOOK_TIMEOUT_S = 5.0
COMMAND_TIMEOUT_S = 10.0
END_TIMEOUT_S = 12.0
"""How long the end of a run waits for what is still being delivered."""
MAX_WAITING = 8
"""For each target; the oldest is dropped and counted."""
PAUSES_S = (1.0, 2.0)
"""Before another attempt, where the host refuses the connection or has an error of its own."""

_BEGIN_COMMAND = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, []); "
    "os.execv('/bin/sh', ['sh', '-c', sys.argv[1]])"
)
"""The agent has signals blocked, and what it starts would inherit that."""


@dataclass(frozen=True, slots=True)
class NotifyTarget:
    """A webhook or a command, as the user gave it."""

    given: str

    @property
    def is_webhook(self) -> bool:
        """Whether it is a URL."""
        return has_scheme(self.given)

    @property
    def is_slack(self) -> bool:
        """Whether it reads texts as Slack does, where `&`, `<` and `>` are marks."""
        if not self.is_webhook:
            return False
        parts = urlsplit(self.given)
        return parts.hostname == "hooks.slack.com" or parts.path.rstrip("/").endswith("/slack")

    @property
    def shown(self) -> str:
        """What it is called in messages and logs."""
        if self.is_webhook:
            parts = urlsplit(self.given)
            return f"{parts.scheme}://{parts.hostname}/…"
        try:
            program = shlex.split(self.given)[0]
        except (ValueError, IndexError):  # a shell's own syntax
            program = self.given.split()[0]
        return f"the command {Path(program).name}" if "=" not in program else "the command"


def parse_target(text: str) -> NotifyTarget:
    """Returns a webhook or a command; raises UsageError, without its secrets."""
    target = NotifyTarget(text.strip())
    if not target.given or "\n" in target.given:
        raise UsageError(
            "--notify got nothing, or several lines; expected a URL or a command: "
            "--notify https://hooks.example.com/… or --notify 'mail -s training me@example.com'"
        )
    if not target.is_webhook:
        return target
    if parse_web_address(target.given) is None:
        scheme = target.given.partition(":")[0]
        raise UsageError(
            f"--notify cannot send to this {scheme}:// address; expected http://HOST/… or "
            "https://HOST/…, or a command"
        )
    return target


def targets_in(environment: Mapping[str, str]) -> tuple[NotifyTarget, ...]:
    """Returns the targets that `TRACEML_NOTIFY` holds, one in each line; raises UsageError."""
    lines = environment.get(NOTIFY, "").splitlines()
    return tuple(dict.fromkeys(parse_target(line) for line in lines if line.strip()))


@dataclass(frozen=True, slots=True)
class _DeliveryAttempt:
    """How one attempt went."""

    trouble: str | None = None
    """Why it failed; `None`: delivered."""
    is_worth_another: bool = False


class Delivery:
    """The queue of one target, and the thread that empties it."""

    def __init__(self, target: NotifyTarget, working_folder: str) -> None:
        self.target = target
        self._working_folder = working_folder
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_busy = False
        self._is_given_up = False
        """Whether what is being delivered was already counted as failed."""
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self.delivered = 0
        self.failed = 0
        self.last_trouble: str | None = None

    def put(self, body: bytes, is_last: bool = False) -> None:
        """Queues a notification. Where the target is in trouble, the last one of a run replaces
        what waits: it says how everything ended."""
        body = _escaped(body) if self.target.is_slack else body
        with self._changed:
            replaces = is_last and self.last_trouble is not None
            while self._waiting and (replaces or len(self._waiting) >= MAX_WAITING):
                self._waiting.popleft()
                self.failed += 1
                self.last_trouble = self.last_trouble or "too many were waiting"
            self._waiting.append(body)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._deliver_all, name="traceml-notify", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def wait(self, until_s: float) -> None:
        """Returns when everything was delivered or failed, or at this time (monotonic): then what
        is still going on has failed."""
        with self._changed:
            while self._waiting or (self._is_busy and not self._is_given_up):
                if (left_s := until_s - time.monotonic()) <= 0:
                    self.failed += len(self._waiting) + self._is_busy
                    self._is_given_up = self._is_busy
                    self.last_trouble = "did not answer in time"
                    self._waiting.clear()
                    break
                self._changed.wait(left_s)
            process = self._process
        if process is not None:
            _kill(process)

    def report(self) -> str | None:
        """Returns what could not be delivered, in words; `None` where everything was."""
        if not self.failed:
            return None
        return (
            f"{self.failed} of {self.failed + self.delivered} notifications to "
            f"{self.target.shown} could not be delivered: {self.last_trouble}"
        )

    def _deliver_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    self._changed.wait()
                body, self._is_busy = self._waiting.popleft(), True
            trouble = self._deliver(body)
            with self._changed:
                self._is_busy = False
                if not self._is_given_up:
                    self.delivered += trouble is None
                    self.failed += trouble is not None
                    self.last_trouble = trouble or self.last_trouble
                self._is_given_up = False
                self._changed.notify_all()

    def _deliver(self, body: bytes) -> str | None:
        """Returns why a notification could not be delivered; `None` where it was."""
        attempt = self._attempt(body)
        for pause_s in PAUSES_S:
            if not attempt.is_worth_another:
                break
            time.sleep(pause_s)
            attempt = self._attempt(body)
        return attempt.trouble

    def _attempt(self, body: bytes) -> _DeliveryAttempt:
        if self.target.is_webhook:
            return _post(self.target.given, body)
        return self._run(body)

    def _run(self, body: bytes) -> _DeliveryAttempt:
        environment = {name: value for name, value in os.environ.items() if name != NOTIFY}
        words = [sys.executable, "-I", "-S", "-c", _BEGIN_COMMAND, self.target.given]
        folder = self._working_folder if Path(self._working_folder).is_dir() else "/"
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        except OSError as error:
            return _DeliveryAttempt(f"could not be started ({error.strerror})")
        with self._changed:
            self._process = process
        try:
            process.communicate(body, COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            return _DeliveryAttempt(f"did not end within {COMMAND_TIMEOUT_S:.0f} s")
        finally:
            with self._changed:
                self._process = None
        status = process.returncode
        return _DeliveryAttempt(None if status == 0 else _ended_words(status))


def _ended_words(status: int) -> str:
    """Returns how a command failed, by the status that the shell gave it."""
    if status < 0:
        return f"was killed by {signal_name(-status)}"
    hint = {126: " (it cannot be executed)", 127: " (the shell found no such command)"}
    return f"ended with status {status}{hint.get(status, '')}"


def _escaped(body: bytes) -> bytes:
    """Returns a notification with its text as Slack wants it: in an exception `<lambda>` would be a
    link, and `<!channel>` would call everybody."""
    said = json.loads(body)
    return json.dumps({**said, "text": html.escape(said["text"], quote=False)}).encode()


def _post(url: str, body: bytes) -> _DeliveryAttempt:
    """Sends one POST; what an error says never holds the URL."""
    try:
        with opener().open(post_request(url, body), timeout=WEBHOOK_TIMEOUT_S):
            return _DeliveryAttempt()
    except urllib.error.HTTPError as error:
        error.close()
        is_theirs = error.code >= 500 or error.code == 429
        return _DeliveryAttempt(f"answered with status {error.code}", is_theirs)
    except TimeoutError:
        return _DeliveryAttempt(f"did not answer within {WEBHOOK_TIMEOUT_S:.0f} s")
    except (OSError, http.client.HTTPException, ValueError) as error:
        cause = getattr(error, "reason", error)
        if isinstance(cause, TimeoutError):
            return _DeliveryAttempt(f"did not answer within {WEBHOOK_TIMEOUT_S:.0f} s")
        words = cause.strerror if isinstance(cause, OSError) else None
        return _DeliveryAttempt(words or type(cause).__name__, isinstance(cause, OSError))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kills a command that goes on, and what it started: of one that has ended the number may be
    somebody else's by now."""
    if process.poll() is not None:
        return
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
