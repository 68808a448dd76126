"""Probes of the network: names, connections and TLS handshakes, each of which says how far it came.

Rules kept here: nothing secret is sent, and nothing that a server says is believed. Each probe ends within its deadline.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mooring.client.files import read_limited
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import names
from mooring.pki.x509.certificate import Certificate
from mooring.trust.doctor import CONNECTED, NO_ROUTE, REFUSED, SILENT, SeenCertificate, TcpAttempt

HOSTS = Path("/etc/hosts")
MAX_HOSTS = 1 << 20
"""Bytes of /etc/hosts: lists that block advertisements have some 100 kB."""
MAX_ADDRESSES = 64
"""Addresses of one name that are tried, at the same time: more than a control plane has servers."""
PIECE = 1 << 14
"""Bytes of one read: a TLS record."""
MAX_HEAD = 1 << 14
"""Bytes of a proxy's response to CONNECT."""
_NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
_NO_NAME = tuple(getattr(socket, one) for one in ("EAI_NONAME", "EAI_NODATA") if hasattr(socket, one))
NAME_CODES = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH of OpenSSL."""
TIME_CODES = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and X509_V_ERR_CERT_HAS_EXPIRED of OpenSSL."""

Addresses = tuple[tuple[int, str], ...]
"""Version and address, in the order in which the system tries them."""


class UnresolvedError(Exception):
    """A name has no address. `is_final`: the resolver says that there is no such name."""

    def __init__(self, reason: str, *, is_final: bool) -> None:
        super().__init__(reason)
        self.is_final = is_final


async def resolve(host: str, port: int) -> Addresses:
    """Return the addresses of a name. Raises UnresolvedError.

    A thread of its own asks: a resolver that hangs would otherwise keep the process from its end.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Addresses] = loop.create_future()

    def settle(found: Addresses, error: UnresolvedError | None) -> None:
        if not answer.done():
            answer.set_result(found) if error is None else answer.set_exception(error)

    def ask() -> None:
        found: Addresses = ()
        problem: UnresolvedError | None = None
        try:
            listed = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found = tuple(
                dict.fromkeys((6 if family == socket.AF_INET6 else 4, str(where[0])) for family, *_, where in listed)
            )
        except (OSError, UnicodeError) as error:
            is_final = not isinstance(error, socket.gaierror) or error.errno in _NO_NAME
            problem = UnresolvedError((getattr(error, "strerror", "") or str(error)).lower(), is_final=is_final)
        # The loop is closed when the command did not wait for this answer.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, found, problem)

    threading.Thread(target=ask, daemon=True).start()
    return await answer


def is_in_hosts(host: str) -> bool:
    """Return whether /etc/hosts has the name."""
    try:
        text = read_limited(HOSTS, MAX_HOSTS).decode("utf-8", "replace")
    except ConfigError:
        return False
    return any(host.lower() in line.partition("#")[0].lower().split()[1:] for line in text.splitlines())


async def connect_to(address: str, port: int, seconds: float) -> TcpAttempt:
    """Connect to one address, and close the connection."""
    version = ipaddress.ip_address(address.partition("%")[0]).version
    outcome = CONNECTED
    try:
        async with asyncio.timeout(seconds):
            _, writer = await asyncio.open_connection(address, port)
        writer.transport.abort()
    except TimeoutError:
        outcome = SILENT
    except OSError as error:
        outcome = _outcome(error)
    return TcpAttempt(version, address, outcome)


def _outcome(error: OSError) -> str:
    if error.errno == errno.ECONNREFUSED:
        return REFUSED
    if error.errno == errno.ETIMEDOUT:
        return SILENT
    if error.errno in _NO_ROUTE:
        return NO_ROUTE
    return (os.strerror(error.errno) if error.errno else str(error)).lower()


# TLS handshakes, in memory: so it is known what the server sent, however the handshake ends.


@dataclass(frozen=True, slots=True)
class DialledPlace:
    """An address to connect to. `tunnel`: the `host:port` to which the proxy there is asked to connect; "" without a proxy."""

    address: str
    port: int
    tunnel: str = ""


@dataclass(slots=True)
class Handshake:
    """Progress of a TLS handshake. `certificate` is that of the server, as DER; empty when none was seen."""

    certificate: bytes = b""
    first: bytes = b""
    """The first bytes of the server."""
    received: int = 0
    silent: bool = False
    """The deadline ended it."""
    error: str = ""
    """The text of another failure, such as an alert."""
    unverified: str = ""
    """The reason for which the certificate does not verify."""
    verify_code: int = 0


async def handshake(place: DialledPlace, name: str, context: ssl.SSLContext, seconds: float) -> Handshake:
    """Perform a TLS handshake for the server `name`, and return how far it came."""
    done = Handshake()
    try:
        async with asyncio.timeout(seconds), _connection(place) as (reader, writer):
            await _shake_hands(done, reader, writer, name, context)
    except TimeoutError:
        done.silent = True
    except RefusedTunnelError as error:
        done.error = f"the proxy refuses: {error}"
    except OSError as error:
        done.error = _outcome(error)
    return done


class RefusedTunnelError(OSError):
    """A proxy does not connect the server. The text is its status line."""


@asynccontextmanager
async def _connection(place: DialledPlace) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yield a connection to the place, or to the end of its tunnel. Raises RefusedTunnelError."""
    reader, writer = await asyncio.open_connection(place.address, place.port)
    try:
        if place.tunnel:
            writer.write(f"CONNECT {place.tunnel} HTTP/1.1\r\nHost: {place.tunnel}\r\n\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head and len(head) < MAX_HEAD and (piece := await reader.read(PIECE)):
                head += piece
            line = head.partition(b"\r\n")[0].decode("latin-1")
            if not (line.startswith("HTTP/") and line.split(" ")[1:2] == ["200"]):
                raise RefusedTunnelError(line[:100] or "no answer")
        yield reader, writer
    finally:
        writer.transport.abort()


async def refused_tunnel(place: DialledPlace, seconds: float) -> str:
    """Ask a proxy for its tunnel. Return its status line when it refuses, else ""."""
    try:
        async with asyncio.timeout(seconds), _connection(place):
            return ""
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except RefusedTunnelError as error:
        return str(error)
    except OSError as error:
        return _outcome(error)


async def _shake_hands(
    done: Handshake, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str, context: ssl.SSLContext
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname=name)
    while True:
        try:
            session.do_handshake()
            done.certificate = session.getpeercert(binary_form=True) or b""
            return
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            done.unverified = error.verify_message.lower().rstrip(".")
            done.verify_code = error.verify_code
            return
        except ssl.SSLError as error:
            done.error = (error.reason or str(error)).lower().replace("_", " ")
            return
        writer.write(outgoing.read())
        await writer.drain()
        piece = await reader.read(PIECE)
        if not piece:
            done.error = "the server closed the connection"
            return
        done.first, done.received = (done.first + piece)[:64], done.received + len(piece)
        incoming.write(piece)


async def first_bytes(place: DialledPlace, host: str, seconds: float) -> bytes:
    """Return the first bytes with which a server answers a request in plain HTTP; empty when nothing comes."""
    with suppress(OSError):
        async with asyncio.timeout(seconds), _connection(place) as (reader, writer):
            writer.write(f"GET /version HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return (await reader.read(64))[:64]
    return b""


def looks_like_tls(first: bytes) -> bool:
    """Return whether bytes begin a TLS record (RFC 8446 5.1): a handshake or an alert."""
    return first[:1] in (b"\x15", b"\x16")


def read_certificate(der: bytes) -> SeenCertificate | None:
    """Return a certificate for messages; None for one that cannot be read."""
    try:
        certificate = Certificate(der)
        alternative = names.alternative_names(certificate.extensions)
    except PkiError:
        return None
    listed = (*alternative.dns, *map(str, alternative.ips))
    return SeenCertificate(
        names.printable(certificate.subject),
        names.printable(certificate.issuer),
        tuple(names.printable_text(one) for one in listed),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
