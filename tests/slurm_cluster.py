"""A real Slurm cluster to run jobs on: two compute nodes and the controller, each in namespaces of
its own on this one machine. Debian's packages slurmctld, slurmd, slurm-client and munge bring it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType

import node_namespaces
from node_namespaces import Machines
from processes import wait_until

_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel")
_CONTROLLER = 2

_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost={controller}({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=120
MessageTimeout=100
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not_possible() -> str | None:
    """Why no cluster can be made here; `None` where one can."""
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)"
    if os.geteuid() != 0:
        return "slurmd needs root"
    return node_namespaces.why_not_possible()


class SlurmCluster:
    """Nodes node-a and node-b, which share all folders; jobs are submitted from the controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._machines = Machines(3, folder / "machines", is_shared=True)
        self._munged: subprocess.Popen[bytes] | None = None
        self._configuration = folder / "slurm.conf"

    def __enter__(self) -> SlurmCluster:
        (self.folder / "state").mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        self._write_configuration()
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={self.folder}/munge.{name}" for option, name in files.items()]
        command = ["munged", "--foreground", "--force", f"--key-file={key}", *options]
        self._munged = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        wait_until((self.folder / "munge.socket").exists, "munged listens")
        self._machines.__enter__()
        conf = str(self._configuration)
        self._machines.start(_CONTROLLER, ["slurmctld", "-D", "-f", conf])
        for number in range(2):
            (self.folder / f"spool-node-{'ab'[number]}").mkdir()
            daemon = ["slurmd", "-D", "-N", f"node-{'ab'[number]}", "-f", conf]
            self._machines.start(number, daemon, before=_MOUNT_CGROUP)
        wait_until(
            lambda: self.call("sinfo", "-h", "-o", "%T %D").split() == ["idle", "2"],
            "both nodes are idle",
        )
        return self

    def _write_configuration(self) -> None:
        nodes = [
            f"NodeName=node-{'ab'[n]} NodeAddr={self._machines.address(n)} CPUs=4 State=UNKNOWN"
            for n in range(2)
        ]
        self._configuration.write_text(
            _CONFIGURATION.format(
                controller="node-c",
                address=self._machines.address(_CONTROLLER),
                folder=self.folder,
                nodes="\n".join(nodes),
            )
        )
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._machines.__exit__(kind, error, traceback)
        if self._munged is not None:
            self._munged.kill()
            self._munged.wait()

    def call(self, *command: str) -> str:
        """What a command of Slurm's prints, such as `sbatch` or `squeue`."""
        return self._machines.call(_CONTROLLER, command, {"SLURM_CONF": str(self._configuration)})

    def submit(self, *words: str) -> str:
        """Submit a job that runs in this folder; returns its number."""
        place = [f"--chdir={self.folder}", f"--output={self.folder}/%j.out"]
        said = self.call("sbatch", "--parsable", *place, *words)
        assert said.strip().isdigit(), said
        return said.strip()

    def said(self, job: str) -> str:
        """What a job has printed so far."""
        return (self.folder / f"{job}.out").read_text(errors="replace")

    def wait_for_end(self, job: str) -> dict[str, str]:
        """Wait until a job is over; what Slurm says about it, by the names of `scontrol`."""

        def ended() -> dict[str, str] | None:
            words = self.call("scontrol", "show", "job", "--oneliner", job).split()
            found = dict(word.partition("=")[::2] for word in words)
            state = found.get("JobState")  # none where the controller does not answer
            is_over = state not in (None, "PENDING", "RUNNING", "COMPLETING")
            return found if is_over else None

        return wait_until(ended, f"job {job} is over")


_MOUNT_CGROUP = (
    "mount -t tmpfs cgroup /sys/fs/cgroup && mkdir /sys/fs/cgroup/freezer && "
    "mount -t cgroup -o freezer cgroup /sys/fs/cgroup/freezer"
)
