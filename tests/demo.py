"""`make demo`: the main job on real processes, each step with its time.

A server on SQLite, a token, three machines that join as processes of their own and use their certificates, one of which renews its
own while a copy of its files is used; a machine that joins without a secret, by an identity token of an issuer on loopback; then
requests that must be refused, and the end of the token. Exits 0 when every step succeeded; leaves no process and no files.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import io
import json
import os
import re
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import yaml
from joserfc import jwt
from joserfc.jwk import ECKey
from rich.console import Console
from rich.markup import escape

from mooring.pki.keys import generate_key, private_key_pem
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import self_signed_ca
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.requests import build_request
from tests.endings import ended_by_exceptions

MOORING = (sys.executable, "-m", "mooring")
MACHINES = ("machine-1", "machine-2", "machine-3")
THIEF = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Address of the machine on which the copy is used. Elsewhere loopback has one address."""
BOOT = "5701e000-0000-4000-8000-000000000000"
"""Boot id of that machine."""
THIEF_WAITS = 5.0
"""Seconds before the thief requests a certificate: one that he got earlier would expire before the end of his story."""
DUPLICATE = "DuplicateIdentity"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
CLUSTER_INFO = "/api/v1/namespaces/kube-public/configmaps/cluster-info"
CURRENT = "var/lib/kubelet/pki/kubelet-client-current.pem"
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

    def __init__(self, port: int, ca: Path, pem: Path | None = None, source: str = "127.0.0.1") -> None:
        self.port = port
        self.source = source
        self.context = ssl.create_default_context(cafile=str(ca))
        if pem is not None:
            self.context.load_cert_chain(pem)

    def get(self, path: str) -> tuple[int, Any]:
        return self.send("GET", path)

    def send(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        with contextlib.closing(
            http.client.HTTPSConnection(
                "127.0.0.1", self.port, context=self.context, source_address=(self.source, 0), timeout=PATIENCE
            )
        ) as connection:
            headers = {"Content-Type": kind} if body is not None else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            content = response.read()
        try:
            return response.status, json.loads(content)
        except ValueError:
            return response.status, content.decode()

    def written(self, method: str, path: str, body: object) -> Any:
        """Send a request that must succeed. Return the object."""
        code, obj = self.send(method, path, body)
        if code >= 300:
            fail(f"{method} {path}: {code} {obj}")
        return obj


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
            wait_for(lambda: ca.exists() and Api(port, ca).get("/readyz")[0] == 200, "the server's readiness", process)
            report += [
                f"process {process.pid}, {url}, state in {data}",
                f"administrate with KUBECONFIG={data}/admin.conf",
            ]
        yield Api(port, ca)
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


class Copy:
    """A copy of the files of a machine, used on another one by someone who does not care which machine they belong to."""

    def __init__(self, root: Path, copy: Path, node: str, port: int) -> None:
        shutil.copytree(root, copy)
        self.node, self.port, self.ca, self.pem = node, port, copy / "etc/kubernetes/pki/ca.crt", copy / "stolen.pem"
        shutil.copyfile(copy / CURRENT, self.pem)

    @property
    def api(self) -> Api:
        return Api(self.port, self.ca, self.pem, THIEF)

    def report(self) -> None:
        """Report the Node, as the agent and kubelet do: with the boot of the machine that they run on."""
        status = {"status": {"nodeInfo": {"bootID": BOOT}}}
        self.api.written("PATCH", f"/api/v1/nodes/{self.node}/status", status)

    def renew(self) -> str:
        """Get another certificate with the copied one, as an agent's renewal does. Return the name of the request."""
        key = generate_key()
        pem = build_request(key, f"system:node:{self.node}", ("system:nodes",))
        spec = {
            "request": base64.b64encode(pem).decode(),
            "signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["digital signature", "client auth"],
        }
        made = self.api.written("POST", REQUESTS, {"metadata": {"generateName": "csr-"}, "spec": spec})
        name: str = made["metadata"]["name"]
        found: list[str] = []

        def is_issued() -> bool:
            found[:] = filter(None, [self.api.get(f"{REQUESTS}/{name}")[1]["status"].get("certificate")])
            return bool(found)

        wait_for(is_issued, "a certificate for the copy")
        self.pem.write_bytes(base64.b64decode(found[0]) + private_key_pem(key))
        return name


def join_arguments(port: int, token: str, pin: str, node: str, root: Path) -> tuple[str, ...]:
    return (
        "join", f"127.0.0.1:{port}", "--token", token, "--discovery-token-ca-cert-hash", pin,
        "--node-name", node, "--root", str(root), "--discovery-timeout", "2s",
    )  # fmt: skip


def admin_pem(data: Path) -> Path:
    """Write the certificate and the key of the administrator to a file of their own."""
    user = yaml.safe_load((data / "admin.conf").read_text())["users"][0]["user"]
    pem = data.parent / "admin.pem"
    pem.write_bytes(b"".join(base64.b64decode(user[f"client-{part}-data"]) for part in ("certificate", "key")))
    return pem


def theft(root: Path, folder: Path, admin: Api, kubeconfig: tuple[str, ...]) -> None:
    """Use a copy of the files of a machine, see that two machines have one identity, and keep the right one."""
    name, pem = root.name, root / CURRENT
    node = f"/api/v1/nodes/{name}"
    with step(f"the theft: a thief copies the files of {name}, and uses them on another machine") as report:
        copy = Copy(root, folder, name, admin.port)
        copy.report()
        report.append(f"{THIEF}  GET the Node of {name}: {copy.api.get(node)[0]}; reports it, with the boot id {BOOT}")

    with agent(root):
        with step(f"the agent of {name} renews its certificate, with another key; the thief gets one, too") as report:
            before, start = pem.resolve(), time.monotonic()
            wait_for(lambda: boot_of(admin.get(node)[1]) != BOOT, "a report of the Node by its agent")
            copy.report()
            wait_for(lambda: time.monotonic() > start + THIEF_WAITS, "the request of the thief")
            report.append(
                f"{THIEF}  {copy.renew()} is approved and signed; GET the Node of {name}: {copy.api.get(node)[0]}"
            )
            wait_for(lambda: pem.resolve() != before, "the renewal of a certificate")
            report.append(f"{name}  {before.name} is followed by {pem.resolve().name}")

        show = ("node", "show", name, *kubeconfig)
        with step("the operator sees two machines with one identity") as report:
            wait_for(lambda: "TwoMachinesReport" in run(*show), "the finding")
            events = admin.get("/api/v1/namespaces/default/events")[1]["items"]
            report += [
                f"{one['type']} {one['reason']} {name}: {one['message']}"
                for one in events
                if one["reason"] == DUPLICATE
            ]
            report += [
                f"mooring status     {line.strip()}" for line in run("status", *kubeconfig).splitlines() if name in line
            ]
            # The server writes first uses down every five seconds.
            wait_for(
                lambda: f"key {key_of(pem, kubeconfig)}, first used" in run(*show), "the use of the new certificate"
            )
            report += [f"mooring node show  {line}" for line in run(*show).splitlines() if "first used" in line]

        with step(f"the operator keeps {name}, and ends the copy") as report:
            key = key_of(pem, kubeconfig)
            report.append(f"on {name}: mooring certs show {pem}  Public key: {key}")
            report.append(f"mooring node split {name} --keep {key}")
            report += run("node", "split", name, "--keep", key, *kubeconfig).splitlines()
            wait_for(lambda: copy.api.get(node)[0] == 401, "the end of the copy")
            machine = Api(admin.port, root / "etc/kubernetes/pki/ca.crt", pem)
            code, refused = machine.get(node)[0], copy.api.get(node)
            if code != 200:
                fail(f"{name} cannot read its own Node: {code}")
            report.append(f"{THIEF}  GET the Node of {name}: {refused[0]} {refused[1]['reason']}")
            report.append(f"{name}  GET its own Node: {code}")
            wait_for(lambda: "Duplicate" not in run(*show), "the end of the finding")


class Issuer(AbstractContextManager["Issuer"]):
    """An OpenID issuer on loopback, as a provider of workloads has one: a discovery document and a key over TLS."""

    def __init__(self, folder: Path) -> None:
        self.ca_file, self._key = folder / "issuer-ca.crt", ECKey.generate_key("P-256")
        now, key = datetime.now(UTC), generate_key()
        ca = self_signed_ca(generate_key(), "issuer", now, 1)
        serving = ca.sign(profiles.apiserver_serving(key.public_key(), now, ["localhost"]), now, 2)
        self.ca_file.write_bytes(ca.certificate_pem)
        pem = folder / "issuer.pem"
        pem.write_bytes(certificates_pem([serving]) + private_key_pem(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pem)
        published = {**self._key.as_dict(private=False), "kid": "demo", "use": "sig", "alg": "ES256"}
        documents: dict[str, Any] = {"/keys": {"keys": [published]}}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                content = json.dumps(documents.get(self.path, {})).encode()
                self.send_response(200 if self.path in documents else 404)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.url = f"https://localhost:{self._server.server_port}"
        documents["/.well-known/openid-configuration"] = {"issuer": self.url, "jwks_uri": f"{self.url}/keys"}

    def token(self, audience: str, **claims: str) -> str:
        """Return an identity token that the issuer gives to a workload with these claims."""
        stated = {
            "iss": self.url,
            "aud": audience,
            "exp": int(time.time()) + 300,
            "jti": secrets.token_hex(8),
            **claims,
        }
        return jwt.encode({"alg": "ES256", "kid": "demo"}, stated, self._key)

    def __enter__(self) -> Issuer:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def join_without_a_secret(folder: Path, port: int, pin: str, admin: Api, kubeconfig: tuple[str, ...]) -> None:
    """Let a job of one repository join by the identity token that it has anyway, and nobody else."""
    with Issuer(folder) as issuer:
        with step("an administrator says whose identity tokens join, and under which name") as report:
            rule = (
                "joinrule", "create", "ci", "--issuer", issuer.url, "--issuer-ca-file", str(issuer.ca_file),
                "--claim", "repository=acme/infra", "--node-name", "ci-{run}", "--ephemeral", "1h",
            )  # fmt: skip
            run(*rule, *kubeconfig)
            report.append(" ".join(("mooring", *rule)))
        cluster_id = admin.get("/api/v1/namespaces/kube-system")[1]["metadata"]["uid"]

        def job(name: str, token: str, *, fails: bool = False) -> str:
            file = folder / f"{name}.jwt"
            file.write_text(token)
            root = str(folder / name)
            return run(
                "join", f"127.0.0.1:{port}", "--discovery-token-ca-cert-hash", pin, "--identity-token-file", str(file),
                "--root", root, fails=fails,
            )  # fmt: skip

        given = issuer.token(cluster_id, sub="job 17", repository="acme/infra", run="17")
        with step("a job of that repository joins by its identity token: no secret was copied to it") as report:
            report += job("job", given).splitlines()
        with step("the same token on another machine, and that of a fork, let nobody in") as report:
            report.append(job("copy", given, fails=True))
            report.append(
                job("fork", issuer.token(cluster_id, sub="job 18", repository="mallory/infra", run="18"), fails=True)
            )


def free_port() -> int:
    """Return a port that the kernel chooses, which a demo beside this one does not get."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def key_of(pem: Path, kubeconfig: tuple[str, ...]) -> str:
    """Return the public key of the certificate that a machine has now."""
    return str(json.loads(run("certs", "show", str(pem), "-o", "json", *kubeconfig))["certificates"][0]["publicKey"])


def boot_of(node: Any) -> str:
    return str(node["status"]["nodeInfo"]["bootID"])


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
                pem = roots[name] / CURRENT
                machine = Api(port, roots[name] / "etc/kubernetes/pki/ca.crt", pem)
                code, node = machine.get(f"/api/v1/nodes/{name}")
                if code != 200:
                    fail(f"{name} cannot read its own Node: {node}")
                other = MACHINES[MACHINES.index(name) - 1]
                refused, status = machine.get(f"/api/v1/nodes/{other}")
                if refused != 403:
                    fail(f"{name} could read the Node of {other}")
                report.append(f"{name}  GET its own Node: {code}; the Node of {other}: {refused} {status['reason']}")

        admin = Api(port, data / "pki/ca.crt", admin_pem(data))
        theft(roots[MACHINES[0]], folder / "stolen", admin, kubeconfig)
        join_without_a_secret(folder, port, pin, admin, kubeconfig)

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
        demo(Path(folder))
    console.print(
        f"[bold]done[/] in {time.monotonic() - start:.1f} s; nothing is left running, nothing is left on disk"
    )


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("interrupted: nothing is left running, nothing is left on disk")
