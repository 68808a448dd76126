"""Discovery by token.

Source: docs/protocol/discovery-and-join.md#discovery-by-token.
"""

from __future__ import annotations

import json
import re
from functools import partial
from hashlib import sha256
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_certificate
from hypothesis import given
from hypothesis import strategies as st

from mooring.apimachinery.schema import Obj
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import parse_token
from mooring.trust.discovery import clusterinfo, errors
from mooring.trust.discovery.fetch import MAX_BODY, Polling, cluster_info_request, discover_by_token, trust_of
from mooring.trust.discovery.pins import Pin, pins_of
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpexchange import (
    CERTIFICATE,
    CERTIFICATE_TIME,
    NOT_TLS,
    SYSTEM_ROOTS,
    TIMEOUT,
    TOO_LONG,
    UNVERIFIED,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
    send,
)
from mooring.trust.k3s.cahash import check_ca_hash
from mooring.trust.kubeconfig import (
    Cluster,
    Kubeconfig,
    KubeconfigUser,
    address_of,
    cluster_info_kubeconfig,
    user_kubeconfig,
)
from mooring.trust.kubeconfigtext import format_kubeconfig
from tests.support.discoverypeer import CA, NOW, OTHER_CA, Network, Server, signed_cluster_info, status, token_secret

TOKEN = parse_token("aaaaaa.1111111111111111")
OTHER_TOKEN = parse_token("bbbbbb.3333333333333333")
WRONG_SECRET = parse_token("aaaaaa.2222222222222222")
PINS = pins_of(CA)
A, B = "a.test:6443", "b.test:6443"
ONCE = Polling(attempts=1)


def discover(
    network: Network, *endpoints: str, pins: tuple[Pin, ...] = PINS, polling: Polling = ONCE, unsafe: bool = False
) -> TrustedCluster:
    return network.drive(
        discover_by_token(
            endpoints or tuple(network.servers), TOKEN, pins, unsafe_skip_ca_verification=unsafe, polling=polling
        )
    )


def publishing(config: Kubeconfig | str) -> Obj:
    """cluster-info with this kubeconfig, signed by TOKEN."""
    text = config if isinstance(config, str) else format_kubeconfig(config)
    config_map = {"kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": {"kubeconfig": text}}
    signed = clusterinfo.signed(config_map, [token_secret(TOKEN)], NOW)
    assert signed is not None
    return signed


def test_with_pins_the_second_fetch_is_verified_and_the_server_is_the_one_cluster_info_names() -> None:
    config_map = signed_cluster_info(TOKEN)
    server = Server(config_map)
    network = Network({A: server})
    found = discover(network)
    typed, published = Cluster(A, f"https://{A}", CA), Cluster("", "https://cluster.test:6443", CA)
    assert found == TrustedCluster(
        published, None, (), "token+pins", others=(typed,), client_ca_pem=CA, published=(published,)
    )
    first, second = server.requests
    assert first.url == f"https://{A}/api/v1/namespaces/kube-public/configmaps/cluster-info"
    assert first == cluster_info_request(f"https://{A}", UNVERIFIED)
    assert second == cluster_info_request(f"https://{A}", Trust(CA))
    assert network.waited == []


def test_the_second_fetch_goes_the_way_that_cluster_info_names() -> None:
    way = Cluster("", f"https://{A}", CA, tls_server_name="inner.test", proxy_url="http://proxy.test")
    server = Server(publishing(Kubeconfig((way,))))
    assert discover(Network({A: server})).clusters == (way,)
    first, second = server.requests
    assert first == cluster_info_request(f"https://{A}", UNVERIFIED)
    assert second == cluster_info_request(f"https://{A}", trust_of(way))


def test_without_pins_and_with_the_unsafe_flag_one_fetch_is_enough() -> None:
    server = Server(signed_cluster_info(TOKEN))
    found = discover(Network({A: server}), pins=(), unsafe=True)
    assert (found.via, found.ca_pem, len(server.requests)) == ("token", CA, 1)


def test_pins_are_compared_in_spite_of_the_unsafe_flag() -> None:
    with pytest.raises(errors.PinMismatchError):
        discover(Network({A: Server(signed_cluster_info(TOKEN))}), pins=pins_of(OTHER_CA), unsafe=True)


@pytest.mark.parametrize(("endpoints", "pins"), [((), PINS), ((A,), ())], ids=["addresses", "pins or the unsafe flag"])
def test_discovery_does_not_begin_without(endpoints: tuple[str, ...], pins: tuple[Pin, ...]) -> None:
    with pytest.raises(ValueError, match="discovery by token needs"):
        Network({}).drive(discover_by_token(endpoints, TOKEN, pins))


def test_the_cluster_may_be_named_by_the_current_context() -> None:
    config = user_kubeconfig("https://named.test:1", CA, KubeconfigUser("u"))
    found = discover(Network({A: Server(publishing(config))}))
    assert (found.server, found.cluster.name) == ("https://named.test:1", "kubernetes")
    assert found.warnings == ("cluster-info carries users, which were ignored",)
    assert found.client_credentials is None


def test_a_thief_of_the_token_cannot_put_his_own_ca_beside_the_pinned_one() -> None:
    """The bundle carries the pinned CA, so kubeadm's check passes; but the server's certificate is from the other one."""
    server = Server(signed_cluster_info(TOKEN, ca=CA + OTHER_CA), serving_ca=OTHER_CA)
    with pytest.raises(errors.CertificateError):
        discover(Network({A: server}))
    assert server.requests[1].target == Trust(CA)


def test_the_whole_bundle_is_adopted_once_the_pinned_ca_vouches_for_it() -> None:
    assert discover(Network({A: Server(signed_cluster_info(TOKEN, ca=OTHER_CA + CA))})).ca_pem == OTHER_CA + CA


@pytest.mark.parametrize(
    ("answering", "order"),
    [
        pytest.param(A, [A, B, "c.test:6443"], id="the first"),
        pytest.param(B, [B, A, "c.test:6443"], id="the second"),
        pytest.param("typed.test:6443", [A, B, "c.test:6443", "typed.test:6443"], id="one that is not published"),
    ],
)
def test_every_published_address_is_kept_and_the_one_that_answered_comes_first(
    answering: str, order: list[str]
) -> None:
    published = cluster_info_kubeconfig(f"https://{A}", CA, others=[f"https://{B}", "https://c.test:6443"])
    found = discover(Network({answering: Server(publishing(published))}), A, B, "typed.test:6443")
    assert [address_of(one.server) for one in found.clusters] == order
    assert {one.ca_pem for one in found.clusters} == {CA}
    assert found.clusters[0] == found.cluster


def test_what_proves_a_server_is_told_from_what_signs_clients() -> None:
    published = cluster_info_kubeconfig(f"https://{A}", CA, client_ca_pem=OTHER_CA)
    found = discover(Network({A: Server(publishing(published))}))
    assert (found.ca_pem, found.client_ca_pem, found.client_ca_named) == (CA, OTHER_CA, True)


def test_a_thief_of_the_token_cannot_name_another_ca_of_clients() -> None:
    """The extension is part of the text that is signed, and that has to come from the pinned server as well."""
    forged = publishing(cluster_info_kubeconfig(f"https://{A}", CA, client_ca_pem=OTHER_CA))
    honest = Server(signed_cluster_info(TOKEN))
    honest.override = lambda count, request: HttpResponse(200, json.dumps(forged).encode()) if count == 1 else None
    with pytest.raises(errors.ClusterInfoChangedError):
        discover(Network({A: honest}))


def failing(reply: HttpResponse | HttpFailure, at: int = 1) -> Server:
    return Server(signed_cluster_info(TOKEN), override=lambda count, request: reply if count == at else None)


def answering(obj: Any) -> Server:
    return failing(HttpResponse(200, json.dumps(obj).encode()))


def changed(data: dict[str, str | None]) -> Server:
    """A server whose second answer has these data."""
    config_map = signed_cluster_info(TOKEN)
    merged = {key: value for key, value in (config_map["data"] | data).items() if value is not None}
    return failing(HttpResponse(200, json.dumps(config_map | {"data": merged}).encode()), at=2)


FIRST = f"fetching cluster-info from {A} (step 1): "
SECOND = f"verifying cluster-info from {A} (step 2): "
THIRD = f"reading the kubeconfig of cluster-info from {A} (step 3): "
FOURTH = f"comparing the CA from {A} with the pins (step 4): "
FIFTH = f"fetching cluster-info from {A} with TLS verified (step 5): "
SIXTH = f"comparing both copies of cluster-info from {A} (step 6): "
REPAIR = "; ask the cluster's administrator to repair it"


@pytest.mark.parametrize(
    ("server", "error", "message"),
    [
        pytest.param(
            None,
            errors.EndpointDownError,
            FIRST + "nothing answers there (connection refused); check the address, the port, the firewall, "
            "and that the server runs",
            id="endpoint down",
        ),
        pytest.param(
            failing(HttpFailure(TIMEOUT, "10 s")),
            errors.EndpointTimeoutError,
            FIRST + "no answer in time (10 s); check the address, the firewall, and the load of the server, "
            "and that the port speaks TLS",
            id="no answer in time",
        ),
        pytest.param(
            failing(HttpFailure(NOT_TLS, "wrong version number")),
            errors.NotTlsError,
            FIRST + "the server does not speak TLS (wrong version number); give the HTTPS address of the API server, "
            "usually port 6443",
            id="not TLS",
        ),
        pytest.param(
            failing(HttpFailure("reset", "connection reset")),
            errors.FetchError,
            FIRST + "the request failed (connection reset); see the server's log",
            id="a failure of another kind",
        ),
        pytest.param(
            failing(HttpResponse(200, b"<html>")),
            errors.NotKubernetesError,
            FIRST + "the answer is not one of a Kubernetes API server (not JSON); check the address and the port",
            id="not a Kubernetes server: HTML",
        ),
        pytest.param(
            failing(HttpResponse(200, b"[" * 100_000)),
            errors.NotKubernetesError,
            FIRST + "the answer is not one of a Kubernetes API server (not JSON)",
            id="not a Kubernetes server: endless nesting",
        ),
        pytest.param(
            failing(HttpResponse(200, b"\xff\xfe\xfd")),
            errors.NotKubernetesError,
            FIRST + "the answer is not one of a Kubernetes API server (not JSON)",
            id="not a Kubernetes server: bytes that are no text",
        ),
        pytest.param(
            failing(HttpFailure(TOO_LONG, f"the answer is longer than {MAX_BODY} bytes")),
            errors.NotKubernetesError,
            FIRST + "the answer is not one of a Kubernetes API server (the answer is longer than 4194304 bytes)",
            id="not a Kubernetes server: an endless body",
        ),
        pytest.param(
            answering([]),
            errors.NotKubernetesError,
            FIRST + "the answer is not one of a Kubernetes API server (JSON, but no object)",
            id="not a Kubernetes server: a list",
        ),
        *(
            pytest.param(
                answering(obj),
                errors.NotKubernetesError,
                FIRST + "the answer is not one of a Kubernetes API server (JSON, but not the ConfigMap cluster-info)",
                id=f"not a Kubernetes server: {what}",
            )
            for what, obj in {
                "another kind": {"kind": "Secret", "metadata": {"name": "cluster-info"}},
                "another name": {"kind": "ConfigMap", "metadata": {"name": "other"}},
                "metadata of another type": {"kind": "ConfigMap", "metadata": []},
            }.items()
        ),
        *(
            pytest.param(
                answering({"kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": data}),
                errors.NotKubernetesError,
                FIRST + "the answer is not one of a Kubernetes API server (the ConfigMap cluster-info has data that is "
                "not text)",
                id=f"not a Kubernetes server: data is {data}",
            )
            for data in ([1], {"kubeconfig": 1})
        ),
        pytest.param(
            failing(HttpResponse(404, b'{"message":"no such page"}')),
            errors.NotKubernetesError,
            FIRST
            + "the answer is not one of a Kubernetes API server (status 404 without a Kubernetes Status: no such page)",
            id="not a Kubernetes server: a 404 of somebody else",
        ),
        pytest.param(
            failing(status(401)),
            errors.UnauthorizedAnswerError,
            FIRST + "the server answered 401 Unauthorized: it does not accept anonymous requests from here; "
            "enable anonymous authentication there, for the network of this machine too, or join with "
            "--allow-discovery-credentials and a --discovery-file that `mooring kubeconfig discovery` prints on the server",
            id="401",
        ),
        pytest.param(
            failing(status(403)),
            errors.ForbiddenAnswerError,
            FIRST + "the server answered 403 Forbidden: anonymous access to the cluster-info ConfigMap is disabled; "
            "bind the role kubeadm:bootstrap-signer-clusterinfo to system:anonymous, or join with --discovery-file",
            id="403",
        ),
        pytest.param(
            Server(None),
            errors.ClusterInfoMissingError,
            FIRST + "the server answered 404 Not Found: it has no ConfigMap kube-public/cluster-info; "
            "check the address, and that the cluster was initialised for token discovery",
            id="404",
        ),
        pytest.param(
            failing(status(503)),
            errors.RefusedAnswerError,
            FIRST + "the server answered with status 503; see the server's log, then try again",
            id="another status",
        ),
        pytest.param(
            answering({"kind": "ConfigMap", "metadata": {"name": "cluster-info"}}),
            errors.NotSetUpError,
            SECOND + 'the cluster-info ConfigMap has no key "kubeconfig"',
            id="no kubeconfig key",
        ),
        *(
            pytest.param(
                answering({"kind": "ConfigMap", "metadata": {"name": "cluster-info"}, "data": data}),
                errors.NotSetUpError,
                SECOND + 'the cluster-info ConfigMap has no key "kubeconfig"',
                id=f"data is {data}",
            )
            for data in (None, {}, {"kubeconfig": None}, {"kubeconfig": ""})
        ),
        pytest.param(
            Server(signed_cluster_info()),
            errors.SignatureMissingError,
            SECOND
            + 'cluster-info carries no signature for token id "aaaaaa", nor for any other: the controller that signs '
            "does not run (bootstrapsigner of kube-controller-manager), or the token is unknown, expired, or lacks the "
            "signing usage; look on the server",
            id="no signature at all",
        ),
        pytest.param(
            Server(signed_cluster_info(OTHER_TOKEN)),
            errors.SignatureMissingError,
            SECOND + 'cluster-info carries no signature for token id "aaaaaa": the token is unknown, expired, '
            "or lacks the signing usage",
            id="token unknown, expired or without signing usage",
        ),
        pytest.param(
            Server(signed_cluster_info(WRONG_SECRET)),
            errors.SignatureWrongError,
            SECOND + 'the signature of cluster-info for token id "aaaaaa" is wrong',
            id="wrong secret",
        ),
        pytest.param(
            Server(publishing("[")),
            errors.UnusableClusterInfoError,
            THIRD + "the kubeconfig is neither YAML nor JSON",
            id="a signed text that is no kubeconfig",
        ),
        pytest.param(
            Server(publishing(Kubeconfig())),
            errors.UnusableClusterInfoError,
            THIRD + "the kubeconfig has neither a cluster without a name nor a current context with a cluster" + REPAIR,
            id="no cluster",
        ),
        pytest.param(
            Server(publishing(cluster_info_kubeconfig("http://cluster.test", CA))),
            errors.UnusableClusterInfoError,
            THIRD + "its server is not an https URL" + REPAIR,
            id="a server without TLS",
        ),
        pytest.param(
            Server(publishing(Kubeconfig((Cluster("", "https://c", CA, insecure_skip_tls_verify=True),)))),
            errors.UnusableClusterInfoError,
            THIRD + "it says insecure-skip-tls-verify, so nothing would prove the server" + REPAIR,
            id="TLS that is not verified",
        ),
        pytest.param(
            Server(publishing(Kubeconfig((Cluster("", "https://c", ca_file="/etc/ca.crt"),)))),
            errors.UnusableClusterInfoError,
            THIRD + "it names a file as its CA, which this machine does not have" + REPAIR,
            id="a CA in a file",
        ),
        pytest.param(
            Server(publishing(cluster_info_kubeconfig("https://c", b"junk"))),
            errors.UnusableClusterInfoError,
            THIRD + "its CA cannot be read: the text holds no CERTIFICATE PEM block" + REPAIR,
            id="a CA that is no certificate",
        ),
        pytest.param(
            Server(publishing(cluster_info_kubeconfig("https://c", CA, client_ca_pem=b"junk"))),
            errors.UnusableClusterInfoError,
            THIRD + "its CA of client certificates cannot be read: the text holds no CERTIFICATE PEM block" + REPAIR,
            id="a CA of clients that is no certificate",
        ),
        pytest.param(
            Server(publishing(cluster_info_kubeconfig("https://c", b""))),
            errors.UnusableClusterInfoError,
            THIRD
            + "it names no CA, so its servers are verified with a machine's own roots and there is nothing to pin; "
            "join with --discovery-file, or have the administrator name the CA in cluster-info",
            id="no CA to compare with the pins",
        ),
        pytest.param(
            Server(signed_cluster_info(TOKEN, ca=OTHER_CA)),
            errors.PinMismatchError,
            FOURTH
            + f"no CA of the cluster has a pinned public key (it has {pins_of(OTHER_CA)[0]}); this server is not "
            "trusted: compare --discovery-token-ca-cert-hash with the value that "
            "`mooring token create --print-join-command` prints on the server; the hash may be of a CA that was replaced",
            id="pin mismatch",
        ),
        pytest.param(
            Server(signed_cluster_info(TOKEN), serving_ca=OTHER_CA),
            errors.CertificateError,
            FIFTH
            + "the server's certificate does not verify (unable to get local issuer certificate); another machine "
            "may answer in its place, or the address is not among the names of the certificate",
            id="a serving certificate of another CA",
        ),
        *(
            pytest.param(
                failing(reply, at=2),
                errors.ClockSkewError,
                FIFTH
                + f"the server's certificate is not valid at this machine's time ({why}); compare the clocks of this "
                "machine and of the server, then renew the certificate if both are right",
                id=f"clock skew: {why}",
            )
            for why, reply in {
                "certificate is not yet valid": HttpFailure(CERTIFICATE, "certificate is not yet valid"),
                "certificate has expired": HttpFailure(CERTIFICATE, "certificate has expired"),
                "verify failed; not-yet-valid": HttpFailure(CERTIFICATE, "verify failed", "not-yet-valid"),
                "too early": HttpFailure(CERTIFICATE_TIME, "too early"),
            }.items()
        ),
        pytest.param(
            changed({"kubeconfig": "apiVersion: v1\n"}),
            errors.ClusterInfoChangedError,
            SIXTH + "cluster-info differs from what was fetched before TLS was verified: the CA was just changed, or "
            "the first answer was altered; this server is not trusted: try again, and if it stays so, tell the "
            "administrator",
            id="changed between the two fetches",
        ),
        pytest.param(
            failing(HttpResponse(200, json.dumps(signed_cluster_info(TOKEN, ca=OTHER_CA)).encode()), at=2),
            errors.ClusterInfoChangedError,
            SIXTH + "cluster-info differs",
            id="another CA in the second, well signed",
        ),
        pytest.param(
            changed({"kubeconfig": None}),
            errors.NotSetUpError,
            SIXTH + 'the cluster-info ConfigMap has no key "kubeconfig"',
            id="no kubeconfig in the second",
        ),
        pytest.param(
            changed({"jws-kubeconfig-aaaaaa": None}),
            errors.SignatureMissingError,
            SIXTH + "cluster-info carries no signature",
            id="no signature in the second",
        ),
        pytest.param(
            changed({"jws-kubeconfig-aaaaaa": "x"}),
            errors.SignatureWrongError,
            SIXTH + "the signature of cluster-info",
            id="a wrong signature in the second",
        ),
    ],
)
def test_the_server_is_not_trusted(server: Server | None, error: type[errors.DiscoveryError], message: str) -> None:
    if server is not None:
        server.requests.clear()
    network = Network({A: server} if server else {})
    with pytest.raises(error) as caught:
        discover(network, A)
    assert str(caught.value).startswith(message)
    assert str(caught.value) not in network.notices  # an error that is raised is not told before
    assert "1111111111111111" not in "".join(network.notices)


HASH = sha256(CA).hexdigest()
HASHED = f"comparing the CA from {A} with the hash in the token (step 4): "


def discover_by_hash(network: Network, ca_hash: str, pins: tuple[Pin, ...] = ()) -> TrustedCluster:
    vouched = partial(check_ca_hash, wanted=ca_hash)
    return network.drive(discover_by_token(tuple(network.servers), TOKEN, pins, vouched=vouched, polling=ONCE))


@pytest.mark.parametrize("pins", [(), PINS], ids=["alone", "beside a pin"])
def test_the_hash_in_a_token_of_k3s_takes_the_place_of_a_pin(pins: tuple[Pin, ...]) -> None:
    server = Server(signed_cluster_info(TOKEN))
    assert discover_by_hash(Network({A: server}), HASH, pins).via == "token+pins"
    assert server.requests[1] == cluster_info_request(f"https://{A}", Trust(CA))


def test_another_hash_ends_discovery_with_both_digests() -> None:
    with pytest.raises(errors.CaHashMismatchError) as caught:
        discover_by_hash(Network({A: Server(signed_cluster_info(TOKEN, ca=OTHER_CA))}), HASH)
    found = sha256(OTHER_CA).hexdigest()
    mismatch = f"token CA hash does not match the Cluster CA certificate hash: {HASH} != {found}; "
    assert str(caught.value).startswith(HASHED + mismatch)
    assert caught.value.final


def test_the_right_hash_does_not_make_up_for_another_pin() -> None:
    with pytest.raises(errors.PinMismatchError):
        discover_by_hash(Network({A: Server(signed_cluster_info(TOKEN))}), HASH, pins_of(OTHER_CA))


def test_a_hash_needs_a_ca_to_be_compared_with() -> None:
    with pytest.raises(errors.UnusableClusterInfoError, match="it names no CA"):
        discover_by_hash(Network({A: Server(publishing(cluster_info_kubeconfig(f"https://{A}", b"")))}), HASH)


def test_a_thief_of_the_token_cannot_put_his_own_ca_beside_a_root_that_is_hashed() -> None:
    """The first certificate is its own root in the bundle, so the hash fits; a server of the other CA is not trusted for that."""
    server = Server(signed_cluster_info(TOKEN, ca=CA + CA + OTHER_CA), serving_ca=OTHER_CA)
    root = sha256(load_pem_x509_certificate(CA).public_bytes(Encoding.DER)).hexdigest()
    with pytest.raises(errors.CertificateError):
        discover_by_hash(Network({A: server}), root)
    assert server.requests[1].target == Trust(CA)


def test_every_failure_has_a_code_of_its_own() -> None:
    classes = errors.DiscoveryError.__subclasses__()
    codes = [error.code for error in classes]
    assert len(codes) == len(set(codes))
    assert "discovery" not in codes


def test_several_addresses_are_tried_until_one_passes_and_each_failure_is_told() -> None:
    good = Server(signed_cluster_info(TOKEN))
    network = Network({B: Server(signed_cluster_info(WRONG_SECRET)), "c.test:1": good})
    assert discover(network, A, B, "c.test:1").via == "token+pins"
    assert [line for line in network.notices if line.startswith(FIRST)] == network.kept_notices[:1]
    assert [
        line for line in network.notices if "signature of cluster-info for token id" in line
    ] == network.kept_notices[1:]
    assert network.waited == []


def test_the_failure_of_each_round_is_told_and_kept_once() -> None:
    network = Network({})
    with pytest.raises(errors.EndpointDownError) as caught:
        discover(network, A, polling=Polling(attempts=3))
    assert network.notices.count(str(caught.value)) == 2
    assert network.kept_notices == [str(caught.value)]


def test_a_server_that_starts_late_is_polled_until_it_answers() -> None:
    network = Network({})

    def start(count: int) -> None:
        if count == 3:
            network.servers[A] = Server(signed_cluster_info(TOKEN))

    network.on_wait = start
    assert discover(network, A, polling=Polling()).via == "token+pins"
    assert network.waited == [5.0, 5.0, 5.0]


def test_a_signature_that_lags_is_polled_for() -> None:
    server = Server(signed_cluster_info())
    network = Network({A: server})

    def sign(count: int) -> None:
        server.config_map = signed_cluster_info(TOKEN)

    network.on_wait = sign
    assert discover(network, polling=Polling()).via == "token+pins"


def test_a_refusal_that_cannot_heal_ends_discovery_at_once() -> None:
    server = Server(signed_cluster_info(WRONG_SECRET))
    network = Network({A: server})
    with pytest.raises(errors.SignatureWrongError):
        discover(network, A, A, polling=Polling())
    assert (len(server.requests), network.waited) == (1, [])


def test_a_server_that_was_refused_is_not_asked_again_while_others_are() -> None:
    refused = Server(signed_cluster_info(WRONG_SECRET))
    network = Network({B: refused})
    with pytest.raises(errors.EndpointDownError):
        discover(network, B, A, polling=Polling(attempts=3))
    assert (len(refused.requests), network.waited) == (1, [5.0, 5.0])


@pytest.mark.parametrize(
    ("polling", "elapsed", "asked"),
    [
        pytest.param(Polling(), 0.0, 61, id="every 5 s up to and including 5 minutes"),
        pytest.param(Polling(), 10.0, 21, id="the time the exchanges took counts"),
        pytest.param(Polling(2.0, 5.0), 0.0, 3, id="at 0, 2 and 4 of 5 seconds"),
        pytest.param(Polling(attempts=4), 0.0, 4, id="a number of attempts"),
    ],
)
def test_the_last_error_is_raised_when_the_budget_is_spent(polling: Polling, elapsed: float, asked: int) -> None:
    server = Server(signed_cluster_info(), elapsed=elapsed)
    network = Network({A: server})
    with pytest.raises(errors.SignatureMissingError):
        discover(network, polling=polling)
    assert len(server.requests) == asked
    assert network.waited == [polling.interval] * (asked - 1)


def test_a_request_has_what_is_left_of_the_budget_and_a_second_at_least() -> None:
    server = Server(signed_cluster_info(), elapsed=2.5)
    with pytest.raises(errors.SignatureMissingError):
        discover(Network({A: server}), polling=Polling(interval=1.0, total=6.5))
    assert [request.within for request in server.requests] == [6.5, 3.0]
    short = Server(signed_cluster_info(TOKEN), elapsed=0.5)
    assert discover(Network({A: short}), polling=Polling(total=0.1)).via == "token+pins"
    assert [request.within for request in short.requests] == [1.0, 1.0]


def test_an_unknown_token_ends_before_a_server_that_is_down() -> None:
    server = Server(signed_cluster_info())
    network = Network({A: server})
    with pytest.raises(errors.SignatureMissingError):
        discover(network, A, B, polling=Polling(unsigned=30.0))
    assert network.waited == [5.0] * 6


def test_the_time_for_a_signature_begins_with_the_first_answer() -> None:
    network = Network({})

    def change(count: int) -> None:
        if count == 10:
            network.servers[A] = Server(signed_cluster_info())
        if count == 12:
            network.servers.clear()

    network.on_wait = change
    with pytest.raises(errors.EndpointDownError):
        discover(network, A, polling=Polling(unsigned=15.0))
    assert network.waited == [5.0] * 60
    assert network.notices[1].endswith("and that the server runs; trying again for up to 5m0s more")
    told = next(one for one in network.kept_notices if "no signature for token id" in one)
    assert told.endswith("make one with `mooring token create`; trying again for up to 15s more")


def test_a_short_time_for_discovery_wins_over_the_time_for_a_signature() -> None:
    network = Network({A: Server(signed_cluster_info())})
    with pytest.raises(errors.SignatureMissingError):
        discover(network, A, polling=Polling(total=3.0, unsigned=30.0))
    assert network.waited == []


def test_polling_always_waits() -> None:
    with pytest.raises(ValueError, match="more than 0"):
        Polling(interval=0)


def test_credentials_are_never_sent_without_verified_tls() -> None:
    with pytest.raises(ValueError, match="never sent"):
        HttpRequest(UNVERIFIED, credentials=KubeconfigUser("u", token=Secret("t")))
    with pytest.raises(ValueError, match="never sent"):
        HttpRequest(UNVERIFIED, authorization=Secret("Bearer t"))
    with pytest.raises(ValueError, match="never sent"):
        HttpRequest(UNVERIFIED, secret_target=Secret("/path"))
    for target in (Trust(CA), SYSTEM_ROOTS, "a target of the configuration"):
        HttpRequest(target, credentials=KubeconfigUser("u"), authorization=Secret("Bearer t"))


def test_a_driver_must_answer_a_request() -> None:
    generator = send(HttpRequest(UNVERIFIED))
    next(generator)
    with pytest.raises(TypeError, match="answered with"):
        generator.send(None)


@given(
    st.integers(100, 599), st.binary(max_size=200) | st.text(max_size=200).map(lambda text: json.dumps(text).encode())
)
def test_no_answer_makes_it_crash_or_trust(code: int, body: bytes) -> None:
    with pytest.raises(errors.DiscoveryError):
        discover(Network({A: failing(HttpResponse(code, body))}))


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JUNK, JUNK, JUNK)
def test_no_signed_junk_makes_it_crash_or_trust(name: object, cluster: object, context: object) -> None:
    text = json.dumps({"clusters": [{"name": name, "cluster": cluster}], "current-context": context})
    with pytest.raises(errors.UnusableClusterInfoError):
        discover(Network({A: Server(publishing(text))}))


def test_the_message_of_a_wrong_pin_lists_every_ca_found() -> None:
    both = signed_cluster_info(TOKEN, ca=CA + OTHER_CA)
    listed = ", ".join(str(pin) for pin in pins_of(CA + OTHER_CA))
    with pytest.raises(errors.PinMismatchError, match=re.escape(listed)):
        discover(Network({A: Server(both)}), pins=(Pin(bytes(32)),))


def test_the_signature_is_checked_with_the_secret_half_only() -> None:
    config_map = signed_cluster_info()
    text = config_map["data"]["kubeconfig"]
    config_map["data"]["jws-kubeconfig-aaaaaa"] = clusterinfo.sign(text.encode(), "aaaaaa", TOKEN.reveal().encode())
    with pytest.raises(errors.SignatureWrongError):
        discover(Network({A: Server(config_map)}))
