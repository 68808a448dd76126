"""podcertificaterequest-signing-controller: signs the certificates of Pods for signers of the operator's own.

Rules kept here (docs/protocol/pod-certificate-requests.md#own-signers):
* A request is signed where the signing policy gives its signer a trust domain, and the signer has a CA. Other requests are left to
  other programs.
* The certificate is an X.509-SVID of SPIFFE. Its one name is computed from the namespace and the ServiceAccount of the Pod, and of
  what the requester chose only the key gets into it. Without a subject it authenticates no user of an API server.
* The issuance checks see a request as one of the ServiceAccount, so that the rules of the policy are for it. The node that asks for
  its Pod is judged as a requester, too.
* The identity of a Pod ends with its Pod. What a view does not show is waited for while a request is young: the view may lag.
* Denied and Failed are final, and a kubelet gives up. What may pass is waited for: an object that cannot be read, a tombstone that
  is not settled, a CA that ends.
* The judgement is repeated when the certificate is published. The issuance log gets an entry before.
* The serial number follows from the uid of the request. A device that holds the key signs in a thread.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType

from mooring.api.certificates.podcertificaterequest import (
    DEFAULT_SECONDS,
    PENDING,
    PLURAL,
    account_problem,
    pod_problem,
    state_of,
)
from mooring.api.certificates.podrequestvalidation import DENIED, FAILED, ISSUED, requested_key
from mooring.api.mooring import tombstones
from mooring.api.objectmeta import spec_of
from mooring.api.signername import MIN_SECONDS
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.actions import (
    Action,
    CommitPrecondition,
    Entropy,
    InThread,
    Key,
    RecordIssuance,
    Requeue,
    Retry,
    Update,
)
from mooring.controllers.certificates.issuance import Hold, IssuanceCheck, PendingIssue, find, watched
from mooring.controllers.certificates.requester import NODES, SERVICE_ACCOUNTS, RequesterCheck
from mooring.controllers.certificates.signing.signer import REASON, issued_entry
from mooring.controllers.certificates.signing.signingpolicy import SigningPolicy
from mooring.duration import format_duration
from mooring.errors import quoted
from mooring.identity import AUTHENTICATED, NODE_PREFIX, service_account_groups, service_account_username
from mooring.pki.errors import IssueError, RequestError
from mooring.pki.x509 import profiles
from mooring.pki.x509.authority import Authority, request_serial_number
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.distinguishedname import NO_NAME
from mooring.pki.x509.names import AlternativeNames, service_account_id
from mooring.pki.x509.profiles import Template
from mooring.pki.x509.requests import CertificateRequest, has_key_alone

PODS = "pods"
UNSUPPORTED_KEY = "UnsupportedKeyType"
UNKNOWN_ANNOTATIONS = "InvalidUnverifiedUserAnnotations"
"""Reasons of Kubernetes."""
STUB_NOT_EMPTY = "StubRequestNotEmpty"
POD_NOT_FOUND = "PodNotFound"
LIFETIME_TOO_SHORT = "LifetimeTooShort"
SHORTEST = timedelta(seconds=MIN_SECONDS)
"""The API server refuses a certificate that lives shorter."""
_AN_HOUR = "the certificate of a Pod lives for an hour at least"
SETTLED_AFTER = timedelta(minutes=1)
"""Age of a request from which on what it names must be in the views. A view that lags for longer judges nothing."""
KEY_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "ECDSAP256": "ECDSA-P256",
        "ECDSAP384": "ECDSA-P384",
        "ECDSAP521": "ECDSA-P521",
        "ED25519": "Ed25519",
        "RSA3072": "RSA-3072",
        "RSA4096": "RSA-4096",
    }
)
"""Values of `keyType` of a volume, each with the name of the algorithm."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A condition that ends a request without a certificate."""

    condition: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Delay:
    """A reason for which a request cannot be signed yet."""

    reason: str


@dataclass(frozen=True, slots=True)
class PodSigner:
    """Signs requests of Pods for every signer with a trust domain and an authority."""

    authority_for: Callable[[str], Authority | None]
    """Returns the authority that signs for a signer now; None for a signer that is left to other programs."""
    signing_duration: timedelta
    policy: Callable[[], SigningPolicy]
    """Returns the signing policy in force."""
    checks: tuple[IssuanceCheck, ...] = ()
    name: str = "podcertificaterequest-signing-controller"
    _of_node: RequesterCheck = field(default_factory=RequesterCheck, repr=False, compare=False)

    @property
    def watches(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((PLURAL, PODS, SERVICE_ACCOUNTS, NODES, *watched((*self.checks, self._of_node)))))

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural != PLURAL or deleted or self._authority_of(obj) is None:
            return ()
        return ((obj["metadata"]["namespace"], obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        namespace, name = key
        request = views[PLURAL].get(name, namespace)
        authority = None if request is None else self._authority_of(request)
        if request is None or authority is None:
            return ()
        # After a restore, a tombstone that waits to be settled may be about this Pod: nothing is issued meanwhile.
        if tombstones.refusal(views):
            return (Requeue(now + tombstones.UNSETTLED_FOR),)
        pending = self._judge(request, views, now)
        if not isinstance(pending, PendingIssue):
            return _unsigned(request, pending, now)
        template = self._template(request, pending, authority)
        if not isinstance(template, Template):
            return _unsigned(request, template, now)
        rule = self.policy().rule_for(pending)
        sign = partial(
            _sign,
            request,
            pending,
            template,
            authority,
            self._holds(request, template),
            rule is not None and rule.fresh_key,
        )
        return (InThread(sign),) if authority.in_device else sign()

    def _authority_of(self, request: Obj) -> Authority | None:
        """Return the authority that is to sign a request; None for one that is decided, or that is left to another program."""
        signer = spec_of(request).get("signerName", "")
        if state_of(request) != PENDING or signer not in self.policy().trust_domains:
            return None
        return self.authority_for(signer)

    def _judge(self, request: Obj, views: Views, now: datetime) -> PendingIssue | Refusal | Delay:
        """Return the issuance for a request, or what stands between the request and its certificate."""
        spec = spec_of(request)
        try:
            key = requested_key(spec)
        except RequestError as error:
            return Refusal(FAILED, REASON, str(error))
        stub = spec.get("stubPKCS10Request")
        if stub and not has_key_alone(base64.b64decode(stub)):
            return Refusal(DENIED, STUB_NOT_EMPTY, "stubPKCS10Request has a subject or attributes beside its key")
        if annotations := spec.get("unverifiedUserAnnotations"):
            message = f"the signer knows no userAnnotations, and the volume has {quoted(min(annotations))}"
            return Refusal(DENIED, UNKNOWN_ANNOTATIONS, message)
        signer = spec["signerName"]
        trust_domain = self.policy().trust_domains.get(signer)
        if trust_domain is None:
            return Delay(f"the signing policy no longer lets {signer} sign for Pods")
        namespace, account = request["metadata"]["namespace"], spec["serviceAccountName"]
        name = service_account_id(trust_domain, namespace, account)
        pending = PendingIssue(
            csr=_as_of_account(request),
            request=CertificateRequest(NO_NAME, key, AlternativeNames(uris=(name,))),
            now=now,
            automatic=True,
        )
        # Failed is final, and a kubelet gives up. The view may lag, so a young request waits for its Pod.
        if problem := _pod_problem(request, views, now):
            return Delay(problem) if _is_young(request, now) else Refusal(FAILED, POD_NOT_FOUND, problem)
        return self._key_refusal(pending) or self._hold(request, pending, views) or pending

    def _key_refusal(self, pending: PendingIssue) -> Refusal | None:
        """Return the refusal of a key that the rule does not allow, with the types that it allows."""
        rule = self.policy().rule_for(pending)
        problem = "" if rule is None else rule.key_refusal(pending.request.key_algorithm)
        if rule is None or not problem:
            return None
        allowed = [word for word, algorithm in KEY_TYPES.items() if not rule.key_refusal(algorithm)]
        advice = f"; set keyType of the volume to {' or '.join(allowed)}" if allowed else ""
        message = f'the signing policy of {pending.signer_name}: rule "{rule.name}": {problem}{advice}'
        return Refusal(DENIED, UNSUPPORTED_KEY, message)

    def _hold(self, request: Obj, pending: PendingIssue, views: Views) -> Refusal | Delay | None:
        """Return what the issuance checks object, to the account of the Pod and to the node that asks for it."""
        of_node = replace(pending, csr=_as_of_node(request, pending.csr))
        for finding in (find(self.checks, pending, views), self._of_node.check(of_node, views)):
            if isinstance(finding, Hold):
                return Refusal(DENIED, finding.reason, finding.message) if finding.denies else Delay(finding.message)
        return None

    def _template(self, request: Obj, pending: PendingIssue, authority: Authority) -> Template | Refusal | Delay:
        """Return the template of the certificate, or why it would live too short."""
        longest = min(
            timedelta(seconds=spec_of(request).get("maxExpirationSeconds") or DEFAULT_SECONDS),
            self.signing_duration,
            self.policy().max_lifetime(pending) or self.signing_duration,
        )
        if longest < SHORTEST:
            limit = f"the policy and --cluster-signing-duration allow {format_duration(longest)}"
            return Refusal(FAILED, LIFETIME_TOO_SHORT, f"{limit}, and {_AN_HOUR}")
        asked = pending.request
        template = profiles.pod(asked.public_key, asked.alternative_names, pending.now, longest)
        template = template.ending_by(authority.not_after)
        if template.not_after - template.not_before < SHORTEST:
            return Delay(f"the CA ends at {rfc3339(authority.not_after)}, and {_AN_HOUR}")
        return template

    def _holds(self, request: Obj, template: Template) -> CommitPrecondition:
        """Return the judgement of the certificate at its commit: that of the plan, with the same name."""

        def precondition(views: Views, now: datetime) -> bool:
            judged = None if tombstones.refusal(views) else self._judge(request, views, now)
            return isinstance(judged, PendingIssue) and judged.request.alternative_names == template.alternative_names

        return precondition


def _as_of_account(request: Obj) -> Obj:
    """Return the request as a CertificateSigningRequest of the ServiceAccount, which its checks and the issuance log read."""
    metadata, spec = request["metadata"], spec_of(request)
    namespace, account = metadata["namespace"], spec["serviceAccountName"]
    return {
        "metadata": {**metadata, "name": f"{namespace}/{metadata['name']}"},
        "spec": {
            "signerName": spec["signerName"],
            "username": service_account_username(namespace, account),
            "uid": spec["serviceAccountUID"],
            "groups": [*service_account_groups(namespace), AUTHENTICATED],
            "usages": profiles.POD_USAGES,
        },
    }


def _as_of_node(request: Obj, csr: Obj) -> Obj:
    """Return such a request as one of the node of the Pod."""
    return {**csr, "spec": {**csr["spec"], "username": f"{NODE_PREFIX}{spec_of(request)['nodeName']}"}}


def _pod_problem(request: Obj, views: Views, now: datetime) -> str:
    """Return why the Pod, its account or its node are not those of the request; "" when they are."""
    spec, namespace = spec_of(request), request["metadata"]["namespace"]
    pod = views[PODS].get(spec["podName"], namespace)
    if pod is None:
        return f"pod {quoted(namespace + '/' + spec['podName'])} does not exist"
    account = views[SERVICE_ACCOUNTS].get(spec["serviceAccountName"], namespace)
    if account is None:
        return f"service account {quoted(namespace + '/' + spec['serviceAccountName'])} does not exist"
    node = views[NODES].get(spec["nodeName"])
    if node is None or node["metadata"].get("uid") != spec["nodeUID"]:
        return f"node {quoted(spec['nodeName'])} with the uid {spec['nodeUID']} does not exist"
    return pod_problem(pod, spec, now) or account_problem(account, spec)


def _is_young(request: Obj, now: datetime) -> bool:
    try:
        return now < parse_rfc3339(request["metadata"].get("creationTimestamp") or "") + SETTLED_AFTER
    except (ValueError, OverflowError):
        return False


def _refresh_time(template: Template) -> datetime:
    """Return when the kubelet asks for the next certificate: when a third of the lifetime is left."""
    return template.not_after - (template.not_after - template.not_before) / 3


def _unsigned(request: Obj, finding: Refusal | Delay, now: datetime) -> Sequence[Action]:
    """Return the action for a request that gets no certificate now."""
    if isinstance(finding, Delay):
        return (Retry(finding.reason),)
    return (_decided(request, now, finding.condition, finding.reason, finding.message),)


def _decided(
    request: Obj,
    now: datetime,
    kind: str,
    reason: str,
    message: str,
    precondition: CommitPrecondition | None = None,
    **issued: str,
) -> Action:
    condition = {
        "type": kind,
        "status": "True",
        "lastTransitionTime": rfc3339(now),
        "reason": reason,
        "message": message,
    }
    return Update(PLURAL, {**request, "status": {"conditions": [condition], **issued}}, "status", precondition)


def _sign(
    request: Obj,
    pending: PendingIssue,
    template: Template,
    authority: Authority,
    precondition: CommitPrecondition,
    fresh_key: bool,
) -> Sequence[Action]:
    """Return the entry of the issuance log and the update that carries the certificate, or the reason why there is none.

    Raises DeviceError.
    """
    now = pending.now
    try:
        certificate = authority.sign(template, now, request_serial_number(request["metadata"]["uid"]))
    except IssueError as error:
        return (_decided(request, now, FAILED, REASON, str(error)),)
    issuer = authority.certificate
    chain = (certificate,) if issuer.is_issued_by(issuer) else (certificate, issuer)
    (name,) = template.alternative_names.uris
    entry = issued_entry(pending.csr, certificate, authority, now, trusts_source_address=False)
    update = _decided(
        request,
        now,
        ISSUED,
        ISSUED,
        f"the certificate is for {name}",
        precondition,
        certificateChain=certificates_pem(chain).decode(),
        notBefore=rfc3339(template.not_before),
        beginRefreshAt=rfc3339(_refresh_time(template)),
        notAfter=rfc3339(template.not_after),
    )
    # The issuance log gets its entry before the certificate is published: no certificate exists without a record.
    return (RecordIssuance(entry, fresh_key), update)
