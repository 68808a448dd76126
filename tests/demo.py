"""`make demo`: the main job on real processes, each step with its time.

A server on SQLite, a token, three machines that join as processes of their own and use their certificates, one of which renews its
own; then requests that must be refused, and the end of the token. Exits 0 when every step succeeded; leaves no process and no
files.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape

from tests.endings import ended_by_exceptions
from tests.support.ports import free_port

MOORING = (sys.executable, "-m", "mooring")
MACHINES = ("machine-1", "machine-2", "machine-3")
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
PATIENCE = 30.0
SPACE = 16 << 20
"""Octets of the folder for temporary files: the files of the demo take a tenth of them."""
LIFETIME = "15s"
"""Lifetime of certificates, so that a renewal is seen: an agent renews them after 10 to 14 s."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)


def fail(text: str) -> NoReturn:
    console.print(f"[bold red]failed[/]  {escape(text)}", soft_wrap=True)
    raise SystemExit(1)


@contextlib.contextmanager
def step(title: str) -> Iterator[list[str]]:
    """Run one step: print its title, its time, and the lines that it adds to the list."""
    report: list[str] = []
    start = time.monotonic()
    yield report
    taken = (time.monotonic() - start) * 1000
    console.print(f"[green]✓[/] [bold]{title}[/] [dim]{taken:,.0f} ms[/]")
    for line in report:
        console.print(f"    [dim]{escape(line)}[/]", soft_wrap=True)


def wait_for(passes: Callable[[], bool], what: str, process: subprocess.Popen[bytes] | None = None) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if passes():
                return
        if process is not None and process.poll() is not None:
            fail(f"{what} did not happen: the process ended with exit code {process.returncode}, and printed:")
        time.sleep(0.01)
    fail(f"{what} did not happen within {PATIENCE:.0f} s")


def run(*arguments: str, fails: bool = False) -> str:
    """Run a `mooring` command. Return its output, or its error line when it should fail."""
    done = subprocess.run([*MOORING, *arguments], capture_output=True, text=True, timeout=60, check=False)
    if fails == (done.returncode == 0):
        wanted = "refused" if fails else "to succeed"
        fail(f"`mooring {arguments[0]}` was meant {wanted}, it said: {done.stdout}{done.stderr}")
    return (done.stderr if fails else done.stdout).strip()


class Api:
    """Requests with a machine's certificate, or anonymous, checked against the cluster's CA."""

    def __init__(self, url: str, ca: Path, pem: Path | None = None) -> None:
        self.url = url
        context = ssl.create_default_context(cafile=str(ca))
        if pem is not None:
            context.load_cert_chain(pem)
        # the server is on this machine: a proxy of the environment does not lead there
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def get(self, path: str) -> tuple[int, Any]:
        try:
            with self.opener.open(self.url + path) as response:
                body = response.read()
                code = response.status
        except urllib.error.HTTPError as error:
            body, code = error.read(), error.code
        try:
            return code, json.loads(body)
        except ValueError:
            return code, body.decode()


@contextlib.contextmanager
def server(data: Path, port: int) -> Iterator[Api]:
    """Run `mooring up` until the end of the block."""
    arguments = (
        "up",
        "--data-dir",
        str(data),
        "--bind-address",
        "127.0.0.1",
        "--secure-port",
        str(port),
        "--token",
        "",
        "--cluster-signing-duration",
        LIFETIME,
    )
    log = data.parent / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen([*MOORING, *arguments], stdout=output, stderr=output)
    ca = data / "pki" / "ca.crt"
    url = f"https://127.0.0.1:{port}"
    try:
        with step("a control plane on an embedded database") as report:
            wait_for(lambda: ca.exists() and Api(url, ca).get("/readyz")[0] == 200, "the server's readiness", process)
            report += [
                f"process {process.pid}, {url}, state in {data}",
                f"administrate with KUBECONFIG={data}/admin.conf",
            ]
        yield Api(url, ca)
        with step("the server drains and stops") as report:
            process.send_signal(signal.SIGTERM)
            report.append(f"exit code {process.wait(PATIENCE)}")
    except BaseException:
        console.print(f"[dim]{escape(log.read_text()[-2000:])}[/]", soft_wrap=True)
        raise
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextlib.contextmanager
def agent(root: Path) -> Iterator[None]:
    """Run the agent of a machine that has joined, until the end of the block."""
    with (root / "agent.log").open("wb") as output:
        process = subprocess.Popen([*MOORING, "agent", "--root", str(root)], stdout=output, stderr=output)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def join_arguments(port: int, token: str, pin: str, node: str, root: Path) -> tuple[str, ...]:
    return (
        "join", f"127.0.0.1:{port}", "--token", token, "--discovery-token-ca-cert-hash", pin,
        "--node-name", node, "--root", str(root), "--discovery-timeout", "2s",
    )  # fmt: skip


def demo(folder: Path) -> None:
    data, port = folder / "control-plane", free_port()
    with server(data, port) as anonymous:
        kubeconfig = ("--kubeconfig", str(data / "admin.conf"))
        with step("an administrator makes a token") as report:
            line = run("token", "create", "--print-join-command", *kubeconfig)
            found = re.search(r"--token (\S+) .*(sha256:[0-9a-f]{64})", line)
            if found is None:
                fail(f"no join line in: {line}")
            token, pin = found.groups()
            token_id = token.partition(".")[0]
            report.append(line.replace(token, f"{token_id}.<secret>"))
            signature = f"jws-kubeconfig-{token_id}"
            wait_for(lambda: signature in anonymous.get(CLUSTER_INFO)[1]["data"], "the signature of cluster-info")
            report.append(f"cluster-info carries {signature}")

        roots = {name: folder / name for name in MACHINES}
        with step("three machines join, knowing an address, the token and the pin") as report:
            joins = {
                name: subprocess.Popen(
                    [*MOORING, *join_arguments(port, token, pin, name, roots[name])],
                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                )
                for name in MACHINES
            }  # fmt: skip
            for name, process in joins.items():
                output, _ = process.communicate(timeout=60)
                if process.returncode:
                    fail(f"{name}: {output}")
                lines = output.strip().splitlines()
                # all lines of one machine, one line of each other
                report += [
                    f"{name}  {line}" for line in lines if name == MACHINES[0] or line.startswith("This machine")
                ]

        with step("each uses the certificate it was issued") as report:
            for name in MACHINES:
                pem = roots[name] / "var/lib/kubelet/pki/kubelet-client-current.pem"
                machine = Api(anonymous.url, roots[name] / "etc/kubernetes/pki/ca.crt", pem)
                code, node = machine.get(f"/api/v1/nodes/{name}")
                if code != 200:
                    fail(f"{name} cannot read its own Node: {node}")
                other = MACHINES[MACHINES.index(name) - 1]
                refused, status = machine.get(f"/api/v1/nodes/{other}")
                if refused != 403:
                    fail(f"{name} could read the Node of {other}")
                report.append(f"{name}  GET its own Node: {code}; the Node of {other}: {refused} {status['reason']}")

        with step("the agent of one machine renews its certificate, with another key") as report:
            pem = roots[MACHINES[0]] / "var/lib/kubelet/pki/kubelet-client-current.pem"
            before = pem.resolve()
            with agent(roots[MACHINES[0]]):
                wait_for(lambda: pem.resolve() != before, "the renewal of a certificate")
            report += [f"{MACHINES[0]}  {before.name} is followed by {pem.resolve().name}"]

        with step("a wrong pin is refused") as report:
            wrong = "sha256:" + "0" * 64
            report.append(run(*join_arguments(port, token, wrong, "machine-4", folder / "machine-4"), fails=True))

        with step("an expired token is refused") as report:
            brief = run("token", "create", "--ttl", "1s", *kubeconfig)
            path = f"jws-kubeconfig-{brief.partition('.')[0]}"
            wait_for(lambda: path not in anonymous.get(CLUSTER_INFO)[1]["data"], "the end of the brief token")
            report.append(run(*join_arguments(port, brief, pin, "machine-5", folder / "machine-5"), fails=True))

        with step("the token is taken back") as report:
            report.append(run("token", "delete", token_id, *kubeconfig))
            wait_for(lambda: signature not in anonymous.get(CLUSTER_INFO)[1]["data"], "the end of the signature")
            report.append(f"{signature} is gone from cluster-info; the machines that joined stay members")


def main() -> None:
    for name in [name for name in os.environ if name.startswith("MOORING_")]:
        del os.environ[name]  # settings of another server, as its store
    ended_by_exceptions()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a locale without ✓
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mooring-demo-") as folder:
        if (left := shutil.disk_usage(folder).free) < SPACE:
            fail(
                f"{left >> 20} MB are left for {folder}, and {SPACE >> 20} MB are needed: make room, or choose another TMPDIR"
            )
        tempfile.tempdir = folder  # also of the locks of ports
        demo(Path(folder))
    console.print(
        f"[bold]done[/] in {time.monotonic() - start:.1f} s; nothing is left running, nothing is left on disk"
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing is left running, nothing is left on disk")
