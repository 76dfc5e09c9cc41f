"""A Slurm cluster of two hosts, each with its node daemon; the controller is on the first.

    host-a  slurmctld, slurmd ---- slurmd  host-b        (`network_hosts.py`)

Each node claims the eight GPUs and 64 cores for which `deploy/slurm.sh` asks, so that the script
runs as it is; nobody has to have them. `urgent` is a partition whose jobs preempt others.
"""

import os
import shutil
import subprocess
from pathlib import Path

from clozeline.pipeline.common.errors import InputError
from tests.faults.network_hosts import Host, TwoHosts
from tests.support.small_jobs import ROOT
from tests.support.waiting import wait_until

#: By program: the package of Debian that has it.
PACKAGES = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
}
SECONDS = 180.0  # for anything that Slurm does by itself
#: A lost node is noticed after SlurmdTimeout, and a requeued job starts once its credential has
#: expired: after 300 and 120 seconds by default.
CONFIG = """\
ClusterName=clozeline
SlurmctldHost=host-a
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={sockets}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={sockets}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
ReturnToService=1
SlurmdTimeout=10
KillWait=30
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=3600
SchedulerParameters=sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=host-a,host-b CPUs=64 RealMemory=16000 Gres=gpu:8
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 State=UP
"""


def check_programs() -> None:
    """Raise InputError if one is missing, or for a user who is not root."""
    for program, package in PACKAGES.items():
        if shutil.which(program) is None:
            raise InputError(f"there is no `{program}`; install the package {package}.")
    if os.geteuid() != 0:
        raise InputError("only root can start Slurm's daemons; run it as root.")


class SlurmCluster:
    """A cluster with both nodes idle, while the hosts exist.

    The path of a socket has at most 107 characters, so there is another folder with a short name.
    """

    def __init__(self, hosts: TwoHosts, folder: Path, sockets: Path) -> None:
        self.hosts, self.folder = hosts, folder
        (folder / "slurm.conf").write_text(CONFIG.format(folder=folder, sockets=sockets))
        (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
        for number in range(8):
            (folder / f"gpu{number}").touch()
        for path in (folder / "state", sockets / "spool-host-a", sockets / "spool-host-b"):
            path.mkdir()
        self._env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self._start_munge(sockets / "munge")
        self._daemon(hosts.a, "slurmctld", "-D", "-i")
        for host in (hosts.a, hosts.b):
            self.start_node(host)
        wait_until(self._is_idle, "idle nodes", seconds=SECONDS)

    def _start_munge(self, folder: Path) -> None:
        """Munge refuses folders that others could write to or cannot enter."""
        folder.parent.chmod(0o755)
        folder.mkdir(mode=0o755)
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o400)
        files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        # On one of the hosts, so that it ends with them; all others reach it by its socket.
        command = ["munged", "--foreground", f"--key-file={folder / 'key'}", *options]
        self.hosts.a.start(command, log=self.folder / "munged.log", env={})
        wait_until((folder / "socket").exists, "munge", seconds=SECONDS)

    def start_node(self, host: Host) -> None:
        """Start the host's node daemon, as the machine's start would."""
        self._daemon(host, "slurmd", "-D")

    def _daemon(self, host: Host, *command: str) -> None:
        host.start(command, log=self.folder / f"{command[0]}-{host.name}.log", env=self._env)

    def run(self, *command: object) -> subprocess.CompletedProcess[str]:
        """A command of Slurm on the first host, to its end; the caller checks the exit code."""
        line = self.hosts.a.inside(f"--wd={ROOT}", *command)
        env = {**os.environ, **self._env}
        return subprocess.run(line, env=env, capture_output=True, text=True, check=False)

    def ask(self, *command: object) -> str:
        """The output of a command that must succeed."""
        done = self.run(*command)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def submit(self, *command: object) -> str:
        """Submit a job with sbatch; its id."""
        return self.ask("sbatch", "--parsable", *command).strip()

    def _is_idle(self) -> bool:
        """Whether both nodes are; not as long as the controller does not answer."""
        states = self.run("sinfo", "-hN", "-p", "all", "-o", "%t").stdout.split()
        return states == ["idle", "idle"]
