"""A minted secret appears only in the reply to the request that created it (law 9).

A real server logs and audits everything, and gets valid and invalid requests. Then the tests search all output: log, audit file,
metrics, every reply, the command line in /proc. A second server has every authenticator turned on; its search includes the output
of `mooring config check` and `mooring auth explain`.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.ways import Ways, ways
from mooring.pki import pem
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.trust.kubeconfigtext import parse_kubeconfig
from tests.support import forkserver
from tests.support.liveserver import LiveServer, await_ready
from tests.support.ports import free_port

PASSWORD = "correct-horse-battery-staple-42"
ROOT = Path(__file__).parents[1]
TOKEN_ID, TOKEN_SECRET = "a1b2c3", "s3cr3tpartoftok0"
WRONG_SECRET = "wr0ngpartoftok3n"
AGENT_TOKEN = "agent-t0ken-agent-t0ken"
SECRETS = "/api/v1/namespaces/default/secrets"


@dataclass
class Story:
    """Requests to one server, the secrets in them, and the replies."""

    server: LiveServer
    minted: dict[str, str] = field(default_factory=dict)
    replies: list[bytes] = field(default_factory=list)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        admin: bool = True,
        kept: bool = True,
        **headers: str,
    ) -> tuple[int, bytes]:
        """Send one request on a connection of its own. `kept`: its reply is searched (False where it must hold the secret)."""
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, context=self.context(admin), timeout=30)
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        sent = {
            "Content-Type": "application/json",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection.request(method, path, data, sent)
        answer = connection.getresponse()
        content = answer.read()
        if kept:
            self.replies.append(str(answer.getheaders()).encode() + content)
        connection.close()
        return answer.status, content

    def context(self, admin: bool) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.server.ca_pem.decode())
        if admin:
            directory = self.server.data_dir.parent
            context.load_cert_chain(directory / "admin.crt", directory / "admin.key")
        return context

    def mint(self, name: str, secret: str) -> str:
        self.minted[name] = secret
        return secret


def bearer(token: str) -> str:
    return f"Bearer {token}"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def started(root: Path, *more: str) -> LiveServer:
    port = free_port()
    data, log = root / "data", (root / "data.log").open("ab")
    command = [sys.executable, "-m", "mooring", "server", "-v", "-v", "--data-dir", str(data)]
    command += ["--bind-address", "127.0.0.1", "--secure-port", str(port), "--audit-log-path", str(root / "audit.log")]
    command += more
    with log:
        server = LiveServer(
            data, port, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=ROOT)
        )
    try:
        await_ready(server)
    except BaseException:
        server.kill()
        raise
    user = parse_kubeconfig(server.kubeconfig.read_bytes()).users[0]
    assert user.key is not None
    (root / "admin.crt").write_bytes(user.certificate_pem)
    (root / "admin.key").write_bytes(user.key.reveal())
    return server


def key_body(pem: str) -> str:
    """Return a line from the middle of a key, by which it is found in any encoding around it."""
    return pem.splitlines()[1]


def mint_keys(story: Story) -> None:
    for name in ("ca.key", "sa.key", "apiserver.key"):
        story.mint(name, key_body((story.server.data_dir / "pki" / name).read_text()))
    for name in ("admin.conf", "super-admin.conf"):
        user = parse_kubeconfig((story.server.data_dir / name).read_bytes()).users[0]
        assert user.key is not None
        story.mint(name, key_body(user.key.reveal().decode()))
        story.mint(f"{name} as written", b64(user.key.reveal().decode())[100:160])


def use_bootstrap_tokens(story: Story) -> None:
    token = f"{TOKEN_ID}.{story.mint('bootstrap token', TOKEN_SECRET)}"
    story.mint("bootstrap token as data", b64(TOKEN_SECRET).rstrip("="))
    data = {
        "token-id": TOKEN_ID,
        "token-secret": TOKEN_SECRET,
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
    }
    secret = {
        "metadata": {"name": f"bootstrap-token-{TOKEN_ID}"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": data,
    }
    assert story.call("POST", "/api/v1/namespaces/kube-system/secrets", secret, kept=False)[0] == 201
    story.call("POST", "/api/v1/namespaces/kube-system/secrets", secret)
    assert story.call("GET", "/version", admin=False, Authorization=bearer(token))[0] == 200
    assert story.call("GET", SECRETS, admin=False, Authorization=bearer(token))[0] == 403
    wrong = f"{TOKEN_ID}.{story.mint('wrong bootstrap token', WRONG_SECRET)}"
    for value in (
        bearer(wrong),
        bearer(wrong.upper()),
        bearer(token + "x"),
        bearer(f"{token} "),
        f"Basic {b64(token)}",
    ):
        story.call("GET", "/api", admin=False, Authorization=value)
    for given in (token, wrong, token[:-1], f"{token}\n"):
        story.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": given}}, kept=False)
    bad = {**secret, "stringData": {**data, "expiration": "soon", "auth-extra-groups": "nobody"}}
    bad["metadata"] = {"name": "Not A Name"}
    assert story.call("POST", "/api/v1/namespaces/kube-system/secrets", bad)[0] == 422


def use_service_account_tokens(story: Story) -> None:
    story.call("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "robot"}})
    target = "/api/v1/namespaces/default/serviceaccounts/robot/token"
    status, body = story.call("POST", target, {"spec": {}}, kept=False)
    assert status == 201
    token = json.loads(body)["status"]["token"]
    header, claims, signature = token.split(".")
    story.mint("signature of a service account token", signature[:40])
    story.mint("claims of a service account token", claims[:60])
    assert story.call("GET", "/version", admin=False, Authorization=bearer(token))[0] == 200
    flipped = ("B" if signature[10] == "A" else "A").join((signature[:10], signature[11:]))
    story.mint("signature of a forged token", flipped[:40])
    for wrong in (
        f"{header}.{claims}.{flipped}",
        f"{header}.{claims}.",
        f"{header}.{claims[:-2]}.{signature}",
        token[:-20],
    ):
        assert story.call("GET", "/version", admin=False, Authorization=bearer(wrong))[0] in (401, 429)
    story.call("DELETE", "/api/v1/namespaces/default/serviceaccounts/robot")
    assert story.call("GET", "/version", admin=False, Authorization=bearer(token))[0] in (401, 429)


def use_passwords(story: Story) -> None:
    story.mint("password", PASSWORD)
    story.mint("password as data", b64(PASSWORD).rstrip("="))
    secret = {"metadata": {"name": "db"}, "stringData": {"password": PASSWORD}}
    assert story.call("POST", SECRETS, secret, kept=False)[0] == 201
    assert story.call("POST", SECRETS, secret)[0] == 409
    broken = [
        {"metadata": {"name": "x"}, "data": {"password": PASSWORD}},  # not base64
        {"metadata": {"name": "x"}, "data": {"password": [PASSWORD]}},
        {"metadata": {"name": "x"}, "data": PASSWORD},
        {"metadata": {"name": "Not A Name"}, "stringData": {"password": PASSWORD}},
        {"metadata": {"name": "x"}, "type": "kubernetes.io/tls", "stringData": {"tls.crt": PASSWORD}},
        {
            "metadata": {"name": "x"},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": PASSWORD},
        },
    ]
    for body in broken:
        assert story.call("POST", SECRETS, body)[0] in (400, 422), body
    story.call("POST", SECRETS, b'{"metadata":{"name":"x"},"stringData":{"p":"' + PASSWORD.encode() + b'"')
    story.call("POST", SECRETS, PASSWORD.encode())
    story.call("POST", SECRETS, b"a: [" + PASSWORD.encode(), Content_Type="application/yaml")
    test = [{"op": "test", "path": "/data/password", "value": b64(PASSWORD) + "x"}]
    story.call("PATCH", f"{SECRETS}/db", test, Content_Type="application/json-patch+json")
    story.call("PATCH", f"{SECRETS}/db", {"data": {"password": PASSWORD}}, Content_Type="application/merge-patch+json")
    story.call("PUT", f"{SECRETS}/db", {"metadata": {"name": "other"}, "stringData": {"password": PASSWORD}})
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    assert story.call("GET", SECRETS, Accept=accept)[0] == 200
    assert story.call("GET", SECRETS, Accept=accept.replace("Table", "PartialObjectMetadataList"))[0] == 200


def use_join_tokens(story: Story) -> None:
    server = (story.server.data_dir / "server/token").read_text().strip().rpartition(":")[2]
    tokens = {"server": story.mint("server token", server), "node": story.mint("agent token", AGENT_TOKEN)}
    for user, token in tokens.items():
        story.mint(f"token of {user} as it is sent", b64(f"{user}:{token}").rstrip("="))
        path = "/v1-k3s/encrypt/status" if user == "server" else "/v1-k3s/config"
        authorization = f"Basic {b64(f'{user}:{token}')}"
        assert story.call("GET", path, admin=False, Authorization=authorization)[0] == 200
        assert story.call("GET", "/v1-k3s/connect", admin=False, Authorization=authorization)[0] == 403
        assert story.call("PUT", "/v1-k3s/encrypt/config", token.encode(), admin=False, Authorization=authorization)[
            0
        ] in (400, 403)
        wrong = story.mint(f"wrong token of {user}", f"wr0ng-t0ken-of-{user}")
        for value in (f"Basic {b64(f'{user}:{wrong}')}", bearer(wrong), f"Basic {b64(token)}"):
            story.call("GET", path, admin=False, Authorization=value)
        story.call("GET", "/version", admin=False, Authorization=authorization)


def use_node_passwords(story: Story) -> None:
    request = next(iter(pem.blocks(build_request(generate_key(), "machine")))).der
    right, wrong = (
        story.mint("node password", "n0de-passw0rd-0f-n1"),
        story.mint("wrong node password", "wr0ng-n0de-passw0rd"),
    )
    authorization = f"Basic {b64(f'node:{AGENT_TOKEN}')}"

    def post(password: str, body: bytes = request, name: str = "n1") -> int:
        return story.call(
            "POST", "/v1-k3s/client-kubelet.crt", body, admin=False, Authorization=authorization, k3s_Node_Name=name,
            k3s_Node_Password=password,
        )[0]  # fmt: skip

    assert [post(right), post(wrong), post(right, b"junk"), post(right, name="N_1")] == [200, 403, 400, 400]
    _, found = story.call("GET", "/api/v1/namespaces/kube-system/secrets/n1.node-password.k3s", kept=False)
    line = base64.b64decode(json.loads(found)["data"]["hash"]).decode()
    story.mint("hash of a node password", line.rpartition(":")[2])
    story.mint("hash of a node password as data", b64(line).rstrip("="))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("redaction")
    (root / "agents").write_text(AGENT_TOKEN)
    server = started(root, "--k3s-supervisor", "--agent-token-file", str(root / "agents"))
    try:
        story = Story(server)
        mint_keys(story)
        use_bootstrap_tokens(story)
        use_service_account_tokens(story)
        use_passwords(story)
        use_join_tokens(story)
        use_node_passwords(story)
        story.call("GET", "/metrics")
        story.call("GET", "/nowhere", admin=False)
        story.replies.append(Path(f"/proc/{server.process.pid}/cmdline").read_bytes())
        assert server.stop() == 0
        yield story
    finally:
        server.kill()


def outlets(story: Story) -> dict[str, bytes]:
    root = story.server.data_dir.parent
    return {
        "the log": (root / "data.log").read_bytes(),
        "the audit file": (root / "audit.log").read_bytes(),
        "the replies": b"\n".join(story.replies),
    }


@pytest.mark.parametrize("outlet", ["the log", "the audit file", "the replies"])
def test_no_secret_comes_out(story: Story, outlet: str) -> None:
    came_out = outlets(story)[outlet]
    assert came_out, f"{outlet} must not be empty, or nothing was shown"
    assert [name for name, secret in story.minted.items() if secret.encode() in came_out] == []


def test_the_search_would_find_a_secret_that_came_out(story: Story) -> None:
    body = outlets(story)["the audit file"]
    assert len(story.minted) >= 15
    assert b"bootstrap-token-a1b2c3" in body, "names, the public half of a token among them, are told"
    assert b"authentication.mooring.dev/refused" in body, "refusals are told with their reason"


# ── every authenticator ──────────────────────────────────────────────────────────────────────────────────────────

LOGIN = "/mooring/v1/login"
OPTION = "bind-passw0rd-of-the-directory"
GUEST = f"""
authenticators:
- name: guest
  class: tests.support.guestauthenticator:Guest
  options: {{url: "ldaps://directory.example", bind-password: {OPTION}}}
"""


def mooring(*arguments: str, given: str = "") -> bytes:
    """Run a command. Return its standard output and error."""
    done = forkserver.run(["-m", "mooring", *arguments], given=given.encode(), cwd=ROOT)
    assert b"Traceback" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def explained(story: Story, path: str, authorization: str) -> None:
    """Send a request that is refused, and every `auth explain` of it."""
    connection = http.client.HTTPSConnection("127.0.0.1", story.server.port, context=story.context(False), timeout=30)
    connection.request("GET", path, headers={"Authorization": authorization})
    answer = connection.getresponse()
    story.replies.append(str(answer.getheaders()).encode() + answer.read())
    name = answer.headers["audit-id"]
    connection.close()
    assert answer.status == 401, answer.status
    story.replies.append(mooring("auth", "explain", name, "--kubeconfig", str(story.server.kubeconfig), "-o", "json"))
    assert name.encode() in story.replies[-1]


def use_every_way(story: Story, sent: Ways, root: Path) -> None:
    tokens = {name: given[1] for name, given in sent.sent.items() if given[0] == "-token"}
    for name, token in tokens.items():
        story.mint(name, token.rpartition(".")[2][:60])
        assert story.call("GET", "/version", admin=False, Authorization=bearer(token))[0] == 200, name
        review = {"spec": {"token": token}, "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1"}
        status, _ = story.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review, kept=False)
        assert status == 201
        file = root / "token"
        file.write_text(token)
        file.chmod(0o600)
        output = mooring("auth", "explain", "--token-file", str(file), "--kubeconfig", str(story.server.kubeconfig))
        assert b"accepted" in output, output
        story.replies.append(output)
    passwords = {"plain": "plain-password", "slow": "slow-password", "stone": "keyst0ne-passw0rd"}
    for user, password in passwords.items():
        story.mint(f"password of {user}", password)
        story.mint(f"password of {user} as it is sent", b64(f"{user}:{password}").rstrip("="))
        assert story.call("GET", "/version", admin=False, Authorization=f"Basic {b64(f'{user}:{password}')}")[0] == 200
        kubeconfig = ("--kubeconfig", str(story.server.kubeconfig))
        story.replies.append(mooring("auth", "explain", "--username", user, *kubeconfig, given=f"{password}\n"))
    for user in ("plain", "slow"):
        wrong = story.mint(f"wrong password of {user}", f"wr0ng-passw0rd-of-{user}")
        explained(story, "/version", f"Basic {b64(f'{user}:{wrong}')}")
    head, claims, signature = tokens["OpenID Connect"].split(".")
    story.mint("claims of an ID token", claims[:60])
    story.mint("signature of a forged ID token", signature[::-1][:60])
    forged = bearer(f"{head}.{claims}.{signature[::-1]}")  # the webhook gets it, and accepts every token
    story.call("GET", "/version", admin=False, Authorization=forged)
    explained(story, "/version", f"Basic {b64('no colon, but ' + passwords['plain'])}")


def use_logins(story: Story, sent: Ways) -> None:
    subject = {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": "system:authenticated"}
    role = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "mooring:login"}
    binding = {"metadata": {"name": "logins"}, "roleRef": role, "subjects": [subject]}
    story.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding)
    proof = bearer(sent.sent["OpenID Connect"][1])
    status, body = story.call("POST", LOGIN, {}, admin=False, kept=False, Authorization=proof)
    assert status in (200, 201), body
    token = json.loads(body)["token"]
    story.mint("token of a login", token.rpartition(".")[2][:60])
    assert story.call("GET", "/version", admin=False, Authorization=bearer(token))[0] == 200
    assert story.call("POST", LOGIN, {}, admin=False, Authorization=bearer(token))[0] == 403
    story.call("POST", LOGIN, token.encode(), admin=False, Authorization=proof)


def check_configurations(story: Story, sent: Ways, root: Path) -> None:
    story.mint("an option of an authenticator of one's own", OPTION)
    flags = iter(sent.flags)
    lines = [f"{name.removeprefix('--')}: {value}" for name, value in zip(flags, flags, strict=True)]
    whole, broken = root / "whole.yaml", root / "broken.yaml"
    whole.write_text("\n".join([f"data-dir: {root / 'unused'}", *lines, GUEST]))
    story.replies.append(mooring("config", "check", str(whole)))
    for text in (
        GUEST.replace("bind-password: ", "bind-password: ["),
        GUEST.replace("guestauthenticator:Guest", "nowhere:Guest"),
        GUEST.replace("name: guest", f"name: {OPTION}"),
        GUEST.replace("options:", f"{OPTION}: 1\n  options:"),
        f"oidc-client-id: [{OPTION}",
        f"token-auth-file: {{a: {OPTION}}}",
    ):
        broken.write_text(text)
        printed = mooring("config", "check", str(broken))
        if f"name: {OPTION}" not in text and f"{OPTION}: 1" not in text:  # names of keys, and names, are no secrets
            story.replies.append(printed)
    for name in ("tokens.csv", "passwords.csv"):
        (root / name).write_text(f'{OPTION}\n{OPTION},"')
    story.replies.append(mooring("config", "check", str(whole)))


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    root = tmp_path_factory.mktemp("everyway")
    (root / "guest.yaml").write_text(GUEST)
    with ways(root) as sent:
        server = started(root, "--config", str(root / "guest.yaml"), *sent.flags)
        try:
            story = Story(server)
            mint_keys(story)
            use_every_way(story, sent, root)
            use_logins(story, sent)
            story.call("GET", "/metrics")
            story.call("GET", "/debug/authentication/refusals")
            story.replies.append(Path(f"/proc/{server.process.pid}/cmdline").read_bytes())
            assert server.stop() == 0
            check_configurations(story, sent, root)
            yield story
        finally:
            server.kill()


@pytest.mark.parametrize("outlet", ["the log", "the audit file", "the replies"])
def test_no_secret_of_any_way_in_comes_out(every: Story, outlet: str) -> None:
    came_out = outlets(every)[outlet]
    assert came_out, f"{outlet} must not be empty, or nothing was shown"
    assert [name for name, secret in every.minted.items() if secret.encode() in came_out] == []
    assert len(every.minted) >= 20
