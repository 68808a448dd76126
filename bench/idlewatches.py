"""Memory of an idle watch: resident memory of a server, before and after many watches are opened.

Rules kept here: every watch is a TLS 1.3 connection of its own with a client certificate, as a kubelet's is, opened one after
another by Python's `ssl`; it carries no other request. A few watches are opened and closed first, so that one-time allocations are
not counted. The client's handshake matters (docs/adr/0017): a post-quantum key share takes 7 kB on the server for as long as the
connection lasts, each further certificate 4 kB. Kubelets send their leaf alone; OpenSSL's client adds an authority from its store,
so the store is empty here. Over HTTP/2 (docs/adr/0018) one process opens all watches, by Go's client, which shares connections as
client-go does.
"""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.denylist import cpu_seconds

if TYPE_CHECKING:
    from bench.servers import Server

WATCHES = 1000
JUDGED = 10_000
CHANGES = 10
WANTED_MIB = 25
WARM = 20
PASS_SECONDS = 2.0
"""Time after a change until every watch has been judged, and the pass is at rest."""
PATIENCE = 20.0
"""Seconds in which one watch must begin."""
SETTLE_SECONDS = 1.0
"""Seconds until timers of the handshakes and the last flushes have passed."""
REQUEST = (
    b"GET /api/v1/namespaces/default/configmaps?watch=1&resourceVersion=0&allowWatchBookmarks=true HTTP/1.1\r\n"
    b"Host: localhost\r\nUser-Agent: bench\r\nAccept: application/json\r\n\r\n"
)


def _opened(context: ssl.SSLContext, address: tuple[str, int]) -> ssl.SSLSocket:
    peer = context.wrap_socket(socket.create_connection(address, timeout=PATIENCE))
    peer.sendall(REQUEST)
    answer = peer.recv(4096)
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise SystemExit(f"a watch was answered with {answer[:80]!r}")
    return peer


def _may_open(files: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


def measure(running: Server, say: Callable[[str], None]) -> float:
    """Return the MiB that `WATCHES` idle watches add to a fresh server."""
    say(f"{WATCHES:,} idle watches")
    _may_open(WATCHES + 256)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # no authority in the store: see the rules
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(running.data / "admin.crt", running.data / "admin.key")
    parts = urlsplit(running.url)
    address = (parts.hostname or "", parts.port or 0)
    for peer in [_opened(context, address) for _ in range(WARM)]:
        peer.close()
    time.sleep(SETTLE_SECONDS)
    before = running.rss_mib
    with contextlib.ExitStack() as held:
        for _ in range(WATCHES):
            held.enter_context(_opened(context, address))
        time.sleep(SETTLE_SECONDS)
        return running.rss_mib - before


def row(clients: str, mib: float) -> tuple[str, str, str, str]:
    """Return the line of the table: work, Kubernetes, target, measured. `clients`: kind of client that holds the watches."""
    each = mib * (1 << 20) / WATCHES / 1000
    return (
        f"memory of {WATCHES:,} idle watches{clients}",
        "",
        f"≤ {WANTED_MIB} MiB",
        f"{mib:.1f} MiB, {each:.1f} kB each",
    )


@contextlib.contextmanager
def held(binary: Path, running: Server, watches: int) -> Iterator[None]:
    """Hold idle watches of one HTTP/2 client until the block ends."""
    command = [str(binary), "-server", running.url, "-mode", "hold", "-http2", "-c", str(watches)]
    identity = ["-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key")]
    with subprocess.Popen([*command, *identity], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        if not client.stdout.readline():
            raise SystemExit("the watches of one HTTP/2 client did not open")
        time.sleep(SETTLE_SECONDS)
        yield
        client.stdin.close()


def measure_http2(binary: Path, running: Server, say: Callable[[str], None]) -> float:
    """Return the MiB that `WATCHES` idle watches of one HTTP/2 client add to a fresh server."""
    say(f"{WATCHES:,} idle watches of one HTTP/2 client")
    with held(binary, running, WARM):
        pass
    time.sleep(SETTLE_SECONDS)
    before = running.rss_mib
    with held(binary, running, WATCHES):
        return running.rss_mib - before


def measure_judging(binary: Path, running: Server, say: Callable[[str], None]) -> float:
    """Return the CPU seconds in which a change of a right has `JUDGED` open watches judged again."""
    say(f"{JUDGED:,} open watches, and changes of rights")
    _changed(running)
    alone = _changed(running)
    with held(binary, running, JUDGED):
        return (_changed(running) - alone) / CHANGES


def _changed(running: Server) -> float:
    """Return the CPU seconds that the server takes for CHANGES changes of a right, each with a pass of its own."""
    before = cpu_seconds(running)
    for number in range(CHANGES):
        name = f"bench-{number}-{time.monotonic_ns()}"
        running.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", {"metadata": {"name": name}})
        time.sleep(PASS_SECONDS)
    return cpu_seconds(running) - before


def judging_row(seconds: float) -> tuple[str, str, str, str]:
    """Return the line of the table: work, Kubernetes, target, measured."""
    work = f"CPU time to judge {JUDGED:,} open watches again after a change of a right"
    return work, "", "", f"{seconds:.2f} s, {seconds / JUDGED * 1e6:.0f} µs each"
