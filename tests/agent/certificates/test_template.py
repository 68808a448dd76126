"""Certificates that a node wants, and those that no longer fit."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from cryptography import x509

from mooring.agent.certificaterequest import CertificateTemplate, serving_template
from mooring.apimachinery.schema import Obj
from mooring.pki.keys import generate_key
from mooring.pki.x509 import names
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.requests import parse_request
from tests.support.slowkeys import rsa_key
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA()
ADDRESSES = [
    {"type": "InternalIP", "address": "192.0.2.7"},
    {"type": "ExternalIP", "address": "2001:db8::7"},
    {"type": "InternalIP", "address": "10.0.0.9"},
    {"type": "Hostname", "address": "m1"},
    {"type": "InternalDNS", "address": "m1.internal"},
    {"type": "ExternalDNS", "address": "m1.example"},
]


def test_a_client_certificate_has_no_alternative_names() -> None:
    request = parse_request(CertificateTemplate("m1").request_pem(generate_key()))
    assert (request.common_name, request.organizations) == ("system:node:m1", ("system:nodes",))
    assert not request.alternative_names


def test_the_names_of_a_serving_certificate_are_the_sorted_addresses_of_the_node() -> None:
    wanted = serving_template("m1", ADDRESSES)
    assert wanted is not None
    assert wanted.dns == ("m1", "m1.example", "m1.internal")
    assert [str(one) for one in wanted.ips] == ["10.0.0.9", "192.0.2.7", "2001:db8::7"]
    assert wanted.signer == "kubernetes.io/kubelet-serving"
    assert wanted.usages(generate_key()) == ("digital signature", "server auth")
    assert wanted.usages(rsa_key(2048)) == ("digital signature", "key encipherment", "server auth")
    assert wanted == serving_template("m1", reversed(ADDRESSES))


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param([], id="a Node without addresses"),
        pytest.param([{"type": "Hostname", "address": "m1"}], id="names alone are not enough"),
        pytest.param([{"type": "Other", "address": "192.0.2.7"}], id="an address of an unknown type"),
    ],
)
def test_without_an_ip_address_no_serving_certificate_is_requested(addresses: list[Obj]) -> None:
    assert serving_template("m1", addresses) is None


def test_a_host_name_that_is_an_address_counts_as_one() -> None:
    wanted = serving_template("m1", [{"type": "Hostname", "address": "192.0.2.7"}])
    assert wanted is not None
    assert (wanted.dns, [str(one) for one in wanted.ips]) == ((), ["192.0.2.7"])


def leaf(user: str, group: str = "system:nodes", *hosts: str) -> Certificate:
    alternatives = x509.SubjectAlternativeName([*map(x509.DNSName, hosts), x509.IPAddress(ip_address("192.0.2.7"))])
    return CA.custom(names.subject(user, [group]), extensions=[(alternatives, False)]).certificate


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        pytest.param(leaf("system:node:m1", "system:nodes", "m1"), True, id="every name is there"),
        pytest.param(leaf("system:node:m1", "system:nodes", "m1", "old"), True, id="a name more does not matter"),
        pytest.param(leaf("system:node:m1"), False, id="a name is missing"),
        pytest.param(leaf("system:node:m2", "system:nodes", "m1"), False, id="another node"),
        pytest.param(leaf("system:node:m1", "others", "m1"), False, id="another group"),
    ],
)
def test_a_certificate_fits_while_it_has_every_name(found: Certificate, fits: bool) -> None:
    wanted = serving_template(
        "m1", [{"type": "InternalIP", "address": "192.0.2.7"}, {"type": "Hostname", "address": "m1"}]
    )
    assert wanted is not None
    assert wanted.is_satisfied_by(found) is fits
