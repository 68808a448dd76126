"""Responses of a supervisor: what is read, and that a certificate must be the one that was asked for.

Source: docs/protocol/k3s.md#join-of-an-agent.
"""

from __future__ import annotations

import ipaddress
import json
from datetime import timedelta

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.pki.keys import generate_key
from mooring.pki.x509 import names
from mooring.pki.x509.certificate import Certificate
from mooring.trust.k3s.exchanges import (
    KUBELET,
    MAX_APISERVERS,
    SERVING,
    WANTED,
    SupervisorConfiguration,
    Wanted,
    has_addresses,
    is_usable,
    read_apiservers,
    read_bundle,
    read_certificate,
    read_configuration,
)
from mooring.trust.k3s.refusals import UnusableResponseError
from tests.support.testca import Pair, ThrowawayCA

CA = ThrowawayCA()
KEY = generate_key()
PROXY, CONTROLLER = WANTED[2], WANTED[3]
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH
SERVER = ExtendedKeyUsageOID.SERVER_AUTH


def issued(common_name: str, *groups: str, purpose: x509.ObjectIdentifier | None = CLIENT, **more: object) -> Pair:
    extensions = [(x509.ExtendedKeyUsage([purpose]), False)] if purpose is not None else []
    subject = names.subject(common_name, groups)
    return CA.custom(subject, key=KEY, extensions=extensions, **more)  # type: ignore[arg-type]  # times by name


NODE = issued("system:node:worker", "system:nodes")


@pytest.mark.parametrize(
    ("body", "found", "api_port"),
    [
        pytest.param({}, SupervisorConfiguration(), 0, id="empty"),
        pytest.param(
            {"HTTPSPort": 6443, "SupervisorPort": 6443}, SupervisorConfiguration(6443, 6443), 0, id="one port"
        ),
        pytest.param({"HTTPSPort": 6443, "SupervisorPort": 9345}, SupervisorConfiguration(6443, 9345), 6443, id="two"),
        pytest.param({"HTTPSPort": 6443}, SupervisorConfiguration(6443), 0, id="one named"),
        pytest.param({"HTTPSPort": "6443", "SupervisorPort": True}, SupervisorConfiguration(), 0, id="no numbers"),
        pytest.param({"HTTPSPort": 65536, "SupervisorPort": 0}, SupervisorConfiguration(), 0, id="no ports"),
    ],
)
def test_the_ports_of_a_configuration(body: object, found: SupervisorConfiguration, api_port: int) -> None:
    assert read_configuration("step", json.dumps(body).encode()) == found
    assert found.api_port == api_port


@pytest.mark.parametrize("body", [b"", b"[]", b'"text"', b"{", b"[" * 100_000, b"\xff"], ids=range(6))
def test_a_configuration_that_is_none(body: bytes) -> None:
    with pytest.raises(UnusableResponseError, match="step: "):
        read_configuration("step", body)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        pytest.param([], (), id="none"),
        pytest.param(None, (), id="null, as Go writes no addresses"),
        pytest.param(
            ["a.test:6443", "[2001:db8::1]:6443"], ("a.test:6443", "[2001:db8::1]:6443"), id="names and addresses"
        ),
        pytest.param(["a.test", "", None, 7, "a b:1", "a.test:0"], (), id="no host and port"),
        pytest.param(["A.test:1", "a.test:1"], ("a.test:1",), id="one twice"),
    ],
)
def test_addresses_of_api_servers(body: object, found: tuple[str, ...]) -> None:
    assert read_apiservers("step", json.dumps(body).encode()) == found


@pytest.mark.parametrize("body", ["", {}, ["a.test:1"] * (MAX_APISERVERS + 1)], ids=["a text", "no list", "too many"])
def test_addresses_that_are_none(body: object) -> None:
    with pytest.raises(UnusableResponseError):
        read_apiservers("step", json.dumps(body).encode())


def test_a_bundle_is_kept_as_it_was_sent() -> None:
    body = b"a comment\n" + CA.certificate_pem
    assert read_bundle("step", body) == body
    with pytest.raises(UnusableResponseError, match="is not a bundle of CAs"):
        read_bundle("step", b"nothing")


@pytest.mark.parametrize(
    ("wanted", "name", "common_name"),
    [
        (SERVING, "serving-kubelet", "worker"),
        (KUBELET, "client-kubelet", "system:node:worker"),
        (PROXY, "client-kube-proxy", "system:kube-proxy"),
        (CONTROLLER, "client-k3s-controller", "system:k3s-controller"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_names_of_the_wanted_certificates(wanted: Wanted, name: str, common_name: str) -> None:
    assert wanted.name == name
    assert wanted.common_name("worker") == common_name


@pytest.mark.parametrize(
    ("wanted", "pair"),
    [
        pytest.param(SERVING, issued("worker", purpose=SERVER), id="serving"),
        pytest.param(KUBELET, NODE, id="kubelet"),
        pytest.param(PROXY, issued("system:kube-proxy"), id="kube-proxy"),
        pytest.param(CONTROLLER, issued("system:k3s-controller"), id="controller"),
    ],
)
def test_the_wanted_certificate_and_its_cas_are_read(wanted: Wanted, pair: Pair) -> None:
    chain = read_certificate("step", pair.certificate_pem + CA.certificate_pem, wanted, "worker", KEY, CA.now)
    assert chain == (pair.certificate, CA.certificate)
    assert is_usable(pair.certificate, wanted, "worker", CA.now)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        pytest.param(b"nothing", "is not a certificate", id="no PEM"),
        pytest.param(NODE.certificate_pem + NODE.key_pem, "only keys that it made", id="a key of the server"),
        pytest.param(CA.node("worker").certificate_pem, "another key", id="another key"),
        pytest.param(issued("system:node:other", "system:nodes").certificate_pem, "does not name", id="another node"),
        pytest.param(issued("system:node:worker").certificate_pem, "the group system:nodes", id="no group"),
        pytest.param(
            issued("system:node:worker", "system:nodes", purpose=SERVER).certificate_pem,
            "another purpose",
            id="purpose",
        ),
        pytest.param(
            issued("system:node:worker", "system:nodes", purpose=None).certificate_pem, "no purpose", id="no purpose"
        ),
        pytest.param(
            issued("system:node:worker", "system:nodes", not_after=CA.now).certificate_pem,
            "is valid from",
            id="expired",
        ),
        pytest.param(
            issued("system:node:worker", "system:nodes", not_before=CA.now + timedelta(minutes=1)).certificate_pem,
            "this machine's clock says",
            id="not valid yet",
        ),
    ],
)
def test_any_other_certificate_is_refused(body: bytes, said: str) -> None:
    with pytest.raises(UnusableResponseError, match=said):
        read_certificate("step", body, KUBELET, "worker", KEY, CA.now)


def serving(*names: x509.GeneralName) -> Certificate:
    return CA.custom("worker", key=KEY, extensions=[(x509.SubjectAlternativeName(names), False)]).certificate


SERVED = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("192.0.2.7", "2001:db8::7")]


@pytest.mark.parametrize(
    ("leaf", "addresses", "has"),
    [
        pytest.param(serving(*SERVED), (), True, id="none is wanted"),
        pytest.param(serving(*SERVED), ("2001:DB8:0::7",), True, id="one, in another form"),
        pytest.param(serving(*SERVED), ("::ffff:192.0.2.7", "2001:db8::7"), True, id="both"),
        pytest.param(serving(*SERVED), ("192.0.2.7", "192.0.2.8"), False, id="another one as well"),
        pytest.param(NODE.certificate, ("192.0.2.7",), False, id="a certificate without names"),
    ],
)
def test_addresses_of_a_serving_certificate(leaf: Certificate, addresses: tuple[str, ...], has: bool) -> None:
    assert has_addresses(leaf, addresses) is has
