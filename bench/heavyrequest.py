"""Latency of a polite client while another one sends one heavy request, again and again, on one and on two workers.

Rules kept here: the heavy client is a process of its own at the lowest CPU priority, as if on another machine. The polite client
has four connections, so that some of them may be held by the worker that serves the heavy one. Figures are medians over the runs.
"""

from __future__ import annotations

import http.client
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from bench.servers import Server

POLITE_PATH = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
POLITE = ("-c", "4", "-n", "4000")
WARM_SECONDS = 1.0
"""Time until the heavy client has its first reply."""
RBAC = "/apis/rbac.authorization.k8s.io/v1/namespaces/default"
NAME = "heavy"
RULES = 10_000
"""Rules of a Role of 1 MiB and 70 000 values; a body may have 100 000."""
REPLACEMENTS = 2_000


def _role(number: int = 0) -> Any:
    """Return the Role. `number` changes one rule, so that every request has something to write."""
    rules = [
        {"verbs": ["get"], "apiGroups": [""], "resources": ["secrets"], "resourceNames": [f"{number:032}-{index:06}"]}
        for index in range(RULES)
    ]
    return {
        "kind": "Role",
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": NAME, "namespace": "default"},
        "rules": rules,
    }


def _patch(number: int) -> Any:
    return [
        {"op": "replace", "path": f"/rules/{index}/resourceNames/0", "value": f"{number:032}-{index:06}"}
        for index in range(REPLACEMENTS)
    ]


def _review(number: int) -> Any:
    kind = {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1"}
    return {**kind, "spec": {"namespace": "default"}}


@dataclass(frozen=True)
class Heavy:
    """One heavy request."""

    method: str
    path: str
    accept: str = "application/json"
    content_type: str = "application/json"
    body: Callable[[int], Any] | None = None
    """Returns the body of the request with this number."""


HEAVY = {
    "a LIST of 10 000 Secrets as a Table": Heavy(
        "GET", "/api/v1/namespaces/default/secrets", accept="application/json;as=Table;v=v1;g=meta.k8s.io"
    ),
    "a JSON patch of 2 000 operations on a Role of 1 MiB": Heavy(
        "PATCH", f"{RBAC}/roles/{NAME}", content_type="application/json-patch+json", body=_patch
    ),
    "a server-side apply of a Role of 1 MiB": Heavy(
        "PATCH",
        f"{RBAC}/roles/{NAME}?fieldManager=bench&force=true",
        content_type="application/apply-patch+yaml",
        body=_role,
    ),
    "a SelfSubjectRulesReview of 10 000 rules": Heavy(
        "POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body=_review
    ),
}


def prepare(running: Server) -> None:
    """Create the Role, and bind it to the heavy client."""
    binding = {
        "kind": "RoleBinding",
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "metadata": {"name": NAME, "namespace": "default"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": NAME},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}],
    }
    running.request("POST", f"{RBAC}/roles", _role())
    running.request("POST", f"{RBAC}/rolebindings", binding)


def measure(binary: Path, running: Server, runs: int, say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Return, by heavy request, medians of the polite client: p50 and p99 in ms, idle and beside it, and the ratio of the p99s."""
    credentials = [str(running.data / name) for name in ("admin.crt", "admin.key")]
    polite = [str(binary), "-server", running.url, "-path", POLITE_PATH, *POLITE]
    polite += ["-cert", credentials[0], "-key", credentials[1]]
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in HEAVY}
    for number in range(runs):
        _load(polite)  # caches and processor clocks warm up
        idle = _load(polite)
        for name in HEAVY:
            say(f"{name}, run {number + 1}")
            heavy = subprocess.Popen(
                ["nice", "-n", "19", sys.executable, "-m", "bench.heavyrequest", running.url, *credentials, name]
            )
            try:
                time.sleep(WARM_SECONDS)
                busy = _load(polite)
                if heavy.poll() is not None:
                    raise SystemExit(f"the heavy client ended: {heavy.returncode}")
            finally:
                heavy.kill()
                heavy.wait()
            found = figures[name]
            for state, result in (("idle", idle), ("busy", busy)):
                found.setdefault(f"{state} p50", []).append(result["p50_ms"])
                found.setdefault(f"{state} p99", []).append(result["p99_ms"])
            found.setdefault("ratio", []).append(busy["p99_ms"] / idle["p99_ms"])
    return {
        name: {figure: statistics.median(values) for figure, values in found.items()} for name, found in figures.items()
    }


def _load(command: list[str]) -> dict[str, float]:
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    if result["errors"]:
        raise SystemExit(f"the polite client: {result['errors']} errors")
    return result


def row(name: str, workers: int, figures: dict[str, float]) -> tuple[str, str, str, str]:
    """Return the line of the table: work, Kubernetes, target, measured."""
    busy, idle = figures["busy p99"], figures["idle p99"]
    return (
        f"p99 of polite clients beside {name}, {workers} worker{'s' * (workers > 1)}",
        "",
        "≤ 3 × idle" if workers > 1 else "",
        f"{busy:.2f} ms, {figures['ratio']:.1f} × idle ({idle:.2f} ms); p50 {figures['busy p50']:.2f} ms",
    )


def main(url: str, certificate: str, key: str, name: str) -> None:
    """Send the heavy request again and again, until killed."""
    import ssl

    heavy = HEAVY[name]
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    address = urlsplit(url)
    connection = http.client.HTTPSConnection(address.hostname or "", address.port, context=context)
    headers = {"Accept": heavy.accept, "Content-Type": heavy.content_type}
    for number in itertools.count(1):
        body = json.dumps(heavy.body(number)) if heavy.body else None
        connection.request(heavy.method, heavy.path, body, headers)
        response = connection.getresponse()
        if response.status not in (200, 201):
            raise SystemExit(f"{name}: {response.status} {response.read()[:500]!r}")
        while response.read(1 << 20):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
