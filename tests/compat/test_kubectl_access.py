"""Unmodified kubectl with identities: permissions, tokens, certificates, impersonation; discovery; bad input."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from cryptography import x509

from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from tests.compat.kubectl import Kubectl
from tests.support.liveserver import LiveServer

UNKNOWN = """
apiVersion: v1
kind: ConfigMap
metadata: {name: odd}
data: {a: "1"}
flavour: sweet
"""


@pytest.mark.every_release
@pytest.mark.shows("create namespace, secret, configmap, serviceaccount")
def test_create_the_simple_kinds(kubectl: Kubectl, namespace: str, server: LiveServer) -> None:
    """Create by typed commands: since 1.32 their bodies are protobuf."""
    here = ("-n", namespace)
    assert kubectl.ok("create", "namespace", f"{namespace}-b") == f"namespace/{namespace}-b created\n"
    assert "AlreadyExists" in kubectl.fails("create", "namespace", f"{namespace}-b")
    assert kubectl.ok(*here, "create", "secret", "generic", "made", "--from-literal=a=b") == "secret/made created\n"
    secret = kubectl.json(*here, "get", "secret", "made")
    assert (secret["type"], secret["data"]) == ("Opaque", {"a": "Yg=="})
    ca = server.data_dir / "pki" / "ca.crt"
    pair = ("--cert", str(ca), "--key", str(ca.with_suffix(".key")))
    kubectl.ok(*here, "create", "secret", "tls", "pair", *pair)
    registry = ("--docker-server=r.example", "--docker-username=u", "--docker-password=p")
    kubectl.ok(*here, "create", "secret", "docker-registry", "pull", *registry)
    types = "jsonpath={.items[*].type}"
    assert {"kubernetes.io/tls", "kubernetes.io/dockerconfigjson"} <= set(
        kubectl.ok(*here, "get", "secrets", "-o", types).split()
    )
    kubectl.ok(*here, "create", "configmap", "made", f"--from-file=ca={ca}", "--from-literal=b=c")
    assert kubectl.ok(*here, "get", "cm", "made", "-o", "jsonpath={.data.ca}") == ca.read_text()
    assert kubectl.ok(*here, "create", "serviceaccount", "made") == "serviceaccount/made created\n"
    assert "Invalid value" in kubectl.fails(*here, "create", "configmap", "Not_A_Name")
    dry = kubectl.ok(*here, "create", "configmap", "dry", "--dry-run=server", "-o", "jsonpath={.metadata.uid}")
    assert dry
    kubectl.fails(*here, "get", "cm", "dry")


@pytest.mark.every_release
@pytest.mark.shows("create role, clusterrole, rolebinding, clusterrolebinding", "auth can-i", "--as, --as-group")
def test_roles_and_bindings_grant_and_limit_rights(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    reader, user = f"reader-{namespace}", f"user-{namespace}"
    kubectl.ok("create", "clusterrole", reader, "--verb=get,list", "--resource=configmaps,secrets")
    kubectl.ok("create", "clusterrolebinding", reader, f"--clusterrole={reader}", f"--user={user}")
    kubectl.ok(*here, "create", "role", "writer", "--verb=create", "--resource=configmaps,rolebindings")
    kubectl.ok(*here, "create", "rolebinding", "writer", "--role=writer", f"--user={user}")
    for allowed in (
        ("get", "secrets", "-A"),
        ("list", "configmaps"),
        ("create", "configmaps", *here),
    ):
        assert kubectl.ok("auth", "can-i", *allowed, "--as", user).startswith("yes")
    denied = kubectl.run("auth", "can-i", "create", "configmaps", "-n", "kube-system", "--as", user)
    assert (denied.returncode, denied.stdout.split()[0]) == (1, "no")
    assert kubectl.ok("auth", "can-i", "*", "*", "-A").startswith("yes")
    assert kubectl.ok("auth", "can-i", "get", "/readyz", "--as", user).startswith("yes")
    rules = kubectl.ok("auth", "can-i", "--list", *here, "--as", user)
    assert any(line.startswith("configmaps") and "create" in line for line in rules.splitlines())

    made = kubectl.ok(*here, "--as", user, "create", "configmap", "by-other")
    assert made == "configmap/by-other created\n"
    assert kubectl.fails("--as", user, "get", "nodes") == (
        f'Error from server (Forbidden): nodes is forbidden: User "{user}" cannot list resource "nodes" '
        'in API group "" at the cluster scope\n'
    )
    kubectl.ok("--as", user, "--as-group", "system:masters", "get", "nodes")
    escalated = kubectl.fails(
        *here, "--as", user, "create", "rolebinding", "mine", "--clusterrole=edit", f"--user={user}"
    )
    assert (
        f'user "{user}" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held'
        in (escalated)
    )


@pytest.mark.shows("auth whoami")
def test_who_am_i(kubectl: Kubectl, namespace: str) -> None:
    said = kubectl.ok("auth", "whoami")
    assert "kubernetes-admin" in said
    assert "kubeadm:cluster-admins system:authenticated" in said
    assert "bob" in kubectl.ok("auth", "whoami", "--as", "bob")


@pytest.mark.shows("auth reconcile")
def test_reconcile_roles(kubectl: Kubectl, namespace: str) -> None:
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "reconciled", "namespace": namespace},
        "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}],
    }
    reconcile = ("auth", "reconcile", "-f", "-")
    assert "reconciled" in kubectl.ok(*reconcile, stdin=json.dumps(role))
    role["rules"] = [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]
    kubectl.ok(*reconcile, stdin=json.dumps(role))
    verbs = kubectl.ok("-n", namespace, "get", "role", "reconciled", "-o", "jsonpath={.rules[*].verbs[*]}")
    assert verbs.split() == ["get", "list"]


@pytest.mark.every_release
@pytest.mark.shows("create token")
def test_tokens_of_service_accounts(kubectl: Kubectl, namespace: str, server: LiveServer, tmp_path: Path) -> None:
    here = ("-n", namespace)
    kubectl.ok(*here, "create", "serviceaccount", "robot")
    token = kubectl.ok(*here, "create", "token", "robot", "--duration=20m").strip()
    claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
    assert claims["sub"] == f"system:serviceaccount:{namespace}:robot"
    assert claims["exp"] - claims["iat"] == 1200
    empty = tmp_path / "empty.conf"
    empty.write_text("")
    bearer = Kubectl(kubectl.program, empty, kubectl.home)
    me = (f"--server={server.url}", f"--certificate-authority={server.data_dir / 'pki/ca.crt'}", f"--token={token}")
    assert f'User "system:serviceaccount:{namespace}:robot" cannot list' in bearer.fails(*me, "get", "nodes")
    kubectl.ok(*here, "create", "rolebinding", "robot", "--clusterrole=view", f"--serviceaccount={namespace}:robot")
    assert "configmap/kube-root-ca.crt" in bearer.ok(*me, *here, "get", "cm", "-o", "name")
    kubectl.ok(*here, "delete", "sa", "robot")
    assert "nauthorized" in bearer.fails(*me, *here, "get", "cm")
    assert "not found" in kubectl.fails(*here, "create", "token", "robot")


def _csr(name: str, user: str) -> str:
    request = build_request(generate_key(), user, ("developers",))
    return json.dumps(
        {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": name},
            "spec": {
                "request": base64.b64encode(request).decode(),
                "signerName": "kubernetes.io/kube-apiserver-client",
                "usages": ["client auth"],
            },
        }
    )


@pytest.mark.shows("certificate approve and deny")
def test_certificates(kubectl: Kubectl, namespace: str, server: LiveServer) -> None:
    good, bad = f"good-{namespace}", f"bad-{namespace}"
    for name in (good, bad):
        kubectl.ok("create", "-f", "-", stdin=_csr(name, "jane"))
    listed = kubectl.ok("get", "csr", good)
    assert listed.split()[2:4] == ["SIGNERNAME", "REQUESTOR"]
    assert "kubernetes.io/kube-apiserver-client" in listed
    assert "Pending" in listed
    assert kubectl.ok("certificate", "approve", good).endswith(f"/{good} approved\n")
    kubectl.ok("wait", "--for=condition=Approved", f"csr/{good}", "--timeout=30s")
    assert kubectl.ok("certificate", "deny", bad).endswith(f"/{bad} denied\n")
    assert "Denied" in kubectl.ok("get", "csr", bad)
    described = kubectl.ok("describe", "csr", good).split()
    assert described[described.index("Subject:") : described.index("Events:")] == [
        *("Subject:", "Common", "Name:", "jane"),
        *("Serial", "Number:", "Organization:", "developers"),
    ]
    watch = ("get", "csr", good, "-w", "-o", 'jsonpath={.status.certificate}{"\\n"}')
    with kubectl.started(*watch) as watching:
        assert watching.stdout is not None
        issued = next(line for line in watching.stdout if line.strip())
    certificate = x509.load_pem_x509_certificate(base64.b64decode(issued))
    assert certificate.subject.rfc4514_string() == "CN=jane,O=developers"
    assert certificate.issuer == x509.load_pem_x509_certificate(server.ca_pem).subject


@pytest.mark.every_release
@pytest.mark.shows("api-resources, api-versions, version", "explain")
def test_discovery_and_explain(kubectl: Kubectl, namespace: str) -> None:
    resources = [line.split() for line in kubectl.ok("api-resources", "--no-headers").splitlines()]
    assert ["configmaps", "cm", "v1", "true", "ConfigMap"] in resources
    assert [
        "certificatesigningrequests",
        "csr",
        "certificates.k8s.io/v1",
        "false",
        "CertificateSigningRequest",
    ] in resources
    assert ["clustertrustbundles", "certificates.k8s.io/v1", "false", "ClusterTrustBundle"] in resources
    assert ["podcertificaterequests", "certificates.k8s.io/v1", "true", "PodCertificateRequest"] in resources
    assert "stubPKCS10Request" in kubectl.ok("explain", "podcertificaterequests.spec")
    published = "clustertrustbundle.certificates.k8s.io/kubernetes.io:kube-apiserver-serving:"
    for version in ("v1", "v1beta1"):
        assert published in kubectl.ok("get", f"clustertrustbundles.{version}.certificates.k8s.io", "-o", "name")
    assert published in kubectl.ok("get", "clustertrustbundles", "-o", "name")
    assert "nodes" in kubectl.ok("api-resources", "--namespaced=false", "-o", "name").split()
    assert "rbac.authorization.k8s.io/v1" in kubectl.ok("api-versions").split()
    version = json.loads(kubectl.ok("version", "-o", "json"))
    assert version["serverVersion"]["gitVersion"].startswith("v1.37.")
    assert kubectl.ok("get", "--raw", "/readyz") == "ok"
    secret = kubectl.ok("explain", "secret")
    assert "stringData\t<map[string]string>" in secret
    assert "ownerReferences" in kubectl.ok("explain", "secret.metadata")
    assert "signerName" in kubectl.ok("explain", "csr.spec", "--recursive")
    assert "does not exist" in kubectl.fails("explain", "secret.flavour")


@pytest.mark.shows("unknown fields are refused")
def test_unknown_fields_are_refused(kubectl: Kubectl, namespace: str) -> None:
    here = ("-n", namespace)
    refused = kubectl.fails(*here, "create", "-f", "-", stdin=UNKNOWN)
    if kubectl.program.release >= (1, 25):
        assert refused == (
            'Error from server (BadRequest): error when creating "STDIN": ConfigMap in version "v1" cannot be handled as a '
            'ConfigMap: strict decoding error: unknown field "flavour"\n'
        )
    else:
        assert 'ValidationError(ConfigMap): unknown field "flavour" in io.k8s.api.core.v1.ConfigMap' in refused
    kubectl.fails(*here, "get", "cm", "odd")
    kubectl.ok(*here, "apply", "-f", "-", stdin=UNKNOWN.replace("odd", "even").replace("flavour: sweet", ""))
    assert 'unknown field "flavour"' in kubectl.fails(*here, "apply", "-f", "-", stdin=UNKNOWN.replace("odd", "even"))
    wrong = kubectl.fails(
        *here, "create", "-f", "-", stdin=UNKNOWN.replace('{a: "1"}', "[]").replace("flavour: sweet", "")
    )
    assert "ConfigMap" in wrong
    other = ("--validate=false", "-f", "-")  # with validation, kubectl requests custom resource definitions first
    assert 'no matches for kind "Flavour" in version "v1"' in (
        kubectl.fails(*here, "create", *other, stdin=UNKNOWN.replace("ConfigMap", "Flavour"))
    )


@pytest.mark.shows("unknown fields are warned about")
def test_unknown_fields_are_warned_about(kubectl: Kubectl, namespace: str) -> None:
    warned = kubectl.run(
        "-n", namespace, "create", "--validate=warn", "-f", "-", stdin=UNKNOWN.replace("odd", "warned")
    )
    assert warned.returncode == 0
    assert warned.stderr == 'Warning: unknown field "flavour"\n'
    ignored = kubectl.run(
        "-n", namespace, "create", "--validate=ignore", "-f", "-", stdin=UNKNOWN.replace("odd", "let")
    )
    assert (ignored.returncode, ignored.stderr) == (0, "")
