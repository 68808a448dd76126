"""Figures of one and of two workers, in turns: joins, connections, reads, writes, fan-out, memory, and heavy requests.

Rules kept here: servers with one and with two workers run side by side and are measured in turns, because other work on the machine
disturbs both alike. CPU seconds are those of all processes of a server.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import heavyrequest

if TYPE_CHECKING:
    from bench.servers import Server

COUNTS = (1, 2)
TOKEN = "abcdef.0123456789abcdef"  # token of a temporary server on loopback
SECRET = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef"
Load = Callable[..., dict[str, float]]


def processes(running: Server) -> list[int]:
    parent = running.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *map(int, children)]


def pss_mib(running: Server) -> float:
    """Return the proportional set size of all processes: a page that several share counts once."""
    total = 0
    for pid in processes(running):
        found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        assert found is not None
        total += int(found[1])
    return total / 1024


def cpu_seconds(running: Server) -> float:
    total = 0
    for pid in processes(running):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def _works(running: Server) -> dict[str, tuple[str, ...]]:
    admin = ("-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key"))
    return {
        "whole node joins": ("-mode", "join", "-token", TOKEN, "-n", "300"),
        "whole node joins, one at a time": ("-mode", "join", "-token", TOKEN, "-n", "60", "-c", "1"),
        "cluster-info GET, new TLS connection each": ("-n", "3000", "-newconn"),
        "Secret GET, client certificate, new connection each": ("-n", "2000", "-newconn", *admin, "-path", SECRET),
        "Secret GET, client certificate, kept alive": ("-n", "20000", *admin, "-path", SECRET),
        "durable create of a 1 kB Secret, 16 clients": ("-mode", "create", "-n", "3000", *admin),
        "watch fan-out, 200 watchers": ("-mode", "watch", "-c", "200", "-n", "40", *admin),
        "watch fan-out, 1,000 watchers": ("-mode", "watch", "-c", "1000", "-n", "10", *admin),
    }


@contextlib.contextmanager
def _servers(
    server: Callable[..., AbstractContextManager[Server]], token: dict[str, Any]
) -> Iterator[dict[int, Server]]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mooring-bench-")))
        found = {}
        for count in COUNTS:
            (folder / str(count)).mkdir()
            found[count] = stack.enter_context(server(folder / str(count) / "data", "--workers", str(count)))
            found[count].request("POST", "/api/v1/namespaces/kube-system/secrets", token)
        yield found


def rows(
    load: Load,
    binary: Path,
    server: Callable[..., AbstractContextManager[Server]],
    token: dict[str, Any],
    fill: Callable[[Server, tuple[str, ...]], None],
    runs: int,
    say: Callable[[str], None],
) -> Iterator[tuple[str, str, str, str]]:
    """Yield the lines of the table."""
    with _servers(server, token) as servers:
        idle = {count: pss_mib(running) for count, running in servers.items()}
        yield (
            "idle memory (PSS), 1 and 2 workers",
            "",
            "≤ 100 MiB",
            " → ".join(f"{mib:.0f} MiB" for mib in idle.values()),
        )
        for work in _works(servers[1]):
            say(work)
            rates: dict[int, list[float]] = {count: [] for count in COUNTS}
            costs: dict[int, list[float]] = {count: [] for count in COUNTS}
            for run in range(runs):
                for count in COUNTS if run % 2 else reversed(COUNTS):
                    running = servers[count]
                    before = cpu_seconds(running)
                    rates[count].append(load(running, *_works(running)[work], runs=1)["per_s"])
                    costs[count].append(cpu_seconds(running) - before)
            one, two = (statistics.median(rates[count]) for count in COUNTS)
            cpu = " → ".join(f"{statistics.median(costs[count]):.2f} s" for count in COUNTS)
            yield f"{work}, 1 and 2 workers", "", "", f"{one:,.0f} → {two:,.0f} /s ({two / one:.2f} ×), CPU {cpu}"
        for count, running in servers.items():
            fill(running, ("-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key")))
            heavyrequest.prepare(running)
            for name, figures in heavyrequest.measure(binary, running, runs, say).items():
                yield heavyrequest.row(name, count, figures)
