"""Exchanges of an agent that joins the k3s way: trust in the cluster's CA, requests to its supervisor, and their responses."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_address
from types import MappingProxyType
from typing import Any

from cryptography.x509.oid import ExtendedKeyUsageOID

from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX, NODES
from mooring.pki import pem
from mooring.pki.errors import PkiError
from mooring.pki.keys import UNREADABLE, PrivateKey, accepted_public_key, public_key_der
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.certificate import Certificate
from mooring.secret import Secret
from mooring.settings.addresses import parse_endpoint
from mooring.trust.answertext import answer_text, in_brackets, is_mooring_response
from mooring.trust.discovery.errors import DiscoveryError, RefusedAnswerError
from mooring.trust.discovery.fetch import DiscoveryExchange, Notice, Polling, Rounds, connection_error
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
from mooring.trust.k3s.identity import (
    APISERVERS,
    CACERTS,
    CLIENT_CA,
    CLIENT_CONTROLLER,
    CLIENT_KUBE_PROXY,
    CLIENT_KUBELET,
    CONFIG,
    NODE_IP,
    NODE_NAME,
    NODE_PASSWORD,
    READYZ,
    SERVER_CA,
    SERVING_KUBELET,
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
from mooring.trust.k3s.token import NODE, K3sToken
from mooring.trust.kubeconfig import KubeconfigUser

# Responses of a k3s supervisor that an agent reads: configuration, API servers, CA bundles and issued certificates.
#
# Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
# * A certificate is used only with the key that this machine made. A response with a private key, as older servers of k3s send it,
#   is refused.
# * The subject of a certificate must be the one that was asked for, because a Node is named by it.
# * Fields that an agent of Mooring does not need are not read. A list that is null is empty: Go writes a list that was never filled
#   so.

MAX_APISERVERS = 64
"""API servers of one cluster: more than any has."""
KUBE_PROXY = "system:kube-proxy"
CONTROLLER = "system:k3s-controller"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A certificate that an agent asks for: its path, whether the request names the node, and what it must contain."""

    path: str
    names_node: bool = False
    serves: bool = False

    @property
    def name(self) -> str:
        """Name of the files, such as `client-kubelet`."""
        return self.path.rpartition("/")[2].removesuffix(".crt")

    def common_name(self, node_name: str) -> str:
        """Return the common name of the certificate for this node."""
        return _COMMON_NAMES.get(self.path, node_name if self.serves else NODE_PREFIX + node_name)


SERVING = Wanted(SERVING_KUBELET, names_node=True, serves=True)
KUBELET = Wanted(CLIENT_KUBELET, names_node=True)
WANTED = (SERVING, KUBELET, Wanted(CLIENT_KUBE_PROXY), Wanted(CLIENT_CONTROLLER))
"""Every certificate of an agent, in the order of k3s's requests."""
_COMMON_NAMES: Mapping[str, str] = MappingProxyType({CLIENT_KUBE_PROXY: KUBE_PROXY, CLIENT_CONTROLLER: CONTROLLER})


@dataclass(frozen=True, slots=True)
class SupervisorConfiguration:
    """The part of `/v1-k3s/config` that an agent of Mooring uses. 0 stands for a port that is not named."""

    https_port: int = 0
    supervisor_port: int = 0

    @property
    def api_port(self) -> int:
        """Port of the API server where it differs from that of the supervisor; 0 where it does not."""
        return self.https_port if self.supervisor_port and self.https_port != self.supervisor_port else 0


def read_configuration(step: str, body: bytes) -> SupervisorConfiguration:
    """Return the configuration in a response. Raises UnusableResponseError."""
    value = _json(step, body)
    if not isinstance(value, dict):
        raise UnusableResponseError(step, "the response is not the JSON object of a supervisor's configuration")
    return SupervisorConfiguration(_port(value.get("HTTPSPort")), _port(value.get("SupervisorPort")))


def read_apiservers(step: str, body: bytes) -> tuple[str, ...]:
    """Return the addresses (`host:port`) of the API servers in a response. Raises UnusableResponseError."""
    value = _json(step, body)
    value = [] if value is None else value
    if not isinstance(value, list) or len(value) > MAX_APISERVERS:
        raise UnusableResponseError(step, "the response is not a short JSON list of API servers")
    found = []
    for one in value:
        try:
            endpoint = parse_endpoint(str(one), "apiservers", 0)
        except ConfigError:
            continue
        if endpoint.port:
            found.append(str(endpoint))
    return tuple(dict.fromkeys(found))


def read_bundle(step: str, body: bytes) -> bytes:
    """Return the CA bundle in a response as it was sent. Raises UnusableResponseError."""
    try:
        bundles.certificates(body)
    except PkiError as error:
        raise UnusableResponseError(step, f"the response is not a bundle of CAs: {error}") from None
    return body


def read_certificate(
    step: str, body: bytes, wanted: Wanted, node_name: str, key: PrivateKey, now: datetime
) -> tuple[Certificate, ...]:
    """Return the issued certificate and the CAs after it. Raises UnusableResponseError for any but the wanted one."""
    try:
        # First: a key that came over the network is not used, even where the rest is right.
        if any("PRIVATE KEY" in block.label for block in pem.blocks(body)):
            raise UnusableResponseError(
                step,
                "the server made the key itself and sent it; this machine uses only keys that it made: update the server",
            )
        chain = bundles.certificates(body)
        public = public_key_der(accepted_public_key(chain[0].public_key()))
    except (PkiError, *UNREADABLE) as error:
        raise UnusableResponseError(step, f"the response is not a certificate: {error}") from None
    # Before its content: a certificate of another key is of no use here, whatever it says.
    if public != public_key_der(key):
        raise UnusableResponseError(step, "the certificate is for another key than the one in the request")
    if problem := _problem(chain[0], wanted, node_name, now):
        raise UnusableResponseError(step, problem)
    return chain


def is_usable(leaf: Certificate, wanted: Wanted, node_name: str, now: datetime) -> bool:
    """Return True when a certificate that is kept is the wanted one, and valid now."""
    return not _problem(leaf, wanted, node_name, now)


def has_addresses(leaf: Certificate, addresses: Iterable[str]) -> bool:
    """Return True when a certificate is for each of these IP addresses."""
    found = names.alternative_names(leaf.extensions).ips
    return {canonical_address(ip_address(text)) for text in addresses} <= set(found)


def _problem(leaf: Certificate, wanted: Wanted, node_name: str, now: datetime) -> str:
    subject, common_name = leaf.subject, wanted.common_name(node_name)
    if names.common_name(subject) != common_name:
        return f'the certificate does not name "{common_name}"'
    if wanted is KUBELET and NODES not in names.organizations(subject):
        return f"the certificate is not one of the group {NODES}"
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if wanted.serves else ExtendedKeyUsageOID.CLIENT_AUTH
    purposes = leaf.extensions.extended_key_usage
    if purposes is None:
        return "the certificate names no purpose"
    if purpose not in purposes:
        return "the certificate is for another purpose"
    if not leaf.not_valid_before_utc <= now < leaf.not_valid_after_utc:
        period = f"{rfc3339(leaf.not_valid_before_utc)} to {rfc3339(leaf.not_valid_after_utc)}"
        return f"the certificate is valid from {period}, and this machine's clock says {rfc3339(now)}"
    return ""


def _json(step: str, body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise UnusableResponseError(step, "the response is not JSON") from None


def _port(value: object) -> int:
    return value if type(value) is int and 0 < value < 65536 else 0


# Requests of an agent that joins the k3s way: trust in the cluster's CA, then requests to its supervisor, as exchanges.
#
# Rules kept here (docs/protocol/k3s.md#join-of-an-agent):
# * Trust comes first. `/cacerts` is fetched with the machine's own roots, then without verification, then verified by the bundle
#   that was just fetched. Nothing secret is sent before.
# * A hash in the token is always compared. From then on only the certificates that it vouches for are trusted.
# * Without a hash the machine's roots decide. Where they do not verify the server, its CA is trusted on first use, with a
#   warning.
# * A request carries one credential: the client certificate of this machine while there is one, else the token. After 401 it is
#   sent once more with the token. A server that then accepts it has ended the membership of the certificate, which is offered no
#   more.
# * The text of an answer is shown, of a k3s server's in plain text as well (`mooring.trust.answertext`).
# * 403 to a request with a node's name is final, and the error repeats the server's reason. 401 and 403 to the credential are
#   final at once from a Mooring server: its refusals have an Audit-Id, and it says what it is at `/version`, unless it serves no
#   anonymous requests. From another server they are final after REFUSED_ROUNDS, because one that has just started may refuse
#   valid credentials. 429, 5xx and missing responses are repeated, 5 to 10 seconds apart, for as long as the polling allows. Each
#   server is asked in turn.

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
    # First with the roots of this machine: where they verify the server, no hash is needed.
    reply = yield from rounds.send(HttpRequest(BY_ROOTS, url=request))
    if isinstance(reply, HttpFailure) and reply.kind in (UNREACHABLE, TIMEOUT, NOT_TLS, PROXY):
        raise connection_error(step, reply)
    is_proven = isinstance(reply, HttpResponse) and reply.status == 200
    # With a hash the CA is compared also where the roots verify the server. k3s does not do that.
    if is_proven and not ca_hash:
        yield Notice(f"{url} is verified by the CAs of this machine, and the token names no other")
        return TrustedCa(url, b"")
    if not is_proven:
        # Nothing secret is sent: the bundle is compared with the hash, or is trusted on first use.
        reply = yield from rounds.send(HttpRequest(UNPROVEN, url=request))
    bundle = _content(step, reply)
    try:
        anchors = check_ca_hash(bundle, ca_hash) if ca_hash else bundles.certificates_pem(bundles.certificates(bundle))
    except CaHashError as error:
        raise CaMismatchError(f"comparing the CA from {url} with the hash in the token", str(error)) from None
    except PkiError as error:
        raise UnusableResponseError(step, f"the response is not a bundle of CAs: {error}") from None

    step = f"fetching the CA from {url} again with TLS verified"
    # The server at this address must have a certificate of the CA, before the token is sent to it.
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
        # A bundle that only adds CAs cannot lock the machine out.
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
                    # Another server of the cluster would refuse it, too.
                    if error.final:
                        raise
                    last = error
                else:
                    # The one that answered is asked first from now on.
                    self.urls = (url, *(one for one in self.urls if one != url))
                    return body
            # There was a server, and none answered.
            assert last is not None
            # Counted in a row: a server that has just started may refuse valid credentials.
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
            # The cluster may have another CA by now. What to do differs from a first join.
            if self._is_kept and reply.kind == CERTIFICATE:
                raise KnownCaError(step, reply.text)
            raise connection_error(step, reply)
        if 200 <= reply.status < 300:
            if certificate is None and self.certificate is not None:
                # Only once the token was accepted: a server that refuses both has ended no membership.
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
