"""Verification of a server by the pin of its CA alone."""

from __future__ import annotations

import json

import pytest

from mooring.pki.x509.bundles import certificates, have_common
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.errors import (
    CertificateError,
    ClusterInfoMissingError,
    DiscoveryError,
    EndpointDownError,
    NotPublicError,
    PinMismatchError,
    UnusableClusterInfoError,
)
from mooring.trust.discovery.fetch import named_pins, pinned_ca
from mooring.trust.discovery.pins import Pin, pins_of
from mooring.trust.httpexchange import UNVERIFIED, HttpFailure, HttpResponse, Trust
from tests.support.discoverypeer import CA, OTHER_CA, Network, Server, status

URL = "https://cluster.test:6443"
PINS = set(pins_of(CA))
INFO = clusterinfo.config_map("https://elsewhere.test:6443", CA)


def trusted(server: Server, pins: set[Pin] = PINS) -> bytes:
    return Network({"cluster.test:6443": server}).drive(pinned_ca(URL, pins))


def test_the_pinned_ca_is_trusted_once_the_server_has_proved_itself() -> None:
    server = Server(INFO)
    assert certificates(trusted(server)) == certificates(CA)
    first, second = server.requests
    assert first.target == UNVERIFIED
    assert isinstance(second.target, Trust)
    assert certificates(second.target.ca_pem) == certificates(CA)
    assert first.url == second.url == URL + clusterinfo.PATH, "the address that cluster-info names is not used"
    assert first.credentials is second.credentials is None


def test_what_a_server_names_is_for_a_person_to_compare() -> None:
    assert set(Network({"cluster.test:6443": Server(INFO)}).drive(named_pins(URL))) == PINS


def test_a_ca_beside_the_pinned_one_is_not_trusted() -> None:
    assert certificates(trusted(Server(clusterinfo.config_map(URL, CA + OTHER_CA)))) == certificates(CA)


def test_a_server_that_hides_cluster_info_the_second_time_is_proved_all_the_same() -> None:
    server = Server(INFO, override=lambda count, request: status(403) if count == 2 else None)
    assert certificates(trusted(server)) == certificates(CA)


def only_first(answer: HttpResponse | HttpFailure) -> Server:
    return Server(INFO, override=lambda count, request: answer if count == 1 else None)


def info(text: str | None) -> HttpResponse:
    data = {} if text is None else {"kubeconfig": text}
    return HttpResponse(200, json.dumps({**INFO, "data": data}).encode())


@pytest.mark.parametrize(
    ("server", "pins", "error"),
    [
        pytest.param(Server(INFO), set(pins_of(OTHER_CA)), PinMismatchError, id="a CA that nobody pinned"),
        pytest.param(Server(INFO), set(), PinMismatchError, id="no pins"),
        pytest.param(
            Server(INFO, serving_ca=OTHER_CA), PINS, CertificateError, id="a server that only repeats the public CA"
        ),
        pytest.param(Server(None), PINS, ClusterInfoMissingError, id="no cluster-info"),
        pytest.param(only_first(status(401)), PINS, NotPublicError, id="no anonymous requests"),
        pytest.param(only_first(info(None)), PINS, UnusableClusterInfoError, id="no kubeconfig"),
        pytest.param(only_first(info("{")), PINS, UnusableClusterInfoError, id="a kubeconfig that is none"),
        pytest.param(
            only_first(info("clusters: [{name: '', cluster: {server: x}}]")),
            PINS,
            UnusableClusterInfoError,
            id="a cluster without a CA",
        ),
        pytest.param(
            only_first(HttpFailure("unreachable", "connection refused")), PINS, EndpointDownError, id="nobody there"
        ),
    ],
)
def test_what_is_not_trusted(server: Server, pins: set[Pin], error: type[DiscoveryError]) -> None:
    with pytest.raises(error):
        trusted(server, pins)


def test_credentials_could_not_be_sent_without_verification() -> None:
    assert UNVERIFIED.verify is False


@pytest.mark.parametrize(
    ("one", "other", "shared"),
    [
        (CA, CA + OTHER_CA, True),
        (CA, OTHER_CA, False),
        (CA, b"", False),
        (b"", CA, False),
        (b"", b"", True),
    ],
)
def test_two_bundles_share_a_ca_or_both_mean_the_roots_of_the_system(one: bytes, other: bytes, shared: bool) -> None:
    assert have_common(one, other) is shared
