"""`mooring certs check`: what ends, which ends count, and the exit code for cron."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.api.mooring.certificaterevocation import entry_name
from mooring.apimachinery.schema import Obj
from mooring.cli.certs.ending import Ends, what, where
from mooring.cli.certs.inventory import Inventory, KnownCertificate
from mooring.clock import rfc3339
from mooring.pki.x509.signers import K3S_KUBELET_SERVING, KUBE_APISERVER_CLIENT, KUBELET_SERVING
from tests.support.commandline import CommandLine, mooring, process
from tests.support.testca import ThrowawayCA

__all__ = ["mooring"]
NOW = datetime(2026, 1, 1, tzinfo=UTC)
KEY, ISSUER = (f"sha256:{digit * 64}" for digit in "ab")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data directory of a server that does not run."""
    path = tmp_path_factory.mktemp("ends") / "data"
    assert process("init", "--data-dir", str(path)).code == 0
    return path


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        pytest.param((), 0, "Nothing ends within 30d: 4 certificates were checked.", id="nothing"),
        pytest.param(("--within", "400d"), 1, "client certificate of admin.conf", id="something"),
        pytest.param(("--within", "1d12h"), 0, "Nothing ends within 36h", id="days and hours"),
        pytest.param(("--within", "0"), 0, "Nothing ends within 0s", id="only what has ended"),
        pytest.param(("--within", "30"), 2, '"30" has no unit; write 30d, 30h or 30m', id="without a unit"),
        pytest.param(("--within", "a month"), 2, '"a month" is not a duration; write it like 30d', id="no duration"),
        pytest.param(("--within", "-5d"), 2, '"-5d" is not a duration', id="negative days"),
        pytest.param(("--within=-5h",), 2, '"-5h" is not a duration', id="negative hours"),
        pytest.param(("--within", "999999999d"), 2, "is not a duration", id="longer than time"),
        pytest.param(("--data-dir", ""), 2, "--data-dir is empty", id="no directory"),
        pytest.param(("--kubeconfig", "x"), 2, "it asks no server", id="two sources"),
    ],
)
def test_the_exit_code_is_for_cron(
    flags: tuple[str, ...], code: int, said: str, data_dir: Path, mooring: CommandLine
) -> None:
    done = mooring("certs", "check", "--data-dir", str(data_dir), *flags)
    assert (done.code, said in done.all) == (code, True), done.all


def test_the_files_of_a_server_are_a_table_and_a_document(data_dir: Path, mooring: CommandLine) -> None:
    check = ("certs", "check", "--within", "4000d", "--data-dir", str(data_dir))
    header, *rows = mooring(*check).out.splitlines()
    assert header.split() == ["WHAT", "WHERE", "ENDS", "LEFT"]
    assert [row.split("   ")[0] for row in rows] == [
        "client certificate of admin.conf",
        "serving certificate",
        "client certificate of super-admin.conf",
        "CA of the cluster",
    ]
    document = json.loads(mooring(*check, "-o", "json").out)
    assert (document["kind"], document["checked"], document["unreadable"]) == ("ExpiryReport", 4, [])
    assert {one["what"]: one["where"] for one in document["items"]}["CA of the cluster"] == f"{data_dir}/pki/ca.crt"
    assert all(one["secondsLeft"] > 0 for one in document["items"])
    assert len(mooring(*check, "-o", "name").out.splitlines()) == 4


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param({}, "pki cannot be read: No such file or directory; give the data directory", id="no directory"),
        pytest.param({"pki/note.txt": "x"}, "has no certificates", id="no certificates"),
        pytest.param({"pki/ca.crt": "x"}, "pki/ca.crt: ", id="no PEM"),
        pytest.param({"pki/ca.crt": "", "admin.conf": "["}, "pki/ca.crt: ", id="an empty file"),
        pytest.param({"pki/note.txt": "", "admin.conf": "["}, "/admin.conf: ", id="no kubeconfig"),
    ],
)
def test_a_directory_of_no_server_is_one_line(
    made: dict[str, str], said: str, tmp_path: Path, mooring: CommandLine
) -> None:
    for name, text in made.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = mooring("certs", "check", "--data-dir", str(tmp_path))
    assert (done.code, len(done.err.splitlines()), said in done.err) == (1, 1, True), done.err


def issued(number: str, subject: str, signer: str, days: float) -> Obj:
    end = NOW + timedelta(days=days)
    return {
        "time": rfc3339(end - timedelta(days=365)),
        "signer": signer,
        "subject": subject,
        "serialNumber": number,
        "publicKey": KEY,
        "issuer": ISSUER,
        "certificate": f"sha256:{number * 64}",
        "notBefore": rfc3339(end - timedelta(days=365)),
        "notAfter": rfc3339(end),
        "token": "abcdef",
        "sourceAddress": "192.0.2.7",
    }


def of_pod(number: str, days: float) -> Obj:
    return {
        **issued(number, "spiffe://cluster.example/ns/shop/sa/web", "example.com/mesh", days),
        "request": f"shop/r{number}",
    }


def inventory(*entries: Obj, **more: Any) -> Inventory:
    by_number = {one["serialNumber"]: one for one in entries}
    return Inventory(**({"identities": (), "entries": (), "nodes": (), "issued": by_number} | more))


REVOKED = {"serialNumber": "1", "issuer": ISSUER}
MEMBER = {"metadata": {"name": "n1"}, "spec": {"nodeUID": "u1"}}
NODE = {"metadata": {"name": "n1", "uid": "u1"}}
OF_NODE = {"nodeName": "n1", "issuedBefore": rfc3339(NOW)}
K3S_SERVES = ("n1", K3S_KUBELET_SERVING)
JANE, SERVES = ("jane", KUBE_APISERVER_CLIENT), ("system:node:n1", KUBELET_SERVING)


@pytest.mark.parametrize(
    ("known", "states"),
    [
        pytest.param(inventory(issued("1", *JANE, 9)), ["user valid"], id="a user"),
        pytest.param(inventory(issued("1", *JANE, -9)), ["user expired"], id="a user who is locked out"),
        pytest.param(inventory(issued("1", *JANE, -31)), [], id="long ago"),
        pytest.param(
            inventory(issued("1", *JANE, 9), issued("2", *JANE, 99)),
            ["user valid renewed", "user valid"],
            id="a user who has another",
        ),
        pytest.param(
            inventory(issued("1", *JANE, 99), issued("2", *JANE, -1)),
            ["user valid", "user expired renewed"],
            id="a user whose later one was short",
        ),
        pytest.param(
            inventory(
                issued("1", *JANE, 99),
                issued("2", *JANE, 9),
                entries=[{"metadata": {"name": entry_name(REVOKED)}, "spec": REVOKED}],
            ),
            ["user valid"],
            id="a user whose longer one was revoked",
        ),
        pytest.param(
            inventory(issued("1", *JANE, 9), client_ca_keys=frozenset({KEY})), ["user rejected"], id="of another CA"
        ),
        pytest.param(
            inventory(issued("1", *SERVES, 9), identities=[MEMBER], nodes=[NODE], client_ca_keys=frozenset({KEY})),
            ["serving valid"],
            id="a machine, whose serving certificate no CA of clients has to verify",
        ),
        pytest.param(
            inventory(issued("1", *JANE, 9), issued("2", "other", JANE[1], 99)), ["user valid"] * 2, id="two users"
        ),
        pytest.param(
            inventory(
                issued("1", *JANE, 9),
                entries=[{"metadata": {"name": entry_name(REVOKED)}, "spec": REVOKED}],
            ),
            [],
            id="revoked: it is among the entries of the denylist",
        ),
        pytest.param(
            inventory(
                issued("1", *JANE, 9),
                entries=[{"metadata": {"name": entry_name({"publicKey": KEY})}, "spec": {"publicKey": KEY}}],
            ),
            ["user revoked"],
            id="its key is revoked",
        ),
        pytest.param(
            inventory(issued("1", *SERVES, 9), identities=[MEMBER], nodes=[NODE]), ["serving valid"], id="a machine"
        ),
        pytest.param(
            inventory(issued("1", *SERVES, 9), identities=[MEMBER]),
            ["serving ended"],
            id="a machine whose Node is gone",
        ),
        pytest.param(
            inventory(issued("1", *K3S_SERVES, 9), identities=[MEMBER], nodes=[NODE]),
            ["serving valid"],
            id="a machine that joined k3s's way, whose serving key is not its client key",
        ),
        pytest.param(
            inventory(issued("1", *K3S_SERVES, -9), identities=[MEMBER], nodes=[NODE]),
            ["serving expired"],
            id="a machine that joined k3s's way, whose serving certificate has ended",
        ),
        pytest.param(
            inventory(issued("1", *K3S_SERVES, 9), identities=[MEMBER]),
            ["serving ended"],
            id="a machine that joined k3s's way, whose Node is gone",
        ),
        pytest.param(
            inventory(
                issued("1", *K3S_SERVES, 9),
                identities=[MEMBER],
                nodes=[NODE],
                entries=[{"metadata": {"name": "node-n1"}, "spec": OF_NODE}],
            ),
            ["serving revoked"],
            id="a machine that joined k3s's way, and was revoked",
        ),
        pytest.param(inventory(issued("1", "n1", "example.com/signer", 9)), ["user valid"], id="a signer of one's own"),
        pytest.param(inventory(of_pod("1", 1), of_pod("2", 2)), ["pod valid", "pod valid"], id="Pods of one account"),
        pytest.param(inventory(of_pod("1", -0.01)), [], id="a certificate of a Pod that has ended"),
    ],
)
def test_certificates_that_only_the_issuance_log_has(known: Inventory, states: list[str]) -> None:
    found = list(known.recorded(NOW))
    assert [f"{one.kind} {one.state}{' renewed' if one.is_renewed else ''}" for one in found] == states
    assert {(one.token, one.source) for one in found} <= {("abcdef", "192.0.2.7")}


def test_the_next_certificate_of_a_machine_takes_the_place_of_the_one_before() -> None:
    numbers = ("1", "2", "3")
    keys = [{"publicKey": KEY, "serialNumber": one, "issuer": ISSUER, "notAfter": rfc3339(NOW)} for one in numbers]
    identity = {"metadata": {"name": "n1"}, "spec": {"keys": keys[:2], "companions": keys[2:], "token": "abcdef"}}
    entries = [issued(number, "system:node:n1", "kubernetes.io/kube-apiserver-client-kubelet", 9) for number in "12"]
    shared = issued("3", "system:kube-proxy", "mooring.io/k3s-kube-proxy-client", 9)
    known = inventory(*entries, shared, identities=[identity], nodes=[NODE])
    found = {one.serial_number: one for one in known.certificates(NOW)}
    assert {number: one.is_renewed for number, one in found.items()} == {"1": True, "2": False, "3": False}
    assert found["1"].renewed_at == entries[1]["time"]
    assert list(known.recorded(NOW)) == []


def known(state: str, days: float, **more: Any) -> KnownCertificate:
    return KnownCertificate("n1", "1", KEY, rfc3339(NOW + timedelta(days=days)), state, **more)


@pytest.mark.parametrize(
    ("certificate", "counts"),
    [
        pytest.param(known("valid", 29), True, id="ends within"),
        pytest.param(known("valid", 9, kind="pod"), False, id="a Pod, whose kubelet asks for the next one"),
        pytest.param(known("valid", 31), False, id="ends later"),
        pytest.param(known("expired", -900), True, id="has ended"),
        pytest.param(known("valid", 29, is_renewed=True), False, id="was renewed"),
        pytest.param(known("expired", -1, is_renewed=True), False, id="ended after it was renewed"),
        pytest.param(known("revoked", 29), False, id="revoked"),
        pytest.param(known("ended", 29), False, id="of a machine that is gone"),
        pytest.param(known("rejected", 29), False, id="of a CA that counts no more"),
        pytest.param(KnownCertificate("n1", "1", KEY, "", "valid"), False, id="with an end that is not known"),
    ],
)
def test_which_ends_count(certificate: KnownCertificate, counts: bool) -> None:
    assert (Ends([certificate]).within(timedelta(days=30), NOW) == [certificate]) is counts


@pytest.mark.parametrize(
    ("certificate", "text"),
    [
        pytest.param(known("valid", 9, user="system:node:n1"), ("client certificate", "node n1"), id="a machine"),
        pytest.param(
            known("valid", 9, user="system:kube-proxy"),
            ("client certificate of system:kube-proxy", "node n1"),
            id="a user that machines share",
        ),
        pytest.param(
            known("valid", 9, user="system:node:n1", kind="serving"), ("serving certificate", "node n1"), id="HTTPS"
        ),
        pytest.param(
            KnownCertificate("", "1", KEY, "", "valid", user="jane", kind="user"),
            ("client certificate", "user jane"),
            id="a user",
        ),
        pytest.param(
            KnownCertificate("", "1", KEY, "", "valid", kind="ca", description="CA", place="cp1:/a/ca.crt"),
            ("CA", "cp1:/a/ca.crt"),
            id="a server",
        ),
    ],
)
def test_what_ends_and_where(certificate: KnownCertificate, text: tuple[str, str]) -> None:
    assert (what(certificate), where(certificate)) == text


def test_the_directory_of_kubeadm_is_read_too(tmp_path: Path, mooring: CommandLine) -> None:
    ca = ThrowawayCA()
    kubelet = tmp_path / "kubelet-client-current.pem"
    kubelet.write_bytes(ca.client("system:node:cp1", "system:nodes").certificate_pem)
    user = {"name": "kubelet", "user": {"client-certificate": str(kubelet), "client-key": str(kubelet)}}
    text = {"kind": "Config", "apiVersion": "v1", "users": [user], "clusters": [], "contexts": []}
    (tmp_path / "pki/etcd").mkdir(parents=True)
    (tmp_path / "kubelet.conf").write_text(json.dumps(text))
    (tmp_path / "pki/front-proxy-ca.crt").write_bytes(ca.certificate_pem)
    (tmp_path / "pki/etcd/server.crt").write_bytes(ca.server("cp1").certificate_pem)
    done = mooring("certs", "check", "--data-dir", str(tmp_path), "--within", "9999d", "-o", "json")
    found = {one["where"].removeprefix(f"{tmp_path}/"): one["what"] for one in json.loads(done.out)["items"]}
    assert found == {
        "kubelet.conf": "client certificate of kubelet.conf",
        "pki/front-proxy-ca.crt": "CA",
        "pki/etcd/server.crt": "certificate",
    }


def kubeconfig(file: str) -> str:
    """Return a kubeconfig of a user whose certificate is in a file."""
    users = [{"name": "jane", "user": {"client-certificate": file, "client-key": file}}]
    return json.dumps({"kind": "Config", "apiVersion": "v1", "users": users, "clusters": [], "contexts": []})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        pytest.param("pki/a.crt", "", "pki/a.crt: the text holds no CERTIFICATE PEM block", id="an empty file"),
        pytest.param("pki/a.crt", "link:gone", "pki/a.crt cannot be read: no such file", id="a link to nothing"),
        pytest.param("pki/a.crt", "x" * (5 << 20), "pki/a.crt is larger than", id="a large file"),
        pytest.param("a.conf", "[", "a.conf: the kubeconfig is neither YAML nor JSON", id="no kubeconfig"),
        pytest.param(
            "a.conf", kubeconfig("gone.pem"), "gone.pem cannot be read: no such file", id="a file that is gone"
        ),
        pytest.param("a.conf", "", "a.conf is empty", id="a kubeconfig that a full disk left empty"),
        pytest.param("a.conf", kubeconfig("/dev/stdin"), "/dev/stdin is not a regular file", id="standard input"),
        pytest.param("a.conf", kubeconfig("/dev/fd/0"), "/dev/fd/0 is not a regular file", id="a descriptor"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_hides_no_end(
    name: str, content: str, said: str, tmp_path: Path, mooring: CommandLine
) -> None:
    path = tmp_path / name
    (tmp_path / "pki").mkdir()
    (tmp_path / "pki/ca.crt").write_bytes(ThrowawayCA().certificate_pem)
    if content.startswith("link:"):
        path.symlink_to(content.removeprefix("link:"))
    else:
        path.write_text(content)
    check = ("certs", "check", "--data-dir", str(tmp_path), "-o", "json")
    for within, ends in (("0", 0), ("9999d", 1)):
        done = mooring(*check, "--within", within)
        document = json.loads(done.out)
        assert (done.code, len(document["items"]), document["checked"]) == (1, ends, 1), done.all
        (unreadable,) = document["unreadable"]
        assert said in unreadable
        assert f"warning: not checked: {unreadable}" in done.err


def test_a_check_reads_behind_links_and_files_beside_a_kubeconfig(tmp_path: Path, mooring: CommandLine) -> None:
    ca, data = ThrowawayCA(), tmp_path / "data"
    for directory in (data / "pki", tmp_path / "etcd"):
        directory.mkdir(parents=True)
    (tmp_path / "etcd/server.crt").write_bytes(ca.server("cp1").certificate_pem)
    (data / "pki/etcd").symlink_to(tmp_path / "etcd")
    (tmp_path / "etcd/loop").symlink_to(data / "pki")
    (data / "jane.pem").write_bytes(ca.client("jane").certificate_pem)
    (data / "jane.conf").write_text(kubeconfig("jane.pem"))
    (data / "drop-in.conf").mkdir()
    done = mooring("certs", "check", "--data-dir", str(data), "--within", "9999d", "-o", "json")
    document = json.loads(done.out)
    assert sorted(one["where"].removeprefix(f"{data}/") for one in document["items"]) == [
        "jane.conf",
        "pki/etcd/server.crt",
    ]
    assert document["unreadable"] == []
