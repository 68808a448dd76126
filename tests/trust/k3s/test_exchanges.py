"""Requests of a joining agent: trust before secrets, one credential at a time, and what each refusal leads to.

Source: docs/protocol/k3s.md#join-of-an-agent.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pytest

from mooring.secret import Secret
from mooring.trust.discovery.errors import (
    DiscoveryError,
    EndpointDownError,
    EndpointTimeoutError,
    NotKubernetesError,
    NotTlsError,
    RefusedAnswerError,
)
from mooring.trust.discovery.fetch import Notice, Polling
from mooring.trust.httpexchange import (
    CERTIFICATE,
    NOT_TLS,
    TIMEOUT,
    TLS_ALERT,
    TOO_LONG,
    UNREACHABLE,
    UNVERIFIED,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Reply,
    Trust,
    Wait,
)
from mooring.trust.k3s import identity
from mooring.trust.k3s.cahash import ca_hash
from mooring.trust.k3s.exchanges import (
    BY_ROOTS,
    JOIN_POLLING,
    KUBELET,
    REFUSED_ROUNDS,
    UNPROVEN,
    WANTED,
    NodeIdentity,
    SupervisorClient,
    SupervisorConfiguration,
    TrustedCa,
    establish_trust,
)
from mooring.trust.k3s.refusals import (
    BusyError,
    CaMismatchError,
    CaNotProvenError,
    CertificateAloneRefusedError,
    CredentialRefusedError,
    KnownCaError,
    NodePasswordRefusedError,
    NodeRefusedError,
    NotASupervisorError,
    RequestRefusedError,
    UnusableResponseError,
)
from mooring.trust.k3s.token import parse_token
from mooring.trust.kubeconfig import KubeconfigUser
from tests.support.discoverypeer import CA, OTHER_CA

R = TypeVar("R")
A, B = "https://a.test:6443", "https://b.test:6443"
ONCE = Polling(attempts=1)
PASSWORD, BOOTSTRAP = parse_token("secretpassword"), parse_token("abcdef.0123456789abcdef")
CERTIFICATE_OF_NODE = KubeconfigUser("node", certificate_pem=b"certificate", key=Secret(b"key"))
NODE = NodeIdentity("worker", Secret("nodepassword"), ("192.0.2.7", "2001:db8::7"), "/etc/rancher/node/password")
OK = HttpResponse(200, b"ok")
DOWN = HttpFailure(UNREACHABLE, "connection refused")
ALERT = HttpFailure(TLS_ALERT, "unknown ca")
BROKEN = HttpFailure(UNREACHABLE, "broken pipe", broken=True)
UNTRUSTED = HttpFailure(CERTIFICATE, "unable to get local issuer certificate")


def status(code: int, body: bytes = b"") -> HttpResponse:
    return HttpResponse(code, body)


@dataclass
class Script:
    """Replies in order; the last one is repeated. Records the requests, notices and waits."""

    replies: Sequence[HttpResponse | HttpFailure | Callable[[HttpRequest], HttpResponse | HttpFailure]]
    requests: list[HttpRequest] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    version: HttpResponse | HttpFailure = field(default_factory=lambda: HttpResponse(401, b""))
    """Reply to `/version`, which is not recorded with the requests: k3s does not serve it to anonymous requests."""
    versions: list[HttpRequest] = field(default_factory=list)

    def run(self, exchange: Generator[HttpRequest | Wait | Notice, Reply, R]) -> R:
        reply: Reply = None
        try:
            while True:
                step = exchange.send(reply)
                reply = None
                if isinstance(step, Notice):
                    self.notices.append(step)
                elif isinstance(step, Wait):
                    self.waits.append(step)
                elif step.url.endswith("/version"):
                    self.versions.append(step)
                    reply = self.version
                else:
                    self.requests.append(step)
                    found = self.replies[min(len(self.requests), len(self.replies)) - 1]
                    reply = found(step) if callable(found) else found
        except StopIteration as stop:
            result: R = stop.value
            return result

    @property
    def credentials(self) -> list[str]:
        """The credential of each request."""
        return [",".join(one.credentials.credentials) if one.credentials else "" for one in self.requests]


def supervisor(*urls: str, **more: Any) -> SupervisorClient:
    given: dict[str, Any] = {"token": PASSWORD, "polling": ONCE} | more
    return SupervisorClient(urls or (A,), Trust(CA), **given)


# ── trust ────────────────────────────────────────────────────────────────────────────────────────────────────────────

PINNED = ca_hash(CA)
SERVED = HttpResponse(200, CA)


@pytest.mark.parametrize(
    ("replies", "pin", "trusts", "found"),
    [
        pytest.param(
            [UNTRUSTED, SERVED, SERVED],
            PINNED,
            [BY_ROOTS, UNPROVEN, Trust(CA, is_k3s=True)],
            CA,
            id="three requests with a hash",
        ),
        pytest.param(
            [UNTRUSTED, SERVED, SERVED],
            "",
            [BY_ROOTS, UNPROVEN, Trust(CA, is_k3s=True)],
            CA,
            id="three requests without a hash",
        ),
        pytest.param([SERVED], "", [BY_ROOTS], b"", id="the machine's roots verify the server"),
        pytest.param(
            [SERVED, SERVED],
            PINNED,
            [BY_ROOTS, Trust(CA, is_k3s=True)],
            CA,
            id="a hash is compared although the roots verify it",
        ),
        pytest.param(
            [status(503), SERVED, SERVED],
            "",
            [BY_ROOTS, UNPROVEN, Trust(CA, is_k3s=True)],
            CA,
            id="a busy first answer",
        ),
    ],
)
def test_trust_is_established_by_requests_to_cacerts_alone(
    replies: list[HttpResponse | HttpFailure], pin: str, trusts: list[Trust], found: bytes
) -> None:
    script = Script(replies)
    trusted = script.run(establish_trust([A], pin, ONCE))
    assert trusted == TrustedCa(A, found)
    assert trusted.trust == Trust(found, is_k3s=True)
    assert [one.target for one in script.requests] == trusts
    assert {one.url for one in script.requests} == {A + identity.CACERTS}
    assert set(script.credentials) == {""}


def test_trust_on_first_use_is_a_warning_that_stays() -> None:
    script = Script([UNTRUSTED, SERVED, SERVED])
    script.run(establish_trust([A], "", ONCE))
    assert [one.message for one in script.notices if one.keep and "warning: the token carries no hash" in one.message]


@pytest.mark.parametrize(
    ("replies", "pin", "error"),
    [
        pytest.param([DOWN], "", EndpointDownError, id="nothing answers"),
        pytest.param([HttpFailure(TIMEOUT, "no answer")], "", EndpointTimeoutError, id="a slow server"),
        pytest.param([HttpFailure(NOT_TLS, "no TLS")], "", NotTlsError, id="no TLS"),
        pytest.param([UNTRUSTED, DOWN], "", EndpointDownError, id="nothing answers the second request"),
        pytest.param([UNTRUSTED, status(404)], "", NotASupervisorError, id="no supervisor"),
        pytest.param([UNTRUSTED, status(429)], "", BusyError, id="busy"),
        pytest.param([UNTRUSTED, status(500)], "", RefusedAnswerError, id="a fault of the server"),
        pytest.param([UNTRUSTED, HttpFailure(TOO_LONG, "long")], "", NotKubernetesError, id="3 MiB"),
        pytest.param([UNTRUSTED, OK], "", UnusableResponseError, id="no bundle"),
        pytest.param([UNTRUSTED, OK], PINNED, CaMismatchError, id="no bundle where a hash is given"),
        pytest.param([UNTRUSTED, SERVED], ca_hash(OTHER_CA), CaMismatchError, id="another CA"),
        pytest.param(
            [SERVED], ca_hash(OTHER_CA), CaMismatchError, id="another CA, although the roots verify the server"
        ),
        pytest.param([UNTRUSTED, SERVED, UNTRUSTED], PINNED, CaNotProvenError, id="a copied bundle"),
        pytest.param([SERVED, UNTRUSTED], PINNED, CaNotProvenError, id="a copied bundle behind a public certificate"),
        pytest.param([UNTRUSTED, SERVED, DOWN], PINNED, EndpointDownError, id="nothing answers the third request"),
        pytest.param([UNTRUSTED, SERVED, status(500)], PINNED, RefusedAnswerError, id="the third request fails"),
    ],
)
def test_a_server_that_does_not_prove_itself_is_not_trusted(
    replies: list[HttpResponse | HttpFailure], pin: str, error: type[DiscoveryError]
) -> None:
    script = Script(replies)
    with pytest.raises(error) as caught:
        script.run(establish_trust([A], pin, ONCE))
    assert set(script.credentials) == {""}
    assert "\n" not in str(caught.value)


def test_a_hash_does_not_vouch_for_a_ca_beside_the_pinned_one() -> None:
    script = Script([UNTRUSTED, HttpResponse(200, CA + OTHER_CA)])
    assert script.run(establish_trust([A], ca_hash(OTHER_CA), ONCE)) == TrustedCa(A, OTHER_CA)
    assert script.requests[-1].target == Trust(OTHER_CA, is_k3s=True)


def test_servers_are_tried_in_order_and_a_mismatch_ends_one_of_them() -> None:
    def reply(request: HttpRequest) -> HttpResponse | HttpFailure:
        if request.target == BY_ROOTS:
            return UNTRUSTED
        return HttpResponse(200, OTHER_CA if request.url.startswith(A) else CA)

    script = Script([reply])
    assert script.run(establish_trust([A, B, A], PINNED)) == TrustedCa(B, CA)
    assert [one.url.removesuffix("/cacerts") for one in script.requests] == [A, A, B, B, B]
    assert script.waits == []


def test_unreachable_servers_are_tried_again_and_refused_ones_are_not() -> None:
    def reply(request: HttpRequest) -> HttpResponse | HttpFailure:
        return DOWN if request.url.startswith(A) else HttpResponse(200, OTHER_CA)

    script = Script([reply])
    with pytest.raises(EndpointDownError):
        script.run(establish_trust([A, B], PINNED, Polling(attempts=3)))
    assert [one.url.removesuffix("/cacerts") for one in script.requests] == [A, B, A, A]
    assert len(script.waits) == 2


def test_a_mismatch_on_every_server_ends_the_attempts() -> None:
    with pytest.raises(CaMismatchError):
        Script([HttpResponse(200, OTHER_CA)]).run(establish_trust([A, B], PINNED))


def test_pauses_are_five_to_ten_seconds() -> None:
    script = Script([DOWN, DOWN, UNTRUSTED, SERVED, SERVED])
    script.run(establish_trust([A], PINNED))
    assert len(script.waits) == 2
    for wait in script.waits:
        assert wait.seconds * (1 - wait.jitter) == pytest.approx(5.0)
        assert wait.seconds * (1 + wait.jitter) == pytest.approx(10.0)
    assert JOIN_POLLING.total == 300


# ── requests to the supervisor ───────────────────────────────────────────────────────────────────────────────────────


def test_responses_are_read() -> None:
    ask = supervisor()
    body = b'{"HTTPSPort": 6443, "SupervisorPort": 9345, "more": 1}'
    assert Script([HttpResponse(200, body)]).run(ask.fetch_configuration()) == SupervisorConfiguration(6443, 9345)
    assert Script([SERVED]).run(ask.fetch_client_ca()) == CA
    assert Script([SERVED]).run(ask.fetch_server_ca()) == CA
    assert Script([HttpResponse(200, b'["a.test:6443"]')]).run(ask.fetch_apiservers()) == ("a.test:6443",)
    assert Script([OK]).run(ask.request_certificate(WANTED[3], b"DER", NODE)) == b"ok"


@pytest.mark.parametrize("reply", [OK, status(404)], ids=["ready", "a server without the check"])
def test_a_server_is_ready(reply: HttpResponse) -> None:
    Script([reply]).run(supervisor().check_ready())


def test_a_server_that_is_not_ready_is_asked_again() -> None:
    script = Script([status(503), status(500), OK])
    script.run(supervisor(polling=JOIN_POLLING).check_ready())
    assert len(script.waits) == 2


@pytest.mark.parametrize(
    ("bundle", "reply", "error"),
    [
        pytest.param(CA + OTHER_CA, None, None, id="a CA is added"),
        pytest.param(OTHER_CA, OK, None, id="a CA that verifies the server takes the place of another"),
        pytest.param(OTHER_CA, UNTRUSTED, CaNotProvenError, id="a CA that does not verify the server"),
        pytest.param(OTHER_CA, DOWN, EndpointDownError, id="the server cannot be asked"),
    ],
)
def test_a_bundle_that_drops_a_trusted_ca_must_verify_the_server(
    bundle: bytes, reply: HttpResponse | HttpFailure | None, error: type[DiscoveryError] | None
) -> None:
    script = Script([HttpResponse(200, bundle), *([reply] if reply else [])])
    if error is not None:
        with pytest.raises(error):
            script.run(supervisor().fetch_server_ca())
    else:
        assert script.run(supervisor().fetch_server_ca()) == bundle
    assert [(one.target, one.url) for one in script.requests[1:]] == (
        [(Trust(bundle, is_k3s=True), A + identity.CACERTS)] if reply else []
    )
    assert script.credentials[1:] == ([""] if reply else [])


def test_with_the_roots_of_the_machine_any_bundle_of_servers_is_read() -> None:
    ask = SupervisorClient((A,), BY_ROOTS, token=PASSWORD, polling=ONCE)
    assert Script([HttpResponse(200, OTHER_CA)]).run(ask.fetch_server_ca()) == OTHER_CA


def test_only_the_certificates_of_kubelet_name_the_node() -> None:
    for wanted in WANTED:
        script = Script([OK])
        script.run(supervisor().request_certificate(wanted, b"DER", NODE))
        (request,) = script.requests
        assert (request.method, request.url, request.body, request.target) == (
            "POST",
            A + wanted.path,
            b"DER",
            Trust(CA),
        )
        named = ((identity.NODE_NAME, "worker"), (identity.NODE_IP, "192.0.2.7,2001:db8::7"))
        assert request.headers == (named if wanted.names_node else ())
        assert request.secret_headers == (((identity.NODE_PASSWORD, NODE.password),) if wanted.names_node else ())
        assert "nodepassword" not in repr(request)


def test_external_addresses_are_requested_behind_the_others() -> None:
    node, script = replace(NODE, external_addresses=("203.0.113.7",)), Script([OK])
    script.run(supervisor().request_certificate(KUBELET, b"DER", node))
    (request,) = script.requests
    assert dict(request.headers)[identity.NODE_IP] == "192.0.2.7,2001:db8::7,203.0.113.7"


def test_a_node_password_is_not_sent_to_an_unverified_server() -> None:
    with pytest.raises(ValueError, match="never sent"):
        HttpRequest(UNVERIFIED, secret_headers=((identity.NODE_PASSWORD, NODE.password),))


@pytest.mark.parametrize(
    ("more", "credential"),
    [
        pytest.param({"token": PASSWORD}, "basic", id="a password"),
        pytest.param({"token": BOOTSTRAP}, "token", id="a bootstrap token"),
        pytest.param(
            {"certificate": CERTIFICATE_OF_NODE}, "clientCertificate", id="a certificate comes before the token"
        ),
        pytest.param({"token": None}, "", id="nothing"),
    ],
)
def test_a_request_carries_one_credential(more: dict[str, Any], credential: str) -> None:
    script = Script([SERVED])
    script.run(supervisor(**more).fetch_client_ca())
    assert script.credentials == [credential]


def test_a_password_is_that_of_the_user_node() -> None:
    script = Script([SERVED])
    script.run(supervisor(token=parse_token(f"K10{PINNED}::server:secretpassword")).fetch_client_ca())
    assert script.requests[0].credentials == KubeconfigUser("node", username="node", password=Secret("secretpassword"))


@pytest.mark.parametrize(
    ("refusal", "is_kept"),
    [
        pytest.param(status(401), True, id="by 401"),
        pytest.param(ALERT, True, id="by ending the handshake"),
        pytest.param(BROKEN, False, id="by closing the connection, under a CA that is new here"),
    ],
)
def test_a_refused_certificate_gives_way_to_the_token_once(refusal: HttpResponse | HttpFailure, is_kept: bool) -> None:
    ask = supervisor(certificate=CERTIFICATE_OF_NODE, is_kept=is_kept)
    script = Script([refusal, SERVED])
    script.run(ask.fetch_client_ca())
    assert script.credentials == ["clientCertificate", "basic"]
    assert ask.certificate is None
    assert Script([SERVED]).run(ask.fetch_client_ca()) == CA


def test_a_certificate_is_kept_when_the_token_is_refused_as_well() -> None:
    ask = supervisor(certificate=CERTIFICATE_OF_NODE, polling=JOIN_POLLING)
    script = Script([status(401), status(401), SERVED])
    script.run(ask.fetch_client_ca())
    assert script.credentials == ["clientCertificate", "basic", "clientCertificate"]
    assert ask.certificate is CERTIFICATE_OF_NODE


@pytest.mark.parametrize(
    ("reply", "more"),
    [
        pytest.param(status(403), {}, id="403"),
        pytest.param(BROKEN, {"is_kept": True}, id="a connection that was lost"),
    ],
)
def test_other_failures_do_not_send_the_token(reply: HttpResponse | HttpFailure, more: dict[str, Any]) -> None:
    script = Script([reply])
    with pytest.raises(DiscoveryError):
        script.run(supervisor(certificate=CERTIFICATE_OF_NODE, **more).fetch_client_ca())
    assert script.credentials == ["clientCertificate"]


@pytest.mark.parametrize(
    ("reply", "more", "error", "said"),
    [
        pytest.param(status(401), {}, CredentialRefusedError, "it does not accept the token:", id="401"),
        pytest.param(status(403), {}, CredentialRefusedError, "the server answered 403", id="403"),
        pytest.param(
            status(401), {"token": BOOTSTRAP}, CredentialRefusedError, 'the token "abcdef"', id="an expired token"
        ),
        pytest.param(status(403), {"token": None}, CredentialRefusedError, "the token:", id="no credential"),
        pytest.param(
            status(401),
            {"token": None, "certificate": CERTIFICATE_OF_NODE},
            CertificateAloneRefusedError,
            "give a valid token to join again",
            id="a certificate and no token",
        ),
        pytest.param(status(404), {}, NotASupervisorError, "--k3s-supervisor", id="404"),
        pytest.param(status(302), {}, NotASupervisorError, "status 302", id="a redirect"),
        pytest.param(
            status(404, b"404 page not found\n"), {}, NotASupervisorError, "(404 page not found)", id="404 with text"
        ),
        pytest.param(status(429), {}, BusyError, "too many machines join at this moment", id="429"),
        pytest.param(
            status(429, b'{"kind": "Status", "message": "try again in 7 s"}'),
            {},
            BusyError,
            "the server answered 429: try again in 7 s",
            id="429 as a Status",
        ),
        pytest.param(
            status(502, b"<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"),
            {},
            RefusedAnswerError,
            "the server answered 502: 502 Bad Gateway",
            id="502 of a proxy",
        ),
        pytest.param(status(500), {}, RefusedAnswerError, "status 500; see the server's log", id="500 without a text"),
        pytest.param(
            status(500, b"token error ID 04711\n"),
            {},
            RefusedAnswerError,
            "the server answered 500: token error ID 04711",
            id="500 in plain text",
        ),
        pytest.param(
            status(503, b'{"kind": "Status", "message": "runtime core not ready"}'),
            {},
            RefusedAnswerError,
            "the server answered 503: runtime core not ready",
            id="503 as a Status",
        ),
        pytest.param(
            status(502, b"Authorization: Basic " + base64.b64encode(b"node:secretpassword")),
            {},
            RefusedAnswerError,
            "status 502; see the server's log",
            id="502 that repeats the credential",
        ),
        pytest.param(status(400, b"no name"), {}, RequestRefusedError, "400 (no name)", id="400"),
        pytest.param(DOWN, {}, EndpointDownError, "connection refused", id="nothing answers"),
        pytest.param(UNTRUSTED, {"is_kept": True}, KnownCaError, "K10<hash>::", id="another CA than the kept one"),
        pytest.param(UNTRUSTED, {}, DiscoveryError, "does not verify", id="a certificate that does not verify"),
        pytest.param(SERVED, {}, UnusableResponseError, "is not JSON", id="no JSON"),
    ],
)
def test_each_refusal_has_its_error(
    reply: HttpResponse | HttpFailure, more: dict[str, Any], error: type[DiscoveryError], said: str
) -> None:
    script = Script([reply])
    with pytest.raises(error) as caught:
        script.run(supervisor(**more).fetch_configuration())
    assert said in str(caught.value)
    assert "secretpassword" not in str(caught.value)


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        pytest.param(
            status(403, b"unable to verify password for node worker: hash does not match"),
            NodePasswordRefusedError,
            'for the node "worker": unable to verify password for node worker: hash does not match: another machine has this name, '
            "or /etc/rancher/node/password is not the file",
            id="a wrong password names the password file",
        ),
        pytest.param(
            status(403, b'{"message": "unable to verify password for node worker"}'),
            NodePasswordRefusedError,
            "--with-node-id",
            id="a wrong password names the flag",
        ),
        pytest.param(
            status(403, b"the bootstrap token abcdef was for 1 machine, and they have joined"),
            NodeRefusedError,
            'for the node "worker": the bootstrap token abcdef was for 1 machine, and they have joined',
            id="another reason is the server's",
        ),
        pytest.param(status(403), NodeRefusedError, "it gives no reason; the node password is wrong", id="no reason"),
        pytest.param(
            status(403, b"forbidden"),
            CredentialRefusedError,
            "it does not accept the token",
            id="403 to the credential",
        ),
        pytest.param(status(401), CredentialRefusedError, "it does not accept the token", id="401 is about the token"),
        pytest.param(status(400), RequestRefusedError, "--node-name", id="400 names the flags"),
    ],
)
def test_refusals_of_a_named_node(reply: HttpResponse, error: type[DiscoveryError], said: str) -> None:
    script = Script([reply])
    with pytest.raises(error) as caught:
        script.run(supervisor(A, B).request_certificate(KUBELET, b"", NODE))
    assert type(caught.value) is error
    assert said in str(caught.value)
    assert len(script.requests) == (1 if error.final else 2)


def test_only_a_wrong_password_advises_to_delete_a_node() -> None:
    for reason in (b"", b"the node name worker belongs to another machine", b"forbidden"):
        with pytest.raises(DiscoveryError) as caught:
            Script([status(403, reason)]).run(supervisor().request_certificate(KUBELET, b"", NODE))
        assert "delete node" not in str(caught.value)
        assert "password was rejected" not in str(caught.value)


@pytest.mark.parametrize(
    ("code", "body", "more"),
    [
        pytest.param(401, b"", {}, id="401 to a token"),
        pytest.param(401, b"", {"certificate": CERTIFICATE_OF_NODE, "token": None}, id="401 to a certificate"),
        pytest.param(403, b"no", {}, id="403"),
        pytest.param(403, b"unable to verify password for node worker", {}, id="a wrong password"),
    ],
)
def test_a_refusal_ends_with_the_command_that_explains_it(code: int, body: bytes, more: dict[str, Any]) -> None:
    reply = HttpResponse(code, body, {"audit-id": "5e1f-7"})
    with pytest.raises(DiscoveryError) as caught:
        Script([reply]).run(supervisor(**more).request_certificate(KUBELET, b"", NODE))
    assert str(caught.value).endswith(
        "; an administrator of a Mooring server learns the reason with: mooring auth explain 5e1f-7"
    )


@pytest.mark.parametrize(
    "audit_id", ["nodepassword", "0123456789abcdef", "abcdef.0123456789abcdef", "a b", "x" * 65, ""]
)
def test_an_audit_id_that_repeats_a_secret_or_is_none_is_not_printed(audit_id: str) -> None:
    reply = HttpResponse(401, b"", {"audit-id": audit_id})
    with pytest.raises(DiscoveryError) as caught:
        Script([reply]).run(supervisor(token=BOOTSTRAP).request_certificate(KUBELET, b"", NODE))
    assert "mooring auth explain" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "token", "said"),
    [
        pytest.param(b"", PASSWORD, "400; check", id="nothing"),
        pytest.param(b"two\r\nlines\x1b[0m", PASSWORD, "400 (two lines [0m)", id="one line without control characters"),
        pytest.param(b'{"kind": "Status", "message": "the reason"}', PASSWORD, "400 (the reason)", id="a Status"),
        pytest.param(b'{"kind": "Status"}', PASSWORD, "400; check", id="a Status without a message"),
        pytest.param(b"[" * 5000, PASSWORD, "400 ([", id="nested"),
        pytest.param(b"x" * 5000, PASSWORD, f"({'x' * 600})", id="long"),
        pytest.param(b"not secretpassword", PASSWORD, "400; check", id="the password of the token"),
        pytest.param(b"not 0123456789abcdef", BOOTSTRAP, "400; check", id="the secret of a bootstrap token"),
        pytest.param(b"not nodepassword", None, "400; check", id="the node password"),
    ],
)
def test_what_the_server_says_is_repeated_without_secrets(body: bytes, token: Any, said: str) -> None:
    with pytest.raises(RequestRefusedError) as caught:
        Script([status(400, body)]).run(supervisor(token=token).request_certificate(KUBELET, b"", NODE))
    assert said in str(caught.value)


def test_the_server_that_answered_is_asked_first_from_then_on() -> None:
    def reply(request: HttpRequest) -> HttpResponse | HttpFailure:
        return DOWN if request.url.startswith(A) else SERVED

    ask, script = supervisor(A, B), Script([reply])
    script.run(ask.fetch_client_ca())
    script.run(ask.fetch_server_ca())
    assert [one.url[: len(A)] for one in script.requests] == [A, B, B]
    assert ask.urls == (B, A)
    assert [one.message for one in script.notices if "a.test" in one.message]


def test_refused_credentials_are_tried_for_some_rounds_only() -> None:
    script = Script([status(401)])
    with pytest.raises(CredentialRefusedError):
        script.run(supervisor(polling=JOIN_POLLING).fetch_client_ca())
    assert len(script.requests) == REFUSED_ROUNDS


@pytest.mark.parametrize("code", [401, 403])
def test_the_first_refusal_of_a_mooring_server_is_final(code: int) -> None:
    version = status(200, b'{"gitVersion": "v1.37.1+mooring-1.0"}')
    script = Script([status(code)], version=version)
    with pytest.raises(CredentialRefusedError, match="not for the network of this machine"):
        script.run(supervisor(polling=JOIN_POLLING).fetch_client_ca())
    assert (len(script.requests), script.waits) == (1, [])
    asked = script.versions[0]
    assert (asked.url, asked.credentials, asked.authorization) == (f"{A}/version", None, None)


@pytest.mark.parametrize("code", [401, 403])
def test_the_first_refusal_with_an_audit_id_is_final_where_anonymous_requests_are_refused(code: int) -> None:
    """k3s refuses in front of its API server, without an Audit-Id; Mooring may run with --anonymous-auth=false."""
    script = Script([HttpResponse(code, b"", {"audit-id": "5e1f-7"})], version=status(401))
    with pytest.raises(CredentialRefusedError, match="mooring auth explain 5e1f-7"):
        script.run(supervisor(polling=JOIN_POLLING).fetch_client_ca())
    assert (len(script.requests), script.waits) == (1, [])


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(status(200, b'{"gitVersion": "v1.36.2+k3s1"}'), id="k3s"),
        pytest.param(status(401, b'{"gitVersion": "v1.37.1+mooring-1.0"}'), id="a refusal"),
        pytest.param(status(200, b'{"gitVersion": 1}'), id="no text"),
        pytest.param(status(200, b"[]"), id="no object"),
        pytest.param(status(200, b"no JSON"), id="no JSON"),
        pytest.param(DOWN, id="nothing answers"),
    ],
)
def test_refusals_of_another_server_are_repeated(version: HttpResponse | HttpFailure) -> None:
    script = Script([status(401), SERVED], version=version)
    assert script.run(supervisor(polling=JOIN_POLLING).fetch_client_ca()) == CA
    assert len(script.versions) == 1


def test_a_refusal_in_between_starts_the_count_anew() -> None:
    script = Script([*[status(401)] * (REFUSED_ROUNDS - 1), DOWN, *[status(401)] * (REFUSED_ROUNDS - 1), SERVED])
    assert script.run(supervisor(polling=JOIN_POLLING).fetch_client_ca()) == CA


def test_failures_are_repeated_for_as_long_as_the_polling_allows() -> None:
    script = Script([status(429), DOWN, SERVED])
    script.run(supervisor(polling=JOIN_POLLING).fetch_client_ca())
    assert len(script.waits) == 2
    script = Script([HttpFailure(TIMEOUT, "slow", elapsed=10.0)])
    with pytest.raises(EndpointTimeoutError):
        script.run(supervisor(polling=JOIN_POLLING).fetch_client_ca())
    assert len(script.requests) == 18, "300 seconds of 10 for a request and 7.5 for a pause"


def test_every_detail_of_a_status_is_text() -> None:
    body = json.dumps({"message": ["a", 1]}).encode()
    with pytest.raises(RequestRefusedError, match="400 "):
        Script([status(400, body)]).run(supervisor().fetch_client_ca())
