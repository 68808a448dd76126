"""Hosts of a test in network namespaces of their own, joined by a bridge, whose links can be cut.

Rules kept here: addresses are of TEST-NET-1 (RFC 5737) and exist inside the namespaces only, so that no packet leaves them. A
thread enters the namespace of a host for good: what it opens and starts afterwards is inside. Namespaces need root; a test without
it is skipped with the reason (`missing`).
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
CLONE_NEWNET = 0x40000000
NETWORK = "192.0.2"
ENTER = """
import ctypes, os, sys
namespace = os.open(sys.argv.pop(1), os.O_RDONLY)
if ctypes.CDLL(None, use_errno=True).setns(namespace, 0x40000000):
    raise OSError(ctypes.get_errno(), "setns")
os.close(namespace)
from mooring.cli.main import main
main()
"""
"""`mooring` inside the network namespace whose file is the first argument."""

_numbers = itertools.count(1)


@cache
def missing() -> str:
    """Return why namespaces cannot be made here; "" when they can."""
    if os.geteuid() or shutil.which("ip") is None:
        return "needs root and ip, to make network namespaces"
    try:
        with network(["probe"]):
            return ""
    except subprocess.CalledProcessError as error:
        return f"needs network namespaces: {error.stderr.strip()}"


class Network:
    """Namespaces by the name of their host."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._prefix = f"mooring-{os.getpid()}-{next(_numbers)}"
        self._hub = f"{self._prefix}-hub"
        self._addresses = {host: f"{NETWORK}.{number}" for number, host in enumerate(hosts, 1)}

    def address(self, host: str) -> str:
        return self._addresses[host]

    def file(self, host: str) -> str:
        """Return the file that stands for the namespace."""
        return f"/run/netns/{self._name(host)}"

    def command(self, host: str, *command: str) -> list[str]:
        """Return `command`, run inside the namespace under the same process number."""
        return ["nsenter", f"--net={self.file(host)}", *command]

    def configure(self, host: str, commands: str) -> None:
        """Run commands of `ip` inside a namespace, one a line."""
        _ip(commands, self._name(host))

    def isolate(self, host: str) -> None:
        """Take the link of a host down: packets from and to it are lost."""
        _ip(f"link set {host} down", self._hub)

    def connect(self, host: str) -> None:
        """Take the link of a host up."""
        _ip(f"link set {host} up", self._hub)

    def cut(self, one: str, other: str) -> None:
        """Lose packets between two hosts, in both directions; each still reaches all others."""
        for host, peer in ((one, other), (other, one)):
            _ip(f"route add blackhole {self.address(peer)}/32", self._name(host))

    def mend(self, one: str, other: str) -> None:
        """Undo `cut`."""
        for host, peer in ((one, other), (other, one)):
            _ip(f"route del blackhole {self.address(peer)}/32", self._name(host))

    def run(self, host: str, work: Callable[[], T]) -> T:
        """Run `work` in a thread inside the namespace, and return or raise what it does."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def inside() -> None:
            try:
                _enter(self.file(host))
                outcome.append(work())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=inside, name=host)
        thread.start()
        thread.join()
        if failure:
            raise failure[0]
        return outcome[0]

    def make(self) -> None:
        """Make all namespaces and their links."""
        _ip("\n".join(f"netns add {name}" for name in (self._hub, *map(self._name, self._addresses))))
        links = ["link add bridge0 type bridge", "link set bridge0 up"]
        for host in self._addresses:
            links += [
                f"link add {host} type veth peer name eth0 netns {self._name(host)}",
                f"link set {host} master bridge0",
                f"link set {host} up",
            ]
        _ip("\n".join(links), self._hub)
        for host, address in self._addresses.items():
            _ip(f"link set lo up\naddress add {address}/24 dev eth0\nlink set eth0 up", self._name(host))

    def remove(self) -> None:
        """Delete the namespaces. Processes inside must have ended."""
        for name in (*map(self._name, self._addresses), self._hub):
            if Path(f"/run/netns/{name}").exists():
                _ip(f"netns delete {name}")

    def _name(self, host: str) -> str:
        return f"{self._prefix}-{host}"


@contextmanager
def network(hosts: Sequence[str]) -> Iterator[Network]:
    """Make a network until the block ends. Names of hosts have at most 15 characters."""
    made = Network(hosts)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def _ip(commands: str, namespace: str = "") -> None:
    inside = ["-n", namespace] if namespace else []
    subprocess.run(["ip", *inside, "-batch", "-"], input=commands, text=True, check=True, capture_output=True)


def _enter(file: str) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    finally:
        os.close(descriptor)
