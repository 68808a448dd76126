"""The built-in signers: each rule of docs/protocol/certificate-signing-requests.md#built-in-signers as a row."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address

import pytest

from mooring.pki import keys
from mooring.pki.x509 import names, signers
from mooring.pki.x509.names import AlternativeNames
from mooring.pki.x509.requests import CertificateRequest
from tests.support.testca import group_name, name_of, user_name

KEY = keys.generate_key().public_key()
NODE = CertificateRequest(names.subject("system:node:a", ["system:nodes"]), KEY)
TWICE = name_of(group_name("system:nodes"), group_name("system:nodes"), user_name("system:node:a"))
SERVING = replace(NODE, alternative_names=AlternativeNames(dns=("a",)))
ANYBODY = CertificateRequest(names.subject("jane", ["devs"]), KEY)

CLIENT = ["digital signature", "client auth"]
SERVER = ["digital signature", "server auth"]
CLIENT_WORDS = "usages did not match [client auth digital signature key encipherment]"
SERVER_WORDS = "usages did not match [digital signature key encipherment server auth]"
NO_USAGE = "invalid usage for client certificate"
NO_CLIENT_AUTH = "missing required usage for client certificate: client auth"
NO_GROUP = "subject organization is not system:nodes"
NO_NODE = "subject common name does not begin with system:node:"


def with_names(request: CertificateRequest, **listed: object) -> CertificateRequest:
    return replace(request, alternative_names=AlternativeNames(**listed))  # type: ignore[arg-type]  # one field each


def with_subject(request: CertificateRequest, user: str, *groups: str) -> CertificateRequest:
    return replace(request, subject=names.subject(user, groups))


def test_the_table_names_the_signers_of_kubernetes_and_those_of_the_supervisor() -> None:
    assert list(signers.SIGNERS) == [
        "kubernetes.io/kube-apiserver-client",
        "kubernetes.io/kube-apiserver-client-kubelet",
        "kubernetes.io/kubelet-serving",
        "kubernetes.io/legacy-unknown",
        "mooring.io/k3s-kubelet-client",
        "mooring.io/k3s-kubelet-serving",
        "mooring.io/k3s-kube-proxy-client",
        "mooring.io/k3s-controller-client",
    ]
    assert all(signer.name == name for name, signer in signers.SIGNERS.items())


@pytest.mark.parametrize(
    ("request_", "usages", "refusals"),
    [
        pytest.param(ANYBODY, ["client auth"], [], id="client auth alone is enough"),
        pytest.param(ANYBODY, [*CLIENT, "key encipherment"], [], id="all three"),
        pytest.param(with_names(ANYBODY, dns=("a",), emails=("a@b",)), CLIENT, [], id="alternative names are copied"),
        pytest.param(NODE, CLIENT, [], id="any subject"),
        pytest.param(ANYBODY, ["digital signature"], [NO_CLIENT_AUTH], id="client auth is missing"),
        pytest.param(ANYBODY, [*CLIENT, "server auth"], [f"{NO_USAGE}: server auth"], id="server auth is too much"),
        pytest.param(ANYBODY, ["cert sign", "any"], [f"{NO_USAGE}: cert sign"], id="the first that is too much"),
        pytest.param(ANYBODY, [], [NO_CLIENT_AUTH], id="no usage"),
    ],
)
def test_kube_apiserver_client(request_: CertificateRequest, usages: list[str], refusals: list[str]) -> None:
    assert signers.SIGNERS[signers.KUBE_APISERVER_CLIENT].refusals(request_, usages) == refusals


@pytest.mark.parametrize(
    ("request_", "usages", "refusals"),
    [
        pytest.param(NODE, CLIENT, [], id="as a kubelet asks"),
        pytest.param(NODE, [*CLIENT, "key encipherment"], [], id="as a kubelet with an RSA key asks"),
        pytest.param(with_subject(NODE, "system:node:a"), CLIENT, [NO_GROUP], id="no organization"),
        pytest.param(with_subject(NODE, "system:node:a", "devs"), CLIENT, [NO_GROUP], id="another organization"),
        pytest.param(
            with_subject(NODE, "system:node:a", "system:nodes", "devs"), CLIENT, [NO_GROUP], id="one organization more"
        ),
        pytest.param(replace(NODE, subject=TWICE), CLIENT, [NO_GROUP], id="the organization twice"),
        pytest.param(with_subject(NODE, "a", "system:nodes"), CLIENT, [NO_NODE], id="the bare host name"),
        pytest.param(with_names(NODE, dns=("a",)), CLIENT, ["DNS subjectAltNames are not allowed"], id="a DNS name"),
        pytest.param(
            with_names(NODE, ips=(ip_address("::1"),)), CLIENT, ["IP subjectAltNames are not allowed"], id="an address"
        ),
        pytest.param(
            with_names(NODE, emails=("a@b",)), CLIENT, ["email subjectAltNames are not allowed"], id="an email"
        ),
        pytest.param(with_names(NODE, uris=("u:a",)), CLIENT, ["URI subjectAltNames are not allowed"], id="a URI"),
        pytest.param(NODE, SERVER, [CLIENT_WORDS], id="server auth instead"),
        pytest.param(NODE, [*CLIENT, "server auth"], [CLIENT_WORDS], id="server auth too"),
        pytest.param(NODE, ["client auth"], [CLIENT_WORDS], id="digital signature is missing"),
        pytest.param(NODE, ["digital signature", "key encipherment"], [CLIENT_WORDS], id="client auth is missing"),
        pytest.param(
            with_names(ANYBODY, dns=("a",)),
            SERVER,
            [NO_GROUP, "DNS subjectAltNames are not allowed", NO_NODE, CLIENT_WORDS],
            id="everything broken is told",
        ),
    ],
)
def test_kube_apiserver_client_kubelet(request_: CertificateRequest, usages: list[str], refusals: list[str]) -> None:
    assert signers.SIGNERS[signers.KUBE_APISERVER_CLIENT_KUBELET].refusals(request_, usages) == refusals


@pytest.mark.parametrize(
    ("request_", "usages", "refusals"),
    [
        pytest.param(SERVING, SERVER, [], id="a DNS name"),
        pytest.param(with_names(NODE, ips=(ip_address("10.0.0.1"),)), SERVER, [], id="an address"),
        pytest.param(SERVING, [*SERVER, "key encipherment"], [], id="an RSA key"),
        pytest.param(NODE, SERVER, ["DNS or IP subjectAltName is required"], id="no name"),
        pytest.param(
            with_names(NODE, dns=("a",), emails=("a@b",)),
            SERVER,
            ["email subjectAltNames are not allowed"],
            id="an email",
        ),
        pytest.param(
            with_names(NODE, dns=("a",), uris=("u:a",)), SERVER, ["URI subjectAltNames are not allowed"], id="a URI"
        ),
        pytest.param(with_subject(SERVING, "system:node:a", "x"), SERVER, [NO_GROUP], id="another organization"),
        pytest.param(with_subject(SERVING, "a", "system:nodes"), SERVER, [NO_NODE], id="another common name"),
        pytest.param(SERVING, CLIENT, [SERVER_WORDS], id="client auth instead"),
        pytest.param(SERVING, [*SERVER, "client auth"], [SERVER_WORDS], id="client auth too"),
    ],
)
def test_kubelet_serving(request_: CertificateRequest, usages: list[str], refusals: list[str]) -> None:
    assert signers.SIGNERS[signers.KUBELET_SERVING].refusals(request_, usages) == refusals


def test_legacy_unknown_checks_nothing() -> None:
    assert signers.SIGNERS[signers.LEGACY_UNKNOWN].refusals(ANYBODY, ["cert sign"]) == []


@pytest.mark.parametrize(
    ("signer", "request_", "usages", "username", "asked"),
    [
        pytest.param(
            signers.KUBE_APISERVER_CLIENT_KUBELET,
            NODE,
            CLIENT,
            "system:node:a",
            ("selfnodeclient", "nodeclient"),
            id="a node renewing its own",
        ),
        pytest.param(
            signers.KUBE_APISERVER_CLIENT_KUBELET,
            NODE,
            CLIENT,
            "system:bootstrap:abcdef",
            ("nodeclient",),
            id="a bootstrapper",
        ),
        pytest.param(
            signers.KUBE_APISERVER_CLIENT_KUBELET, NODE, CLIENT, "system:node:b", ("nodeclient",), id="another node"
        ),
        pytest.param(
            signers.KUBE_APISERVER_CLIENT_KUBELET, NODE, SERVER, "system:node:a", (), id="not a node client's shape"
        ),
        pytest.param(
            signers.KUBELET_SERVING, SERVING, SERVER, "system:node:a", (), id="serving certificates need a person"
        ),
        pytest.param(
            signers.KUBE_APISERVER_CLIENT, ANYBODY, CLIENT, "jane", (), id="users' certificates need a person"
        ),
    ],
)
def test_automatic_approvals(
    signer: str, request_: CertificateRequest, usages: list[str], username: str, asked: tuple[str, ...]
) -> None:
    assert signers.SIGNERS[signer].approval_subresources(request_, usages, username) == asked
