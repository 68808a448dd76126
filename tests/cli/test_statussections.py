"""Lines of the sections of `mooring status`, and what tokens and machines count as."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mooring.apimachinery.schema import Obj
from mooring.cli import serverreport
from mooring.cli.node.machines import KnownMachine
from mooring.cli.status import sections
from mooring.cli.status.gathering import Gathering
from mooring.cli.status.sections import SECTIONS
from mooring.clock import rfc3339
from mooring.controllers import standalonetable
from mooring.errors import ApiError, ForbiddenError, NotFoundError, ServiceUnavailableError
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.reconcile import leaderelection
from mooring.trust.bootstraptoken import tokensecret
from mooring.trust.bootstraptoken.restrictions import Restrictions, join_record, with_joined_key
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.editedclusterinfo import LAST_WRITTEN, PUBLISHED_CAS, value_digest
from tests.support.rows import each_row
from tests.support.testca import ThrowawayCA

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = rfc3339(NOW + timedelta(days=9))
HASH = f"sha256:{'a' * 64}"


def secret(max_joins: int | None = None, joined: int = 0, **more: Any) -> Obj:
    token = parse_token("abcdef.0123456789abcdef")
    record = tokensecret.new_record(token, NOW, restrictions=Restrictions(max_joins=max_joins), **more)
    found = tokensecret.to_secret(record)
    for number in range(joined):
        found = with_joined_key(found, join_record(f"{number:064x}", f"system:node:n{number}"))
    return found


@pytest.mark.parametrize(
    ("token", "states"),
    [
        pytest.param(secret(1), ["live"], id="for one machine"),
        pytest.param(secret(2, 1), ["live"], id="for one more"),
        pytest.param(secret(1, 1), ["usedUp"], id="used up"),
        pytest.param(secret(1, 1, ttl=timedelta(0)), ["usedUp"], id="used up, without an end"),
        pytest.param(secret(), ["live", "unlimited"], id="for any number of machines"),
        pytest.param(secret(usages=("signing",), groups=()), ["live"], id="that lets no machine in"),
        pytest.param(secret(1, ttl=timedelta(0)), ["live", "neverExpire"], id="without an end"),
        pytest.param(secret(expires=NOW), ["expired"], id="expired"),
        pytest.param({"metadata": {"name": "bootstrap-token-x"}, "data": {}}, ["unreadable"], id="unreadable"),
    ],
)
def test_what_a_token_counts_as(token: Obj, states: list[str]) -> None:
    assert list(sections.token_states(token, NOW)) == states


CA = ThrowawayCA(now=NOW)
KUBECONFIG = clusterinfo.config_map("https://192.0.2.1:6443", CA.certificate_pem)["data"]["kubeconfig"]


def published(text: str | None, *, is_kept: bool = True, written: str = KUBECONFIG) -> Obj:
    digests = json.dumps({"kubeconfig": value_digest(written)})
    annotations = {PUBLISHED_CAS: "{}", LAST_WRITTEN: digests} if is_kept else {}
    data = {} if text is None else {"kubeconfig": text}
    return {"metadata": {"name": "cluster-info", "annotations": annotations}, "data": data}


TOKENS = "".join(f"- {{name: u{number}, user: {{token: hush}}}}\n" for number in range(7))
EDITED = "edited: kept as the administrator left it, only the CAs of the cluster in it follow"
IMMUTABLE = (
    "problem: it is immutable: it cannot be signed for new tokens, and no machine can join by them; delete it, and a Mooring "
    "server makes it again at its next start"
)


@pytest.mark.parametrize(
    ("config_map", "lines"),
    [
        pytest.param(published(KUBECONFIG), ["as the server writes it"], id="not edited"),
        pytest.param(published(KUBECONFIG + "# mine"), [EDITED], id="edited"),
        pytest.param(published(KUBECONFIG) | {"immutable": True}, [IMMUTABLE], id="immutable"),
        pytest.param(published(KUBECONFIG, is_kept=False) | {"immutable": True}, [IMMUTABLE], id="immutable elsewhere"),
        pytest.param(published(KUBECONFIG + "# mine") | {"immutable": True}, [EDITED, IMMUTABLE], id="edited, immutable"),
        pytest.param(published(KUBECONFIG, is_kept=False), ["Mooring does not keep it up to date"], id="of another server"),
        pytest.param(published(None), [EDITED, "problem: it has no key kubeconfig"], id="no kubeconfig"),
        pytest.param(
            published(clusterinfo.config_map("https://a", ThrowawayCA("b").certificate_pem)["data"]["kubeconfig"]),
            [EDITED, "problem: it names no CA of this kubeconfig, so a join line printed with it fails"], id="another CA",
        ),
        pytest.param(
            published(KUBECONFIG.replace("users: null", "users:\n" + TOKENS)),
            [
                EDITED, *(f'public credentials: user "u{number}" has a token' for number in range(5)),
                "  and 2 more: kubectl -n kube-public get configmap cluster-info -o yaml",
            ],
            id="credentials",
        ),
    ],
)  # fmt: skip
def test_what_is_said_of_cluster_info(config_map: Obj, lines: list[str]) -> None:
    found = sections.cluster_info(config_map, CA.certificate_pem)
    assert SECTIONS["clusterInfo"].lines(found, NOW) == lines
    assert "hush" not in repr(found)


def test_without_a_ca_of_its_own_a_client_compares_none() -> None:
    assert sections.cluster_info(published(KUBECONFIG), b"")["problem"] == ""


def machine(status: str, message: str = "") -> KnownMachine:
    conditions = [{"type": "Ready", "status": status, "message": message}]
    return KnownMachine("n1", {"metadata": {"name": "n1"}, "status": {"conditions": conditions}}, None)


@pytest.mark.parametrize(
    ("known", "behind", "message"),
    [
        pytest.param(machine("True"), None, None, id="ready"),
        pytest.param(machine("False", "no disk"), None, "no disk", id="not ready"),
        pytest.param(machine("True"), "old CA", "behind the rollover: old CA", id="behind"),
        pytest.param(machine("False", "no disk"), "x", "no disk; behind the rollover: x", id="both"),
    ],
)
def test_why_a_machine_needsattention(known: KnownMachine, behind: str | None, message: str | None) -> None:
    assert sections.attention(known, behind).get("message") == message


def csr(*conditions: Obj, age: int = 60) -> Obj:
    text = build_request(generate_key(), "system:node:n1", ("system:nodes",))
    usages = ["digital signature", "client auth"]
    spec = {"request": base64.b64encode(text).decode(), "signerName": KUBE_APISERVER_CLIENT_KUBELET, "usages": usages}
    metadata = {"name": "csr-1", "creationTimestamp": rfc3339(NOW - timedelta(seconds=age))}
    return {"metadata": metadata, "spec": spec, "status": {"conditions": list(conditions)}}


HELD = {"type": "NeedsApproval", "message": "the name belongs to another key"}


@pytest.mark.parametrize(
    ("obj", "reason"),
    [
        pytest.param(csr(HELD), "the name belongs to another key", id="held by a rule"),
        pytest.param(csr(HELD, age=1), "the name belongs to another key", id="new, and held by a rule"),
        pytest.param(csr(age=1), "new: the controllers decide within seconds", id="new"),
        pytest.param(csr(age=-1), "new: the controllers decide within seconds", id="new, by a clock that is ahead"),
        pytest.param(
            csr({"type": "Approved", "message": "by jane"}, age=1),
            "new: the controllers decide within seconds",
            id="new, and waits for its signer",
        ),
        pytest.param(csr(age=5), "no controller approves requests of this signer or user", id="not new any more"),
        pytest.param(csr(age=-9), "no controller approves requests of this signer or user", id="of another clock"),
        pytest.param(csr(), "no controller approves requests of this signer or user", id="not looked at"),
        pytest.param(
            csr({"type": "Approved", "message": "by jane"}), "approved, and not signed yet", id="waits for its signer"
        ),
        pytest.param(
            csr({"type": "WouldFail", "message": "too long"}, {"type": "Approved", "message": "by jane"}),
            "too long",
            id="refused by its signer",
        ),
    ],
)
def test_why_a_request_waits(obj: Obj, reason: str) -> None:
    found = sections.request(obj, NOW)
    assert (found["machine"], found["reason"]) == ("n1", reason)


@pytest.mark.parametrize(
    ("name", "found", "lines"),
    [
        (
            "addresses",
            {"addresses": []},
            [
                "none for Pods: the Service default/kubernetes leads to no server; give a server an --advertise-address that is "
                "not loopback"
            ],
        ),
        ("servers", {"servers": [{"address": "https://a", "problem": "gone"}]}, ["https://a: gone"]),
        ("rollover", {"phase": "", "wanted": "", "message": "", "machinesBehind": None}, ["none"]),
        (
            "rollover", {"phase": "Done", "wanted": "", "message": "the new CA is the only one", "machinesBehind": None},
            ["Done", "the new CA is the only one"],
        ),
        ("rollover", {"phase": "TrustBoth", "wanted": "TrustBoth", "message": "", "machinesBehind": None}, ["TrustBoth"]),
        (
            "rollover",
            {"phase": "", "wanted": "Trust", "message": "", "machinesBehind": 0},
            ["not begun, Trust is wanted"],
        ),
        (
            "rollover",
            {"phase": "Trust", "wanted": "Issue", "message": "machines have to fetch the CA", "machinesBehind": 2},
            ["Trust, Issue is wanted, 2 machines behind", "machines have to fetch the CA"],
        ),
        (
            "machines",
            {"total": 9, "states": {"Lost": 9}, "behind": 1, "attention": [{"name": f"n{i}", "state": "Lost"} for i in range(7)]},
            ["9: 9 Lost, 1 behind", *(f"  n{i}  Lost" for i in range(5)), "  and 2 more: mooring node list"],
        ),
        (
            "machines",
            {
                "total": 1, "states": {"Lost": 1}, "behind": 0,
                "attention": [{"name": "n", "state": "Lost", "message": "\x1b" + "x" * 2000}],
            },
            ["1: 1 Lost", f"  n  Lost  \\x1b{'x' * 1023}... (977 more characters)"],
        ),
        ("machines", {"total": 0, "states": {}, "behind": 0, "attention": []}, ["0"]),
        (
            "machines",
            {"total": 2, "states": {"Ready": 2}, "behind": 0, "attention": [], "endedBySilence": 3, "heldBack": 0},
            ["2: 2 Ready; 3 Ended: Silent"],
        ),
        (
            "machines",
            {
                "total": 2, "states": {"Lost": 2}, "behind": 0, "attention": [{"name": "n", "state": "Lost"}],
                "endedBySilence": 0, "heldBack": 2, "heldBackReason": "more than\nhalf of all machines fell silent",
            },
            [
                "2: 2 Lost",
                "2 removals of silent machines held back: more than\\nhalf of all machines fell silent",
                "  n  Lost",
            ],
        ),
        (
            "machines",
            {"total": 1, "states": {"Ready": 1}, "behind": 0, "attention": [], "heldBack": 1, "heldBackReason": ""},
            ["1: 1 Ready", "1 removal of silent machines held back"],
        ),
        (
            "encryption",
            {"configured": True, "configHash": HASH, "serversWithAnotherFile": ["b"]},
            ["on, by the file sha256:aaaaaaaaaaaa", "another file: b"],
        ),
        (
            "encryption",
            {"configured": True, "encryptsSecrets": False, "configHash": HASH, "serversWithAnotherFile": []},
            ["on, by the file sha256:aaaaaaaaaaaa; Secrets are written as they are"],
        ),
        (
            "snapshot",
            {"scheduled": True, "last": None, "failure": "no space left"},
            ["none", "the last one failed: no space left"],
        ),
        (
            "store",
            {
                "kind": "etcd", "revision": 7, "serves": False, "problem": "no member answers", "alarm": "NOSPACE",
                "unreadableObjects": 1,
            },
            ["etcd, revision 7, does not serve", "no member answers", "alarm: NOSPACE", "1 object cannot be read"],
        ),
        (
            "store",
            {
                "kind": "sqlite", "revision": 7, "serves": False, "problem": "", "alarm": "the last write failed: disk full",
                "unreadableObjects": 0,
            },
            ["sqlite, revision 7, serves reads, and writes fail", "alarm: the last write failed: disk full"],
        ),
        ("restoreCheck", {"waiting": 0}, []),
        ("restoreCheck", {"waiting": 2}, ["2 tombstones to settle, and nothing is issued meanwhile: mooring restore-check list"]),
        ("health", {"ready": False, "failing": ["etcd"], "warnings": []}, ["not ready: etcd"]),
        ("health", {"ready": True, "failing": [], "warnings": ["certificates"]}, ["ready, with warnings: certificates"]),
        ("ca", {"ends": SOON}, ["ends in 9d"]),
    ],
)  # fmt: skip
def test_the_lines_of_a_section(name: str, found: Obj, lines: list[str]) -> None:
    assert list(SECTIONS[name].lines(found, NOW)) == lines


def lease(name: str, holder: str, *, namespace: str = "kube-system", renewed: int = 1) -> Obj:
    spec = {
        "holderIdentity": holder,
        "leaseDurationSeconds": 15,
        "renewTime": rfc3339(NOW - timedelta(seconds=renewed)),
    }
    return {"metadata": {"name": name, "namespace": namespace}, "spec": spec}


OWN, STANDALONE = sections.OWN_LEASE, sections.STANDALONE_LEASE
UNREAD = "this user may not list the Leases of all namespaces"


@pytest.mark.parametrize(
    ("leases", "problem", "holder", "lines"),
    [
        pytest.param([lease(OWN, "cp1")], "", "cp1", ["on cp1"], id="of a server"),
        pytest.param(
            [lease(STANDALONE, "vm"), lease(STANDALONE, "pod", namespace="mooring-system")], "", "vm",
            [f"on vm, Lease kube-system/{STANDALONE}", f"on pod, Lease mooring-system/{STANDALONE}"], id="beside a cluster",
        ),
        pytest.param(
            [lease(OWN, "old", renewed=90), lease(STANDALONE, "vm")], "", "vm", [f"on vm, Lease kube-system/{STANDALONE}"],
            id="one that ended is left out beside one that lives",
        ),
        pytest.param(
            [lease(OWN, "cp1", renewed=90), lease(STANDALONE, "")], "", "", [f"silent for 90s: cp1, Lease kube-system/{OWN}"],
            id="silent, and released",
        ),
        pytest.param(
            [], "", "",
            [f"none found: no process holds the Lease {OWN}, {STANDALONE}, kube-controller-manager"], id="none",
        ),
        pytest.param([], UNREAD, "", [f"unknown, because {UNREAD}"], id="unknown"),
        pytest.param([lease(OWN, "a")], UNREAD, "a", ["on a", f"others unknown, because {UNREAD}"], id="others unknown"),
    ],
)  # fmt: skip
def test_where_controllers_run(leases: list[Obj], problem: str, holder: str, lines: list[str]) -> None:
    found = sections.controllers(leases, NOW, are_all=not problem)
    assert (found["holder"], found.get("unknown", "")) == (holder, problem)
    assert list(SECTIONS["controllers"].lines(found, NOW)) == lines


def test_the_leases_are_those_that_the_processes_hold() -> None:
    assert (OWN, STANDALONE) == (leaderelection.NAME, standalonetable.LEASE)


def reported(address: str, serial_number: str) -> serverreport.ServerReport:
    certificate = {"name": "serving-certificate", "serialNumber": serial_number, "notAfter": SOON}
    report = {"server": "cp", "dataDir": "/var/lib/mooring", "certificates": [certificate]}
    return serverreport.ServerReport(address, report)


def test_copies_of_a_machine_are_several_servers_and_addresses_of_one_are_not() -> None:
    first, balancer, copy = reported("https://a", "1"), reported("https://b", "1"), reported("https://c", "2")
    gone = [serverreport.ServerReport(f"https://{name}", problem="gone") for name in "de"]
    assert serverreport.distinct([first, balancer, copy, *gone]) == (first, copy, *gone)


@pytest.mark.parametrize("answer", [{}, {"kind": "Status"}, {"status": "up"}])
def test_the_answer_of_another_program_is_no_report(answer: Obj) -> None:
    with pytest.raises(NotFoundError):
        serverreport.checked(answer)


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 bytes"), (2048, "2.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes(size: int, text: str) -> None:
    assert sections.size_text(size) == text


@pytest.mark.parametrize(
    ("lost", "line"),
    [
        (None, "https://192.0.2.1:6443: cp1, 0.1.0, 1 worker, serving certificate ends in 9d"),
        ([], "https://192.0.2.1:6443: cp1, 0.1.0, 1 worker, serving certificate ends in 9d"),
        (
            ["192.0.2.1"],
            "https://192.0.2.1:6443: cp1, 0.1.0, 1 worker, serving certificate ends in 9d; its machine lost 192.0.2.1: restart it",
        ),
    ],
    ids=["an older server", "none", "one"],
)
def test_a_server_whose_machine_lost_an_address_is_named(lost: list[str] | None, line: str) -> None:
    end = {"name": "serving-certificate", "notAfter": rfc3339(NOW + timedelta(days=9))}
    report = {"server": "cp1", "version": "0.1.0", "workers": 1, "addresses": [], "certificates": [end]}
    if lost is not None:
        report["lostAddresses"] = lost
    found = sections.server("https://192.0.2.1:6443", report, "")
    assert sections.server_lines({"servers": [found]}, NOW) == [line]


def test_audit_records_that_cannot_be_written_are_named_with_their_server() -> None:
    report = {"server": "cp1", "version": "0.1.0", "workers": 1, "addresses": [], "certificates": []}
    found = sections.server(
        "https://192.0.2.1:6443", {**report, "auditLog": {"problem": "a.log cannot be written: full"}}, ""
    )
    (line,) = sections.server_lines({"servers": [found]}, NOW)
    assert line.endswith("; audit log: a.log cannot be written: full")


@pytest.mark.parametrize(
    ("notices", "end"),
    [
        pytest.param((0, 0, ""), "; notices to https://a.example", id="in order"),
        pytest.param(
            (3, 0, "it answers 500"), "; notices to https://a.example, 3 waiting: it answers 500", id="failing"
        ),
        pytest.param((1, 2, ""), "; notices to https://a.example, 1 waiting, 2 dropped or refused", id="dropped"),
    ],
)
def test_where_notices_of_a_server_go_and_how_many_did_not(notices: tuple[int, int, str], end: str) -> None:
    waiting, dropped, problem = notices
    found = {"host": "https://a.example", "waiting": waiting, "dropped": dropped, "problem": problem}
    report = {"server": "cp1", "version": "0.1.0", "workers": 1, "addresses": [], "certificates": [], "notices": found}
    server = sections.server("https://192.0.2.1:6443", report, "")
    assert server["notices"] == found
    (line,) = sections.server_lines({"servers": [server]}, NOW)
    assert line.endswith(end)


@pytest.mark.parametrize(
    ("problems", "error", "said"),
    [
        pytest.param(["not served by this server"], NotFoundError, "not served by this server", id="an older server"),
        pytest.param(["not readable for this user"] * 2, ForbiddenError, "not readable for this user", id="no right"),
        pytest.param(["no answer within 5s"], ServiceUnavailableError, "no answer within 5s", id="a slow server"),
        pytest.param(
            ["not served by this server", "no answer within 5s"],
            ServiceUnavailableError,
            "no answer within 5s",
            id="an older server, and one that is slow",
        ),
    ],
)
def test_why_no_server_reports_of_itself(
    problems: list[str], error: type[ApiError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetch(*arguments: object) -> list[serverreport.ServerReport]:
        return [serverreport.ServerReport(f"https://{number}", problem=one) for number, one in enumerate(problems)]

    async def report() -> Obj:
        return await Gathering(cast("Any", SimpleNamespace(clock=None)), cast("Any", None), NOW).report()

    monkeypatch.setattr(serverreport, "fetch", fetch)
    with pytest.raises(error, match=said):
        asyncio.run(report())


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        pytest.param({"data": {"heldBack": "4", "message": "too many"}}, (4, "too many"), id="held back"),
        pytest.param({"data": {"heldBack": "0", "message": ""}}, (0, ""), id="nothing held back"),
        pytest.param({"data": {"heldBack": "some"}}, (0, ""), id="not a number"),
        pytest.param({"data": None}, (0, ""), id="without data"),
        pytest.param(NotFoundError("no"), (0, ""), id="without the ConfigMap"),
        pytest.param(ForbiddenError("no"), (0, ""), id="not readable"),
    ],
)
def test_held_back_removals_are_read_where_the_cluster_says_so(answer: Any, expected: tuple[int, str]) -> None:
    async def get(plural: str, name: str, namespace: str) -> Obj:
        assert (plural, name, namespace) == ("configmaps", "mooring-silence", "kube-system")
        if isinstance(answer, Exception):
            raise answer
        return cast(Obj, answer)

    assert asyncio.run(sections.held_back(cast(Any, SimpleNamespace(get=get)))) == expected


@each_row(
    "total, issuers, lines",
    [
        (0, [], ["none"]),
        (2, [], ["2"]),
        (
            1,
            [{"issuer": "https://a.example", "problem": "it answers 503", "keysKnownUntil": "2026-01-02T00:00:00Z"}]
            * 2,
            [
                "1",
                "https://a.example does not give its keys: it answers 503; the known ones count until 2026-01-02T00:00:00Z",
            ],
        ),
        (
            1,
            [{"issuer": "https://a.example", "problem": "it answers 503", "keysKnownUntil": ""}],
            ["1", "https://a.example does not give its keys: it answers 503"],
        ),
    ],
)
def test_join_rules_and_the_issuers_that_give_no_keys(total: int, issuers: list[Obj], lines: list[str]) -> None:
    assert sections.join_rule_lines({"total": total, "unreadyIssuers": issuers}, NOW) == lines
