"""The check of names before a certificate is issued: its evidence, what it records, and that the signer repeats it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest

from mooring.api.certificates.requeststate import parsed_request
from mooring.api.mooring.nodeidentity import MAX_CERTIFIED
from mooring.api.view import FixedView, Views, guarded
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Create, InThread, RecordIssuance, Requeue, Update
from mooring.controllers.certificates.issuance import CheckResult, Hold, PendingIssue, Reservation
from mooring.controllers.certificates.sanpolicy.check import CertifiedNames, can_serve
from mooring.controllers.certificates.sanpolicy.evidence import (
    MAX_FORMER,
    MAX_REPORTED,
    Holders,
    Reserved,
    certified_names,
    published_hosts,
    serving_names_config_map,
    with_former_names,
)
from mooring.controllers.certificates.signing.signer import CsrSigner
from mooring.controllers.certificates.signing.signingpolicy import parse_policy
from mooring.errors import UnreadableObjectError
from mooring.pki.keys import generate_key
from mooring.pki.x509.canonicalnames import canonical
from mooring.pki.x509.requests import build_request
from mooring.pki.x509.signers import (
    CREDENTIAL,
    K3S_KUBELET_SERVING,
    KUBE_APISERVER_CLIENT_KUBELET,
    KUBELET_SERVING,
    LEGACY_UNKNOWN,
    NODE_IP,
    NODE_NAME,
    NODE_PASSWORD,
    PASSWORD_DEFERRED,
)
from mooring.settings.signing import SIGNING_DURATION
from mooring.trust.discovery.clusterinfo import config_map
from tests.support.plans import HOUR, NOW, entropy, moment, thing, views
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
KEY = generate_key()
YEAR = 366 * 24 * HOUR
SERVER = serving_names_config_map(
    "server-2:/var/lib/mooring", ["api-2.example.com", "192.0.2.82", "127.0.0.1"], NOW + HOUR
)
CLUSTER: dict[str, list[Obj]] = {
    "configmaps": [config_map("https://api.example.com:6443", b"", others=["https://192.0.2.80:6443"]), SERVER],
    "services": [
        thing("kubernetes", "default", spec={"clusterIPs": ["10.96.0.1"]}),
        thing("db", "prod", spec={"clusterIP": "10.96.0.7", "clusterIPs": ["10.96.0.7", "fd00::7"]}),
        thing("headless", "prod", spec={"clusterIP": "None", "clusterIPs": ["None"]}),
    ],
    "endpoints": [thing("kubernetes", "default", subsets=[{"addresses": [{"ip": "192.0.2.9"}]}])],
}


def node(name: str, *addresses: str, **metadata: Any) -> Obj:
    return thing(
        name, status={"addresses": [{"type": "InternalIP", "address": one} for one in addresses]}, metadata=metadata
    )


def identity(name: str, *names: str, until: timedelta = YEAR * 2, **spec: Any) -> Obj:
    return thing(name, spec={**spec, "certifiedNames": [{"name": one, "notAfter": moment(until)} for one in names]})


def csr(
    *names: str, signer: str = KUBELET_SERVING, usages: Sequence[str] = (), cn: str = "system:node:n1", **spec: Any
) -> Obj:
    forms = list(map(canonical, names))
    dns = [text for text, form in zip(names, forms, strict=True) if isinstance(form, str)]
    ips = [form for form in forms if not isinstance(form, str)]
    pem = build_request(KEY, cn, ("system:nodes",), dns, ips)
    asked = {
        "request": base64.b64encode(pem).decode(),
        "signerName": signer,
        "usages": list(usages or ("digital signature", "server auth")),
        "username": cn,
        "groups": ["system:nodes"],
        **spec,
    }
    return thing("join", spec=asked, metadata={"creationTimestamp": moment(0 * HOUR)})


def k3s(name: str, *ips: str, password: str = "") -> Obj:
    extra = {CREDENTIAL: ["k3s-token"], NODE_NAME: [name], NODE_IP: list(ips)}
    return csr(signer=K3S_KUBELET_SERVING, cn="x", extra=extra | ({NODE_PASSWORD: [password]} if password else {}))


def seen(**more: list[Obj]) -> Views:
    return views(**{**CLUSTER, "nodes": [node("n1", "192.0.2.1")], **more})


def found(
    obj: Obj, *, by_person: bool = False, check: CertifiedNames | None = None, **more: list[Obj]
) -> CheckResult | None:
    pending = PendingIssue(csr=obj, request=parsed_request(obj), now=NOW, automatic=not by_person)
    return (
        check
        or CertifiedNames(server_names=lambda: ("api-1.example.com", "192.0.2.81"), signing_duration=SIGNING_DURATION)
    ).check(pending, seen(**more))


def reason(finding: CheckResult | None) -> str:
    return finding.reason if isinstance(finding, Hold) else ""


def recorded(finding: CheckResult | None) -> dict[str, str]:
    """Return the names that the reservation records, each with the end of its certificate."""
    assert isinstance(finding, Reservation), finding
    (action,) = finding.actions
    assert isinstance(action, Create | Update)
    return {one["name"]: one["notAfter"] for one in action.obj["spec"]["certifiedNames"]}


END = moment(8760 * HOUR + timedelta(minutes=5))


@pytest.mark.parametrize(
    "name",
    [
        "api-1.example.com",
        "192.0.2.81",
        "api-2.example.com",
        "192.0.2.82",
        "api.example.com",
        "192.0.2.80",
        "192.0.2.9",
        "10.96.0.1",
    ],
)
@pytest.mark.parametrize("by_person", [False, True])
def test_names_of_every_server_are_reserved_even_when_a_person_approves(name: str, by_person: bool) -> None:
    """Of this server, of another one on the same store, of a balancer, and of the Service."""
    reported = [node("n1", "192.0.2.1", name, f"::ffff:{name}" if ":" not in name and name[0].isdigit() else name)]
    assert reason(found(csr(name), nodes=reported, by_person=by_person)) == "AddressOfControlPlane"
    assert (
        reason(found(k3s(name) if name[0] == "a" else k3s("n1", name), by_person=by_person)) == "AddressOfControlPlane"
    )


@pytest.mark.parametrize("name", ["db", "db.prod", "10.96.0.7", "fd00::7", "headless.prod"])
def test_names_of_services_are_reserved(name: str) -> None:
    assert reason(found(csr(name), nodes=[node("n1", name)])) == "NameOfService"


def test_names_of_a_server_are_reserved_until_its_certificate_ends() -> None:
    ended = serving_names_config_map("server-2:/var/lib/mooring", ["192.0.2.82"], NOW - HOUR)
    damaged = {**SERVER, "data": {**SERVER["data"], "notAfter": "tomorrow"}}
    for stored, expected in ((ended, ""), (damaged, "AddressOfControlPlane")):
        assert reason(found(csr("192.0.2.82"), nodes=[node("n1", "192.0.2.82")], configmaps=[stored])) == expected


def test_names_of_a_replaced_certificate_are_reserved_until_it_ends() -> None:
    """The record keeps them through further certificates, and drops those that ended."""
    first = serving_names_config_map("s", ["api-9.example.com", "192.0.2.9", "192.0.2.8"], NOW + HOUR)
    second = with_former_names(serving_names_config_map("s", ["192.0.2.9"], NOW + 2 * HOUR), first, NOW)
    third = with_former_names(serving_names_config_map("s", ["192.0.2.8"], NOW + HOUR / 2), second, NOW)
    assert second["data"]["former"].split() == ["192.0.2.8", moment(HOUR), "api-9.example.com", moment(HOUR)]
    assert third["data"]["former"].split()[::2] == ["192.0.2.8", "192.0.2.9", "api-9.example.com"]
    for name in ("api-9.example.com", "192.0.2.9", "192.0.2.8"):
        obj = csr(name)
        assert reason(found(obj, nodes=[node("n1", name)], configmaps=[third])) == "AddressOfControlPlane"
    last = with_former_names(serving_names_config_map("s", ["192.0.2.7"], NOW + 4 * HOUR), third, NOW + 3 * HOUR)
    assert "former" not in last["data"]
    assert "former" not in with_former_names(first, None, NOW)["data"]
    damaged = {**SERVER, "data": {**SERVER["data"], "former": "api-7.example.com tomorrow\n\n"}}
    assert reason(found(csr("api-7.example.com"), configmaps=[damaged])) == "AddressOfControlPlane"


def test_a_record_of_a_server_has_a_bounded_number_of_former_names() -> None:
    many = serving_names_config_map("s", [f"a{number}.example.com" for number in range(MAX_FORMER + 9)], NOW + HOUR)
    kept = with_former_names(serving_names_config_map("s", ["b.example.com"], NOW + HOUR), many, NOW)
    assert len(kept["data"]["former"].splitlines()) == MAX_FORMER


def test_a_person_outweighs_what_is_held_and_the_names_are_recorded() -> None:
    assert reason(found(csr("vault.example.com"))) == "NameNotOfNode"
    assert recorded(found(csr("vault.example.com"), by_person=True)) == {"vault.example.com": END}


def test_the_names_of_a_certificate_are_recorded_until_it_ends() -> None:
    obj = csr("n1", "192.0.2.1", expirationSeconds=3600)
    soon = moment(HOUR + timedelta(minutes=5))
    assert recorded(found(obj)) == {"n1": soon, "192.0.2.1": soon}
    old = identity("n1", "n1", "old.example.com", until=HOUR)
    gone = {"name": "gone.example.com", "notAfter": moment(-HOUR)}
    old["spec"]["certifiedNames"].append(gone)
    assert recorded(found(obj, nodeidentities=[old])) == {
        "old.example.com": moment(HOUR),
        "n1": soon,
        "192.0.2.1": soon,
    }
    assert found(obj, nodeidentities=[identity("n1", "n1", "192.0.2.1")]) is None
    assert reason(found(csr("old.example.com"), nodeidentities=[old])) == ""
    assert reason(found(csr("gone.example.com"), nodeidentities=[old])) == "NameNotOfNode"


def test_the_first_record_of_a_machine_with_a_node_password_is_left_to_the_check_of_the_name() -> None:
    assert found(k3s("n1", "192.0.2.1", password="uid")) is None
    known = [thing("n1", spec={"nodePasswordUID": "uid"})]
    assert recorded(found(k3s("n1", "192.0.2.1", password="uid"), nodeidentities=known)) == {
        "n1": END,
        "192.0.2.1": END,
    }


# -- names of other machines ---------------------------------------------------------------------------------------------


def test_an_address_belongs_to_the_identity_that_has_a_certificate_for_it() -> None:
    both = [node("n1", "192.0.2.1"), node("n2", "192.0.2.1")]
    mine, theirs = identity("n1", "192.0.2.1"), identity("n2", "192.0.2.1")
    assert reason(found(csr("192.0.2.1"), nodes=both)) == "AddressOfAnotherNode"
    assert reason(found(csr("192.0.2.1"), nodes=both, nodeidentities=[mine])) == ""
    assert reason(found(csr("192.0.2.1"), nodes=both, nodeidentities=[theirs])) == "AddressOfAnotherNode"
    assert reason(found(csr("192.0.2.1"), nodes=both, nodeidentities=[mine, theirs])) == "AddressOfAnotherNode"


@pytest.mark.parametrize(
    ("nodes", "other", "expected"),
    [
        pytest.param(
            [node("n2", "192.0.2.7")],
            identity("n2", "192.0.2.1"),
            "AddressOfAnotherNode",
            id="the other has another address now, too",
        ),
        pytest.param(
            [node("n2")],
            identity("n2", "192.0.2.1"),
            "AddressOfAnotherNode",
            id="the Node of the other reports nothing yet",
        ),
        pytest.param(
            [node("n2", uid="y")],
            identity("n2", "192.0.2.1", nodeUID="x"),
            "",
            id="the Node of the other was made again",
        ),
        pytest.param([], identity("n2", "192.0.2.1"), "AddressOfAnotherNode", id="the other has no Node yet"),
        pytest.param([], identity("n2", "192.0.2.1", until=-HOUR), "", id="the certificate of the other has ended"),
        pytest.param([], identity("n2", "192.0.2.1", nodeUID="x"), "", id="the membership of the other has ended"),
    ],
)
def test_a_certified_address_becomes_free(nodes: list[Obj], other: Obj, expected: str) -> None:
    assert reason(found(csr("192.0.2.1"), nodes=[node("n1", "192.0.2.1"), *nodes], nodeidentities=[other])) == expected


def reported(identity: Obj, after: timedelta = -HOUR) -> Obj:
    """Return an identity whose machine gave its names itself, at a time."""
    for one in identity["spec"]["certifiedNames"]:
        one["reportedAt"] = moment(after)
    return identity


def left(finding: CheckResult | None) -> list[str]:
    """Return the addresses that a finding records as left."""
    actions = finding.actions if finding is not None else ()
    changed = [one for action in actions for one in action.obj["spec"]["certifiedNames"]]  # type: ignore[union-attr] # updates alone
    return [one["name"] for one in changed if one.get("leftAt") == moment(0 * HOUR)]


NEW, OLD = "192.0.2.7", "192.0.2.1"
PASSWORD: dict[str, Any] = {"nodePasswordUID": "uid"}


@pytest.mark.parametrize(
    ("obj", "nodes", "mine", "expected"),
    [
        pytest.param(csr(NEW), [node("n1", NEW)], reported(identity("n1", OLD)), [OLD], id="it has another address"),
        pytest.param(csr(NEW), [node("n1", NEW, OLD)], reported(identity("n1", OLD)), [], id="its Node has both"),
        pytest.param(csr(NEW), [node("n1", OLD)], reported(identity("n1", OLD)), [], id="its Node has the former one"),
        pytest.param(csr("n1"), [node("n1", NEW)], reported(identity("n1", OLD)), [], id="it asks for no address"),
        pytest.param(
            csr(NEW), [node("n1", "192.0.2.3")], reported(identity("n1", OLD)), [], id="its Node has none of the two"
        ),
        pytest.param(csr(NEW), [node("n1", NEW)], identity("n1", OLD), [], id="a person gave the address"),
        pytest.param(
            csr(NEW), [node("n1", NEW)], reported(identity("n1", OLD), 0 * HOUR), [], id="the request is not newer"
        ),
        pytest.param(
            k3s("n1", NEW, password="uid"),
            [node("n1", OLD)],
            reported(identity("n1", OLD, **PASSWORD)),
            [OLD],
            id="k3s's way, and its Node follows",
        ),
        pytest.param(
            k3s("n1", NEW, OLD, password="uid"),
            [],
            reported(identity("n1", OLD, **PASSWORD)),
            [],
            id="k3s's way, with both",
        ),
        pytest.param(k3s("n1", NEW), [], reported(identity("n1", OLD, **PASSWORD)), [], id="k3s's way, by a stranger"),
    ],
)
@pytest.mark.parametrize("is_held", [False, True])
def test_an_address_that_a_machine_has_left_is_recorded(
    obj: Obj, nodes: list[Obj], mine: Obj, expected: list[str], is_held: bool
) -> None:
    """Also while its request waits, because another machine has the new address: the two may have exchanged theirs."""
    identities = [mine, *([identity("n2", NEW)] if is_held else [])]
    finding = found(obj, nodes=nodes, nodeidentities=identities)
    assert left(finding) == expected
    if is_held and NEW in str(obj):
        assert isinstance(finding, Hold)


def test_another_machine_gets_an_address_that_was_left_and_a_service_does_not() -> None:
    theirs = reported(identity("n2", OLD))
    theirs["spec"]["certifiedNames"][0]["leftAt"] = moment(0 * HOUR)
    known: dict[str, Any] = {"nodes": [node("n1", OLD), node("n2", NEW)], "nodeidentities": [theirs]}
    granted = found(csr(OLD), **known)
    assert recorded(granted) == {OLD: END}
    assert isinstance(granted, Reservation)
    (action,) = granted.actions
    assert isinstance(action, Create)
    assert action.obj["spec"]["certifiedNames"][0]["reportedAt"] == moment(0 * HOUR)
    assert Holders().certified(ip_address(OLD), seen(**known), NOW) == {"n2"}
    again = found(csr(OLD, cn="system:node:n2"), nodes=[node("n2", OLD)], nodeidentities=[theirs])
    assert recorded(again) == {OLD: END}, "it may come back while no other machine has the address"
    assert left(again) == []
    both = [reported(identity("n1", OLD)), theirs]
    assert (
        reason(found(csr(OLD, cn="system:node:n2"), nodes=[node("n2", OLD)], nodeidentities=both))
        == "AddressOfAnotherNode"
    )


@pytest.mark.parametrize("by_person", [False, True])
def test_only_what_was_certified_without_a_person_can_be_left(by_person: bool) -> None:
    finding = found(csr(OLD), by_person=by_person)
    assert isinstance(finding, Reservation)
    (action,) = finding.actions
    assert isinstance(action, Create)
    (one,) = action.obj["spec"]["certifiedNames"]
    assert ("reportedAt" in one) is not by_person


def test_an_address_of_a_record_that_lasts_is_marked_as_left() -> None:
    mine = reported(identity("n1", OLD, NEW))
    finding = found(csr(NEW), nodes=[node("n1", NEW)], nodeidentities=[mine])
    assert left(finding) == [OLD]
    assert recorded(finding) == {OLD: moment(2 * YEAR), NEW: moment(2 * YEAR)}


def test_a_former_address_of_another_machine_is_said_to_be_of_its_certificate() -> None:
    """Its Node reports another one now: there is nothing to correct."""
    nodes = [node("n1", "192.0.2.1"), node("n2", "192.0.2.7"), node("n3", "192.0.2.8")]
    first, both = [identity("n2", "192.0.2.1")], [identity("n2", "192.0.2.1"), identity("n3", "192.0.2.1")]
    for identities, holders in ((first, "n2"), (both, "n2, n3")):
        held = found(csr("192.0.2.1"), nodes=nodes, nodeidentities=identities)
        assert isinstance(held, Hold)
        assert held.message.startswith(f"192.0.2.1: a certificate of Node {holders} for it has not ended, ")
    claimed = found(csr("192.0.2.1"), nodes=[*nodes, node("n4", "192.0.2.1")], nodeidentities=first)
    assert isinstance(claimed, Hold)
    assert claimed.message.startswith("192.0.2.1: Node n2, n4 has it, too; ")


@pytest.mark.parametrize("name", ["vault.example.com", "db.nodes.example.com", "192.0.2.5"])
def test_a_certified_name_stays_with_its_machine_whatever_its_node_reports(name: str) -> None:
    """A person or a suffix gave it: the Node never reports it. No other machine gets it by a suffix, its own name or a claim."""
    nodes, theirs = [node("n1", "192.0.2.1", name), node("n2")], [identity("n2", name)]
    joining = k3s("n1", name) if name[0].isdigit() else k3s(name, "192.0.2.6")
    check = CertifiedNames(dns_suffixes=("nodes.example.com",), signing_duration=SIGNING_DURATION)
    for obj, expected in (
        (csr(name), "AddressOfAnotherNode"),
        (joining, "AddressOfAnotherNode"),
        (csr(name, cn="system:node:n2"), ""),
    ):
        assert reason(found(obj, check=check, nodes=nodes, nodeidentities=theirs)) == expected


@pytest.mark.parametrize("plural", ["nodes", "nodeidentities"])
def test_a_machine_that_cannot_be_read_keeps_its_names_and_stops_no_other(plural: str) -> None:
    check = CertifiedNames(signing_duration=SIGNING_DURATION)
    known = {"nodes": [node("n1", "192.0.2.1"), node("n2")], "nodeidentities": [identity("n2", "192.0.2.5")]}
    nodes, identities = known["nodes"], known["nodeidentities"]
    assert (
        reason(found(csr("192.0.2.5"), check=check, nodes=nodes, nodeidentities=identities)) == "AddressOfAnotherNode"
    )
    broken = FixedView(
        [one for one in known[plural] if one["metadata"]["name"] != "n2"], 2, unreadable={("", "n2"): "no key"}
    )
    seen_now = guarded({**seen(**known), plural: broken})
    for name, expected in (("192.0.2.5", "AddressOfAnotherNode"), ("192.0.2.1", "")):
        obj = csr(name)
        pending = PendingIssue(csr=obj, request=parsed_request(obj), now=NOW, automatic=True)
        assert reason(check.check(pending, seen_now)) == expected


def test_the_name_of_another_machine_is_its_own_before_it_has_a_node() -> None:
    assert reason(found(csr("n2"), nodeidentities=[thing("n2", spec={})])) == "AddressOfAnotherNode"


def test_two_claims_of_one_moment_do_not_both_get_the_certificate() -> None:
    """Each is recorded before the signature, and the signer looks again."""
    claims = [identity("n1", "192.0.2.5"), identity("n2", "192.0.2.5")]
    assert reason(found(k3s("n1", "192.0.2.5"), nodeidentities=claims, nodes=[])) == "AddressOfAnotherNode"


# -- what an administrator grants ----------------------------------------------------------------------------------------


def machine(node_name: str = "n1", *names: str, used_by: str = "", **spec: Any) -> Obj:
    status = {"usedBy": {"publicKey": "sha256:0", "nodeName": used_by, "time": moment(-HOUR)}} if used_by else {}
    return thing("m1", spec={"nodeName": node_name, "servingNames": list(names), **spec}, status=status)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        pytest.param(machine("n1", "192.0.2.9"), "", id="an entry with its name"),
        pytest.param(machine("n1", "192.0.2.80"), "AddressOfControlPlane", id="an entry for another address"),
        pytest.param(machine("n2", "192.0.2.9"), "AddressOfControlPlane", id="an entry of another machine"),
        pytest.param(machine("n*", "192.0.2.9"), "AddressOfControlPlane", id="an entry for many machines"),
        pytest.param(machine("n1", "192.0.2.9", keyFingerprint="sha256:0"), "AddressOfControlPlane", id="no proof yet"),
        pytest.param(
            machine("n1", "192.0.2.9", keyFingerprint="sha256:0", used_by="n1"), "", id="a proof that was given"
        ),
    ],
)
def test_an_entry_of_the_inventory_grants_names_to_one_machine(entry: Obj, expected: str) -> None:
    known: dict[str, Any] = {"authorizedmachines": [entry], "nodeidentities": [identity("n1", changedAt=moment(-HOUR))]}
    assert reason(found(k3s("n1", "192.0.2.9"), **known)) == expected
    assert reason(found(csr("192.0.2.9"), nodes=[node("n1", "192.0.2.9")], **known)) == expected


@pytest.mark.parametrize("obj", [k3s("n1", "192.0.2.9"), csr("192.0.2.9")], ids=["k3s's way", "kubeadm's way"])
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("10.1.0.7", "", id="one of its networks"),
        pytest.param("::ffff:10.1.0.7", "", id="an IPv4-mapped form"),
        pytest.param("10.2.0.7", "AddressOfControlPlane", id="another network"),
        pytest.param("", "AddressOfControlPlane", id="an unknown place"),
    ],
)
def test_an_entry_without_a_proof_grants_names_in_requests_from_its_networks(
    obj: Obj, source: str, expected: str
) -> None:
    entry = machine("n1", "192.0.2.9", allowedCIDRs=["10.1.0.0/16"])
    annotated = {**obj, "metadata": {**obj["metadata"], "annotations": {"mooring.dev/source-address": source}}}
    nodes = [node("n1", "192.0.2.9")]
    here = CertifiedNames(signing_duration=SIGNING_DURATION, trusts_source_address=True)
    assert reason(found(annotated, check=here, authorizedmachines=[entry], nodes=nodes)) == expected
    elsewhere = CertifiedNames(signing_duration=SIGNING_DURATION)
    found_there = found(annotated, check=elsewhere, authorizedmachines=[entry], nodes=nodes)
    assert reason(found_there) == "AddressOfControlPlane", "another API server lets its clients write the address"


def test_a_password_that_is_verified_later_proves_no_machine_to_which_names_were_granted() -> None:
    entry = machine("n1", "192.0.2.9")
    asked = k3s("n1", "192.0.2.9", password=PASSWORD_DEFERRED)
    assert reason(found(asked, authorizedmachines=[entry], nodes=[])) == "AddressOfControlPlane"


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        pytest.param({"changedAt": moment(-HOUR)}, True, id="the machine that has the name since"),
        pytest.param({"changedAt": moment(-HOUR / 2)}, False, id="the name has changed hands, or its Node was deleted"),
        pytest.param({"keys": [{"publicKey": "sha256:0"}]}, True, id="a name that belongs to its key"),
        pytest.param({"keys": [{"publicKey": "sha256:1"}]}, False, id="a name that belongs to another key"),
        pytest.param(None, False, id="a name without a record"),
    ],
)
@pytest.mark.parametrize("proof", ["keyFingerprint", "codeVerifier"])
def test_an_entry_counts_for_the_machine_that_proved_it_and_for_no_later_one(
    spec: Obj | None, counts: bool, proof: str
) -> None:
    entry = machine("n1", "192.0.2.9", used_by="n1", **{proof: "sha256:0"})
    known: dict[str, Any] = {
        "authorizedmachines": [entry],
        "nodeidentities": [identity("n1", **spec)] if spec is not None else [],
    }
    expected = "" if counts else "AddressOfControlPlane"
    assert reason(found(k3s("n1", "192.0.2.9"), **known)) == expected
    assert reason(found(csr("192.0.2.9"), nodes=[node("n1", "192.0.2.9")], **known)) == expected


OF_A_SERVER = node("n1", "192.0.2.9", labels={"node-role.kubernetes.io/control-plane": ""})
STRANGER = {"username": "system:bootstrap:abcdef"}


@pytest.mark.parametrize(
    ("obj", "known", "expected"),
    [
        pytest.param(csr("192.0.2.9"), {"nodes": [OF_A_SERVER]}, "", id="the machine itself, by its label"),
        pytest.param(
            csr("192.0.2.9", **STRANGER), {"nodes": [OF_A_SERVER]}, "AddressOfControlPlane", id="a stranger, by its label"
        ),
        pytest.param(
            csr("192.0.2.9", **STRANGER), {"authorizedmachines": [machine("n1", "192.0.2.9")]}, "AddressOfControlPlane",
            id="a stranger, by its entry",
        ),
        pytest.param(
            k3s("n1", "192.0.2.9", password="u2"), {"nodeidentities": [identity("n1", nodePasswordUID="u1")]},
            "AddressOfControlPlane", id="k3s's way without the password of the name",
        ),
        pytest.param(
            k3s("n1", "192.0.2.9"), {"nodes": [OF_A_SERVER]}, "AddressOfControlPlane", id="k3s's way under the name of a Node"
        ),
        pytest.param(
            k3s("n1", "192.0.2.9", password="u1"), {"nodeidentities": [identity("n1", nodePasswordUID="u1")]}, "",
            id="k3s's way with the password",
        ),
        pytest.param(k3s("n1", "192.0.2.9"), {"nodes": []}, "", id="k3s's way with a name that is free"),
    ],
)  # fmt: skip
def test_what_a_machine_was_granted_counts_in_no_request_of_a_stranger_that_a_person_approves(
    obj: Obj, known: dict[str, Any], expected: str
) -> None:
    listed = {"authorizedmachines": [machine("n1", "192.0.2.9")], **known}
    assert reason(found(obj, by_person=True, **listed)) == expected


def test_suffixes_of_the_administrator() -> None:
    assert (
        reason(
            found(
                csr("a.nodes.example.com"),
                check=CertifiedNames(dns_suffixes=("nodes.example.com",), signing_duration=SIGNING_DURATION),
            )
        )
        == ""
    )


def test_the_own_name_of_a_labelled_machine() -> None:
    labelled = node("api-2.example.com", "192.0.2.9", labels={"node-role.kubernetes.io/control-plane": ""})
    obj = csr("api-2.example.com", "192.0.2.9", cn="system:node:api-2.example.com")
    assert reason(found(obj, nodes=[labelled])) == ""


@pytest.mark.parametrize(
    ("source", "trusted", "expected"),
    [
        pytest.param("192.0.2.1", True, "", id="the request comes from the address"),
        pytest.param("::ffff:192.0.2.1", True, "", id="in another form"),
        pytest.param("198.51.100.1", True, "NameNotOfNode", id="it comes from another one"),
        pytest.param("", True, "NameNotOfNode", id="the source is not known"),
        pytest.param("", False, "", id="outside of a server the reported address stands for it"),
    ],
)
def test_the_dns_is_proof_for_the_address_that_makes_the_request(source: str, trusted: bool, expected: str) -> None:
    obj = csr("a.example.com")
    obj["metadata"]["annotations"] = {"mooring.dev/source-address": source}
    pending = PendingIssue(csr=obj, request=parsed_request(obj), now=NOW, automatic=True)
    answer = {"a.example.com": frozenset({ip_address("192.0.2.1")})}
    check = CertifiedNames(trusts_source_address=trusted, signing_duration=SIGNING_DURATION)
    assert reason(check.check(replace(pending, resolved=answer), seen())) == expected


# -- other signers -------------------------------------------------------------------------------------------------------

WEB = parse_policy(
    b"""{apiVersion: mooring.dev/v1alpha1, kind: SigningPolicy, signers: [{name: example.com/web, rules: [
    {name: all, dnsNames: ["*.example.com", api.example.com, "*", "*.*.*"], ipAddresses: [192.0.2.80/32, 192.0.2.0/24]}]},
    {name: example.com/bare, rules: [{name: all}]}]}""",
    "policy",
)


@pytest.mark.parametrize(
    ("signer", "usages", "names", "expected"),
    [
        pytest.param("example.com/web", (), ["www.example.com", "192.0.2.33"], "", id="its own names"),
        pytest.param(
            "example.com/web", (), ["api.example.com", "192.0.2.80"], "", id="names that the policy has in full"
        ),
        pytest.param("example.com/web", (), ["api-2.example.com"], "AddressOfControlPlane", id="a name by a pattern"),
        pytest.param("example.com/web", (), ["192.0.2.82"], "AddressOfControlPlane", id="an address by a network"),
        pytest.param("example.com/bare", (), ["api.example.com"], "AddressOfControlPlane", id="a rule without names"),
        pytest.param(LEGACY_UNKNOWN, (), ["kubernetes.default.svc"], "AddressOfControlPlane", id="no rule"),
        pytest.param(LEGACY_UNKNOWN, ("digital signature",), ["kubernetes"], "AddressOfControlPlane", id="no purpose"),
        pytest.param(LEGACY_UNKNOWN, (), ["2002:c000:20a::1"], "InvalidAddress", id="an embedded address"),
        pytest.param(LEGACY_UNKNOWN, ("client auth",), ["api.example.com"], "", id="a certificate of a client"),
    ],
)
def test_every_signer_whose_certificates_can_serve_keeps_the_names_of_api_servers(
    signer: str, usages: Sequence[str], names: Sequence[str], expected: str
) -> None:
    obj = csr(*names, signer=signer, usages=usages, cn="web")
    check = CertifiedNames(policy=lambda: WEB, signing_duration=SIGNING_DURATION)
    assert reason(found(obj, check=check)) == reason(found(obj, check=check, by_person=True)) == expected


def test_usages_that_can_serve() -> None:
    assert [can_serve(one) for one in ((), ("any",), ("server auth", "client auth"))] == [True, True, True]
    assert not can_serve(("digital signature", "client auth"))
    assert found(csr(signer=KUBE_APISERVER_CLIENT_KUBELET, usages=("client auth",))) is None


# -- the signer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approval", ["AutoApprovedServing", "KubectlApprove"])
def test_what_became_reserved_after_the_approval_is_not_signed(approval: str) -> None:
    obj = csr("n1", "192.0.2.1")
    obj["status"] = {"conditions": [{"type": "Approved", "status": "True", "reason": approval}]}
    controller = CsrSigner(
        CA.cluster_ca.for_signer,
        checks=(CertifiedNames(signing_duration=SIGNING_DURATION),),
        signing_duration=SIGNING_DURATION,
    )

    def signs(**more: list[Obj]) -> Sequence[object]:
        return controller.plan(("", "join"), seen(certificatesigningrequests=[obj], **more), NOW, entropy)

    record, again = signs()
    assert isinstance(record, Create)
    assert again == Requeue(NOW)
    done = [identity("n1", "n1", "192.0.2.1")]
    assert any(isinstance(one, RecordIssuance | InThread) for one in signs(nodeidentities=done))
    moved = [*CLUSTER["configmaps"], serving_names_config_map("server-3:/", ["192.0.2.1"], NOW + HOUR)]
    (failed,) = signs(nodeidentities=done, configmaps=moved)
    assert isinstance(failed, Update)
    condition = failed.obj["status"]["conditions"][-1]
    assert (condition["type"], condition["reason"]) == ("Failed", "AddressOfControlPlane")


# -- evidence ------------------------------------------------------------------------------------------------------------


class ChangingView:
    """View of Nodes whose changes are known."""

    def __init__(self, *nodes: Obj) -> None:
        self.nodes = {one["metadata"]["name"]: one for one in nodes}
        self.revision = 1
        self.broken: dict[tuple[str, str], str] = {}

    def problem(self, name: str, namespace: str = "") -> str:
        return self.broken.get((namespace, name), "")

    def unreadable(self, namespace: str = "") -> dict[tuple[str, str], str]:
        return self.broken

    def get(self, name: str, namespace: str = "") -> Obj | None:
        return self.nodes.get(name)

    def list(self, namespace: str = "") -> list[Obj]:
        return list(self.nodes.values())

    def changed(self, since: int) -> Sequence[tuple[str, str]] | None:
        return [("", "n2"), ("", "n1")] if since == 1 else None


def test_the_index_forgets_addresses_that_a_node_no_longer_reports() -> None:
    view, holders = ChangingView(node("n1", "192.0.2.1"), node("n2", "192.0.2.1")), Holders()
    known = {**seen(), "nodes": view}
    assert holders.reporters(ip_address("192.0.2.1"), "n1", known, NOW) == {"n2"}
    assert holders.holders(ip_address("192.0.2.1"), "n1", known, NOW) == set()
    assert holders.holders("n2", "n1", known, NOW) == {"n2"}
    del view.nodes["n2"]
    view.revision = 2
    assert holders.reporters(ip_address("192.0.2.1"), "n1", known, NOW) == set()
    assert holders.reporters(ip_address("192.0.2.1"), "n1", seen(nodes=[node("n3", "192.0.2.1")]), NOW) == {"n3"}


def test_a_node_that_cannot_be_read_keeps_the_names_that_were_read_last() -> None:
    holders, name = Holders(), ip_address("192.0.2.1")
    view = ChangingView(node("n1", "192.0.2.9"), node("n2", "192.0.2.1"))
    known = {**seen(), "nodes": view}
    assert holders.reporters(name, "n1", known, NOW) == {"n2"}
    del view.nodes["n2"]
    view.broken = {("", "n2"): "no key"}
    view.revision = 2
    assert holders.reporters(name, "n1", known, NOW) == {"n2"}
    view.revision = 3  # the view no longer has the changes
    assert holders.reporters(name, "n1", known, NOW) == {"n2"}
    assert Holders().reporters("n2", "n1", known, NOW) == {"n2"}
    assert Holders().reporters(name, "n1", known, NOW) == set()


def test_nothing_is_certified_while_the_published_names_of_a_server_cannot_be_read() -> None:
    damaged = {("kube-system", SERVER["metadata"]["name"]): "no key"}
    for unreadable, stops in ((damaged, True), ({("kube-system", "other"): "no key"}, False)):
        known = guarded({**seen(), "configmaps": FixedView([], unreadable=unreadable)})
        for _ in range(2):
            if stops:
                with pytest.raises(UnreadableObjectError):
                    Reserved().api_servers(known, NOW)
            else:
                assert Reserved().api_servers(known, NOW)


def test_addresses_of_a_node_are_bounded() -> None:
    many = node("n1", *(f"10.1.{n // 256}.{n % 256}" for n in range(MAX_REPORTED + 1)))
    holders, known = Holders(), seen(nodes=[many])
    assert holders.reporters(ip_address("10.1.0.255"), "n2", known, NOW) == {"n1"}
    assert holders.reporters(ip_address("10.1.1.0"), "n2", known, NOW) == set()


def test_names_of_api_servers() -> None:
    reserved = Reserved()
    known = {str(one) for one in reserved.api_servers(seen(), NOW)}
    assert known == {"api.example.com", "192.0.2.80", "10.96.0.1", "192.0.2.9", "api-2.example.com", "192.0.2.82"}
    assert reserved.api_servers(views(), NOW) == frozenset()


def test_nothing_is_certified_while_the_kubeconfig_of_cluster_info_cannot_be_read() -> None:
    assert published_hosts(CLUSTER["configmaps"][0]["data"]["kubeconfig"]) == ("api.example.com", "192.0.2.80")
    info = {"metadata": {"name": "cluster-info", "namespace": "kube-public"}}
    for data, stops in (({"kubeconfig": "not a kubeconfig"}, True), ({"jws-kubeconfig-a": "x"}, False), (None, False)):
        known = seen(configmaps=[{**info, "data": data}])
        if stops:
            with pytest.raises(UnreadableObjectError, match="kube-public/cluster-info"):
                Reserved().api_servers(known, NOW)
        else:
            assert Reserved().api_servers(known, NOW)


@pytest.mark.parametrize("by_person", [False, True])
def test_no_name_is_dropped_from_the_record_before_its_certificate_ends(by_person: bool) -> None:
    full, ended = (
        identity("n1", *map(str, range(MAX_CERTIFIED))),
        identity("n1", *map(str, range(MAX_CERTIFIED)), until=-HOUR),
    )
    known: dict[str, Any] = {"nodes": [node("n1", "192.0.2.1")], "by_person": by_person}
    assert reason(found(csr("192.0.2.1"), nodeidentities=[full], **known)) == "TooManyCertifiedNames"
    assert set(recorded(found(csr("192.0.2.1"), nodeidentities=[ended], **known))) == {"192.0.2.1"}
    least = identity("n1", *map(str, range(MAX_CERTIFIED - 1)))
    assert len(recorded(found(csr("192.0.2.1"), nodeidentities=[least], **known))) == MAX_CERTIFIED


def test_a_record_without_a_readable_end_does_not_end() -> None:
    damaged = thing("n1", spec={"certifiedNames": [{"name": "n1", "notAfter": "x"}, {"name": ""}]})
    assert certified_names(damaged, NOW) == {"n1"}


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        pytest.param(identity("n1", "10.96.0.9"), {"n1"}, id="a certificate"),
        pytest.param(identity("n1", "10.96.0.9", nodeUID="u0"), set(), id="of a Node that was deleted"),
        pytest.param(identity("n1", "10.96.0.9", until=-HOUR), set(), id="that has ended"),
        pytest.param(identity("n1"), set(), id="for no such address"),
    ],
)
def test_nodes_that_are_certified_for_an_address(one: Obj, expected: set[str]) -> None:
    known = views(nodes=[node("n2", "10.96.0.9")], nodeidentities=[one])
    assert Holders().certified(canonical("10.96.0.9"), known, NOW) == expected
