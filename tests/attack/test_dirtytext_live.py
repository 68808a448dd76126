"""Text with terminal control, forged log lines or great length, sent wherever a server and its commands accept text.

Requests carry it in every path, header and body to a real server that logs everything. Then the tests read all output. Each
line of the log is printable, bounded, and begins as a record or as part of a traceback; each line of the audit logs is one bounded
record; the output of commands is printable.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from mooring.api.kinds import KINDS
from mooring.cli.serverlogs import CONTINUED, MAX_LINE
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.server.audit.auditevent import MAX_RECORD
from mooring.server.endpoints.routes import ENDPOINTS
from tests.support import forkserver
from tests.support.liveserver import LiveServer
from tests.support.polling import eventually
from tests.test_redaction import started

DIRTY = "x\n2026-01-02T03:04:05Z ERROR mooring.x forged\r\x1b[2J\x1b]0;title\x07\x9b31m\u202egnp\u2028\x00\x7f end"
NAME = DIRTY.replace("/", "")
HEADER = "\x1b[31m \x9b31m \x07 \x85 \xff".encode("latin-1")
RBAC = "rbac.authorization.k8s.io"
LONG = "\xff" * 30_000
RECORD = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (DEBUG|INFO|WARNING|ERROR|CRITICAL) [\w.]+ ")


@dataclass
class Story:
    """One server, the requests to it, and the count of each status."""

    server: LiveServer
    statuses: dict[int, int] = field(default_factory=dict)

    def call(self, method: str, path: str, body: Any = None, *, admin: bool = True, **headers: str | bytes) -> int:
        """Send one request on a connection of its own. Return its status, or 0 when the server closes the connection."""
        context = ssl.create_default_context(cadata=self.server.ca_pem.decode())
        if admin:
            directory = self.server.data_dir.parent
            context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, context=context, timeout=30)
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        try:
            connection.putrequest(method, path)
            for name, value in sent.items():
                connection.putheader(name, value)
            if data is not None:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException, ValueError):
            status = 0
        finally:
            connection.close()
        self.statuses[status] = self.statuses.get(status, 0) + 1
        return status

    def command(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        kubeconfig = ("--kubeconfig", str(self.server.kubeconfig))
        return forkserver.run(["-m", "mooring", *arguments, *kubeconfig])


def csr(name: str, signer: str, *subject: str) -> dict[str, Any]:
    request = base64.b64encode(build_request(generate_key(), subject[0], subject[1:])).decode()
    usages = ["digital signature", "client auth"]
    return {
        "metadata": {"name": name, "annotations": {"a": DIRTY}},
        "spec": {"request": request, "signerName": signer, "usages": usages},
    }


def drive(story: Story) -> None:
    for endpoint in ENDPOINTS:
        for admin in (True, False):
            for path in (
                endpoint.path,
                f"{endpoint.path}/{quote(DIRTY)}",
                f"{endpoint.path}?{quote(DIRTY)}={quote(DIRTY)}",
            ):
                story.call("GET", path, admin=admin, User_Agent=HEADER)
            story.call("POST", endpoint.path, {DIRTY: DIRTY}, admin=admin)
    for kind in KINDS:
        resource = kind.resource
        root = f"/apis/{resource.group}/{resource.version}" if resource.group else f"/api/{resource.version}"
        place = f"{root}/namespaces/default/{resource.plural}" if resource.namespaced else f"{root}/{resource.plural}"
        story.call("GET", f"{place}/{quote(NAME)}")
        story.call("GET", f"{root}/namespaces/{quote(NAME)}/{resource.plural}")
        story.call("GET", f"{place}?labelSelector={quote(DIRTY)}&fieldSelector={quote(DIRTY)}&limit={quote(DIRTY)}")
        story.call("GET", f"{place}/{quote(NAME)}", admin=False, User_Agent=HEADER)
        story.call(
            "POST", place, {"kind": resource.kind, "metadata": {"name": NAME, "labels": {DIRTY: DIRTY}}, DIRTY: DIRTY}
        )
        story.call("POST", place, {"kind": DIRTY, "apiVersion": DIRTY})
        story.call("POST", place, b'{"a": "' + HEADER, Content_Type="application/json")
        story.call(
            "PATCH",
            f"{place}/{quote(NAME)}",
            [{"op": DIRTY, "path": DIRTY}],
            Content_Type="application/json-patch+json",
        )
        story.call("DELETE", f"{place}/{quote(NAME)}")
    for value in (HEADER, LONG.encode("latin-1")):
        for name in (
            "User_Agent",
            "Audit_ID",
            "Authorization",
            "Impersonate_User",
            "Accept",
            "Content_Type",
            "X_Remote_User",
        ):
            for admin in (True, False):
                story.call("GET", "/api/v1/namespaces", admin=admin, **{name: value})
        story.call("GET", "/version", admin=False, Authorization=b"Bearer " + value)
        story.call("GET", "/version", Impersonate_User="jane", Impersonate_Group=value, Impersonate_Extra_a=value)
    story.call("GET", "/api/v1/namespaces/" + quote(LONG, safe="")[:30_000])
    story.call("GET", "/version?" + quote(LONG, safe="")[:30_000], admin=False)
    for _ in range(250):  # up to 2 KiB each: more than the share of refused requests
        story.call("GET", "/version", admin=False, User_Agent=LONG.encode("latin-1"))
    requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
    for index in range(3):
        assert story.call("POST", requests, csr(f"{index}{NAME}", "example.com/x", "somebody")) == 201
    kubelet = csr(f"node{NAME}", KUBE_APISERVER_CLIENT_KUBELET, "system:node:n1", "system:nodes")
    binding = {
        "metadata": {"name": "bob"},
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"apiGroup": RBAC, "kind": "User", "name": "bob"}],
    }
    assert story.call("POST", f"/apis/{RBAC}/v1/clusterrolebindings", binding) == 201
    assert story.call("POST", requests, kubelet, Impersonate_User="bob") == 201  # bob may request no approval
    for name in ("\x1b[31mrole", "a" * 5000):
        role = {"metadata": {"name": name}, "rules": []}
        assert story.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", role) == 201
    token = {
        "metadata": {"name": "bootstrap-token-aaaaaa"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {
            "token-id": "aaaaaa", "token-secret": "0123456789abcdef", "description": DIRTY, "usage-bootstrap-signing": "true",
        },
    }  # fmt: skip
    assert story.call("POST", "/api/v1/namespaces/kube-system/secrets", token) == 201


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    server = started(tmp_path_factory.mktemp("dirty"), "--audit-log-maxsize", "1")
    try:
        story = Story(server)
        drive(story)
        yield story
    finally:
        server.kill()


def test_the_server_answered_every_request(story: Story) -> None:
    assert story.call("GET", "/readyz") == 200
    assert {200, 201, 400, 401, 403, 404, 422} <= story.statuses.keys()
    assert 500 not in story.statuses


def test_each_line_of_the_log_is_printable_bounded_and_its_own(story: Story) -> None:
    log = story.server.data_dir.parent / "data.log"
    for _ in range(300):  # the approver logs the name of a request that it retries
        if "forged" in log.read_text():
            break
        story.call("GET", "/version")
    else:
        raise AssertionError("nothing that was sent is in the log, so that this shows nothing")
    lines = log.read_text().split("\n")[:-1]
    for line in lines:
        assert line.isprintable(), ascii(line)
        assert len(line) < MAX_LINE + 200
        assert RECORD.match(line) or line.startswith(CONTINUED), line


def test_each_line_of_the_audit_logs_is_one_bounded_record(story: Story) -> None:
    def logs() -> list[Path]:
        return sorted(story.server.data_dir.parent.glob("audit*.log*"))

    eventually(lambda: any(b"bootstrap-token-aaaaaa" in path.read_bytes() for path in logs()))  # the last request
    assert "audit-refused.log" in [path.name for path in logs()]
    texts = set()
    for path in logs():
        for line in path.read_bytes().splitlines():
            assert len(line) <= MAX_RECORD
            record = json.loads(line)
            texts.add(record.get("objectRef", {}).get("name", ""))
            assert not set(line) & set(range(0x20))
    assert f"0{NAME}" in texts


COMMANDS = [
    ("csr", "list"),
    ("csr", "list", "-o", "wide"),
    ("csr", "list", "-o", "name"),
    ("csr", "list", "-o", "json"),
    ("csr", "list", "-o", "yaml"),
    ("csr", "show", f"0{NAME}".replace("\x00", "")),
    ("token", "list"),
    ("token", "list", "-o", "wide"),
    ("token", "list", "-o", "json"),
    ("token", "list", "-o", "yaml"),
    ("auth", "whoami"),
    ("auth", "whoami", "-o", "yaml"),
    ("token", "delete", "\x1b[31m\u202ex"),
    ("csr", "approve", "\x1b[31m\u202ex"),
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: ascii(" ".join(arguments))[:40])
def test_what_commands_print_is_printable(story: Story, arguments: tuple[str, ...]) -> None:
    done = story.command(*arguments)
    text = done.stdout.decode() + done.stderr.decode()
    assert text
    assert text.replace("\n", "").isprintable(), ascii(text)
    assert not any(line.startswith("2026-01-02T03:04:05Z") for line in text.split("\n"))
    if arguments[:2] == ("csr", "list"):
        assert done.returncode == 0, text
        # the table cuts names
        assert ("2026-01-02T03:" if arguments[-1] == "list" else "forged") in text
    if arguments[-1] == "json":
        assert json.loads(done.stdout)["kind"] == "List"
