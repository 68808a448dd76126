"""Joins by kubeadm's way and by k3s's way on one server, in turns: joins a second, and processor time of the server for each.

Rules kept here: both ways begin with a token and end with certificates, of which kubeadm's way has one and k3s's four. The load
generator sends what `kubeadm join` and an agent of k3s send, over as many connections. Both ways take turns on the same server, so
that other work on the machine disturbs both alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.workers import cpu_seconds

if TYPE_CHECKING:
    from bench.servers import Server

TOKEN = "abcdef.0123456789abcdef"  # token of a temporary server on loopback
SERVER_TOKEN = "00112233445566778899aabbccddeeff"
KUBERNETES = "148 /s, p50 101 ms"
"""kube-apiserver 1.36.2 with the limits of its controllers lifted; 10.5 /s with its defaults."""
WAYS = {
    "kubeadm's way, 1 certificate": ("join", TOKEN),
    "k3s's way with a bootstrap token, 4 certificates": ("k3sjoin", TOKEN),
    "k3s's way with the server token, 4 certificates": ("k3sjoin", f"node:{SERVER_TOKEN}"),
}
COUNT = 30
CLIENTS = 4
"""Joins at a time. A server verifies no more node passwords of one network at a time, and refuses others with 429."""


def rows(
    load: Callable[..., dict[str, float]],
    server: Callable[..., AbstractContextManager[Server]],
    folder: Path,
    token: dict[str, Any],
    runs: int,
    say: Callable[[str], None],
) -> Iterator[tuple[str, str, str]]:
    """Yield the work, Kubernetes' figure and Mooring's for each way."""
    token_file = folder / "server-token"
    token_file.write_text(SERVER_TOKEN)
    with server(folder / "data", "--k3s-supervisor", "--server-token-file", str(token_file)) as running:
        running.request("POST", "/api/v1/namespaces/kube-system/secrets", token)
        found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in WAYS}
        for run in range(runs):
            for way in WAYS if run % 2 == 0 else reversed(WAYS):
                say(f"joins, {way}")
                mode, credential = WAYS[way]
                before = cpu_seconds(running)
                result = load(
                    running, "-mode", mode, "-token", credential, "-n", str(COUNT), "-c", str(CLIENTS), runs=1
                )
                cost = (cpu_seconds(running) - before) / COUNT
                found[way].append((result["per_s"], result["p50_ms"], cost * 1e3))
        for way, figures in found.items():
            rate, p50, cost = (statistics.median(column) for column in zip(*figures, strict=True))
            text = f"{rate:,.0f} /s, p50 {p50:,.0f} ms, {cost:.0f} ms of CPU each"
            yield f"joins, {way}", KUBERNETES if way.startswith("kubeadm") else "", text
