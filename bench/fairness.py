"""One client's storm beside another's single requests: 16 greedy clients of one user, one polite client of another.

Rules kept here: both are real TLS clients with certificates of their own users, in processes of their own; the polite one asks
one thing after another, first on an idle server, then during the storm. What counts is how much later its answers come: the
median over runs of how a storm compares with the idle moment before it, because neighbours on the machine disturb both. The
storm's client has the lowest priority of the processor: what it takes from the server on this machine, it would not take there.
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
    from bench.__main__ import Server

GREEDY = 16
ASKED = 2000
"""Requests of the polite client in a run: its p99 is then the 20th worst."""
STORM = 100_000_000
"""More than any run takes; the storm is ended when the polite client is done."""
RUNS = 5
"""At least so many: one run in three meets something else on the machine."""
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
    """Medians: the polite client's p50 and p99 in milliseconds, on an idle server and during the storm, and the p99s' ratio."""
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
        )  # exec: killing it kills the client
        try:
            time.sleep(1.0)  # connections and handshakes are not what is measured
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
    """The line of the table: work, Kubernetes, wanted, measured."""
    idle, storm = figures["idle p99"], figures["storm p99"]
    return (
        f"p99 of one polite client beside {GREEDY} greedy ones of another user",
        "",
        "≤ 3 × idle",
        f"{storm:.2f} ms, {figures['ratio']:.1f} × idle ({idle:.2f} ms); p50 {figures['storm p50']:.2f} ms",
    )
