"""Fairness of flow control: latency of one client while 16 connections of another user load the server.

Rules kept here: both are real TLS clients with certificates of their own users, in processes of their own; the polite one sends one
request after another, first on an idle server, then during the storm. The figure is the ratio of both latencies, the median over
runs, because other work on the machine disturbs both alike. The storm's client runs at the lowest CPU priority, because a client on
another machine would take no CPU time from the server.
"""

from __future__ import annotations

import base64
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.servers import Server

GREEDY = 16
ASKED = 2000
"""Requests of the polite client in a run: the p99 is then the 20th slowest."""
STORM = 100_000_000
"""Requests of the storm, more than any run needs: it is ended when the polite client is done."""
RUNS = 5
"""Least number of runs: other work on the machine disturbs about one run in three."""
PATH = "/api/v1/namespaces/kube-public/configmaps/cluster-info"


def _certificate(running: Server, user: str) -> tuple[str, ...]:
    command = [sys.executable, "-m", "mooring", "kubeconfig", "user", user, "--group", "bench"]
    done = subprocess.run(
        [*command, "--kubeconfig", str(running.data / "admin.conf")], check=True, capture_output=True, text=True
    )
    files = []
    for key, name in (("client-certificate-data", "crt"), ("client-key-data", "key")):
        found = re.search(rf"{key}: (\S+)", done.stdout)
        assert found is not None
        file = running.data / f"{user}.{name}"
        file.write_bytes(base64.b64decode(found[1]))
        files.append(str(file))
    return ("-cert", files[0], "-key", files[1])


def _allow(running: Server) -> None:
    running.request(
        "POST",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": "bench"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "bench"}],
        },
    )


def _polite(command: list[str]) -> dict[str, Any]:
    done = subprocess.run([*command, "-c", "1", "-n", str(ASKED)], check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout)
    if result["errors"]:
        raise SystemExit(f"the polite client: {result['errors']} errors, first: {result['first_error']}")
    return result


def measure(binary: Path, running: Server, runs: int, say: Callable[[str], None]) -> dict[str, float]:
    """Return medians: the polite client's p50 and p99 in ms, on an idle server and during the storm, and the ratio of the p99s."""
    _allow(running)
    common = [str(binary), "-server", running.url, "-path", PATH]
    polite = [*common, *_certificate(running, "polite")]
    greedy = [*common, *_certificate(running, "greedy"), "-c", str(GREEDY), "-n", str(STORM)]
    figures: dict[str, list[float]] = {}
    for number in range(max(runs, RUNS)):
        say(f"fairness, run {number + 1}: idle")
        _polite(polite)  # caches and processor clocks warm up
        idle = _polite(polite)
        say(f"fairness, run {number + 1}: storm")
        storm = subprocess.Popen(
            ["nice", "-n", "19", *greedy], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )  # exec, so that killing the shell kills the client
        try:
            time.sleep(1.0)  # until connections and handshakes, which are not measured, are over
            busy = _polite(polite)
        finally:
            storm.kill()
            storm.wait()
        for name, result in (("idle", idle), ("storm", busy)):
            figures.setdefault(f"{name} p50", []).append(result["p50_ms"])
            figures.setdefault(f"{name} p99", []).append(result["p99_ms"])
        figures.setdefault("ratio", []).append(busy["p99_ms"] / idle["p99_ms"])
    return {name: statistics.median(values) for name, values in figures.items()}


def row(figures: dict[str, float]) -> tuple[str, str, str, str]:
    """Return the line of the table: work, Kubernetes, target, measured."""
    idle, storm = figures["idle p99"], figures["storm p99"]
    return (
        f"p99 of one polite client beside {GREEDY} greedy ones of another user",
        "",
        "≤ 3 × idle",
        f"{storm:.2f} ms, {figures['ratio']:.1f} × idle ({idle:.2f} ms); p50 {figures['storm p50']:.2f} ms",
    )
