"""csr and kubeconfig commands against a real server."""

from __future__ import annotations

import base64
import json
import secrets
import stat
from pathlib import Path

import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.pki import pem
from mooring.pki.keys import generate_key, public_key_fingerprint
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT, KUBELET_SERVING
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server", "mooring"]
QUALIFIED = "certificatesigningrequest.certificates.k8s.io"


@pytest.fixture
def csr(live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with the server's kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def asked(
    server: LiveServer, signer: str = KUBE_APISERVER_CLIENT, groups: tuple[str, ...] = ("dev",)
) -> tuple[str, str]:
    """Create a request. Return its name and the fingerprint of its key."""
    key = generate_key()
    name = f"test-{secrets.token_hex(4)}"
    obj: Obj = {
        "kind": "CertificateSigningRequest",
        "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"name": name},
        "spec": {
            "request": base64.b64encode(build_request(key, "jane", groups, dns=("jane.example",))).decode(),
            "signerName": signer,
            "usages": ["digital signature", "client auth"],
            "expirationSeconds": 3600,
        },
    }
    server.run(lambda client: client.create("certificatesigningrequests", obj))
    return name, f"sha256:{public_key_fingerprint(key)}"


def stored(server: LiveServer, name: str) -> Obj:
    return server.run(lambda client: client.get("certificatesigningrequests", name))


def test_show_tells_the_derived_facts(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    facts = json.loads(csr.done("csr", "show", name, "-o", "json"))
    assert facts["name"] == name
    assert facts["requester"]["username"] == "kubernetes-admin"
    assert facts["requester"]["groups"] == ["kubeadm:cluster-admins", "system:authenticated"]
    assert facts["signerName"] == KUBE_APISERVER_CLIENT
    assert facts["usages"] == ["digital signature", "client auth"]
    assert facts["expirationSeconds"] == 3600
    assert facts["request"] == {
        "subject": {"commonName": "jane", "organizations": ["dev"], "text": "CN=jane,O=dev"},
        "dnsNames": ["jane.example"],
        "key": {"algorithm": "ECDSA-P256", "fingerprint": fingerprint},
    }
    assert facts["condition"] == "Pending"
    assert "certificate" not in facts
    assert yaml.safe_load(csr.done("csr", "show", name, "-o", "yaml")) == facts
    assert csr.done("csr", "show", name, "-o", "name") == f"{QUALIFIED}/{name}\n"
    text = csr.done("csr", "show", name)
    assert f"Key fingerprint:      {fingerprint}\n" in text
    assert "Requested duration:   60m\n" in text
    assert "BEGIN CERTIFICATE REQUEST" in csr.done("csr", "show", name, "-o", "wide")


def test_show_tells_what_the_signer_would_refuse(live_server: LiveServer, csr: CommandLine) -> None:
    name, _ = asked(live_server, KUBELET_SERVING)
    assert "Signer would refuse:  subject organization is not system:nodes; " in csr.done("csr", "show", name)


def test_several_are_shown_as_one_document(live_server: LiveServer, csr: CommandLine) -> None:
    names = [asked(live_server)[0], asked(live_server)[0]]
    shown = json.loads(csr.done("csr", "show", *names, "-o", "json"))
    assert [item["name"] for item in shown["items"]] == names


def test_list_has_kubectls_columns(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    header, *rows = csr.done("csr", "list").splitlines()
    assert header.split() == ["NAME", "AGE", "SIGNERNAME", "REQUESTOR", "REQUESTEDDURATION", "CONDITION"]
    row = next(row for row in rows if row.startswith(name))
    assert row.split()[2:] == [KUBE_APISERVER_CLIENT, "kubernetes-admin", "60m", "Pending"]
    wide = next(row for row in csr.done("csr", "list", "-o", "wide").splitlines() if row.startswith(name))
    assert wide.split()[-2:] == ["CN=jane,O=dev", fingerprint]
    assert f"{QUALIFIED}/{name}" in csr.done("csr", "list", "-o", "name").split()
    items = json.loads(csr.done("csr", "list", "-o", "json"))["items"]
    assert {item["kind"] for item in items} == {"CertificateSigningRequest"}
    assert name in {item["metadata"]["name"] for item in items}
    assert name not in csr.done("csr", "list", "--signer", KUBELET_SERVING, "-o", "name")
    csr.done("csr", "approve", name)
    assert name not in csr.done("csr", "list", "--pending", "-o", "name")


def test_approving_is_final_and_repeating_it_is_no_write(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    assert csr.done("csr", "approve", name, "--fingerprint", fingerprint.upper().replace("SHA256", "sha256")) == (
        f"{QUALIFIED}/{name} approved\n"
    )
    condition = stored(live_server, name)["status"]["conditions"][0]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Approved", "True", "MooringApprove")
    assert condition["message"] == "Approved with mooring csr approve."
    csr.done("csr", "approve", name)
    assert len(stored(live_server, name)["status"]["conditions"]) == 1
    assert csr.done("csr", "approve", name, "--force", "-o", "name") == f"{QUALIFIED}/{name}\n"
    outcome = csr("csr", "deny", name)
    assert outcome.code == 1
    assert outcome.err == f'Error: the certificate signing request "{name}" is already approved; that is final\n'


def test_denying_several_with_a_message(live_server: LiveServer, csr: CommandLine) -> None:
    names = [asked(live_server)[0], asked(live_server)[0]]
    output = csr.done("csr", "deny", *names, "--message", "who are you?")
    assert output == "".join(f"{QUALIFIED}/{name} denied\n" for name in names)
    for name in names:
        condition = stored(live_server, name)["status"]["conditions"][0]
        assert (condition["type"], condition["reason"], condition["message"]) == (
            "Denied", "MooringDeny", "who are you?"
        )  # fmt: skip
    assert csr("csr", "approve", names[0]).err.endswith("is already denied; that is final\n")


def test_another_key_is_not_approved(live_server: LiveServer, csr: CommandLine) -> None:
    name, fingerprint = asked(live_server)
    outcome = csr("csr", "approve", name, "--fingerprint", "sha256:" + "0" * 64)
    assert outcome.code == 1
    assert outcome.err == (
        f'Error: the certificate signing request "{name}" is for another key, {fingerprint}: it was not approved\n'
    )
    assert not stored(live_server, name).get("status", {}).get("conditions")


def test_a_dry_run_changes_nothing(live_server: LiveServer, csr: CommandLine) -> None:
    name, _ = asked(live_server)
    assert csr.done("csr", "approve", name, "--dry-run") == f"{QUALIFIED}/{name} approved (server dry run)\n"
    assert not stored(live_server, name).get("status", {}).get("conditions")


def test_a_request_that_is_not_there(csr: CommandLine) -> None:
    message = 'Error: certificatesigningrequests.certificates.k8s.io "nope" not found\n'
    for verb in ("show", "approve", "deny"):
        assert csr("csr", verb, "nope").err == message


def test_a_user_gets_a_complete_kubeconfig(live_server: LiveServer, csr: CommandLine, tmp_path: Path) -> None:
    out = tmp_path / "jane.conf"
    arguments = ("kubeconfig", "user", "jane", "--group", "ops", "--group", "dev", "--expiration", "1h")
    outcome = csr(*arguments, "--out", str(out))
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith(f"Wrote {out}: user jane, valid until ")
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    config = yaml.safe_load(out.read_text())
    assert config["current-context"] == "jane@kubernetes"
    assert config["clusters"][0]["cluster"]["server"] == live_server.url
    user = config["users"][0]["user"]
    leaf = pem.certificates(base64.b64decode(user["client-certificate-data"]))[0]
    assert leaf.subject.rfc4514_string() == "CN=jane,O=dev+O=ops"
    refused = csr("token", "list", "--kubeconfig", str(out))
    assert refused.err.startswith('Error: secrets is forbidden: User "jane" cannot list resource "secrets"')
    again = csr(*arguments, "--out", str(out))
    assert again.err == f"Error: {out} exists already; remove it, or choose another name\n"


def test_a_user_may_be_printed_and_have_another_key(csr: CommandLine) -> None:
    config = yaml.safe_load(
        csr.done("kubeconfig", "user", "Jane Doe", "--key-algorithm", "Ed25519", "--cluster-name", "lab")
    )
    assert config["current-context"] == "Jane Doe@lab"
    assert config["users"][0]["name"] == "Jane Doe"


def test_the_rules_of_the_cluster_hold(csr: CommandLine) -> None:
    outcome = csr("kubeconfig", "user", "root", "--group", "system:masters")
    assert outcome.code == 1
    assert "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed" in outcome.err
