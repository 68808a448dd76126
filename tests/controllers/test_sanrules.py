"""The gate of names: which DNS names and addresses a certificate may carry."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooring.controllers.certificates.sanpolicy.rules import (
    MAX_NAMES,
    REASONS,
    NodeEvidence,
    RefusalEffect,
    Reservations,
    judge_node,
    judge_server,
)
from mooring.pki.x509.canonicalnames import IPAddress, Name, canonical
from mooring.pki.x509.names import AlternativeNames
from mooring.pki.x509.profiles import SERVICE_NAMES
from mooring.pki.x509.signers import K3S_LOCAL_NAMES


def names(*texts: str) -> frozenset[Name]:
    return frozenset(map(canonical, texts))


def addresses(*texts: str) -> frozenset[IPAddress]:
    return frozenset(map(ip_address, texts))


def asks(*texts: str) -> AlternativeNames:
    forms = [(text, canonical(text)) for text in texts]
    return AlternativeNames(
        tuple(text for text, form in forms if isinstance(form, str)),
        tuple(form for _, form in forms if not isinstance(form, str)),
    )


API_SERVERS = names(*SERVICE_NAMES, "api.example.com", "192.0.2.10", "10.96.0.1", "2001:db8::10")
OTHERS = {canonical(text): "n2" for text in ("n2", "192.0.2.2", "ip-2.internal")}
CERTIFIED_OTHERS = names("n2", "192.0.2.3")
N1 = NodeEvidence(
    node="n1",
    reservations=Reservations(
        api_servers=API_SERVERS,
        services=lambda name: {canonical("10.96.0.7"): "prod/db", "db.prod": "prod/db"}.get(name, ""),
    ),
    reported=names("n1", "192.0.2.1", "2001:db8::1"),
    reporters=lambda name: {OTHERS[name]} if name in OTHERS else {"n2"} if name in CERTIFIED_OTHERS else (),
    holders=lambda name: {"n2"} if name in CERTIFIED_OTHERS else (),
)


def reason(evidence: NodeEvidence, *texts: str, **changes: Any) -> str:
    refusal = judge_node(asks(*texts), replace(evidence, **changes))
    return "" if refusal is None else refusal.reason


@pytest.mark.parametrize(
    ("texts", "changes"),
    [
        pytest.param(["n1", "192.0.2.1", "2001:db8::1"], {}, id="its own name and addresses"),
        pytest.param(["N1"], {}, id="its name in capitals"),
        pytest.param(["::ffff:192.0.2.1"], {}, id="its address in another form"),
        pytest.param(
            ["db1.example.com"], {"certified": names("db1.example.com")}, id="a name that it has a certificate for"
        ),
        pytest.param(
            ["192.0.2.2"], {"certified": names("192.0.2.2")}, id="its certified address, which another claims"
        ),
        pytest.param(
            ["192.0.2.10"], {"granted": names("192.0.2.10")}, id="an address of an API server, by the inventory"
        ),
        pytest.param(["192.0.2.10"], {"serves_api": names("192.0.2.10")}, id="the same by a label"),
        pytest.param(
            ["vault.example.com"], {"granted": names("vault.example.com")}, id="a further name by the inventory"
        ),
        pytest.param(["db.prod"], {"granted": names("db.prod")}, id="a Service's name by the inventory"),
        pytest.param(["a.nodes.example.com"], {"suffixes": ["nodes.example.com"]}, id="a further name by its suffix"),
        pytest.param(
            ["a.example.com"],
            {"resolved": {"a.example.com": names("192.0.2.1", "2001:db8::1")}, "proven": names("192.0.2.1")},
            id="a further name that the DNS knows for its addresses",
        ),
    ],
)
def test_names_that_a_node_may_have(texts: Sequence[str], changes: dict[str, Any]) -> None:
    assert reason(N1, *texts, **changes) == ""


LOOPBACK = (
    "localhost",
    "LOCALHOST",
    "a.localhost",
    "localhost.localdomain",
    "localhost6.localdomain6",
    "127.0.0.1",
    "127.8.8.8",
    "::1",
    "::ffff:127.0.0.1",
)
OF_SERVICES = (*SERVICE_NAMES, "Kubernetes.Default", "web.prod.svc", "x.y.svc.cluster.local")


@pytest.mark.parametrize("text", [*LOOPBACK, *OF_SERVICES])
def test_names_of_no_machine_are_denied_whatever_is_granted(text: str) -> None:
    assert REASONS[reason(N1, "n1", text)] is RefusalEffect.DENY
    everything = names(text)
    assert reason(N1, text, granted=everything, certified=everything, serves_api=everything, reported=everything)
    assert reason(replace(N1, node=text.lower()), text) == "ReservedName"


@pytest.mark.parametrize(
    ("node", "certified", "expected"),
    [
        ("db.prod", ["db.prod"], ""),
        ("db.prod", [], "NameOfService"),
        ("n1", ["db.prod"], "NameOfService"),
        ("kubernetes.default", ["kubernetes.default"], "ReservedName"),
        ("api.example.com", ["api.example.com"], "AddressOfControlPlane"),
        ("web.prod.svc.corp.example", ["web.prod.svc.corp.example"], "NameOfService"),
    ],
)
def test_a_later_service_takes_no_nodes_own_name_away(node: str, certified: list[str], expected: str) -> None:
    evidence = replace(N1, node=node, certified=names(*certified))
    assert reason(evidence, node if node != "n1" else "db.prod") == expected


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["*.example.com"], "WildcardName"),
        (["a..b"], "InvalidName"),
        (["192.0.2.77\0.example.com"], "InvalidName"),
        (["2002:c000:20a::1"], "InvalidAddress"),
        (["ff02::1"], "InvalidAddress"),
        ([f"192.0.2.{number}" for number in range(100, 101 + MAX_NAMES)], "TooManyNames"),
        (["192.0.2.10"], "AddressOfControlPlane"),
        (["::ffff:192.0.2.10"], "AddressOfControlPlane"),
        (["API.example.com"], "AddressOfControlPlane"),
        (["10.96.0.7"], "NameOfService"),
        (["db.prod"], "NameOfService"),
        (["kubernetes.default.svc.corp.example"], "NameOfService"),
        (["pod-1.web.prod.SVC.corp.example"], "NameOfService"),
        (["n2"], "AddressOfAnotherNode"),
        (["ip-2.internal"], "AddressOfAnotherNode"),
        (["192.0.2.2"], "AddressOfAnotherNode"),
        (["::ffff:192.0.2.2"], "AddressOfAnotherNode"),
        (["192.0.2.99"], "AddressNotOfNode"),
        ([f"192.0.2.{number}" for number in range(100, 108)], "AddressNotOfNode"),
        (["vault"], "NameNotOfNode"),
        (["vault.example.com"], "NameNotOfNode"),
    ],
)
def test_names_that_it_may_not_have_by_its_own_word(texts: Sequence[str], expected: str) -> None:
    """What the node reports changes nothing, except for addresses that nobody has."""
    assert reason(N1, "n1", *texts) == expected
    reported = N1.reported | names(*texts) if expected != "AddressNotOfNode" else N1.reported
    assert reason(N1, "n1", *texts, reported=reported) == expected


def test_a_certificate_does_not_outweigh_a_reservation_or_another_certificate() -> None:
    assert reason(N1, "192.0.2.10", certified=names("192.0.2.10")) == "AddressOfControlPlane"
    assert reason(N1, "192.0.2.3", certified=names("192.0.2.3")) == "AddressOfAnotherNode"


def test_a_name_below_a_suffix_belongs_to_its_first_node() -> None:
    assert reason(N1, "nodes.example.com", suffixes=["nodes.example.com"]) == "NameNotOfNode"
    assert reason(N1, "evilnodes.example.com", suffixes=["nodes.example.com"]) == "NameNotOfNode"
    assert reason(N1, "api.example.com", suffixes=["example.com"]) == "AddressOfControlPlane"


@pytest.mark.parametrize(
    ("answer", "reported"),
    [
        pytest.param([], ["192.0.2.1"], id="no address"),
        pytest.param(["192.0.2.1", "192.0.2.99"], ["192.0.2.1"], id="an address of nobody beside its own"),
        pytest.param(["198.51.100.7"], ["192.0.2.1", "198.51.100.7"], id="an address that it merely reports"),
        pytest.param(
            ["192.0.2.1", "192.0.2.10"], ["192.0.2.1", "192.0.2.10"], id="that of an API server beside its own"
        ),
        pytest.param(["192.0.2.1", "192.0.2.2"], ["192.0.2.1", "192.0.2.2"], id="that of another node beside its own"),
    ],
)
def test_the_dns_is_no_proof(answer: Sequence[str], reported: Sequence[str]) -> None:
    resolved = {"a.example.com": addresses(*answer)}
    found = judge_node(
        asks("a.example.com"), replace(N1, resolved=resolved, reported=names(*reported), proven=addresses("192.0.2.1"))
    )
    assert found is not None
    assert (found.reason, found.outcome, found.unresolved) == ("NameNotOfNode", RefusalEffect.HOLD, ())


def test_names_with_a_dot_are_to_be_resolved_unless_another_cannot_be() -> None:
    found = judge_node(asks("n1", "B.example.com", "a.example.com"), N1)
    assert found is not None
    assert found.unresolved == ("b.example.com", "a.example.com")
    found = judge_node(asks("b.example.com", "vault"), N1)
    assert found is not None
    assert found.unresolved == ()
    assert found.message.startswith("vault: ")


def test_loopback_of_a_signer_that_always_has_it() -> None:
    requested = AlternativeNames(("n1", "localhost"), (ip_address("127.0.0.1"), ip_address("192.0.2.1")))
    assert judge_node(requested, N1, K3S_LOCAL_NAMES) is None
    for text in ("127.0.0.2", "::1"):
        refused = judge_node(asks(text), N1, K3S_LOCAL_NAMES)
        assert refused is not None, text
    refused = judge_node(AlternativeNames(("localhost",)), replace(N1, node="localhost"), K3S_LOCAL_NAMES)
    assert refused is not None
    assert refused.reason == "ReservedName"


# -- servers that are no nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("common_name", "texts", "allowed", "expected"),
    [
        pytest.param("web", ["web.example.org", "web.prod.svc", "198.51.100.1"], (), "", id="names of another server"),
        pytest.param("web", ["*.example.org"], (), "", id="a wildcard"),
        pytest.param("", ["*.example.com"], (), "AddressOfControlPlane", id="a wildcard that covers a name of an API server"),
        pytest.param("", ["*.default.svc"], (), "AddressOfControlPlane", id="a wildcard that covers its Service"),
        pytest.param("", ["kubernetes"], (), "AddressOfControlPlane", id="the Service of the API server"),
        pytest.param("", ["::ffff:192.0.2.10"], (), "AddressOfControlPlane", id="its address in another form"),
        pytest.param("API.example.com", ["198.51.100.1"], (), "AddressOfControlPlane", id="its name as the common name"),
        pytest.param("192.0.2.10", [], (), "AddressOfControlPlane", id="its address as the common name"),
        pytest.param("", ["api.example.com"], ("api.example.com",), "", id="its name, which the policy names in full"),
        pytest.param("ap*.example.com", [], (), "AddressOfControlPlane", id="half a wildcard as the common name"),
        pytest.param("*", [], (), "AddressOfControlPlane", id="a wildcard alone as the common name"),
        pytest.param("team *", ["web.example.org"], (), "", id="a common name that is no name of a server"),
        pytest.param("", ["localhost"], (), "AddressOfControlPlane", id="localhost"),
        pytest.param("", ["127.0.0.2"], (), "AddressOfControlPlane", id="an address of loopback"),
        pytest.param("localhost", ["198.51.100.1"], (), "AddressOfControlPlane", id="localhost as the common name"),
        pytest.param("", ["localhost", "::1"], ("localhost", "::1"), "", id="loopback, which the policy names in full"),
        pytest.param("", ["api.localhost"], (), "AddressOfControlPlane", id="a name below localhost"),
        pytest.param("", ["*.localhost"], (), "AddressOfControlPlane", id="all names below localhost"),
        pytest.param("", ["*.localdomain"], (), "AddressOfControlPlane", id="a wildcard that covers a name of loopback"),
        pytest.param("local*", ["198.51.100.1"], (), "AddressOfControlPlane", id="one as the common name"),
        pytest.param("", ["api.localhost"], ("api.localhost",), "", id="a name below localhost, in full"),
        pytest.param("", ["*.*.example.org"], (), "InvalidName", id="two wildcards"),
        pytest.param("", ["f*.example.org"], (), "InvalidName", id="half a wildcard"),
        pytest.param("", ["192.0.2.99."], (), "InvalidName", id="an address as a DNS name"),
        pytest.param("", ["2002:c000:20a::1"], (), "InvalidAddress", id="an embedded address"),
    ],
)  # fmt: skip
def test_names_of_other_servers(common_name: str, texts: Sequence[str], allowed: Sequence[str], expected: str) -> None:
    api_servers = names("api.example.com", "192.0.2.10")
    requested = AlternativeNames(
        tuple(text for text in texts if re.search("[a-z*]|\\.$", text) and ":" not in text),
        tuple(form for text in texts if not isinstance(form := canonical(text), str) and not text.endswith(".")),
    )
    refusal = judge_server(common_name, requested, api_servers, lambda name: name in names(*allowed))
    assert ("" if refusal is None else refusal.reason) == expected


# -- properties ----------------------------------------------------------------------------------------------------------

VICTIMS = sorted(API_SERVERS | names("n2", "192.0.2.2", "ip-2.internal"), key=str)


def spellings(name: Name) -> st.SearchStrategy[AlternativeNames]:
    """Draw forms of a name that some verifier may take for it."""
    if isinstance(name, str):
        dotted = st.sampled_from([name, f"{name}.", f"{name}\0", f"{name}\0.example.org", f".{name}", f"*.{name}"])
        cased = st.tuples(dotted, st.lists(st.booleans(), min_size=1, max_size=12)).map(
            lambda drawn: "".join(c.upper() if drawn[1][i % len(drawn[1])] else c for i, c in enumerate(drawn[0]))
        )
        return cased.map(lambda text: AlternativeNames((text,)))
    as_dns = AlternativeNames((str(name),))
    forms: list[AlternativeNames] = [AlternativeNames(ips=(name,)), as_dns]
    if isinstance(name, IPv4Address):
        packed = name.packed
        embedded = [
            b"\0" * 10 + b"\xff\xff" + packed,
            b"\0" * 12 + packed,
            bytes.fromhex("0064ff9b") + b"\0" * 8 + packed,
            bytes.fromhex("2002") + packed + b"\0" * 10,
            b"\xfe\x80" + b"\0" * 8 + b"\x5e\xfe" + packed,
        ]
        forms += [AlternativeNames(ips=(canonical(str(IPv6Address(one))),)) for one in embedded]  # type: ignore[arg-type]  # None is a case of its own
        forms += [AlternativeNames((str(int(name)),)), AlternativeNames((hex(int(name)),))]
    return st.sampled_from(forms)


@given(st.sampled_from(VICTIMS).flatmap(spellings), st.booleans())
def test_no_spelling_of_a_name_of_another_machine_is_allowed(requested: AlternativeNames, is_certified: bool) -> None:
    claimed = frozenset({*requested.ips, *(name.lower() for name in requested.dns)})
    evidence = replace(
        N1,
        reported=N1.reported | claimed,
        suffixes=["com", "internal", "svc", "local"],
        proven=addresses("192.0.2.1") | {one for one in claimed if not isinstance(one, str)},
        certified=names("192.0.2.1") if is_certified else frozenset(),
    )
    assert judge_node(requested, evidence) is not None


LABEL = st.from_regex(r"[a-z][a-z0-9]{0,8}", fullmatch=True)


@given(st.lists(LABEL, min_size=1, max_size=4).map(".".join))
def test_the_word_of_a_node_is_never_proof_for_a_further_name(name: str) -> None:
    refusal = judge_node(AlternativeNames((name,)), replace(N1, reported=N1.reported | {name}))
    assert (refusal is None) == (name == "n1")


def test_the_work_for_one_request_is_bounded() -> None:
    many = AlternativeNames(("a..b",) * 1001)
    for refusal in (judge_node(many, N1), judge_server("", many, (), lambda name: True)):
        assert refusal is not None
        assert refusal.reason == "TooManyNames"


def test_each_reason_is_given_by_a_test_of_this_file() -> None:
    text = Path(__file__).read_text()
    assert [one for one in REASONS if f'"{one}"' not in text] == []
