"""Listening sockets: either wildcard is every address of both families, and one family alone is enough."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from mooring import listensockets
from mooring.controlplane.controllersprocess import HealthServer
from mooring.listensockets import ListenError, bound_port, close_all, format_addresses, is_of_this_machine, listen
from tests.support.ports import free_port

BOTH = pytest.mark.skipif(not is_of_this_machine("::1"), reason="this machine has no IPv6")


def without(monkeypatch: pytest.MonkeyPatch, *families: socket.AddressFamily, number: int = errno.EAFNOSUPPORT) -> None:
    """Make the kernel one that does not have these families."""
    real = socket.socket

    def made(family: int = -1, *others: Any) -> socket.socket:
        if family in families:
            raise OSError(number, "")
        return real(family, *others)

    monkeypatch.setattr(socket, "socket", made)


@BOTH
@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", "0:0:0:0:0:0:0:0"])
@pytest.mark.parametrize("port", [0, 1], ids=["any port", "a given port"])
def test_a_wildcard_listens_in_both_families_on_one_port(wildcard: str, port: int) -> None:
    sockets = listen(wildcard, free_port() if port else 0)
    try:
        assert format_addresses(sockets) == f"0.0.0.0:{bound_port(sockets)} and [::]:{bound_port(sockets)}"
        for listening, client in zip(sockets, ("127.0.0.1", "::1"), strict=True):
            listening.setblocking(True)
            with socket.create_connection((client, bound_port(sockets))), listening.accept()[0] as accepted:
                assert accepted.getpeername()[0] == client, "and an IPv4 client is not an IPv4-mapped one"
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    finally:
        close_all(sockets)


@pytest.mark.parametrize("address", ["127.0.0.1", pytest.param("::1", marks=BOTH)])
def test_one_address_listens_alone(address: str) -> None:
    sockets = listen(address, 0)
    assert [listening.getsockname()[0] for listening in sockets] == [address]
    with pytest.raises(ListenError, match=r"(?i)in use"):
        listen(address, bound_port(sockets))
    close_all(sockets)


@BOTH
@pytest.mark.parametrize(
    ("taken", "where"), [("127.0.0.1", "0.0.0.0:{}"), ("::1", "[::]:{}"), ("0.0.0.0", "0.0.0.0:{}")]
)
def test_a_port_in_use_in_either_family_is_named_with_its_address(taken: str, where: str) -> None:
    port = free_port()
    others = listen(taken, port)
    try:
        with pytest.raises(ListenError) as caught:
            listen("0.0.0.0", port)
        assert (caught.value.errno, caught.value.where) == (errno.EADDRINUSE, where.format(port))
    finally:
        close_all(others)
    close_all(listen("::", port))  # and nothing was left open


@BOTH
def test_a_port_that_is_free_in_one_family_only_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = listen("::1", 0)
    chosen, real = [bound_port(taken), 0], listensockets._listening_socket

    def listening_socket(address: str, port: int) -> socket.socket:
        return real(address, port or chosen.pop(0))

    monkeypatch.setattr(listensockets, "_listening_socket", listening_socket)
    try:
        found = listen("::", 0)
        assert bound_port(found) != bound_port(taken)
        assert chosen == []
        close_all(found)
        monkeypatch.setattr(listensockets, "FREE_PORT_TRIES", 2)
        chosen += [bound_port(taken)] * 2
        with pytest.raises(ListenError, match=r"(?i)in use"):
            listen("::", 0)
    finally:
        close_all(taken)


@pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT])
@pytest.mark.parametrize(
    ("absent", "left"), [(socket.AF_INET6, "0.0.0.0"), pytest.param(socket.AF_INET, "[::]", marks=BOTH)]
)
def test_a_host_of_one_family_listens_in_that_one(
    absent: socket.AddressFamily, left: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, absent, number=number)
    for wildcard in ("0.0.0.0", "::"):
        sockets = listen(wildcard, 0)
        assert format_addresses(sockets) == f"{left}:{bound_port(sockets)}"
        close_all(sockets)


def test_a_host_without_any_family_and_an_address_that_is_not_there_are_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("203.0.113.9", "fe80::1%not-there"):
        with pytest.raises(ListenError) as caught:
            listen(address, 7)
        assert caught.value.errno == errno.EADDRNOTAVAIL
    without(monkeypatch, socket.AF_INET, socket.AF_INET6)
    with pytest.raises(ListenError, match="family not supported"):
        listen("0.0.0.0", 0)


def test_the_kernel_tells_which_addresses_are_of_this_machine() -> None:
    assert is_of_this_machine("127.0.0.1")
    assert is_of_this_machine("127.9.9.9")
    assert not is_of_this_machine("203.0.113.9")
    assert not is_of_this_machine("2001:db8:ffff::9")


@BOTH
@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::"])
def test_the_health_server_of_controllers_answers_in_both_families(wildcard: str) -> None:
    async def ask() -> list[bytes]:
        server = HealthServer({}, {}, lambda: b"")
        port = await server.start(wildcard, 0)
        found = []
        for address in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(address, port)
            writer.write(b"GET /livez HTTP/1.1\r\n\r\n")
            found.append((await reader.read()).partition(b"\r\n")[0])
            writer.close()
            await writer.wait_closed()
        await server.stop()
        return found

    assert asyncio.run(ask()) == [b"HTTP/1.1 200 OK"] * 2
