"""Login request: checks of the response, and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.client.login import loginrequest
from mooring.client.login.loginrequest import LoginRefusedError, request_credential
from mooring.clock import rfc3339
from mooring.errors import ApiError, ForbiddenError, MooringError, NotFoundError, PeerError, UnauthorizedError
from mooring.pki.x509 import profiles
from mooring.pki.x509.requests import parse_request
from mooring.secret import Secret
from mooring.trust.discovery.errors import CertificateError, NotKubernetesError
from mooring.trust.kubeconfig import KubeconfigUser
from mooring.trust.loginrecord import CERTIFICATE, TOKEN, Credential, Place
from tests.support.manualclock import EPOCH, ManualClock
from tests.support.slowkeys import rsa_key
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=EPOCH)
PLACE = Place("https://a", CA.certificate_pem)
HOUR = timedelta(hours=1)
USER = KubeconfigUser("", username="jane", password=Secret("p"))


class Client:
    """Cluster whose response to a body is the result of `answer`, or its error."""

    answer: Callable[[Obj], Any]
    place: Place
    sent: Obj

    def __init__(self, cluster: Any, user: KubeconfigUser, clock: Any) -> None:
        assert cluster.server == self.place.server
        assert cluster.ca_pem == self.place.ca_pem
        assert user is USER

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    async def post_path(self, path: str, body: Obj) -> Any:
        assert path == "/mooring/v1/login"
        type(self).sent = body
        return type(self).answer(body)


@pytest.fixture(autouse=True)
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loginrequest, "ClusterClient", Client)


def with_id(error: ApiError) -> ApiError:
    """The error of a response with an Audit-Id."""
    error.audit_id = "6e0a3f5a-9a52"
    return error


def exchanged(answer: Callable[[Obj], Any], kind: str, place: Place = PLACE) -> Credential:
    Client.answer, Client.place = staticmethod(answer), place
    return asyncio.run(request_credential(place, USER, kind, ManualClock()))


def certified(body: Obj, username: str = "jane", life: timedelta = HOUR) -> Obj:
    key = parse_request(body["certificateRequest"].encode()).public_key
    certificate = CA.authority.sign(profiles.client(key, EPOCH, username, ("dev",), life), EPOCH, 7)
    pair = CA.client("x")
    pem_text = type(pair)(certificate, pair.key).certificate_pem.decode()
    return {"user": {"username": "jane"}, "expirationTimestamp": rfc3339(EPOCH + life), "certificate": pem_text}


def token(**changed: Any) -> Obj:
    return {"user": {"username": "jane"}, "expirationTimestamp": rfc3339(EPOCH + HOUR), "token": "t", **changed}


def test_a_token_is_kept_with_its_end() -> None:
    assert exchanged(lambda body: token(), TOKEN) == Credential("jane", EPOCH, EPOCH + HOUR, token=Secret("t"))
    assert Client.sent == {}


def test_a_certificate_is_kept_with_the_key_that_never_left() -> None:
    credential = exchanged(certified, CERTIFICATE)
    assert credential.expires == EPOCH + HOUR
    assert credential.key is not None
    assert b"PRIVATE KEY" in credential.key.reveal()
    assert "PRIVATE" not in str(Client.sent)


def another_key(body: Obj) -> Obj:
    pair = CA.client("jane")
    return {**certified(body), "certificate": pair.certificate_pem.decode()}


def raises(error: MooringError) -> Callable[[Obj], Any]:
    def answer(body: Obj) -> Any:
        raise error

    return answer


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        pytest.param(another_key, CERTIFICATE, "certified another key", id="a certificate for another key"),
        pytest.param(
            lambda body: certified(body, "root"), CERTIFICATE, "of another user than it says", id="of another user"
        ),
        pytest.param(
            lambda body: certified(body, life=timedelta(seconds=5)),
            CERTIFICATE,
            "compare the clocks",
            id="that has ended",
        ),
        pytest.param(lambda body: {**certified(body), "certificate": "x"}, CERTIFICATE, "something else", id="no PEM"),
        pytest.param(lambda body: token(), CERTIFICATE, "something else", id="a token for a certificate"),
        pytest.param(lambda body: token(token=None), TOKEN, "something else", id="no token"),
        pytest.param(lambda body: token(user=[]), TOKEN, "something else", id="a user that is none"),
        pytest.param(lambda body: token(expirationTimestamp="soon"), TOKEN, "something else", id="no end"),
        pytest.param(
            lambda body: token(expirationTimestamp=rfc3339(EPOCH)),
            TOKEN,
            "compare the clocks",
            id="a token that has ended",
        ),
        pytest.param(raises(UnauthorizedError()), TOKEN, "does not accept the credentials", id="401"),
        pytest.param(
            raises(ForbiddenError('forbidden: User "system:anonymous" cannot post path "/mooring/v1/login"')),
            TOKEN,
            "ignores the credentials",
            id="a server that takes no passwords",
        ),
        pytest.param(raises(NotFoundError("x")), TOKEN, "offers no login", id="404 of a Kubernetes server"),
        pytest.param(
            raises(NotKubernetesError("asking", "status 404 without a Kubernetes Status")),
            TOKEN,
            "offers no login",
            id="404 of anybody",
        ),
        pytest.param(raises(NotKubernetesError("asking", "not JSON")), TOKEN, "not one of a Kubernetes", id="no JSON"),
    ],
)
def test_what_is_not_kept(answer: Callable[[Obj], Any], kind: str, message: str) -> None:
    with pytest.raises(PeerError, match=message):
        exchanged(answer, kind)


def test_a_certificate_that_does_not_verify_names_the_flags_unless_a_ca_was_named() -> None:
    refused = raises(CertificateError("asking https://a", "no such issuer"))
    with pytest.raises(CertificateError, match="another machine may answer in its place"):
        exchanged(refused, TOKEN)
    with pytest.raises(PeerError, match=r"--certificate-authority, or its pin with --discovery-token-ca-cert-hash$"):
        exchanged(refused, TOKEN, Place("https://a", b""))


def test_the_reason_of_the_server_is_told_as_it_is() -> None:
    with pytest.raises(ForbiddenError, match=r"^no login: because$"):
        exchanged(raises(ForbiddenError("no login: because")), TOKEN)


def test_another_kind_of_key_than_was_made_is_another_key() -> None:
    other = rsa_key(2048)
    certificate = CA.sign(profiles.client(other.public_key(), EPOCH, "jane"), other)
    with pytest.raises(PeerError, match="certified another key"):
        exchanged(lambda body: {**certified(body), "certificate": certificate.certificate_pem.decode()}, CERTIFICATE)


EXPLAINED = "; an administrator of a Mooring server learns the reason with: mooring auth explain 6e0a3f5a-9a52"
TOKEN_CAUSE = "the token has expired, or is of another issuer, audience or cluster"


@pytest.mark.parametrize(
    ("user", "cause"),
    [
        pytest.param(USER, "a wrong user name or password", id="a password"),
        pytest.param(KubeconfigUser("", token=Secret("t")), TOKEN_CAUSE, id="a token"),
        pytest.param(KubeconfigUser("", token_file="t"), TOKEN_CAUSE, id="a file with a token"),
        pytest.param(
            KubeconfigUser("", certificate_file="c"), "they have expired, or are of another cluster", id="a certificate"
        ),
    ],
)
@pytest.mark.parametrize("audit_id", ["", "6e0a3f5a-9a52"], ids=["without an id", "with an id"])
def test_refused_credentials_are_explained_by_their_kind_and_the_audit_id(
    user: KubeconfigUser, cause: str, audit_id: str
) -> None:
    error = LoginRefusedError("https://a", user, audit_id)
    assert str(error) == f"https://a does not accept the credentials: {cause}{EXPLAINED if audit_id else ''}"


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(UnauthorizedError(), id="401"),
        pytest.param(ForbiddenError('User "system:anonymous" cannot post path "/mooring/v1/login"'), id="ignored"),
    ],
)
def test_a_refusal_names_the_command_that_explains_it(error: ApiError) -> None:
    with pytest.raises(PeerError) as caught:
        exchanged(raises(with_id(error)), TOKEN)
    assert str(caught.value).endswith(EXPLAINED)
