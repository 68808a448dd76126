"""certs revoke, list and show against a real server."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.kubeconfigfiles import load
from mooring.clock import rfc3339
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.x509.bundles import certificates, certificates_among
from tests.support.commandline import CommandLine, mooring
from tests.support.liveserver import LiveServer, live_server, start_server
from tests.support.polling import eventually
from tests.support.testca import ThrowawayCA

__all__ = ["live_server", "mooring"]
ENTRY = "certificaterevocation.mooring.dev"


@pytest.fixture
def certs(live_server: LiveServer, mooring: CommandLine, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with the server's kubeconfig."""
    monkeypatch.setenv("KUBECONFIG", str(live_server.kubeconfig))
    return mooring


def fresh_serial() -> str:
    return f"a{secrets.token_hex(8)}"


def stored(server: LiveServer, name: str) -> Obj:
    return server.run(lambda client: client.get("certificaterevocations", name))


def identity(server: LiveServer, node: str, serial_number: str, key: str, **more: str) -> None:
    keys = [{"publicKey": key, "serialNumber": serial_number, "notAfter": "2999-01-01T00:00:00Z", **more}]
    obj = {"metadata": {"name": node}, "spec": {"keys": keys}}
    server.run(lambda client: client.create("nodeidentities", obj))


def test_a_serial_number_is_revoked_once(live_server: LiveServer, certs: CommandLine) -> None:
    serial_number = fresh_serial()
    identity(live_server, f"n-{secrets.token_hex(4)}", serial_number, f"sha256:{secrets.token_hex(32)}")
    spelled = f"0x0{serial_number.upper()}"
    dry = certs("certs", "revoke", "--serial", spelled, "--dry-run")
    assert (dry.code, dry.out) == (0, f"{ENTRY}/serial-{serial_number} revoked (server dry run)\n")
    first = certs("certs", "revoke", "--serial", spelled, "--reason", "keyCompromise", "--message", "lost")
    assert (first.code, first.out) == (0, f"{ENTRY}/serial-{serial_number} revoked\n")
    spec = stored(live_server, f"serial-{serial_number}")["spec"]
    assert (spec["reason"], spec["message"]) == ("keyCompromise", "lost")
    assert spec["expiresAt"] > "2030", "the end of the CA"
    again = certs("certs", "revoke", "--serial", serial_number)
    assert (again.code, again.out) == (0, f"{ENTRY}/serial-{serial_number} unchanged\n")
    assert "keyCompromise" in again.err


def test_a_node_is_revoked_until_now_each_time(live_server: LiveServer, certs: CommandLine) -> None:
    node, serial_number = f"n-{secrets.token_hex(4)}", fresh_serial()
    identity(live_server, node, serial_number, f"sha256:{secrets.token_hex(32)}")
    entry = json.loads(certs.done("certs", "revoke", "--node", f"system:node:{node}", "-o", "json"))
    assert entry["spec"]["knownSerialNumbers"] == [serial_number]
    again = certs("certs", "revoke", "--node", node, "--reason", "superseded")
    assert again.out == f"{ENTRY}/node-{node} revoked\n"
    assert f"kubectl delete node {node}" in again.err
    moved = stored(live_server, f"node-{node}")["spec"]
    assert moved["issuedBefore"] > entry["spec"]["issuedBefore"]
    assert moved["reason"] == "superseded"


def test_list_and_show_tell_the_state(live_server: LiveServer, certs: CommandLine) -> None:
    node, serial_number = f"n-{secrets.token_hex(4)}", fresh_serial()
    key = f"sha256:{secrets.token_hex(32)}"
    identity(live_server, node, serial_number, key)
    (before,) = json.loads(certs.done("certs", "list", "--node", node, "-o", "json"))["items"]
    assert before["state"] == "valid"
    certs.done("certs", "revoke", "--key", key, "--reason", "keyCompromise", "--message", "in a backup")
    listed = certs.done("certs", "list", "--node", node, "-o", "wide")
    headers = ["NAME", "KIND", "SERIAL", "EXPIRES", "STATE", "REASON", "USER", "TOKEN", "FROM", "RENEWED"]
    assert re.split(r" {3,}", listed.splitlines()[0])[:10] == headers
    assert f"{serial_number}   in " in listed
    assert "revoked   keyCompromise" in listed
    assert certs.done("certs", "list", "--node", node, "--state", "revoked", "-o", "name") == f"{serial_number}\n"
    assert certs("certs", "list", "--node", node, "--state", "expired").err == "No certificates found.\n"
    entry = f"key-{key.removeprefix('sha256:')}"
    for which in (node, f"node/{node}", serial_number, entry, f"{ENTRY}/{entry}"):
        shown = certs.done("certs", "show", which)
        assert f"Serial number:  {serial_number}\n" in shown
        assert "Message:        in a backup\n" in shown
    document = json.loads(certs.done("certs", "show", node, "-o", "json"))
    assert [one["state"] for one in document["certificates"]] == ["revoked"]


def test_a_machine_with_a_certificate_for_a_name_of_the_api_server_is_named(
    live_server: LiveServer, certs: CommandLine
) -> None:
    node = f"n-{secrets.token_hex(4)}"
    fields = "metadata.name=kubernetes"
    services = eventually(
        lambda: live_server.run(lambda client: client.list("services", "default", field_selector=fields)).items
    )
    address = services[0]["spec"]["clusterIP"]
    names = [{"name": address, "notAfter": "2999-01-01T00:00:00Z"}]
    obj = {"metadata": {"name": node}, "spec": {"certifiedNames": names}}
    live_server.run(lambda client: client.create("nodeidentities", obj))
    listed = certs("certs", "list")
    assert listed.code == 0
    assert (
        f"warning: Node {node} may have a serving certificate, until 2999-01-01T00:00:00Z, for {address}, "
        in listed.err
    )
    live_server.run(lambda client: client.delete("nodeidentities", node))
    assert node not in certs("certs", "list").err


@pytest.mark.parametrize("flag", ["--node", "--serial", "--key"])
def test_what_the_cluster_does_not_know_is_revoked_with_force_alone(
    live_server: LiveServer, certs: CommandLine, flag: str
) -> None:
    node, serial_number, key = f"n-{secrets.token_hex(8)}", fresh_serial(), f"sha256:{secrets.token_hex(32)}"
    identity(live_server, node, serial_number, key)
    known = {"--node": node, "--serial": serial_number, "--key": key}[flag]
    typo = known[:-1] + ("0" if known[-1] != "0" else "1")
    for mode in ((), ("--dry-run",), ("-o", "json")):
        refused = certs("certs", "revoke", flag, typo, *mode)
        assert (refused.code, refused.out) == (1, "")
        assert refused.err.startswith("Error: the cluster knows no ")
        assert refused.err.count("\n") == 1
        for word in (f'"{typo}"', known, "mooring certs list", "--force"):
            assert word in refused.err
    name = {"--node": "node-", "--serial": "serial-", "--key": "key-"}[flag] + typo.removeprefix("sha256:")
    forced = certs("certs", "revoke", flag, typo, "--force")
    assert (forced.code, forced.out) == (0, f"{ENTRY}/{name} revoked\n")
    assert f"warning: the cluster knows no {'machine' if flag == '--node' else 'certificate'}" in forced.err
    assert certs("certs", "revoke", flag, typo).code == 0, "its entry makes it known"
    done = certs("certs", "revoke", flag, known)
    assert (done.code, "warning" in done.err) == (0, False)


def test_a_user_who_may_not_read_what_is_known_is_told_so(
    live_server: LiveServer, certs: CommandLine, tmp_path: Path
) -> None:
    """The user may create entries, and read nothing but Nodes."""
    user = f"revoker-{secrets.token_hex(4)}"
    rules = [
        {"apiGroups": ["mooring.dev"], "resources": ["certificaterevocations"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]},
    ]
    live_server.run(lambda client: client.create("clusterroles", {"metadata": {"name": user}, "rules": rules}))
    binding = {
        "metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    live_server.run(lambda client: client.create("clusterrolebindings", binding))
    config = tmp_path / "revoker.conf"
    certs.done("kubeconfig", "user", user, "--out", str(config))
    number = fresh_serial()
    identity(live_server, f"n-{secrets.token_hex(4)}", number, f"sha256:{secrets.token_hex(32)}")
    refused = certs("certs", "revoke", "--serial", number, "--kubeconfig", str(config))
    assert refused.code == 1
    assert (
        "as far as you may read: nodeidentities and certificaterevocations and lineagerecords are not readable"
        in refused.err
    )
    assert certs("certs", "revoke", "--serial", number, "--force", "--kubeconfig", str(config)).code == 0


def client_pair(server: LiveServer, certs: CommandLine, directory: Path) -> Path:
    arguments = ("--ca-cert", str(server.data_dir / "pki/ca.crt"), "--ca-key", str(server.data_dir / "pki/ca.key"))
    certs.done("certs", "client", *arguments, "--common-name", "jane", "--out-dir", str(directory), "--name", "jane")
    return directory / "jane.crt"


def test_a_certificate_file(live_server: LiveServer, certs: CommandLine, tmp_path: Path) -> None:
    path = client_pair(live_server, certs, tmp_path)
    shown = json.loads(certs.done("certs", "show", str(path), "-o", "json"))["certificates"][0]
    assert (shown["subject"], shown["state"]) == ("CN=jane", "valid")
    name = certs.done("certs", "revoke", "--certificate", str(path), "-o", "name").strip()
    assert name == f"{ENTRY}/serial-{shown['serialNumber']}"
    assert stored(live_server, name.partition("/")[2])["spec"]["expiresAt"] == shown["expires"]
    after = certs.done("certs", "show", str(path))
    assert "State:          revoked\n" in after
    assert certs.done("certs", "show", shown["serialNumber"], "-o", "yaml").startswith("certificates:")


def member(server: LiveServer, certs: CommandLine, root: Path, name: str) -> Path:
    """Join a machine for nine hours. Return the file with its certificate and key."""
    token = certs.done("token", "create").strip()
    certs.done(
        "join", server.endpoint, "--token", token, "--discovery-token-ca-cert-hash", server.pin,
        "--node-name", name, "--root", str(root), "--certificate-lifetime", "9h",
    )  # fmt: skip
    return root / "var/lib/kubelet/pki/kubelet-client-current.pem"


def test_a_member_is_not_renamed_by_another_join(live_server: LiveServer, certs: CommandLine, tmp_path: Path) -> None:
    name = f"n-{secrets.token_hex(4)}"
    member(live_server, certs, tmp_path, name)
    token = certs.done("token", "create").strip()
    again = (live_server.endpoint, "--token", token, "--discovery-token-ca-cert-hash", live_server.pin)
    for address in ((), again):
        for form in ("text", "json"):
            refused = certs("join", *address, "--root", str(tmp_path), "--node-name", "another", "-o", form)
            assert refused.code == 1
            assert name in refused.err
            assert "mooring leave" in refused.err
        assert certs("join", *address, "--root", str(tmp_path), "--node-name", name.upper()).code == 0
        assert certs("join", *address, "--root", str(tmp_path), "--node-name", name, "--dry-run").code == 0


def test_list_and_show_tell_the_end_of_the_certificate_and_that_its_node_was_deleted(
    live_server: LiveServer, certs: CommandLine, tmp_path: Path
) -> None:
    name = f"n-{secrets.token_hex(4)}"
    path = member(live_server, certs, tmp_path, name)
    (leaf,) = certificates_among(path.read_bytes())

    def told() -> list[tuple[str, str, str]]:
        listed = json.loads(certs.done("certs", "list", "--node", name, "-o", "json"))["items"]
        shown = [
            json.loads(certs.done("certs", "show", what, "-o", "json"))["certificates"] for what in (name, str(path))
        ]
        return [
            (one["state"], one["expires"], one.get("reason", ""))
            for one in (*listed, *(one for each in shown for one in each))
        ]

    end = rfc3339(leaf.not_valid_after_utc)
    assert told() == [("valid", end, "")] * 3
    live_server.run(lambda client: client.delete("nodes", name))
    assert told() == [("ended", end, "node-deleted")] * 3
    assert certs.done("certs", "list", "--node", name, "--state", "ended", "-o", "name") == f"{leaf.serial_number:x}\n"
    certs.done("certs", "revoke", "--node", name, "--reason", "superseded")
    assert [one[0] for one in told()] == ["revoked"] * 3


def test_a_certificate_of_a_ca_that_verifies_no_client_any_more_is_rejected(
    live_server: LiveServer, certs: CommandLine
) -> None:
    node, serial_number, key = f"n-{secrets.token_hex(4)}", fresh_serial(), f"sha256:{secrets.token_hex(32)}"
    identity(live_server, node, serial_number, key, issuer=f"sha256:{secrets.token_hex(32)}")
    (listed,) = json.loads(certs.done("certs", "list", "--node", node, "--state", "rejected", "-o", "json"))["items"]
    (shown,) = json.loads(certs.done("certs", "show", serial_number, "-o", "json"))["certificates"]
    assert [(one["state"], one["reason"]) for one in (listed, shown)] == [("rejected", "unknown-ca")] * 2
    certs.done("certs", "revoke", "--serial", serial_number, "--reason", "superseded")
    (revoked,) = json.loads(certs.done("certs", "list", "--node", node, "-o", "json"))["items"]
    assert (revoked["state"], revoked["reason"]) == ("revoked", "superseded")


def test_certificates_of_users_that_machines_share_are_listed_with_their_machine(
    live_server: LiveServer, certs: CommandLine
) -> None:
    node, own, shared = f"n-{secrets.token_hex(4)}", fresh_serial(), fresh_serial()
    keys = [
        {"publicKey": f"sha256:{secrets.token_hex(32)}", "serialNumber": number, "notAfter": "2999-01-01T00:00:00Z"}
        for number in (own, shared)
    ]
    made = live_server.run(lambda client: client.create("nodes", {"metadata": {"name": node}}))
    spec = {"keys": keys[:1], "companions": keys[1:], "nodeUID": made["metadata"]["uid"]}
    live_server.run(lambda client: client.create("nodeidentities", {"metadata": {"name": node}, "spec": spec}))

    def states() -> list[tuple[str, str, str]]:
        listed = json.loads(certs.done("certs", "list", "--node", node, "-o", "json"))["items"]
        return [(one["serialNumber"], one.get("user", ""), one["state"]) for one in listed]

    assert states() == [(own, f"system:node:{node}", "valid"), (shared, "", "valid")]
    live_server.run(lambda client: client.delete("nodes", node))
    assert states() == [(own, f"system:node:{node}", "ended"), (shared, "", "ended")]


def test_a_file_with_certificate_and_key_is_taken_as_it_is(
    live_server: LiveServer, certs: CommandLine, tmp_path: Path
) -> None:
    path = str(member(live_server, certs, tmp_path, f"n-{secrets.token_hex(4)}"))
    secret = "".join(Path(path).read_text().partition("PRIVATE KEY-----")[2].split())[:40]
    for command in (("auth", "explain", "--certificate-file"), ("certs", "show"), ("certs", "revoke", "--certificate")):
        outcome = certs(*command, path)
        assert outcome.code == 0, outcome.err
        assert secret[:20] not in outcome.all.replace("\n", "")
    assert certs("auth", "explain", "--certificate-file", path).code == 1, "it is revoked now"


def test_a_certificate_of_another_ca_is_rejected(certs: CommandLine, tmp_path: Path) -> None:
    pair = ThrowawayCA("another").client("jane")
    (tmp_path / "jane.crt").write_bytes(pair.certificate_pem)
    (shown,) = json.loads(certs.done("certs", "show", str(tmp_path / "jane.crt"), "-o", "json"))["certificates"]
    assert (shown["state"], shown["reason"]) == ("rejected", "unknown-ca")


def test_a_ca_of_the_cluster_is_not_revoked(live_server: LiveServer, certs: CommandLine) -> None:
    path = str(live_server.data_dir / "pki/ca.crt")
    (ca,) = certificates(Path(path).read_bytes())
    key = f"sha256:{public_key_fingerprint(accepted_public_key(ca.public_key()))}"
    for flags in (("--certificate", path), ("--serial", f"{ca.serial_number:x}"), ("--key", key)):
        outcome = certs("certs", "revoke", *flags)
        assert outcome.code == 1
        assert "CAs are replaced, not revoked" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        pytest.param([], 2, "exactly one of --serial", id="nothing"),
        pytest.param(["--serial", "1", "--node", "n"], 2, "exactly one of --serial", id="two"),
        pytest.param(["--serial", "xyz"], 2, "openssl x509 -noout -serial", id="a serial number that is none"),
        pytest.param(["--key", "abc"], 2, "mooring certs show FILE", id="a key that is none"),
        pytest.param(["--node", "N_1", "--force"], 1, "spec.nodeName", id="a node name that is none"),
        pytest.param(["--certificate", "/nowhere"], 1, "/nowhere", id="a file that is missing"),
        pytest.param(
            ["--serial", "1", "--force", "--message", "a\nb"], 1, "one line of printable", id="a message of two lines"
        ),
    ],
)
def test_a_mistake_says_what_to_do(certs: CommandLine, arguments: list[str], code: int, text: str) -> None:
    outcome = certs("certs", "revoke", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert text in outcome.err.replace("\n", " ")


def test_a_file_that_holds_no_certificate(certs: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    for command in (("revoke", "--certificate"), ("show",)):
        outcome = certs("certs", *command, str(tmp_path / "x"))
        assert outcome.code == 1
        assert str(tmp_path / "x") in outcome.err


def test_the_callers_own_certificate_is_refused_without_force(live_server: LiveServer, certs: CommandLine) -> None:
    """Only refused here: `--force` would lock out the tests that share the server."""
    (leaf,) = certificates(load(str(live_server.kubeconfig)).user.certificate_pem)
    outcome = certs("certs", "revoke", "--serial", f"{leaf.serial_number:x}")
    assert outcome.code == 1
    assert "--force" in outcome.err


def test_what_a_list_of_certificates_prints_is_known_to_the_others(
    certs: CommandLine, mooring: CommandLine, tmp_path: Path
) -> None:
    """Those in the files of a server are in no object."""
    server = start_server(tmp_path / "data")
    cluster = ("--kubeconfig", str(server.kubeconfig))
    try:
        names = mooring.done("certs", "list", "-o", "name", *cluster).split()
        assert [mooring("certs", "show", name, *cluster).code for name in names] == [0] * len(names)
        (spare,) = certificates(load(str(server.data_dir / "super-admin.conf")).user.certificate_pem)
        printed = f"serial={spare.serial_number:X}"
        assert mooring.done("certs", "revoke", "--serial", printed, *cluster).endswith(" revoked\n")
        listed = json.loads(mooring.done("certs", "list", "-o", "json", *cluster))["items"]
        ((place, state),) = {
            (one["place"], one["state"]) for one in listed if one["serialNumber"] == f"{spare.serial_number:x}"
        }
        assert place.endswith("/super-admin.conf")
        assert state == "revoked"
        (serving,) = certificates((server.data_dir / "pki/apiserver.crt").read_bytes())
        refused = mooring("certs", "revoke", "--serial", f"{serving.serial_number:x}", *cluster)
        assert (refused.code, refused.out) == (1, "")
        assert "the denylist is read for client certificates only" in refused.err
        assert mooring("certs", "revoke", "--serial", fresh_serial(), *cluster).code == 1
    finally:
        server.stop()


def test_show_of_something_unknown(certs: CommandLine) -> None:
    outcome = certs("certs", "show", "nobody")
    assert outcome.code == 1
    assert "mooring certs list" in outcome.err


MANIFEST = """
apiVersion: mooring.dev/v1alpha1
kind: CertificateRevocation
metadata: {{name: {name}}}
spec: {{nodeName: {node}, reason: cessationOfOperation, message: returned to the supplier}}
"""


@pytest.mark.client
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_revokes_and_takes_back(live_server: LiveServer, tmp_path: Path) -> None:
    def kubectl(*arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["kubectl", "--kubeconfig", str(live_server.kubeconfig), *arguments],
            input=given,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )

    node = f"n-{secrets.token_hex(4)}"
    name = f"node-{node}"
    wrong = kubectl("apply", "-f", "-", given=MANIFEST.format(name="x", node=node))
    assert f'must be "{name}"' in wrong.stderr
    assert kubectl("apply", "-f", "-", given=MANIFEST.format(name=name, node=node)).returncode == 0
    header, row = kubectl("get", "revocations", "-o", "wide", name).stdout.splitlines()
    assert header.split() == ["NAME", "REVOKES", "REASON", "EXPIRES", "AGE", "ISSUED-BEFORE", "MESSAGE"]
    assert row.split()[:5] == [name, "node", node, "cessationOfOperation", "<never>"]
    less = kubectl(
        "patch", "revocation", name, "--type=merge", "-p", '{"spec": {"issuedBefore": "2020-01-01T00:00:00Z"}}'
    )
    assert "may not become earlier" in less.stderr
    assert kubectl("get", "--raw", "/mooring/v1/crl").stdout.startswith("-----BEGIN X509 CRL-----\n")
    assert kubectl("delete", "certificaterevocation", name).returncode == 0
