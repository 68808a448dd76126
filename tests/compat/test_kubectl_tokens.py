"""Unmodified kubectl and tokens of service accounts: every flag of `create token`, and tokens that Secrets hold."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client as k8s_client

from tests.compat.kubectl import Kubectl
from tests.support.liveserver import LiveServer
from tests.support.polling import eventually

k8s: Any = k8s_client  # the package's types are partial, and reject a dict for an object
SECONDS = 60.0
NODE_BINDING = (1, 31)
"""First release of kubectl that binds tokens to Nodes without an environment variable."""
NAME = "kubernetes.io/service-account.name"
LAST_USED, INVALID_SINCE = "kubernetes.io/legacy-token-last-used", "kubernetes.io/legacy-token-invalid-since"
POD = """
apiVersion: v1
kind: Pod
metadata: {name: of-token}
spec: {serviceAccountName: holder, containers: [{name: c, image: x}]}
"""
SECRET = """
apiVersion: v1
kind: Secret
metadata: {name: %s, annotations: {kubernetes.io/service-account.name: %s}}
type: kubernetes.io/service-account-token
"""


def claims(token: str) -> Any:
    payload = token.strip().split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))


class Space:
    """A namespace with a service account, a Pod and a Secret."""

    def __init__(self, kubectl: Kubectl, namespace: str) -> None:
        self.kubectl, self.namespace, self.here = kubectl, namespace, ("-n", namespace)

    def uid(self, *what: str) -> str:
        return self.kubectl.ok(*self.here, "get", *what, "-o", "jsonpath={.metadata.uid}")

    def token(self, *flags: str) -> Any:
        return claims(self.kubectl.ok(*self.here, "create", "token", "holder", *flags))


@pytest.fixture
def space(kubectl: Kubectl, namespace: str) -> Iterator[Space]:
    made = Space(kubectl, namespace)
    kubectl.ok(*made.here, "create", "serviceaccount", "holder")
    yield made
    kubectl.ok(*made.here, "delete", "serviceaccount", "holder", "--ignore-not-found")


@pytest.mark.shows("create token")
def test_every_flag_of_create_token(space: Space) -> None:
    kubectl, here = space.kubectl, space.here
    plain = space.token()
    assert plain["exp"] - plain["iat"] == 3600
    assert plain["aud"] == ["https://kubernetes.default.svc.cluster.local"]
    assert space.token("--audience=vault", "--audience=mesh")["aud"] == ["vault", "mesh"]
    long = space.token("--duration=30m")
    assert long["exp"] - long["iat"] == 1800
    kubectl.ok(*here, "apply", "-f", "-", stdin=POD)
    kubectl.ok(*here, "create", "secret", "generic", "of-token")
    for kind, what in (("Pod", "pod"), ("Secret", "secret")):
        uid = space.uid(what, "of-token")
        bound = space.token(f"--bound-object-kind={kind}", "--bound-object-name=of-token", f"--bound-object-uid={uid}")
        assert bound["kubernetes.io"][what] == {"name": "of-token", "uid": uid}
        named = ("--bound-object-name=of-token", "--bound-object-uid=another")
        assert "does not match the UID in record" in kubectl.fails(
            *here, "create", "token", "holder", f"--bound-object-kind={kind}", *named
        )
    whole = kubectl.json(*here, "create", "token", "holder")
    assert whole["kind"] == "TokenRequest"
    assert "than 10 minutes" in kubectl.fails(*here, "create", "token", "holder", "--duration=1m")
    shortened = kubectl.run(*here, "create", "token", "holder", "--duration=9000h")
    assert "requested expiration of 32400000 seconds shortened to 31536000 seconds" in shortened.stderr
    assert claims(shortened.stdout)["exp"] - claims(shortened.stdout)["iat"] == 365 * 86400
    kubectl.ok(*here, "delete", "pod", "of-token", "--grace-period=0", "--force")
    kubectl.ok(*here, "delete", "secret", "of-token")


@pytest.mark.shows("create token")
def test_tokens_that_end_with_a_node(space: Space) -> None:
    kubectl = space.kubectl
    if kubectl.program.release < NODE_BINDING:
        pytest.skip("this kubectl knows only Pods and Secrets")
    name = f"of-{space.namespace}"
    kubectl.ok("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}))
    bound = space.token("--bound-object-kind=Node", f"--bound-object-name={name}")
    assert bound["kubernetes.io"]["node"] == {"name": name, "uid": space.uid("node", name)}
    kubectl.ok("delete", "node", name)


@pytest.mark.shows("create token")
def test_a_token_that_a_secret_holds(space: Space, server: LiveServer, tmp_path: Path) -> None:
    kubectl, here = space.kubectl, space.here
    kubectl.ok(
        *here, "create", "rolebinding", "holder", "--clusterrole=view", f"--serviceaccount={space.namespace}:holder"
    )
    kubectl.ok(*here, "apply", "-f", "-", stdin=SECRET % ("held", "holder"))

    def held() -> Any:
        found: Any = kubectl.json(*here, "get", "secret", "held")
        return found if (found.get("data") or {}).get("token") else None

    secret = eventually(held)
    assert secret["metadata"]["annotations"]["kubernetes.io/service-account.uid"] == space.uid("sa", "holder")
    data = {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}
    assert data["ca.crt"] == server.ca_pem.decode()
    assert data["namespace"] == space.namespace
    token = data["token"]
    assert claims(token)["iss"] == "kubernetes/serviceaccount"
    assert "exp" not in claims(token)
    assert re.search(r"token: +\S", kubectl.ok(*here, "describe", "secret", "held"))

    # kubectl and the Python client with the Secret's data as their only credential
    (tmp_path / "ca.crt").write_text(data["ca.crt"])
    (tmp_path / "empty.conf").write_text("")
    bearer = Kubectl(kubectl.program, tmp_path / "empty.conf", kubectl.home)
    me = (f"--server={server.url}", f"--certificate-authority={tmp_path / 'ca.crt'}", f"--token={token}", *here)
    assert "configmap/kube-root-ca.crt" in bearer.ok(*me, "get", "cm", "-o", "name")
    assert f'User "system:serviceaccount:{space.namespace}:holder" cannot' in bearer.fails(*me, "delete", "cm", "x")
    configuration = k8s.Configuration(host=server.url)
    configuration.ssl_ca_cert = str(tmp_path / "ca.crt")
    configuration.api_key = {"authorization": f"Bearer {token}"}
    with k8s.ApiClient(configuration) as api:
        listed = k8s.CoreV1Api(api).list_namespaced_config_map(space.namespace)
    assert "kube-root-ca.crt" in [item.metadata.name for item in listed.items]

    # the day of the last use is stored after the response
    day = eventually(lambda: (held()["metadata"].get("labels") or {}).get(LAST_USED))
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", str(day))

    # like a Secret that the controller generated: a warning
    assert "Warning" not in bearer.run(*me, "get", "cm").stderr
    kubectl.ok(*here, "patch", "sa", "holder", "-p", '{"secrets":[{"name":"held"}]}')
    assert "Warning: this service account token was generated by itself" in bearer.run(*me, "get", "cm").stderr

    # marked invalid, it is refused at once; without the mark it is accepted again
    kubectl.ok(*here, "label", "secret", "held", f"{INVALID_SINCE}=2026-01-01")
    assert "nauthorized" in bearer.fails(*me, "get", "cm")
    kubectl.ok(*here, "label", "secret", "held", f"{INVALID_SINCE}-")
    bearer.ok(*me, "get", "cm")

    # the token ends with its Secret, and the account's reference is removed
    kubectl.ok(*here, "delete", "secret", "held")
    assert "nauthorized" in bearer.fails(*me, "get", "cm")
    eventually(lambda: "secrets" not in kubectl.json(*here, "get", "sa", "holder"))
    kubectl.ok(*here, "delete", "rolebinding", "holder")


@pytest.mark.shows("create token")
def test_secrets_of_tokens_go_with_their_account(space: Space) -> None:
    kubectl, here = space.kubectl, space.here
    kubectl.ok(*here, "apply", "-f", "-", stdin=SECRET % ("held", "holder"))
    orphan = SECRET % ("orphan", "nobody")
    kubectl.ok(*here, "apply", "-f", "-", stdin=orphan)
    eventually(lambda: "orphan" not in kubectl.ok(*here, "get", "secrets", "-o", "name"))
    assert "secret/held" in kubectl.ok(*here, "get", "secrets", "-o", "name")
    kubectl.ok(*here, "delete", "sa", "holder")
    eventually(lambda: "held" not in kubectl.ok(*here, "get", "secrets", "-o", "name"))
    nameless = orphan.replace(f"{NAME}: nobody", "a: b")
    assert f"metadata.annotations[{NAME}]: Required value" in kubectl.fails(*here, "create", "-f", "-", stdin=nameless)


@pytest.mark.shows("create token")
def test_since_when_uses_are_written_down(kubectl: Kubectl) -> None:
    name = "kube-apiserver-legacy-service-account-token-tracking"
    since = eventually(
        lambda: kubectl.run("-n", "kube-system", "get", "cm", name, "-o", "jsonpath={.data.since}").stdout
    )
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", since)
