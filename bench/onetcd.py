"""One and two servers on one etcd: joins, reads and creates.

Rules kept here: etcd is a single member that syncs its writes to disk, on the same cores. Two servers get half of the requests
each, at the same time. Without etcd the row says so.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support import etcd

if TYPE_CHECKING:
    from bench.servers import Server

TOKEN = "abcdef.0123456789abcdef"  # token of a temporary server on loopback
SECRET = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef"
SERVER_TOKEN = "00112233445566778899aabbccddeeff"
CLIENTS = 16
WORKS = {
    "whole node joins": ("148 /s, p50 101 ms", 200, ("-mode", "join", "-token", TOKEN)),
    "Secret GET, client certificate, kept alive": ("2 400 /s", 10_000, ("-path", SECRET)),
    "durable create of a 1 kB Secret, 16 clients": ("1 100 /s", 1000, ("-mode", "create")),
}
"""Kubernetes' figure, number of requests, and arguments of the load generator."""
Load = Callable[..., dict[str, float]]


def rows(
    load: Load,
    server: Callable[..., AbstractContextManager[Server]],
    token: dict[str, Any],
    runs: int,
    say: Callable[[str], None],
) -> Iterator[tuple[str, str, str]]:
    """Yield the work, Kubernetes' figure and Mooring's with one and with two servers."""
    if etcd.MISSING:
        yield "one and two servers on etcd", "", f"skipped: {etcd.MISSING}"
        return
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mooring-bench-")))
        cluster = stack.enter_context(etcd.running(folder, durable=True))
        (folder / "token").write_text(SERVER_TOKEN)
        servers = []
        for number in ("1", "2"):
            (folder / number).mkdir()
            flags = ("--etcd-servers", cluster.endpoints, "--server-token-file", str(folder / "token"))
            servers.append(stack.enter_context(server(folder / number / "data", *flags)))
        servers[0].request("POST", "/api/v1/namespaces/kube-system/secrets", token)
        for work, (kubernetes, count, arguments) in WORKS.items():
            rates: dict[int, list[float]] = {1: [], 2: []}
            for run in range(runs):
                for used in (1, 2) if run % 2 == 0 else (2, 1):
                    say(f"{work}, {used} of 2 servers on etcd")
                    rates[used].append(_rate(load, servers[:used], count, arguments))
            one, two = (statistics.median(rates[used]) for used in (1, 2))
            yield f"{work}, 1 and 2 servers on etcd", kubernetes, f"{one:,.0f} → {two:,.0f} /s"


def _rate(load: Load, servers: list[Server], count: int, arguments: tuple[str, ...]) -> float:
    """Return how many of `count` requests a second `servers` answered together."""
    share = ("-n", str(count // len(servers)), "-c", str(CLIENTS // len(servers)), *arguments)
    with ThreadPoolExecutor(len(servers)) as threads:
        results = threads.map(lambda one: load(one, *share, *_admin(one, share), runs=1), servers)
        return count / max(result["wall_s"] for result in results)


def _admin(running: Server, arguments: tuple[str, ...]) -> tuple[str, ...]:
    """Return the administrator's certificate for work without a token."""
    if "-token" in arguments:
        return ()
    return ("-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key"))
