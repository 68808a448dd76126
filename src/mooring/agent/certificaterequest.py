"""Certificate requests of a node: what each asks for, sending one or reusing an earlier one, and the wait for its certificate."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import ClassVar

from mooring import base64url
from mooring.agent.pairfiles import Pair
from mooring.agent.steps import REFUSALS, Backoff, JoinError, describe_validity, reason_of, run_beside, with_deadline
from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.schema import Obj
from mooring.apimachinery.watchevent import DELETED
from mooring.client.cluster import ClusterClient, ListResult
from mooring.client.listwatch import follow
from mooring.duration import format_duration
from mooring.errors import AlreadyExistsError, MooringError, NotFoundError, PeerError
from mooring.identity import NODE_PREFIX, NODES
from mooring.pki.errors import PkiError
from mooring.pki.keys import PrivateKey, algorithm_of, public_key_der, public_key_of
from mooring.pki.x509 import bundles, names
from mooring.pki.x509.authority import check_matches_request
from mooring.pki.x509.canonicalnames import canonical_address
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.names import IPAddress
from mooring.pki.x509.profiles import CLIENT_AUTH, DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, SERVER_AUTH
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING
from mooring.secret import Secret
from mooring.trust import nodename, requestfacts

# Certificates that a node wants: subject, alternative names, signer and usages (docs/protocol/kubelet-certificates.md).
#
# Rules kept here:
# * CN `system:node:<name>`, O `system:nodes`. Usages are digital signature and the purpose, and key encipherment with RSA keys
#   only.
# * The names of a serving certificate are the addresses of the Node, sorted. Without an IP address none is requested.
# * A certificate satisfies its template while it has every name of it. Names beyond those do not matter, as for kubelet.

_IP_TYPES = ("InternalIP", "ExternalIP")
_DNS_TYPES = ("Hostname", "InternalDNS", "ExternalDNS")


@dataclass(frozen=True, slots=True)
class CertificateTemplate:
    """Certificate that a node wants."""

    node_name: str
    signer: str = KUBE_APISERVER_CLIENT_KUBELET
    purpose: str = CLIENT_AUTH
    dns: tuple[str, ...] = ()
    ips: tuple[IPAddress, ...] = ()

    @property
    def common_name(self) -> str:
        return NODE_PREFIX + self.node_name

    def usages(self, key: PrivateKey) -> tuple[str, ...]:
        """Return the usages for a certificate of `key`."""
        if algorithm_of(key).startswith("RSA"):
            return (DIGITAL_SIGNATURE, KEY_ENCIPHERMENT, self.purpose)
        return (DIGITAL_SIGNATURE, self.purpose)

    def request_pem(self, key: PrivateKey, challenge_password: str = "") -> bytes:
        """Return the certificate request as PEM. Raises RequestError for a DNS name outside ASCII."""
        return build_request(key, self.common_name, (NODES,), self.dns, self.ips, challenge_password)

    def is_satisfied_by(self, leaf: Certificate) -> bool:
        """Return True when the certificate has the subject and every name of this template."""
        if names.common_name(leaf.subject) != self.common_name or NODES not in names.organizations(leaf.subject):
            return False
        found = names.alternative_names(leaf.extensions)
        return set(self.dns) <= set(found.dns) and set(self.ips) <= set(found.ips)


def serving_template(node_name: str, addresses: Iterable[Obj]) -> CertificateTemplate | None:
    """Return the template for the addresses in a Node's status; None without an IP address, as kubelet since 1.31.

    Addresses of loopback are left out: no node is certified for them.
    """
    dns: set[str] = set()
    ips: set[IPAddress] = set()
    for one in addresses:
        kind, address = one.get("type"), str(one.get("address", ""))
        try:
            ip = canonical_address(ip_address(address))
        except ValueError:
            if kind in _DNS_TYPES and address:
                dns.add(address)
        else:
            if kind in (*_IP_TYPES, *_DNS_TYPES):
                ips.add(ip)
    if not ips:
        return None
    ordered = tuple(sorted((ip for ip in ips if not ip.is_loopback), key=lambda one: (one.version, int(one))))
    return CertificateTemplate(node_name, KUBELET_SERVING, SERVER_AUTH, tuple(sorted(dns)), ordered)


# Certificate request of a node: send it or reuse an earlier one, and wait for its certificate.
#
# Rules kept here (docs/protocol/kubelet-certificates.md):
# * A join names its request by a digest of key, subject and usages, so that one key sends one request, however often a join runs.
#   An existing request with that name is reused only when it has the same subject, signer and key, and no expired certificate. One
#   that waits for a person is not reused with another token, which may need none.
# * A renewal lets the server choose the name (`csr-…`) and never reuses a request.
# * The wait is a list and a watch. Denied and Failed end it with their reason, and so do deletion and replacement.
# * Progress names the request, the command that approves it, and the remaining time: after 2 s, when the request changes, and
#   every 30 s.
# * 401 and 403 end the wait only after a minute: an API server that restarts refuses valid credentials for a moment.

PLURAL = "certificatesigningrequests"
HELD = "NeedsApproval"
"""Condition of a request that a Mooring server leaves to a person. It says why."""
GENERATED = "csr-"
"""kubelet's `generateName`."""
QUIET_SECONDS = 2.0
"""Seconds without progress messages: a running approver and signer need less."""
POLL_SECONDS = 3.0
"""Seconds between two readings of a request that cannot be watched: a person decides about it."""
REPEAT_SECONDS = 30.0
"""Seconds between two equal progress messages."""


class RequestEndedError(PeerError):
    """The request was denied, failed, deleted or replaced. Another request needs a new key.

    `reason` is that of the condition, "" without one. After TOKEN_USED_UP only another token helps. `outcome` is the message
    without the name of the request.
    """

    def __init__(self, message: str, reason: str = "", outcome: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        self.outcome = outcome or message


def lasting_reason(error: MooringError) -> str:
    """Return the reason of a failure without the parts that differ in each attempt: loops log each reason once."""
    ended = error.__cause__ if isinstance(error, JoinError) else error
    return ended.outcome if isinstance(ended, RequestEndedError) else reason_of(error)


class ForeignRequestError(PeerError):
    """A request with this name exists and cannot be reused."""


class NotAnsweredError(PeerError):
    """The request was not approved and signed in time. It stays pending, and the key is kept."""


@dataclass(frozen=True, slots=True)
class Advice:
    """Ends of error messages: what follows a request that ended, and one that was not decided in time."""

    ended: str
    undecided: str


ONE_SHOT = Advice("join again to make a new one", "then join again: it goes on with the same request")
RENEWAL = Advice("a request with a new key follows", "or its successor, which follows with a new key")


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """One certificate request of a node. An empty `name` lets the server choose one. `expiration_seconds` 0 names no lifetime."""

    name: str
    pem: bytes
    usages: tuple[str, ...]
    signer: str = KUBE_APISERVER_CLIENT_KUBELET
    expiration_seconds: int = 0
    facts: Mapping[str, str] = field(default_factory=dict)
    """Words of the machine about itself (`mooring.trust.requestfacts`)."""
    requester: str = ""
    """User that makes the request; "" where it is not known."""

    KIND: ClassVar[str] = "CertificateSigningRequest"

    def obj(self) -> Obj:
        spec: Obj = {
            "request": base64.b64encode(self.pem).decode(),
            "signerName": self.signer,
            "usages": list(self.usages),
        }
        if self.expiration_seconds:
            spec["expirationSeconds"] = self.expiration_seconds
        metadata: Obj = {"name": self.name} if self.name else {"generateName": GENERATED}
        if self.facts:
            metadata["annotations"] = requestfacts.as_annotations(self.facts)
        return {"kind": self.KIND, "apiVersion": "certificates.k8s.io/v1", "metadata": metadata, "spec": spec}


def node_request(
    key: PrivateKey, node_name: str, expiration_seconds: int = 0, machine_code: Secret | None = None
) -> NodeRequest:
    """Return the request of a join for a client certificate of `node_name` with `key`, and with the proof of a machine code."""
    wanted = CertificateTemplate(node_name)
    usages = wanted.usages(key)
    name = request_name(key, wanted.common_name, (NODES,), usages)
    challenge = nodename.proof(machine_code, node_name, public_key_der(key)) if machine_code is not None else ""
    return NodeRequest(name, wanted.request_pem(key, challenge), usages, wanted.signer, expiration_seconds)


def renewal_request(key: PrivateKey, wanted: CertificateTemplate, expiration_seconds: int = 0) -> NodeRequest:
    """Return the request of a renewal, whose name the server chooses."""
    return NodeRequest("", wanted.request_pem(key), wanted.usages(key), wanted.signer, expiration_seconds)


def request_name(key: PrivateKey, common_name: str, organizations: Sequence[str], usages: Sequence[str]) -> str:
    """Return the name `node-csr-<digest>`, as kubelet computes it."""
    digest = hashlib.new("sha512_256")
    for part in (public_key_der(key), *(text.encode() for text in (common_name, *organizations, *usages))):
        digest.update(base64url.encode(part).encode() + b"|")
    return "node-csr-" + base64url.encode(digest.digest())


async def send_request(client: ClusterClient, request: NodeRequest, key: PrivateKey, now: datetime) -> tuple[Obj, bool]:
    """Return the stored request, and True when it existed before. Raises ForeignRequestError, ApiError, PeerError."""
    try:
        return await client.create(PLURAL, request.obj()), False
    except AlreadyExistsError:
        # The name follows from the key: after a crash the run finds its own request, and continues with it.
        existing = await client.get(PLURAL, request.name)
    except NotFoundError:
        raise PeerError("the server has no certificates.k8s.io/v1 API: it is older than Kubernetes 1.19") from None
    difference = _difference(existing, request, key, now)
    if difference:
        raise ForeignRequestError(f"the request {request.name} exists and cannot be taken up: {difference}")
    return existing, True


def _difference(existing: Obj, request: NodeRequest, key: PrivateKey, now: datetime) -> str:
    """Return the reason why an existing request cannot be reused; empty when it can."""
    spec = existing.get("spec") or {}
    if spec.get("signerName") != request.signer:
        return "it asks another signer"
    if request.expiration_seconds and spec.get("expirationSeconds") != request.expiration_seconds:
        return "it asks for another lifetime"
    try:
        stored, wanted = parse_request(base64_field(spec.get("request"))), parse_request(request.pem)
    except PkiError as error:
        return str(error)
    if stored.subject != wanted.subject:
        return "it has another subject"
    if public_key_der(stored.public_key) != public_key_der(public_key_of(key)):
        return "it was made with another key"
    if wanted.challenge_password not in ("", stored.challenge_password):
        return "it has no proof of this machine code"
    if not requestfacts.has_facts(existing, request.facts):
        return "it says other things of this machine"
    issued = certificate_of(existing)
    if not issued and request.requester not in ("", spec.get("username")) and _is_held(existing):
        # It stays held, whatever the token of now allows.
        return "it waits for a person, and was made with another token"
    if issued:
        try:
            if any(one.not_valid_after_utc <= now for one in bundles.certificates(issued)):
                return "its certificate has expired"
        except PkiError as error:
            return str(error)
    return ""


def _is_held(request: Obj) -> bool:
    found = {one.get("type") for one in (request.get("status") or {}).get("conditions") or ()}
    return HELD in found and "Approved" not in found


async def wait(
    client: ClusterClient,
    request: Obj,
    seconds: float,
    report: Callable[[str, bool], None] = lambda message, new: None,
    advice: Advice = ONE_SHOT,
    *,
    polls: bool = False,
) -> bytes:
    """Return the issued certificate as PEM. `report` is called with the state of the request, and True when it changed.

    `polls`: read the request again and again, for a requester that may not watch.
    Raises RequestEndedError, NotAnsweredError, ApiError, PeerError.
    """
    metadata = request["metadata"]
    waiting = _Waiting(client, metadata["name"], metadata.get("uid", ""), seconds, report, advice, polls=polls)
    try:
        return await with_deadline(client.clock, seconds, run_beside(waiting.report_states(), waiting.run()))
    except TimeoutError:
        raise NotAnsweredError(waiting.timeout_message()) from None


class _Waiting:
    def __init__(
        self,
        client: ClusterClient,
        name: str,
        uid: str,
        seconds: float,
        report: Callable[[str, bool], None],
        advice: Advice,
        *,
        polls: bool,
    ) -> None:
        self._polls = polls
        self._client = client
        self._name = name
        self._uid = uid
        self._seconds = seconds
        self._report = report
        self._advice = advice
        self._deadline = client.clock.monotonic() + seconds
        self._approved = False
        self._held = ""
        self._failure: MooringError | None = None
        self._changed = asyncio.Event()
        self._backoff = Backoff(client.clock, client=client)

    async def run(self) -> bytes:
        while True:
            try:
                return await (self._poll() if self._polls else self._watch())
            except REFUSALS as error:
                self._record_failure(error)
                await self._backoff.pause_after(error)

    async def _watch(self) -> bytes:
        changes = follow(
            self._client, PLURAL, field_selector=f"metadata.name={self._name}", on_failure=self._record_failure
        )
        async with aclosing(changes):
            async for change in changes:
                if self._failure is not None:
                    self._failure = None
                    self._changed.set()
                self._backoff.reset()
                if isinstance(change, ListResult):
                    objects = change.items or ({},)
                else:
                    objects = (change.object if change.type != DELETED else {},)
                for obj in objects:
                    issued = self._certificate_in(obj)
                    if issued:
                        return issued
        raise AssertionError("unreachable: following does not end")

    async def _poll(self) -> bytes:
        obj: Obj | None
        while True:
            try:
                obj = await self._client.get(PLURAL, self._name)
            except NotFoundError:
                obj = {}
            except REFUSALS:
                raise
            except MooringError as error:
                self._record_failure(error)
                obj = None
            if obj is not None:
                if self._failure is not None:
                    self._failure = None
                    self._changed.set()
                self._backoff.reset()
                if issued := self._certificate_in(obj):
                    return issued
            await self._client.clock.sleep(POLL_SECONDS)

    async def report_states(self) -> None:
        """Report the state when it changes and every REPEAT_SECONDS, after the first QUIET_SECONDS."""
        await self._client.clock.sleep(QUIET_SECONDS)
        new = True
        while True:
            self._changed.clear()
            left = format_duration(timedelta(seconds=max(0, round(self._deadline - self._client.clock.monotonic()))))
            self._report(f"{self._state()}; waiting for up to {left} more", new)
            try:
                await with_deadline(self._client.clock, REPEAT_SECONDS, self._changed.wait())
                new = True
            except TimeoutError:
                new = False

    def _certificate_in(self, obj: Obj) -> bytes:
        if not obj:
            raise RequestEndedError(f"the request {self._name} was deleted; {self._advice.ended}", outcome="deleted")
        # A request that was deleted and made again may be for another key.
        if self._uid and obj["metadata"].get("uid") != self._uid:
            raise RequestEndedError(
                f"the request {self._name} was replaced by another; {self._advice.ended}", outcome="replaced"
            )
        conditions = {one.get("type"): one for one in (obj.get("status") or {}).get("conditions") or ()}
        # Before the certificate, as in client-go: Denied and Failed are final also where there is one.
        for kind, what in (("Denied", "was denied"), ("Failed", "could not be signed")):
            if kind in conditions:
                outcome = f"{what}{reason_suffix(conditions[kind])}"
                message = f"the request {self._name} {outcome}"
                raise RequestEndedError(message, conditions[kind].get("reason", ""), outcome)
        held = reason_suffix(conditions.get(HELD, {}))
        if ("Approved" in conditions, held) != (self._approved, self._held):
            self._approved, self._held = "Approved" in conditions, held
            self._changed.set()
        return certificate_of(obj) if self._approved else b""

    def _record_failure(self, error: MooringError) -> None:
        if self._failure is None:
            self._changed.set()
        self._failure = error

    def _state(self) -> str:
        if self._failure is not None:
            return f"the server cannot be asked about the request {self._name}: {self._failure}"
        if self._approved:
            return f"the request {self._name} is approved, but no signer has issued its certificate yet"
        return f"the request {self._name} is not approved yet{self._held}; {self._how_to_approve()}"

    def _how_to_approve(self) -> str:
        return how_to_approve(self._name, is_compared=self._polls)

    def timeout_message(self) -> str:
        name, seconds = self._name, f"{self._seconds:g} s"
        if self._failure is not None:
            return f"no certificate within {seconds}: {self._failure}"
        if self._approved:
            return (
                f"the request {name} was approved, but no certificate was issued within {seconds}; "
                f"see whether the server's controllers run, {self._advice.undecided}"
            )
        undecided = f"{self._how_to_approve()}, {self._advice.undecided}"
        return f"the request {name} was not approved within {seconds}{self._held}; {undecided}"


def issued_pair(issued: bytes, key: PrivateKey, request: NodeRequest, now: datetime, skew: str = "") -> Pair:
    """Return an issued certificate with its key. `skew` is what is known of the clocks.

    Raises PeerError when the certificate does not answer the request or is not valid now.
    """
    try:
        pair = Pair(bundles.certificates(issued), key)
        check_matches_request(pair.leaf, parse_request(request.pem), now)
    except PkiError as error:
        with suppress(PkiError):
            skew = skew or describe_validity(bundles.certificates(issued)[0], now)
        advice = f"{skew}: set the clocks by NTP" if skew else "see the server's signer"
        raise PeerError(f"{error}; {advice}") from None
    return pair


def how_to_approve(name: str, *, is_compared: bool = False) -> str:
    """Return how the request `name` is approved. `is_compared`: by a person who compares the code of a machine that asks."""
    if is_compared:
        return f"compare the code of this machine, and approve it with `mooring machine approve {name}`"
    return f"approve it with `mooring csr approve {name}` or `kubectl certificate approve {name}`"


def certificate_of(request: Obj) -> bytes:
    """Return `status.certificate` as PEM; empty when there is none."""
    return base64_field((request.get("status") or {}).get("certificate"))


def reason_suffix(condition: Obj) -> str:
    """Return reason and message of a condition, in brackets; "" for one without."""
    parts = [part for part in (condition.get("reason"), condition.get("message")) if part]
    return f" ({': '.join(parts)})" if parts else ""
