"""Serve POST `/v1-k3s/<name>.crt`: a certificate for the key of a PKCS#10 request in DER, by a CertificateSigningRequest.

Rules kept here (docs/protocol/k3s.md#certificates, docs/adr/0052-certificates-of-k3s-agents.md):
* The request of the machine is verified with its own key, and nothing but this key is used. Anything else is 400. There
  is not a key of the server that a client without a request would get.
* The certificates of kube-proxy and of k3s's controller, whose users all machines share, are bound to a machine: it offers the
  client certificate of its kubelet.
* The two certificates of a kubelet need the name of a node and its password, as headers. A node asks for itself only, and only
  while its Node exists.
* A request that would be held or denied stores no node password, and is written without one. It stays that request until it is
  decided, so that a person can approve it. A serving certificate is not approved by itself without a password: once nothing else
  stands against it, the agent that asks again stores its password, and its proven request takes the place of the first.
* The handler writes a CertificateSigningRequest as the user, with what the server states about it, and waits until the controllers
  of this or of another server have decided. The object stays.
* The name of the object follows from key, name, addresses, password and user. A client that asks again meets its request, and not
  another one. A decision is repeated for REPEATED_FOR from its own time; then the request is made again in place of the old one.
  A certificate that was revoked since is not repeated: the new request is denied for a revoked key.
* A client of k3s waits ten seconds. It is answered before: 503 says under which name the request waits.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from cryptography.hazmat.primitives.asymmetric import rsa

from mooring.api.certificates.requestrecords import APPROVED, DENIED, FAILED, conditions_of
from mooring.api.certificates.requeststate import is_undecided
from mooring.api.kind import Change
from mooring.api.kinds import BY_PLURAL
from mooring.api.mooring.membership import has_ended, is_terminating
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.tombstones import refuse_unsettled
from mooring.api.view import Views
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.options import DeleteOptions, ListOptions, WriteOptions
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.selectors import parse_field_selector
from mooring.authn.revocations import revoked
from mooring.authn.serviceaccount import ISSUED_CREDENTIAL_ID
from mooring.clock import Clock, parse_rfc3339, rfc3339
from mooring.controllers.certificates.issuance import NEEDS_APPROVAL
from mooring.controllers.certificates.sanpolicy.ownership import MEMBERSHIP_ENDED, NAME_TAKEN
from mooring.controllers.certificates.sanpolicy.rules import REASONS as REASONS_OF_NAMES
from mooring.errors import (
    AlreadyExistsError,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ServiceUnavailableError,
    UnauthorizedError,
)
from mooring.identity import NODE_PREFIX, NODES, UserInfo
from mooring.pki import pem
from mooring.pki.errors import RequestError
from mooring.pki.x509 import bundles
from mooring.pki.x509.bundles import key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.clientcertificate import PathCertificate, RecordedCertificate
from mooring.pki.x509.profiles import BACKDATE
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import (
    CREDENTIAL,
    K3S_CONTROLLER_CLIENT,
    K3S_KUBE_PROXY_CLIENT,
    K3S_KUBELET_CLIENT,
    K3S_KUBELET_SERVING,
    NODE_IP,
    NODE_NAME,
    NODE_PASSWORD,
    NODE_SIGNERS,
    node_address,
    usages_of,
)
from mooring.registry.store import Registry
from mooring.secret import Secret
from mooring.server.endpoints.supervisor.nodepasswords import NodePasswords
from mooring.server.requestcontext import RequestContext
from mooring.server.response.render import content_type
from mooring.server.transport.http import Request, Response
from mooring.trust.k3s import identity
from mooring.trust.k3s.nodepassword import MAX_PASSWORD, SUFFIX

MAX_REQUEST = 10 << 10
"""Bytes of a certificate request. One for an RSA key of 8192 bits takes about 3 kB."""
MAX_NODE_NAME = 253 - len(SUFFIX)
"""Characters of a node name: the Secret of its password has it in its own name."""
MAX_NODE_IPS = 16
WAIT_SECONDS = 8.0
"""A client of k3s ends its request after ten seconds. Two are left for the network."""
REPEATED_FOR = timedelta(minutes=1)
"""Time for which the same request gets the same answer: a client that lost it asks again within seconds."""
MAX_TRIES = 3
"""Attempts when the request is replaced by another server, or cleaned up, meanwhile."""

SIGNERS: Mapping[str, str] = MappingProxyType(
    {
        identity.SERVING_KUBELET: K3S_KUBELET_SERVING,
        identity.CLIENT_KUBELET: K3S_KUBELET_CLIENT,
        identity.CLIENT_KUBE_PROXY: K3S_KUBE_PROXY_CLIENT,
        identity.CLIENT_CONTROLLER: K3S_CONTROLLER_CLIENT,
    }
)
"""Signer of each path."""

_CSRS = BY_PLURAL["certificatesigningrequests"]
_DECISIONS = (APPROVED, DENIED, FAILED)
_FINAL_REFUSALS = (NAME_TAKEN, MEMBERSHIP_ENDED)
"""Reasons for which a request is held and an agent is told that it is refused: it then names the host name and the password."""
_PEM = content_type("text/plain")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class NodeCertificates:
    """Parts that have certificates of machines issued."""

    registry: Registry
    passwords: NodePasswords
    chain_for: Callable[[str], Sequence[Certificate]]
    """Returns the CAs that are sent behind a certificate of a signer, the one that signed it first."""
    clock: Clock
    would_approve: Callable[[Obj], bool]
    """Return true when a request that is not written yet would be approved without a person."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A certificate that a machine wants: the request to write, and its name."""

    name: str
    signer: str
    request_pem: bytes
    usages: tuple[str, ...]
    attested: Mapping[str, tuple[str, ...]]


def refuse_guesses(context: RequestContext, issuing: NodeCertificates) -> None:
    """Refuse a request of a source that guesses node passwords. Raises TooManyRequestsError."""
    name = _node_name(context.request)
    issuing.passwords.refuse_guesses(name, context.request.connection.network)


async def certificate(context: RequestContext, issuing: NodeCertificates) -> Response:
    """Answer with the certificate and the CAs behind it, as PEM. Raises ApiError."""
    try:
        return Response(200, await _issued_chain(context, issuing), (_PEM,))
    except ApiError as error:
        context.rejected_reason = context.rejected_reason or error.message  # the operator finds it under the Audit-Id
        raise


async def _issued_chain(context: RequestContext, issuing: NodeCertificates) -> bytes:
    """Return the certificate and the CAs behind it."""
    signer = SIGNERS[context.request.path]
    request_pem, parsed = _certificate_request(context.request.method, await context.request.body())
    node = _Node.of(context.request, context.user) if signer in NODE_SIGNERS else None
    registry = issuing.registry
    # A revocation or a deletion that another server has acknowledged must be seen before a certificate is issued.
    if not registry.cache.ready or not await registry.reader.fresh():
        raise ServiceUnavailableError("runtime core not ready")
    refuse_unsettled(registry.views)
    attested: dict[str, tuple[str, ...]] = {CREDENTIAL: (context.outcome.authenticator,)}
    if node is not None:
        attested |= _stated(node, signer)
        # The name of the request follows from its password, too: it is computed without one first, and again below.
        unproven = _wanted(context.user, signer, request_pem, parsed, attested)
        attested |= await _verified_password(context, issuing, node, unproven)
    else:
        attested[NODE_NAME] = (_machine(context),)
    wanted = _wanted(context.user, signer, request_pem, parsed, attested)
    context.annotations["supervisor.mooring.dev/request"] = context.created = wanted.name
    try:
        async with asyncio.timeout(WAIT_SECONDS):
            found = await _issued(context, issuing, wanted)
    except TimeoutError:
        raise ServiceUnavailableError(
            f"the certificate request {wanted.name} was not decided within {WAIT_SECONDS:.0f} s; ask again"
        ) from None
    # The request waited for its decision, or met an earlier one. The credential may have been revoked meanwhile.
    await context.confirm()
    # Tombstones may have become unsettled while the request waited.
    refuse_unsettled(registry.views)
    leaf = bundles.first_certificate(found)
    context.annotations[ISSUED_CREDENTIAL_ID] = f"X509SHA256={leaf.fingerprint}"
    return bundles.certificates_pem([leaf, *issuing.chain_for(signer)])


def _certificate_request(method: str, body: bytes) -> tuple[bytes, CertificateRequest]:
    """Return the request of the machine as PEM, and parsed. Raises BadRequestError."""
    if method != "POST":
        raise BadRequestError("POST a certificate request in DER: this server makes no private keys for others")
    if not body or len(body) > MAX_REQUEST:
        raise BadRequestError(
            f"the body must be a certificate request (PKCS#10) in DER, of at most {MAX_REQUEST} bytes"
        )
    if body.lstrip()[:5] == b"-----":
        raise BadRequestError("the certificate request is PEM: send it in DER")
    text = pem.encode(pem.CERTIFICATE_REQUEST, body)
    try:
        return text, parse_request(text)
    except RequestError as error:
        raise BadRequestError(f"the body is no certificate request (PKCS#10) in DER: {error}") from None


def _node_name(request: Request) -> str:
    """Return the name that the headers state, with ASCII letters in lower case. Other letters may become ASCII, such as U+212A."""
    return request.exact_header(identity.NODE_NAME.encode()).lower().decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Node:
    """The node that a request names, with its password."""

    name: str
    password: Secret
    addresses: tuple[str, ...]
    is_own: bool
    """True for a request that a node makes with its own certificate."""

    @classmethod
    def of(cls, request: Request, user: UserInfo) -> _Node:
        """Read the headers of a request. Raises BadRequestError."""
        name = _node_name(request)
        if not name:
            raise BadRequestError("node name not set")
        password = request.exact_header(identity.NODE_PASSWORD.encode())
        if not password:
            raise BadRequestError("node password not set")
        if len(name) > MAX_NODE_NAME or dns1123_subdomain_errors(name):
            raise BadRequestError(
                f"the node name must be a DNS name in lower case, of at most {MAX_NODE_NAME} characters"
            )
        if len(password) > MAX_PASSWORD:
            raise BadRequestError(f"the node password has more than {MAX_PASSWORD} bytes")
        is_node = user.username.startswith(NODE_PREFIX) and NODES in user.groups
        if is_node and user.username != NODE_PREFIX + name:
            raise BadRequestError("header node name does not match auth node name")
        return cls(name, Secret(password), _addresses(request.header(identity.NODE_IP.encode())), is_node)


def _addresses(text: str) -> tuple[str, ...]:
    """Return the addresses of the header, each once and in one form. Raises BadRequestError."""
    parts = text.split(",") if text else []
    if len(parts) > MAX_NODE_IPS:
        raise BadRequestError(f"more than {MAX_NODE_IPS} node IP addresses")
    try:
        return tuple(dict.fromkeys(str(node_address(part.strip())) for part in parts))
    except RequestError:
        raise BadRequestError("invalid node IP address: give addresses separated by commas") from None


def _stated(node: _Node, signer: str) -> dict[str, tuple[str, ...]]:
    """Return what the server states about a node, without its password."""
    stated: dict[str, tuple[str, ...]] = {NODE_NAME: (node.name,)}
    if signer == K3S_KUBELET_SERVING and node.addresses:
        stated[NODE_IP] = node.addresses
    return stated


async def _verified_password(
    context: RequestContext, issuing: NodeCertificates, node: _Node, unproven: _Wanted
) -> dict[str, tuple[str, ...]]:
    """Return what the server states about the password of a node; nothing when none is stored, and the request waits without one.

    `unproven`: the request without a password. Raises UnauthorizedError, and what the password raises.
    """
    # The certificate of a deleted Node must not renew itself: its machine joins again with a token.
    present = issuing.registry.views["nodes"].get(node.name) if node.is_own else None
    if node.is_own and (present is None or is_terminating(present)):
        context.rejected_reason = "the Node of this certificate does not exist"
        raise UnauthorizedError(message="unable to verify node identity: join with a valid token")

    def may_store() -> bool:
        views, now = issuing.registry.views, issuing.clock.now()
        present = views["certificatesigningrequests"].get(unproven.name)
        if present is not None and may_be_repeated(present, views, now, issuing.chain_for(unproven.signer)):
            return unproven.signer == K3S_KUBELET_SERVING and is_undecided(present) and issuing.would_approve(present)
        csr = _object(unproven)
        csr["metadata"]["creationTimestamp"] = rfc3339(now)
        _CSRS.prepare_for_create(csr, _change(context, unproven))
        return issuing.would_approve(csr)

    uid = await issuing.passwords.verified(
        node.name, node.password, context.user.username, context.request.connection.network, context.recheck, may_store
    )
    # The password is proven now, so the proven request takes the place of the one without a password.
    waiting = issuing.registry.views["certificatesigningrequests"].get(unproven.name) if uid else None
    if waiting is not None and is_undecided(waiting):
        await _delete(issuing.registry, waiting, context)
    return {NODE_PASSWORD: (uid,)} if uid else {}


def _machine(context: RequestContext) -> str:
    """Return the name of the machine for which a certificate of a shared user is requested. Raises ForbiddenError.

    Agents offer the client certificate of their kubelet from its issue on. A token is shared, and proves no machine.
    """
    user = context.user
    if user.username.startswith(NODE_PREFIX) and NODES in user.groups:
        return user.username.removeprefix(NODE_PREFIX)
    raise ForbiddenError(
        "this certificate is bound to a machine: request the client certificate of the kubelet first, and offer it in this request"
    )


def _wanted(
    user: UserInfo,
    signer: str,
    request_pem: bytes,
    parsed: CertificateRequest,
    attested: Mapping[str, tuple[str, ...]],
) -> _Wanted:
    identity = [signer, parsed.key_fingerprint, user.username, user.uid, sorted(attested.items())]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    name = f"{signer.partition('/')[2]}-{digest[:32]}"
    usages = usages_of(signer, is_rsa=isinstance(parsed.public_key, rsa.RSAPublicKey))
    return _Wanted(name, signer, request_pem, usages, attested)


async def _issued(context: RequestContext, issuing: NodeCertificates, wanted: _Wanted) -> bytes:
    """Return the certificate that controllers issue, as PEM. Raises ApiError."""
    registry = issuing.registry
    for _ in range(MAX_TRIES):
        present = registry.views["certificatesigningrequests"].get(wanted.name)
        cas = issuing.chain_for(wanted.signer)
        if present is not None and not may_be_repeated(present, registry.views, issuing.clock.now(), cas):
            await _delete(registry, present, context)
            present = None
        if present is None:
            await _create(registry, context, wanted)
        decided = await _decided(registry, wanted.name)
        if decided is not None:
            return _certificate_in(decided)
    raise ServiceUnavailableError(f"the certificate request {wanted.name} was deleted meanwhile; ask again")


def _object(wanted: _Wanted) -> Obj:
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {"name": wanted.name},
        "spec": {
            "request": base64.b64encode(wanted.request_pem).decode(),
            "signerName": wanted.signer,
            "usages": list(wanted.usages),
        },
    }


def _change(context: RequestContext, wanted: _Wanted) -> Change:
    return Change(
        context.user,
        context.received,
        source=context.request.connection.address,
        attested=wanted.attested,
        certificate=context.outcome.certificate,
        gate=context.recheck,
        writer="supervisor",
    )


async def _create(registry: Registry, context: RequestContext, wanted: _Wanted) -> None:
    try:
        await registry.writer.create(_CSRS, "", _object(wanted), _change(context, wanted), WriteOptions())
    except AlreadyExistsError:
        # The same client requests it from another server at the same time. Its request is used.
        await registry.reader.fresh()


async def _delete(registry: Registry, csr: Obj, context: RequestContext) -> None:
    """Delete a request whose answer is not repeated, so that it can be made again."""
    metadata = csr["metadata"]
    # With uid and revision: a request that changed meanwhile, for example by an approval, is not deleted.
    options = DeleteOptions(uid=metadata["uid"], resource_version=metadata["resourceVersion"])
    try:
        change = Change(context.user, context.received, gate=context.recheck, writer="supervisor")
        await registry.writer.delete(_CSRS, "", metadata["name"], options, change)
    except (ConflictError, NotFoundError):
        await registry.reader.fresh()


async def _decided(registry: Registry, name: str) -> Obj | None:
    """Wait until a request is issued, refused or held, and return it; None when it is gone."""
    changed = asyncio.Event()
    only = ListOptions(
        watch=True,
        resource_version=str(registry.cache.revision),
        field_selector=parse_field_selector(f"metadata.name={name}"),
    )
    watch = await registry.reader.watch(_CSRS, "", only, lambda event: changed.set())
    try:
        await watch.replay()
        while True:
            csr = registry.views["certificatesigningrequests"].get(name)
            if csr is None or _has_answer(csr):
                return csr
            await changed.wait()
            changed.clear()
    finally:
        watch.close()


def _has_answer(csr: Obj) -> bool:
    """Return true when a request is issued or refused, or is held and not approved."""
    kinds = {one.get("type") for one in conditions_of(csr)}
    is_held = NEEDS_APPROVAL in kinds and APPROVED not in kinds
    return bool((csr.get("status") or {}).get("certificate")) or DENIED in kinds or FAILED in kinds or is_held


def _certificate_in(csr: Obj) -> bytes:
    """Return the certificate of a decided request. Raises ApiError."""
    text = (csr.get("status") or {}).get("certificate")
    if text:
        return base64.b64decode(text)
    raise _refusal(csr)


def _refusal(csr: Obj) -> ApiError:
    """Return the error that tells a machine why it has no certificate.

    A name or an address that is denied is 400, as what else is wrong in the headers: an agent takes 403 for a wrong node password.
    """
    name = csr["metadata"]["name"]
    found = {str(one.get("type")): one for one in conditions_of(csr)}
    refused = found.get(DENIED) or found.get(FAILED)
    if refused is not None:
        message = f"the certificate request {name} was refused: {refused.get('message', '')}"
        return BadRequestError(message) if refused.get("reason") in REASONS_OF_NAMES else ForbiddenError(message)
    held = found[NEEDS_APPROVAL]
    message = f"the certificate request {name} waits for a decision by `mooring csr review`: {held.get('message', '')}"
    return ForbiddenError(message) if held.get("reason") in _FINAL_REFUSALS else ServiceUnavailableError(message)


def may_be_repeated(csr: Obj, views: Views, now: datetime, cas: Sequence[Certificate]) -> bool:
    """Return true when a request that is there answers the same request of the same client. `cas`: those that may have issued.

    One that waits for a decision does, for as long as it waits. A decision does for a while, unless it was a certificate that was
    revoked since, or of a node whose membership has ended.
    """
    final = bool((csr.get("status") or {}).get("certificate")) or any(
        one.get("type") in (DENIED, FAILED) for one in conditions_of(csr)
    )
    if not final:
        return True
    try:
        decided = _decided_at(csr, now)
    except ValueError:
        return False
    node = next(iter(((csr.get("spec") or {}).get("extra") or {}).get(NODE_NAME) or ()), "")
    if node and has_ended(views[IDENTITIES].get(node), views["nodes"].get(node)):
        return False
    if _was_revoked(csr, node, views, now, cas):
        return False
    return now - decided < REPEATED_FOR


def _was_revoked(csr: Obj, node: str, views: Views, now: datetime, cas: Sequence[Certificate]) -> bool:
    """Return true when the denylist concerns the certificate of a request, with the issuer or without."""
    text = (csr.get("status") or {}).get("certificate")
    if not text:
        return False
    leaf = bundles.first_certificate(base64.b64decode(text))
    keys, number = key_identities(leaf), f"{leaf.serial_number:x}"
    issuers = ("", *(key_identities(ca)[0] for ca in cas))
    peer = RecordedCertificate(
        common_name="",
        node_name=node,
        fingerprint="",
        serial_number=leaf.serial_number,
        public_key=keys[0],
        issuer="",
        issued_at=leaf.not_valid_before_utc + BACKDATE,
        path=tuple(PathCertificate(number, issuer, keys) for issuer in issuers),
    )
    return revoked(peer, views, now) is not None


def _decided_at(csr: Obj, now: datetime) -> datetime:
    """Return the time of the decision: a person may decide long after the request was made. Raises ValueError.

    An approver writes the time of its decision itself: one that is still to come does not count.
    """
    decisions = [one.get("lastUpdateTime") or "" for one in conditions_of(csr) if one.get("type") in _DECISIONS]
    times = [parse_rfc3339(text) for text in (csr["metadata"].get("creationTimestamp") or "", *filter(None, decisions))]
    return max((time for time in times[1:] if time <= now), default=times[0])
