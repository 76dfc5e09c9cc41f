"""Hosts on one machine: Linux namespaces with a network, a host name and mounts of their own.

    host-a  10.77.0.1  eth0 ---- eth0  10.77.0.2  host-b

A host shares the disk with all others. It is a process that holds the namespaces; commands enter
them. Everything is in a pid namespace of its own, so nothing outlives the program that asks for it.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

from clozeline.pipeline.common.errors import InputError

ISOLATED = ("unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child")
AS_ROOT = ("--user", "--map-root-user")  # for users who may make namespaces without being root
INSIDE = "CLOZELINE_INSIDE_NAMESPACES"
NAMES = ("host-a", "host-b")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
HOLD = """
import socket, subprocess, sys
name, hosts = sys.argv[1:]
socket.sethostname(name)
subprocess.run(["mount", "--bind", hosts, "/etc/hosts"], check=True)
print("up", flush=True)
sys.stdin.read()
"""


def unshare_command() -> list[str]:
    """The command that runs another in namespaces of its own. Raises InputError if it cannot."""
    for tool in ("unshare", "nsenter", "ip", "mount"):
        if shutil.which(tool) is None:
            raise InputError(f"there is no `{tool}`; install util-linux and iproute2 (Linux only).")
    reason = ""
    for rights in ((), AS_ROOT):
        command = [*ISOLATED, *rights, "--mount-proc"]
        done = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return command
        reason = reason or done.stderr.strip().splitlines()[-1]
    raise InputError(f"this user may not make network namespaces ({reason}); run it as root.")


def enter_namespaces(module: str, prepare: Callable[[], object] = lambda: None) -> None:
    """Begin a program again in namespaces of its own, unless it is there.

    `prepare` runs before, outside of them. Exits with 2 where that or namespaces are not possible.
    """
    if INSIDE in os.environ:
        return
    try:
        command = unshare_command()
        prepare()
    except InputError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    again = [sys.executable, "-m", module, *sys.argv[1:]]
    os.execvpe(command[0], [*command, *again], os.environ | {INSIDE: "1"})


class Host:
    """One of the hosts; it exists until `close`."""

    def __init__(self, name: str, hosts_file: Path) -> None:
        self.name = name
        command = ["unshare", "--net", "--uts", "--mount", sys.executable, "-c", HOLD]
        self._holder = subprocess.Popen(
            [*command, name, str(hosts_file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._holder.stdout
        assert self._holder.stdout.readline() == b"up\n"
        self.pid = self._holder.pid
        self._network = Path(f"/proc/{self.pid}/ns/net").readlink()

    def inside(self, *command: object) -> list[str]:
        """The command line that enters the host and runs a command there."""
        enter = ("nsenter", "--net", "--uts", "--mount", "-t", self.pid)
        return [str(word) for word in (*enter, *command)]

    def start(
        self, command: Sequence[object], *, log: Path, env: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start a command on the host; all that it prints goes to the end of a file."""
        with log.open("ab") as file:
            return subprocess.Popen(
                self.inside(*command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **env},
            )

    def run(self, *command: object) -> None:
        """Run a command on the host to its end; it must succeed."""
        subprocess.run(self.inside(*command), check=True)

    def set_link(self, state: str) -> None:
        """`down` pulls the cable, `up` puts it back."""
        self.run("ip", "link", "set", "eth0", state)

    def kill_everything(self) -> None:
        """SIGKILL to every process of the host, until there is none."""
        while pids := self._processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self.kill_everything()
        self._holder.communicate()

    def _processes(self) -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit() and int(folder.name) != self.pid:
                with suppress(OSError):  # ended meanwhile, or a zombie
                    if (folder / "ns" / "net").readlink() == self._network:
                        found.append(int(folder.name))
        return found


class TwoHosts:
    """Two hosts and the cable between them; a context manager. Only inside `unshare_command`."""

    def __init__(self, folder: Path) -> None:
        hosts_file = folder / "hosts"
        lines = [f"{ip} {name}\n" for ip, name in zip(ADDRESSES, NAMES, strict=True)]
        hosts_file.write_text("127.0.0.1 localhost\n" + "".join(lines))
        self.a, self.b = (Host(name, hosts_file) for name in NAMES)

    def __enter__(self) -> Self:
        ends = [["name", "eth0", "netns", str(host.pid)] for host in (self.a, self.b)]
        cable = ["ip", "link", "add", *ends[0], "type", "veth", "peer", *ends[1]]
        subprocess.run(cable, check=True)
        for host, address in zip((self.a, self.b), ADDRESSES, strict=True):
            host.run("ip", "addr", "add", f"{address}/24", "dev", "eth0")
            host.run("ip", "link", "set", "lo", "up")
            host.set_link("up")
        return self

    def __exit__(self, *_: object) -> None:
        self.a.close()
        self.b.close()
