"""Requests of an agent that joins the k3s way: trust in the cluster's CA, then requests to its supervisor, as exchanges.

Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
* Trust comes first. `/cacerts` is fetched with the machine's own roots, then without verification, then verified by the bundle that
  was just fetched. Nothing secret is sent before.
* A hash in the token is always compared, also when the machine's own roots verify the server, and from then on only the
  certificates that it vouches for are trusted. k3s compares it only where the machine's roots do not verify the server.
* Without a hash the machine's roots decide. Where they do not verify the server, its CA is trusted on first use, with a warning.
* A request carries one credential: the client certificate of this machine while there is one, else the token. After 401 it is sent
  once more with the token. A server that then accepts it has ended the membership of the certificate, which is offered no more.
* The text of an answer is shown, of a k3s server's in plain text as well (`mooring.trust.answertext`).
* 403 to a request with a node's name is final, and the error repeats the server's reason. 401 and 403 to the credential are final
  at once from a Mooring server: its refusals have an Audit-Id, and it says what it is at `/version`, unless it serves no anonymous
  requests. From another server they are final after REFUSED_ROUNDS,
  because one that has just started may refuse valid credentials. 429, 5xx and missing responses are repeated, 5 to 10 seconds
  apart, for as long as the polling allows. Each server is asked in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.secret import Secret
from mooring.trust.answertext import answer_text, in_brackets
from mooring.trust.discovery.errors import DiscoveryError, RefusedAnswerError
from mooring.trust.discovery.fetch import connection_error
from mooring.trust.discovery.notices import DiscoveryExchange, Notice
from mooring.trust.discovery.polling import Polling, Rounds
from mooring.trust.gitversion import is_mooring_response
from mooring.trust.httpexchange import (
    CERTIFICATE,
    NOT_TLS,
    PROXY,
    TIMEOUT,
    TLS_ALERT,
    UNREACHABLE,
    HttpFailure,
    HttpRequest,
    HttpResponse,
    Trust,
    send,
)
from mooring.trust.k3s.cahash import CaHashError, check_ca_hash
from mooring.trust.k3s.headers import (
    APISERVERS,
    CACERTS,
    CLIENT_CA,
    CONFIG,
    NODE_IP,
    NODE_NAME,
    NODE_PASSWORD,
    READYZ,
    SERVER_CA,
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
from mooring.trust.k3s.responses import (
    SupervisorConfiguration,
    Wanted,
    read_apiservers,
    read_bundle,
    read_configuration,
)
from mooring.trust.k3s.token import NODE, K3sToken
from mooring.trust.kubeconfig.model import KubeconfigUser

JOIN_POLLING = Polling(interval=7.5, jitter=1 / 3)
"""k3s's pause of 5 seconds with a jitter factor of 1.0: 5 to 10 seconds. The total is that of kubeadm's discovery."""
REFUSED_ROUNDS = 4
"""Rounds in which credentials may be refused, 15 to 30 seconds. A server may limit an address after 20 refusals."""
WRONG_PASSWORD = ("unable to verify password for node", "unable to verify hash for node")
"""Starts of the message with which k3s and Mooring reject a node password: that of today, and that of older servers."""
FORBIDDEN = "forbidden"
"""Message to a credential that may not use the path, which says nothing about a node."""


BY_ROOTS = Trust(is_k3s=True)
"""Verification of a server by the roots of this machine."""
UNPROVEN = Trust(verify=False, is_k3s=True)
"""No verification: the response proves itself, or is compared afterwards."""


@dataclass(frozen=True, slots=True)
class TrustedCa:
    """A server that passed, and the CAs to verify it with from now on. Without CAs the machine's own roots verify it."""

    url: str
    ca_pem: bytes

    @property
    def trust(self) -> Trust:
        return Trust(self.ca_pem, is_k3s=True)


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Name, password and addresses of a node, as its requests state them. `password_file` is named in errors."""

    name: str
    password: Secret
    addresses: tuple[str, ...]
    password_file: str
    external_addresses: tuple[str, ...] = ()

    @property
    def all_addresses(self) -> tuple[str, ...]:
        return (*self.addresses, *self.external_addresses)


def establish_trust(urls: Sequence[str], ca_hash: str, polling: Polling = JOIN_POLLING) -> DiscoveryExchange[TrustedCa]:
    """Return the first server that passes, and its CAs. `ca_hash` is that of the token, or empty. Raises DiscoveryError."""
    rounds = Rounds(polling)
    return (yield from rounds.first_that_passes(urls, lambda url: _trust_of(url, ca_hash, rounds)))


def _trust_of(url: str, ca_hash: str, rounds: Rounds) -> DiscoveryExchange[TrustedCa]:
    request = url + CACERTS
    yield Notice(f"Fetching the CA of the cluster from {url}")
    step = f"fetching the CA of the cluster from {url}"
    reply = yield from rounds.send(HttpRequest(BY_ROOTS, url=request))
    if isinstance(reply, HttpFailure) and reply.kind in (UNREACHABLE, TIMEOUT, NOT_TLS, PROXY):
        raise connection_error(step, reply)
    is_proven = isinstance(reply, HttpResponse) and reply.status == 200
    if is_proven and not ca_hash:
        yield Notice(f"{url} is verified by the CAs of this machine, and the token names no other")
        return TrustedCa(url, b"")
    if not is_proven:
        reply = yield from rounds.send(HttpRequest(UNPROVEN, url=request))
    bundle = _content(step, reply)
    try:
        anchors = check_ca_hash(bundle, ca_hash) if ca_hash else bundles.certificates_pem(bundles.certificates(bundle))
    except CaHashError as error:
        raise CaMismatchError(f"comparing the CA from {url} with the hash in the token", str(error)) from None
    except PkiError as error:
        raise UnusableResponseError(step, f"the response is not a bundle of CAs: {error}") from None

    step = f"fetching the CA from {url} again with TLS verified"
    reply = yield from rounds.send(HttpRequest(Trust(anchors, is_k3s=True), url=request))
    if isinstance(reply, HttpFailure) and reply.kind == CERTIFICATE:
        raise CaNotProvenError(step, reply.text)
    _content(step, reply)
    if ca_hash:
        yield Notice(f"The CA of {url} is the one that the token names")
    else:
        yield Notice(
            f"warning: the token carries no hash of the CA, so the CA of {url} is trusted on first use: an attacker on the way "
            "could pose as the cluster; use the whole token (K10<hash>::…) of the server",
            keep=True,
        )
    return TrustedCa(url, anchors)


def _content(step: str, reply: HttpResponse | HttpFailure) -> bytes:
    if isinstance(reply, HttpFailure):
        raise connection_error(step, reply)
    if reply.status != 200:
        raise _refusal_without_credential(step, reply.status, answer_text(reply.body))
    return reply.body


def _refusal_without_credential(step: str, status: int, text: str) -> DiscoveryError:
    if status == 429:
        return BusyError(step, text or "too many machines join at this moment")
    return RefusedAnswerError(step, status, text) if status >= 500 else NotASupervisorError(step, status, text)


def prove_ca(step: str, url: str, ca_pem: bytes) -> DiscoveryExchange[None]:
    """Prove that these CAs verify the server at `url`. Raises CaNotProvenError, and DiscoveryError when none answers."""
    reply = yield from send(HttpRequest(Trust(ca_pem, is_k3s=True), url=url + CACERTS))
    if isinstance(reply, HttpFailure):
        raise CaNotProvenError(step, reply.text) if reply.kind == CERTIFICATE else connection_error(step, reply)


class SupervisorClient:
    """Requests to the supervisors of one trusted cluster, the one that answered last first."""

    def __init__(
        self,
        urls: Sequence[str],
        trust: Trust,
        *,
        certificate: KubeconfigUser | None = None,
        token: K3sToken | None = None,
        is_kept: bool = False,
        polling: Polling = JOIN_POLLING,
    ) -> None:
        """`is_kept`: the CAs of `trust` are those that an earlier run kept."""
        self.urls = tuple(dict.fromkeys(urls))
        self.trust = trust
        self.certificate = certificate
        self.is_certificate_refused = False
        """True after a server refused the certificate and accepted the token for the same request."""
        self._token = token
        self._is_kept = is_kept
        self._polling = polling

    def fetch_configuration(self) -> DiscoveryExchange[SupervisorConfiguration]:
        """Return the configuration of the cluster. Raises DiscoveryError."""
        step = "reading the configuration of the cluster"
        return read_configuration(step, (yield from self._ask(step, HttpRequest("", url=CONFIG))))

    def fetch_client_ca(self) -> DiscoveryExchange[bytes]:
        """Return the CAs that sign client certificates. Raises DiscoveryError."""
        step = "reading the CA of clients"
        return read_bundle(step, (yield from self._ask(step, HttpRequest("", url=CLIENT_CA))))

    def fetch_server_ca(self) -> DiscoveryExchange[bytes]:
        """Return the CAs that verify the servers. Raises DiscoveryError.

        A bundle that drops a CA which is trusted now must verify the server: a machine that kept another one could not come back.
        """
        step = "reading the CA of servers"
        bundle = read_bundle(step, (yield from self._ask(step, HttpRequest("", url=SERVER_CA))))
        trusted = self.trust.ca_pem
        if trusted and not set(bundles.certificates_among(trusted)) <= set(bundles.certificates(bundle)):
            yield from prove_ca(f"proving the new CA of {self.urls[0]}", self.urls[0], bundle)
        return bundle

    def fetch_apiservers(self) -> DiscoveryExchange[tuple[str, ...]]:
        """Return the addresses of the API servers, as `host:port`. Raises DiscoveryError."""
        step = "reading the addresses of the API servers"
        return read_apiservers(step, (yield from self._ask(step, HttpRequest("", url=APISERVERS))))

    def check_ready(self) -> DiscoveryExchange[None]:
        """Return when a server says that it is ready, or has no such check. Raises DiscoveryError."""
        try:
            yield from self._ask("waiting until the server is ready", HttpRequest("", url=READYZ))
        except NotASupervisorError:
            return

    def request_certificate(self, wanted: Wanted, request_der: bytes, node: NodeIdentity) -> DiscoveryExchange[bytes]:
        """Return the response to a certificate request, a PKCS#10 in DER. Raises DiscoveryError."""
        headers: tuple[tuple[str, str], ...] = ()
        secret_headers: tuple[tuple[str, Secret], ...] = ()
        if wanted.names_node:
            headers = ((NODE_NAME, node.name), (NODE_IP, ",".join(node.all_addresses)))
            secret_headers = ((NODE_PASSWORD, node.password),)
        request = HttpRequest(
            "", method="POST", url=wanted.path, headers=headers, body=request_der, secret_headers=secret_headers
        )
        return (
            yield from self._ask(
                f"asking for the certificate {wanted.name}", request, node if wanted.names_node else None
            )
        )

    def _ask(self, step: str, request: HttpRequest, node: NodeIdentity | None = None) -> DiscoveryExchange[bytes]:
        """Return the body of the first response with status 2xx. `request` lacks the server, its trust, and the credential."""
        rounds, refused = Rounds(self._polling), 0
        while True:
            last: DiscoveryError | None = None
            for url in self.urls:
                if last is not None:
                    yield rounds.report(last)
                try:
                    body = yield from self._ask_one(f"{step} from {url}", url, request, node, rounds)
                except DiscoveryError as error:
                    if error.final:
                        raise
                    last = error
                else:
                    self.urls = (url, *(one for one in self.urls if one != url))
                    return body
            assert last is not None  # there was a server, and none answered
            refused = refused + 1 if isinstance(last, CredentialRefusedError) else 0
            wait = rounds.next_wait()
            if wait is None or refused == REFUSED_ROUNDS or isinstance(last, NotASupervisorError):
                raise last
            is_recorded = isinstance(last, CredentialRefusedError) and last.is_recorded
            if refused == 1 and (is_recorded or (yield from self._is_mooring(self.urls[-1]))):
                raise last
            yield rounds.report(last, retried=True)
            yield wait

    def _ask_one(
        self, step: str, url: str, request: HttpRequest, node: NodeIdentity | None, rounds: Rounds
    ) -> DiscoveryExchange[bytes]:
        certificate = self.certificate
        reply = yield from rounds.send(self._request(url, request, certificate or self._bearer()))
        if certificate is not None and self._token is not None and self._is_certificate_refused_by(reply):
            yield Notice(
                f"{step}: the server does not accept the certificate of this machine; asking with the token", keep=True
            )
            certificate = None
            reply = yield from rounds.send(self._request(url, request, self._bearer()))
        if isinstance(reply, HttpFailure):
            if self._is_kept and reply.kind == CERTIFICATE:
                raise KnownCaError(step, reply.text)
            raise connection_error(step, reply)
        if 200 <= reply.status < 300:
            if certificate is None and self.certificate is not None:
                self.certificate, self.is_certificate_refused = None, True
            return reply.body
        raise self._refusal(step, reply, certificate, node)

    def _is_mooring(self, url: str) -> DiscoveryExchange[bool]:
        """Return True when the server at `url`, which has refused a credential, says to anonymous requests that it is Mooring."""
        reply = yield from send(HttpRequest(self.trust, url=f"{url}/version"))
        return isinstance(reply, HttpResponse) and reply.status == 200 and is_mooring_response(reply.body)

    def _is_certificate_refused_by(self, reply: HttpResponse | HttpFailure) -> bool:
        """Return True for 401, and when the handshake ended: a proxy may refuse a client certificate of a CA that was replaced."""
        if isinstance(reply, HttpFailure):
            return reply.kind == TLS_ALERT or (reply.broken and not self._is_kept)
        return reply.status == 401

    def _request(self, url: str, request: HttpRequest, credentials: KubeconfigUser | None) -> HttpRequest:
        return replace(request, target=self.trust, url=url + request.url, credentials=credentials)

    def _bearer(self) -> KubeconfigUser | None:
        """Return the token as a credential: a bearer token, or user `node` with a password."""
        token = self._token
        if token is None:
            return None
        if token.bootstrap is not None:
            return KubeconfigUser(NODE, token=Secret(token.bootstrap.reveal()))
        return KubeconfigUser(NODE, username=NODE, password=token.password)

    def _refusal(
        self, step: str, reply: HttpResponse, certificate: KubeconfigUser | None, node: NodeIdentity | None
    ) -> DiscoveryError:
        said = self._repeated(reply.body, node)
        audit_id = self._repeated(reply.headers.get("audit-id", "").encode(), node)
        detail = in_brackets(said)
        if reply.status == 400:
            return RequestRefusedError(step, detail)
        if reply.status == 403 and node is not None and said != FORBIDDEN:
            if said.startswith(WRONG_PASSWORD):
                return NodePasswordRefusedError(step, node.name, said, node.password_file, audit_id)
            return NodeRefusedError(step, node.name, said, audit_id)
        if reply.status in (401, 403):
            if certificate is not None:
                return CertificateAloneRefusedError(step, reply.status, detail, audit_id)
            token = self._token
            id_of_token = f' "{token.bootstrap.id}"' if token is not None and token.bootstrap is not None else ""
            return CredentialRefusedError(
                step,
                reply.status,
                f"the token{id_of_token}: it is unknown, has expired, was deleted or revoked, its secret is wrong, or it is not "
                "for the network of this machine, or not for agents",
                detail,
                audit_id,
            )
        return _refusal_without_credential(step, reply.status, said)

    def _repeated(self, body: bytes, node: NodeIdentity | None) -> str:
        """Return what the server says, in one line; "" when it says nothing, or repeats a secret of this machine."""
        known = [node.password] if node is not None else []
        if self._token is not None:
            bootstrap = self._token.bootstrap
            known += [one for one in (self._token.password, bootstrap and bootstrap.secret) if one]
        return answer_text(body, known, (NODE,))
