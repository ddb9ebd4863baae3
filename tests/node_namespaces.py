"""Machines to train on, made of network namespaces: each with its own address, hostname, processes
and /dev/shm, on this one machine."""

from __future__ import annotations

import os
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

NAMES = "abcdefgh"
DELAYED_LINK = Path(__file__).parent / "delayed_link.py"


def why_not_possible() -> str | None:
    """Why this machine lets us make no namespaces; `None` where it does."""
    if not sys.platform.startswith("linux"):
        return "namespaces are Linux's"
    try:
        probe = f"traceml-probe-{os.getpid()}"
        _ip("netns", "add", probe)
        command = ["ip", "netns", "exec", probe, "unshare", "-m", "-u", "-i", "-p", "-f", "true"]
        subprocess.run(command, check=True, capture_output=True)
        _ip("netns", "del", probe)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    except subprocess.CalledProcessError as error:
        return f"namespaces are not allowed here: {error.stderr.decode().strip()}"
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machines:
    """Some machines on one network, with a switch between them."""

    def __init__(self, count: int, folder: Path, is_shared: bool = False) -> None:
        """`is_shared`: all machines see each other's folders."""
        self._folder = folder
        self._is_shared = is_shared
        self._names = [f"node-{NAMES[number]}" for number in range(count)]
        self._prefix = f"t{os.getpid()}-{secrets.token_hex(2)}"
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)
        hosts = [f"{self.address(n)} {name}" for n, name in enumerate(self._names)]
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "\n".join(hosts) + "\n")

    def __enter__(self) -> Machines:
        switch = f"{self._prefix}-switch"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number in range(len(self._names)):
            space, port = self._space(number), f"port{number}"
            _ip("netns", "add", space)
            _ip("-n", space, "link", "set", "lo", "up")
            _ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", port, "netns", switch)
            _ip("-n", space, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", switch, "link", "set", port, "master", "bridge")
            _ip("-n", switch, "link", "set", port, "up")
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for space in [self._space(n) for n in range(len(self._names))] + [f"{self._prefix}-switch"]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)

    def _space(self, number: int) -> str:
        return f"{self._prefix}-{self._names[number]}"

    @staticmethod
    def address(number: int) -> str:
        return f"10.77.0.{number + 1}"

    def cut(self, number: int) -> None:
        """Take a machine off the network."""
        _ip("-n", f"{self._prefix}-switch", "link", "set", f"port{number}", "down")

    def mend(self, number: int) -> None:
        """Put it back."""
        _ip("-n", f"{self._prefix}-switch", "link", "set", f"port{number}", "up")

    def delay(self, number: int, delay_ms: float) -> None:
        """Put a slow cable between a machine and the switch: each frame takes so long, each way."""
        switch, port, plug = f"{self._prefix}-switch", f"port{number}", f"plug{number}"
        _ip("-n", switch, "link", "set", port, "nomaster")
        _ip("-n", switch, "link", "add", plug, "type", "veth", "peer", f"socket{number}")
        _ip("-n", switch, "link", "set", f"socket{number}", "master", "bridge")
        for end in (plug, f"socket{number}"):
            _ip("-n", switch, "link", "set", end, "up")
        cable = [sys.executable, str(DELAYED_LINK), port, plug, str(delay_ms)]
        process = subprocess.Popen(
            ["ip", "netns", "exec", switch, *cable], stdout=subprocess.PIPE, bufsize=0
        )
        self._processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"passing\n"

    def run_inside(self, process: subprocess.Popen[bytes], command: str) -> None:
        """Run a shell command on the machine of a process, with what is mounted there."""
        inside = str(psutil.Process(process.pid).children()[0].pid)
        words = ["nsenter", "-m", "-t", inside, "sh", "-c", command]
        subprocess.run(words, check=True, capture_output=True)

    def start(
        self,
        number: int,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        before: str = "true",
    ) -> subprocess.Popen[bytes]:
        """Run a command on a machine, in a folder of its own; `before` is a shell command that
        prepares the machine."""
        own = self.folder(number)
        own.mkdir(exist_ok=True)
        hidden = [name for name in self._names if name != own.name and not self._is_shared]
        for name in hidden:
            (self._folder / name).mkdir(exist_ok=True)
        prepare = " && ".join(
            [
                f"hostname {self._names[number]}",
                "mount -t tmpfs -o size=256m tmpfs /dev/shm",
                f"mount --bind {self._folder / 'hosts'} /etc/hosts",
                *(f"mount -t tmpfs tmpfs {self._folder / name}" for name in hidden),
                before,
                f"cd {own}",
                f"exec {shlex.join(command)}",
            ]
        )
        outside = ["ip", "netns", "exec", self._space(number)]
        inside = ["unshare", "-m", "-u", "-i", "-p", "-f", "--mount-proc", "--kill-child=KILL"]
        with (own / "out.txt").open("wb") as out, (own / "err.txt").open("wb") as err:
            process = subprocess.Popen(
                [*outside, *inside, "sh", "-c", prepare],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "eth0", **(environment or {})},
            )
        self._processes.append(process)
        return process

    def call(self, number: int, command: Sequence[str], environment: Mapping[str, str]) -> str:
        """What a short command prints, on the network of a machine."""
        outside = ["ip", "netns", "exec", self._space(number)]
        done = subprocess.run(
            [*outside, *command],
            capture_output=True,
            env={**os.environ, **environment},
            timeout=120,
        )
        return done.stdout.decode() + done.stderr.decode()

    def folder(self, number: int) -> Path:
        """The folder in which a machine's commands run."""
        return self._folder / self._names[number]

    def said(self, number: int) -> str:
        """What the last command of a machine printed to stderr."""
        return (self.folder(number) / "err.txt").read_text(errors="replace")
