"""Signers of the supervisor: which names they put into a certificate, whatever the request of the machine says."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from mooring.pki.errors import RequestError
from mooring.pki.keys import generate_key
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import (
    COUNTERPARTS,
    CREDENTIAL,
    K3S_CONTROLLER_CLIENT,
    K3S_KUBE_PROXY_CLIENT,
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    NODE_IP,
    NODE_NAME,
    NODE_PASSWORD,
    NODE_SIGNERS,
    SIGNERS,
    SUPERVISOR_SIGNERS,
    credential_in,
    issued_request,
    node_address,
    node_name_in,
    password_in,
    usages_of,
)

HOSTILE = parse_request(
    build_request(
        generate_key(),
        "kubernetes-admin",
        ("system:masters", "system:nodes"),
        ("kubernetes.default.svc", "api.example.com"),
        (ip_address("10.96.0.1"),),
        challenge_password="code",
    )
)
EXTRA = {CREDENTIAL: ["k3s-token"], NODE_NAME: ["n1"], NODE_IP: ["192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"]}


@pytest.mark.parametrize(
    ("signer", "common_name", "organizations", "dns", "ips"),
    [
        pytest.param(K3S_KUBELET_CLIENT, "system:node:n1", ("system:nodes",), (), (), id="the client of the kubelet"),
        pytest.param(
            K3S_KUBELET_SERVING, "n1", (), ("n1", "localhost"), ("127.0.0.1", "192.0.2.1", "2001:db8::1"),
            id="the server of the kubelet, with each address once",
        ),
        pytest.param(K3S_KUBE_PROXY_CLIENT, "system:kube-proxy", (), (), (), id="kube-proxy"),
        pytest.param(K3S_CONTROLLER_CLIENT, "system:k3s-controller", (), (), (), id="the controller of k3s"),
    ],
)  # fmt: skip
def test_a_hostile_request_changes_no_name(
    signer: str, common_name: str, organizations: tuple[str, ...], dns: tuple[str, ...], ips: tuple[str, ...]
) -> None:
    issued = issued_request(HOSTILE, signer, EXTRA)
    assert (issued.common_name, issued.organizations) == (common_name, organizations)
    assert (issued.alternative_names.dns, tuple(map(str, issued.alternative_names.ips))) == (dns, ips)
    assert (issued.alternative_names.emails, issued.alternative_names.uris) == ((), ())
    assert issued.key_fingerprint == HOSTILE.key_fingerprint
    assert issued.challenge_password == "code", "an approver of authorized machines reads it"


def test_requests_for_other_signers_are_as_they_were() -> None:
    assert issued_request(HOSTILE, "kubernetes.io/kube-apiserver-client", EXTRA) is HOSTILE


@pytest.mark.parametrize("signer", SUPERVISOR_SIGNERS)
def test_a_request_that_no_supervisor_made_is_none(signer: str) -> None:
    with pytest.raises(RequestError, match="requested from the supervisor"):
        issued_request(HOSTILE, signer, {name: one for name, one in EXTRA.items() if name != CREDENTIAL})


@pytest.mark.parametrize("signer", NODE_SIGNERS)
def test_a_certificate_of_a_kubelet_needs_the_name_of_a_node(signer: str) -> None:
    with pytest.raises(RequestError, match="needs the name of a node"):
        issued_request(HOSTILE, signer, {CREDENTIAL: ["k3s-token"], NODE_NAME: []})


@pytest.mark.parametrize("text", ["", "n1", "192.0.2", "192.0.2.1/24", "fe80::1%eth0", " 192.0.2.1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="no IP address"):
        node_address(text)
    with pytest.raises(RequestError, match="no IP address"):
        issued_request(HOSTILE, K3S_KUBELET_SERVING, {**EXTRA, NODE_IP: [text]})


@pytest.mark.parametrize(("text", "address"), [("::ffff:192.0.2.1", "192.0.2.1"), ("2001:DB8::1", "2001:db8::1")])
def test_an_address_has_one_form(text: str, address: str) -> None:
    assert node_address(text) == ip_address(address)


def test_attributes_are_read_where_they_are() -> None:
    assert (node_name_in(EXTRA), password_in(EXTRA), credential_in(EXTRA)) == ("n1", "", "k3s-token")
    assert (node_name_in({}), password_in({NODE_PASSWORD: ["uid"]}), credential_in({})) == ("", "uid", "")


@pytest.mark.parametrize("signer", SUPERVISOR_SIGNERS)
def test_the_usages_are_those_of_the_certificate_and_no_others(signer: str) -> None:
    for is_rsa in (False, True):
        usages = usages_of(signer, is_rsa=is_rsa)
        assert ("key encipherment" in usages) is is_rsa
        assert SIGNERS[signer].refusals(HOSTILE, usages) == []
        assert SIGNERS[signer].refusals(HOSTILE, (*usages, "code signing"))
    assert SIGNERS[signer].refusals(HOSTILE, ("digital signature",))
    assert ("server auth" in usages_of(signer, is_rsa=False)) is (signer == K3S_KUBELET_SERVING)
    assert SIGNERS[signer].approval_subresources(HOSTILE, usages_of(signer, is_rsa=False), "jane") == ()


def test_every_signer_of_the_supervisor_has_the_ca_of_one_of_kubernetes() -> None:
    assert tuple(COUNTERPARTS) == SUPERVISOR_SIGNERS
    assert set(COUNTERPARTS.values()) < SIGNERS.keys()
