"""The pseudo-terminal that the command has while the user's terminal shows the live view.

It is the command's input, output, error and controlling terminal, with the user's settings. Its
output is written to a file, which the view reads; when the view ends it goes to the user's terminal
again.
"""

from __future__ import annotations

import os
import signal
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event, Lock, Thread

from traceml.launch.display_mode import in_foreground
from traceml.launch.kept_output import LAST_OUTPUT_S, KeptOutput
from traceml.store.descriptors import wait_until_readable
from traceml.store.line_files import write_whole

_INPUT_MODES, _OUTPUT_MODES, _LOCAL_MODES, _CHARACTERS = 0, 1, 3, 6
_KEYBOARD = 0
LOOK_S = 0.2
"""How often to check whether the keyboard is ours again after Ctrl-Z."""


class HiddenTerminal(KeptOutput):
    """Copies the command's terminal output only into a file, until `show` is called."""

    def __init__(self, folder: Path, when_lost: Callable[[], None]) -> None:
        """`when_lost` is called when the file cannot be written any more, because the view shows
        nothing then."""
        self._when_lost = when_lost
        self._is_shown = Event()
        self._has_reader = True
        super().__init__(folder)
        super().resize()
        self.stdin = self.stdout
        self._held = os.dup(self.stdout)  # a command that closes all of its own may open them again
        (source, _), *_ = self._sources
        self._key = os.dup(source)  # open until we end, whoever closes the other side
        self.keys = (self._key,)
        self._types = Lock()
        self._is_typing = False
        self._user_modes = termios.tcgetattr(_KEYBOARD)
        modes = list(self._user_modes)
        modes[_OUTPUT_MODES] &= ~termios.OPOST
        termios.tcsetattr(self.stdout, termios.TCSANOW, modes)

    def resize(self) -> None:
        """Sets the size of the user's terminal, once that shows the output; before, the view sets
        the size."""
        if self._is_shown.is_set():
            super().resize()

    def _show(self, content: bytes, destination: int) -> bool:
        if self._waits_for_screen():
            self._when_lost()
            self._is_shown.wait()
        if self._is_shown.is_set() and self._has_reader:
            try:
                write_whole(destination, content)
            except OSError:  # hung up: the command has had its SIGHUP, and what it says is kept
                self._has_reader = False
        return True

    def _waits_for_screen(self) -> bool:
        return self._file is None and not self._is_shown.is_set()

    def finish(self, is_unwanted: Callable[[], bool]) -> None:
        """Reads the remaining output; what cannot be written to the file waits until the view has
        ended."""
        os.close(self._held)
        super().finish(lambda: self._waits_for_screen() or is_unwanted())

    def let_out(self) -> None:
        """Prints what could not be written to the file; called once the view has ended."""
        self._is_shown.set()
        for thread in self._threads:
            thread.join(2 * LAST_OUTPUT_S)

    def show(self) -> None:
        """Copies output to the user's terminal from now on, and its keys to the command."""
        self._is_shown.set()
        self.resize()
        self._is_typing = True
        Thread(target=self._type, daemon=True).start()

    def _type(self) -> None:
        """Forwards keys as they are pressed; echoing them is up to the command."""
        # A keyboard that is another's meanwhile (Ctrl-Z, bg) is an error then, and stops nobody.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTTIN, signal.SIGTTOU))
        while self._is_typing and os.isatty(_KEYBOARD):
            with suppress(OSError, termios.error):
                if not self._take_keyboard():
                    time.sleep(LOOK_S)
                elif wait_until_readable([_KEYBOARD], LOOK_S) and in_foreground():
                    write_whole(self._key, os.read(_KEYBOARD, 1 << 10))

    def _take_keyboard(self) -> bool:
        """Switches the user's terminal to single keys without echo; Ctrl-C and Ctrl-Z still send
        signals."""
        with self._types:
            if not self._is_typing or not in_foreground():
                return False
            modes = termios.tcgetattr(_KEYBOARD)
            if modes[_LOCAL_MODES] & termios.ICANON:
                modes[_INPUT_MODES] &= ~(termios.ICRNL | termios.INLCR | termios.IGNCR)
                modes[_LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO | termios.IEXTEN)
                modes[_CHARACTERS][termios.VMIN], modes[_CHARACTERS][termios.VTIME] = 1, 0
                termios.tcsetattr(_KEYBOARD, termios.TCSANOW, modes)
            return True

    def give_keyboard_back(self) -> None:
        """Restores the user's keyboard settings."""
        with self._types, suppress(termios.error):
            if self._is_typing and in_foreground():
                termios.tcsetattr(_KEYBOARD, termios.TCSANOW, self._user_modes)
            self._is_typing = False
