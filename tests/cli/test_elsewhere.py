"""Commands of Mooring's own features against a kube-apiserver: what they promise there, and what they say."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from mooring.apimachinery.schema import Obj
from mooring.clock import SystemClock, parse_rfc3339, rfc3339
from mooring.trust.issuancelog import START, new_record
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.commandline import CommandLine, mooring
from tests.support.kubernetespeer import VERSION, KubernetesPeer, Place, kubernetes_peer
from tests.support.standalonecontrollers import write_kubeconfig

__all__ = ["mooring"]
DENYLIST = "certificaterevocations"
ENTRY = "certificaterevocation.mooring.dev"
KEY = "ab" * 32
END = ("2026-01-01T00:00:00Z", "2126-01-01T00:00:00Z")


@pytest.fixture
def peer() -> Iterator[KubernetesPeer]:
    with kubernetes_peer() as peer:
        yield peer


@pytest.fixture
def command(peer: KubernetesPeer, mooring: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with the kubeconfig of the server."""
    path = write_kubeconfig(tmp_path / "admin.conf", peer.url, peer.ca_pem, KubeconfigUser("admin"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    return mooring


def warning(peer: KubernetesPeer) -> str:
    return (
        f"warning: {peer.url} is Kubernetes {VERSION}, not Mooring, and does not read the denylist: it accepts every certificate "
        "of its CA until the certificate expires"
    )


@pytest.mark.parametrize(
    ("flags", "name", "hint"),
    [
        (("--serial", "1f"), "serial-1f", "so that this entry has no effect there."),
        (("--key", f"sha256:{KEY}"), f"key-{KEY}", "no request that it concerns: those with this key."),
        (("--node", "n1"), "node-n1", "It may create a deleted Node again."),
    ],
)
def test_with_force_an_entry_is_recorded_and_nothing_is_promised(
    peer: KubernetesPeer, command: CommandLine, flags: tuple[str, str], name: str, hint: str
) -> None:
    peer.define(DENYLIST)
    done = command("certs", "revoke", "--force", *flags)
    assert (done.code, done.out) == (0, f"{ENTRY}/{name} recorded\n")
    assert done.err.startswith(f"{warning(peer)}.\n")
    assert hint in done.err
    for promise in ("are refused", "revoked"):
        assert promise not in done.all
    assert (DENYLIST, "", name) in peer.objects


@pytest.mark.parametrize("flags", [("--serial", "1f"), ("--key", f"sha256:{KEY}"), ("--node", "n1")])
def test_what_the_server_does_not_honour_is_refused_without_force(
    peer: KubernetesPeer, command: CommandLine, flags: tuple[str, str]
) -> None:
    peer.define(DENYLIST)
    done = command("certs", "revoke", *flags)
    assert done.code != 0
    assert done.err == (
        f"Error: {warning(peer).removeprefix('warning: ')}. Nothing is revoked there. Only mooring controllers reads entries, for "
        "the requests that it approves and signs; add --force to record one for it\n"
    )
    assert [method for method, _ in peer.requests if method != "GET"] == []


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--max-joins", "1"), "--max-joins"),
        (("--node-name", "n1"), "--node-name"),
        (("--allow-cidr", "10.0.0.0/8"), "--allow-cidr"),
        (("--require-approval",), "--require-approval"),
        (
            ("--max-joins", "2", "--node-name", "n*", "--allow-cidr", "10.0.0.0/8"),
            "--max-joins, --allow-cidr and --node-name",
        ),
    ],
)
@pytest.mark.parametrize("mode", [(), ("--dry-run",)], ids=["created", "dry run"])
def test_limits_of_a_token_that_the_server_does_not_enforce_are_not_promised(
    peer: KubernetesPeer, command: CommandLine, flags: tuple[str, ...], named: str, mode: tuple[str, ...]
) -> None:
    done = command("token", "create", "abcdef.0123456789abcdef", *flags, *mode)
    assert (done.code, done.out) == (0, "abcdef.0123456789abcdef\n")
    assert "Token abcdef lets in any number of machines under any name, from any network, until " in done.err
    assert (
        f"Warning: {peer.url} is Kubernetes {VERSION}, not Mooring, and does not enforce {named}: it accepts the token from every "
        "address, for everything that its groups may do."
    ) in done.err
    assert ("Requests of a token with networks wait there for a person" in done.err) == ("--allow-cidr" in flags)
    assert (("secrets", "kube-system", "bootstrap-token-abcdef") in peer.objects) == (not mode)


@pytest.mark.parametrize(
    ("flags", "named", "promised"),
    [
        (("--ephemeral", "30m"), "--ephemeral", False),
        (("--ephemeral", "30m", "--max-joins", "1"), "--max-joins and --ephemeral", True),
    ],
)
def test_machines_that_fall_silent_stay_where_no_server_removes_them(
    peer: KubernetesPeer, command: CommandLine, flags: tuple[str, ...], named: str, promised: bool
) -> None:
    done = command("token", "create", "abcdef.0123456789abcdef", *flags)
    assert done.code == 0
    assert f"does not enforce {named}: machines that fall silent stay members, until mooring node prune" in done.err
    assert ("deletes their Nodes; it accepts the token from every address" in done.err) is promised
    assert ("deletes their Nodes.\n" in done.err) is not promised
    assert "The membership of a machine" not in done.err


@pytest.mark.parametrize("mode", [(), ("--dry-run",)], ids=["done", "dry run"])
def test_what_descends_from_a_token_is_withdrawn_with_a_warning(
    peer: KubernetesPeer, command: CommandLine, mode: tuple[str, ...]
) -> None:
    peer.define(DENYLIST, "lineagerecords", "nodeidentities")
    done = command("token", "impact", "abcdef", "--revoke", "--force", *mode)
    assert done.code == 0, done.err
    assert done.err.startswith(f"{warning(peer)}. Only mooring controllers reads the entries, ")
    assert "denylist" not in command("token", "impact", "abcdef").err
    command("token", "create", "silent.0123456789abcdef", "--ephemeral", "30m")
    assert "silent for" not in command("token", "impact", "silent").err, "nothing ends there"


EXPIRED, LASTS = "sha256:" + "1" * 64, "sha256:" + "2" * 64


def joined(peer: KubernetesPeer) -> None:
    """Record two certificates that the token obtained, one of them expired."""
    peer.define(DENYLIST, "lineagerecords", "nodeidentities")
    entries = [
        {"token": "abcdef", "node": "n1", "publicKey": EXPIRED, "time": END[0], "notAfter": END[0]},
        {"token": "abcdef", "node": "n2", "publicKey": LASTS, "time": END[0], "notAfter": END[1]},
    ]
    peer.put("lineagerecords", new_record(START, entries, None)[0])


def test_the_key_of_an_expired_certificate_is_withdrawn_because_its_machine_could_come_back(
    peer: KubernetesPeer, command: CommandLine
) -> None:
    joined(peer)
    done = command("token", "impact", "abcdef", "--revoke")
    assert done.code == 0, done.err
    revoked = {one["spec"]["publicKey"]: one["spec"]["expiresAt"] for one in entries_of(peer)}
    assert revoked == {EXPIRED: END[0], LASTS: END[1]}


def test_a_request_that_arrives_while_a_token_is_withdrawn_is_denied(
    peer: KubernetesPeer, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined(peer)
    answer = peer.answer

    def answer_late(method: str, place: Place, query: dict[str, str], body: Obj) -> tuple[int, Obj]:
        if (method, place.plural) == ("POST", DENYLIST):
            spec = {"username": "system:bootstrap:abcdef", "signerName": "example.com/slow"}
            peer.put("certificatesigningrequests", {"metadata": {"name": "late"}, "spec": spec})
        return answer(method, place, query, body)

    monkeypatch.setattr(peer, "answer", answer_late)
    done = command("token", "impact", "abcdef", "--revoke")
    assert done.code == 0, done.err
    late = peer.objects["certificatesigningrequests", "", "late"]
    assert [one["reason"] for one in late["status"]["conditions"]] == ["TokenRevoked"]


def entries_of(peer: KubernetesPeer) -> list[Obj]:
    return [obj for (plural, _, _), obj in peer.objects.items() if plural == DENYLIST]


def test_a_token_without_limits_comes_without_a_warning(peer: KubernetesPeer, command: CommandLine) -> None:
    assert "Warning" not in command("token", "create", "abcdef.0123456789abcdef").err
    assert [path for _, path in peer.requests if path.startswith("/version")] == []


@pytest.mark.parametrize("form", ["name", "json", "yaml"])
def test_every_form_of_output_comes_with_the_warning(peer: KubernetesPeer, command: CommandLine, form: str) -> None:
    peer.define(DENYLIST)
    assert command("certs", "revoke", "--force", "--serial", "1f", "-o", form).err.startswith(f"{warning(peer)}.\n")


def test_the_entry_of_a_node_has_the_moment_of_each_write(peer: KubernetesPeer, command: CommandLine) -> None:
    """kube-apiserver sets none, and an entry without one would keep the machine out."""
    peer.define(DENYLIST)
    before = SystemClock().now()
    command.done("certs", "revoke", "--force", "--node", "n1")
    first = peer.objects[DENYLIST, "", "node-n1"]["spec"]["issuedBefore"]
    assert abs(parse_rfc3339(first) - before) < timedelta(seconds=30)
    again = command("certs", "revoke", "--force", "--node", "n1")
    assert again.out == f"{ENTRY}/node-n1 recorded\n"
    assert peer.objects[DENYLIST, "", "node-n1"]["spec"]["issuedBefore"] > first


def test_the_moment_of_an_entry_does_not_go_back(peer: KubernetesPeer, command: CommandLine) -> None:
    peer.define(DENYLIST)
    late = rfc3339(SystemClock().now() + timedelta(days=1))
    peer.put(DENYLIST, {"metadata": {"name": "node-n1"}, "spec": {"nodeName": "n1", "issuedBefore": late}})
    command.done("certs", "revoke", "--force", "--node", "n1")
    assert peer.objects[DENYLIST, "", "node-n1"]["spec"]["issuedBefore"] == late


def test_an_entry_that_exists_stays(peer: KubernetesPeer, command: CommandLine) -> None:
    peer.define(DENYLIST)
    command.done("certs", "revoke", "--force", "--serial", "1f")
    again = command("certs", "revoke", "--force", "--serial", "1f")
    assert (again.code, again.out) == (0, f"{ENTRY}/serial-1f unchanged\n")
    assert warning(peer) in again.err


def test_a_server_that_does_not_say_its_version_is_promised_nothing(peer: KubernetesPeer, command: CommandLine) -> None:
    peer.define(DENYLIST)
    peer.version = ""
    done = command("certs", "revoke", "--force", "--serial", "1f")
    assert done.out == f"{ENTRY}/serial-1f recorded\n"
    assert f"{peer.url} is a server that does not say its version, not Mooring" in done.err


@pytest.mark.parametrize(
    ("which", "kind", "flags"),
    [
        (("certs", "revoke", "--force", "--serial", "1f"), DENYLIST, ""),
        (("certs", "list"), DENYLIST, ""),
        (("certs", "show", "n1"), DENYLIST, ""),
        (("machine", "list"), "authorizedmachines", ""),
        (("machine", "authorize", "m1"), "authorizedmachines", ""),
        (("machine", "remove", "m1"), "authorizedmachines", ""),
        (("token", "impact", "abcdef"), "lineagerecords", " --controllers='*,csrsigner'"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_without_a_kind_the_way_to_it_is_named(
    peer: KubernetesPeer, command: CommandLine, which: tuple[str, ...], kind: str, flags: str
) -> None:
    done = command(*which)
    assert done.code != 0
    assert done.err == (
        f"Error: {peer.url} is Kubernetes {VERSION}, not Mooring, and does not serve {kind}.mooring.dev: apply what mooring "
        f"controllers manifests{flags} prints\n"
    )
    assert [method for method, _ in peer.requests if method not in ("GET", "POST", "DELETE")] == []


def test_a_machine_that_is_not_listed_cannot_be_removed(peer: KubernetesPeer, command: CommandLine) -> None:
    peer.define("authorizedmachines")
    assert command("machine", "remove", "m1").err.endswith('"m1" not found\n')


@pytest.mark.parametrize("networks", [(), ("--allow-cidr", "10.0.0.0/8")], ids=["anywhere", "networks"])
def test_networks_of_an_entry_are_not_promised(
    peer: KubernetesPeer, command: CommandLine, networks: tuple[str, ...]
) -> None:
    peer.define("authorizedmachines")
    done = command("machine", "authorize", "m1", *networks)
    assert done.code == 0, done.err
    assert ("authorizedmachines", "", "m1") in peer.objects
    assert ("does not record where a request comes from" in done.err) == bool(networks)


@pytest.mark.parametrize("which", [("list",), ("show", "node-n1")])
def test_what_is_on_the_denylist_is_not_said_to_be_refused(
    peer: KubernetesPeer, command: CommandLine, which: tuple[str, ...]
) -> None:
    peer.define(DENYLIST, "nodeidentities")
    command.done("certs", "revoke", "--force", "--node", "n1")
    assert command("certs", *which).err.startswith(f"{warning(peer)}\n")


@pytest.mark.parametrize("is_defined", [False, True], ids=["without the kind", "with the kind"])
@pytest.mark.parametrize("verb", ["start", "status", "advance", "abort"])
def test_the_ca_of_another_cluster_is_not_replaced(
    peer: KubernetesPeer, command: CommandLine, verb: str, is_defined: bool
) -> None:
    if is_defined:
        peer.define("certificateauthorityrollovers")
    done = command("ca", "rollover", verb)
    assert done.code != 0
    assert done.err == (
        f"Error: {peer.url} is Kubernetes {VERSION}, not Mooring: only a Mooring server replaces its own CA. The CA of "
        "that cluster belongs to the program that made it, such as kubeadm: replace it as its documentation says\n"
    )
    assert [method for method, _ in peer.requests if method != "GET"] == []


@pytest.mark.parametrize(
    ("words", "purpose"),
    [
        (("restore-check", "list"), "remembers tombstones that a restored store would bring back"),
        (("restore-check", "apply", "--all"), "remembers tombstones that a restored store would bring back"),
        (("restore-check", "accept", "--all"), "remembers tombstones that a restored store would bring back"),
        (
            ("secrets-encryption", "status"),
            "reports its encryption at rest; elsewhere look at --encryption-provider-config of each kube-apiserver",
        ),
        (
            ("secrets-encryption", "rotate", "--encryption-provider-config", "/nowhere"),
            "reports its encryption at rest; elsewhere look at --encryption-provider-config of each kube-apiserver",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_only_mooring_has_is_refused_with_the_kind_of_server(
    peer: KubernetesPeer, command: CommandLine, words: tuple[str, ...], purpose: str
) -> None:
    done = command(*words)
    assert (done.code, done.out) == (1, "")
    assert done.err.endswith(
        f"Error: {peer.url} is Kubernetes {VERSION}, not Mooring: only a Mooring server {purpose}\n"
    )
    assert [method for method, _ in peer.requests if method != "GET"] == []
