"""Defaults on hosts of one and of both families of addresses: what is published answers, and a machine joins by the printed line.

Rules kept here: hosts are network namespaces (`tests.support.network`); their addresses are of fd00::/8 and TEST-NET-1.
"""

from __future__ import annotations

import shlex
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from mooring.client.files import read_limited
from mooring.client.sourceaddress import detected_addresses
from mooring.controlplane.addresses import published
from mooring.listensockets import is_of_this_machine
from mooring.settings.addresses import parse_endpoint
from tests.support import forkserver
from tests.support.network import ENTER, Network, missing, network
from tests.support.polling import eventually
from tests.support.ports import free_port

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())

FOUR, SIX = "192.0.2.1", "fd00:a::1"


def add_ipv6(net: Network) -> None:
    """Give both hosts an address of IPv6, and the server default routes of each family that it has."""
    for number, host in enumerate(("server", "client"), 1):
        net.configure(host, f"address add fd00:a::{number}/64 dev eth0 nodad")
    net.configure("server", "route add default via fd00:a::2")


def answers(net: Network, endpoint: str, ca: Path) -> str:
    """Return the status line that the client's host gets at an endpoint, verified by the CA."""
    one = parse_endpoint(endpoint, "x")

    def ask() -> str:
        context = ssl.create_default_context(cafile=ca)
        with (
            socket.create_connection((one.host, one.port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname=one.host) as wire,
        ):
            wire.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return wire.recv(100).partition(b"\r\n")[0].decode()

    return net.run("client", ask)


@pytest.mark.parametrize(
    ("addresses", "flags"),
    [
        pytest.param((SIX,), (), id="IPv6 only, defaults"),
        pytest.param((FOUR, SIX), ("--workers", "2"), id="both, defaults, workers"),
        pytest.param((FOUR, SIX), ("--bind-address", "::"), id="both, ::"),
    ],
)
def test_every_published_address_answers_and_a_machine_joins_by_the_printed_line(
    addresses: tuple[str, ...], flags: tuple[str, ...], tmp_path: Path
) -> None:
    forkserver.run(["-c", ""])  # the fork server stays outside
    data, log, port = tmp_path / "data", tmp_path / "log", str(free_port())
    with network(["server", "client"]) as net:
        add_ipv6(net)
        net.configure(
            "server", "route add default via 192.0.2.2" if FOUR in addresses else f"address del {FOUR}/24 dev eth0"
        )
        up = ("up", "--data-dir", str(data), "--secure-port", port, *flags)
        with log.open("wb") as output:
            server = forkserver.Process(("-c", ENTER, net.file("server"), *up), stdout=output, stderr=subprocess.STDOUT)
        try:
            eventually(lambda: "kubectl get nodes" in log.read_text() or server.poll() is not None)
            text = log.read_text()
            endpoints = tuple(f"[{one}]:{port}" if ":" in one else f"{one}:{port}" for one in addresses)
            assert published(data) == endpoints, text
            assert f"serving on 0.0.0.0:{port} and [::]:{port}" in text
            assert [answers(net, one, data / "pki/ca.crt") for one in endpoints] == ["HTTP/1.1 200 OK"] * len(endpoints)
            line = next(one for one in text.splitlines() if "mooring join" in one)
            words = shlex.split(line)[1:]
            assert words[1 : 1 + len(endpoints)] == list(endpoints)
            root = tmp_path / "machine"
            root.mkdir(0o700)
            joined = forkserver.run(
                ["-c", ENTER, net.file("client"), *words, "--root", str(root), "--node-name", "m"], timeout=60
            )
            assert joined.returncode == 0, joined.stderr
            assert endpoints[0].encode() in read_limited(root / "etc/kubernetes/kubelet.conf")
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def test_addresses_that_others_keep_are_detected_and_those_of_this_machine_are_known() -> None:
    """RFC 8981: a temporary address is for connections that a machine opens, and changes daily."""
    with network(["server", "client"]) as net:

        def detected() -> tuple[str, ...]:
            return net.run("server", detected_addresses)

        def is_local(address: str) -> bool:
            return net.run("server", lambda: is_of_this_machine(address))

        def switch_on(setting: str, value: str) -> None:
            net.run("server", lambda: Path("/proc/sys/net", setting).write_text(value))

        switch_on("ipv6/conf/eth0/use_tempaddr", "2")
        net.configure("server", "route add default via 192.0.2.2\nroute add default dev eth0 via fe80::1")
        assert detected() == (FOUR,), "a link-local address is for one link"
        net.configure("server", "address add fd00:a::1/64 dev eth0 nodad mngtmpaddr valid_lft 9000 preferred_lft 8000")
        eventually(lambda: len(net.run("server", Path("/proc/thread-self/net/if_inet6").read_text).split("fd00")) > 2)
        assert detected() == (FOUR, SIX)
        assert [is_local(one) for one in (FOUR, SIX, "127.0.0.2", "192.0.2.9", "fd00:a::9")] == [True] * 3 + [False] * 2
        for version in ("ipv4", "ipv6"):
            switch_on(f"{version}/ip_nonlocal_bind", "1")
        assert not any(map(is_local, (FOUR, SIX, "192.0.2.9"))), "the kernel binds every address, and does not tell"
