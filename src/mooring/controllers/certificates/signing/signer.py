"""The signer of certificate requests, its check of the signing policy, and the index of keys that have certificates."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from mooring.api.certificates.requestrecords import FAILED, conditions_of, source_address_of
from mooring.api.certificates.requeststate import (
    REQUESTS,
    is_approved_and_unsigned,
    is_issued,
    is_undecided,
    parsed_request,
    with_condition,
    with_status,
    without_condition,
)
from mooring.api.mooring import tombstones
from mooring.api.mooring.lineagerecord import EVENT_ISSUED, MAX_TEXT, entries_of
from mooring.api.mooring.lineagerecord import PLURAL as LINEAGE_RECORDS
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.view import NamespacedName, View, ViewFollower, Views
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
from mooring.controllers.certificates.issuance import (
    NEEDS_APPROVAL,
    WOULD_FAIL,
    CheckResult,
    Hold,
    IssuanceCheck,
    PendingIssue,
    Reservation,
    find,
    held_until,
    is_automatic,
    longest_life,
    no_hold,
    requesting_machine,
    reserved,
    watched,
)
from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy
from mooring.identity import CREDENTIAL_ID, NODE_PREFIX, bootstrap_token_id
from mooring.pki.errors import IssueError, RequestError
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.x509 import names, profiles
from mooring.pki.x509.authority import Authority, request_serial_number
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.profiles import Template, from_request
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import (
    K3S_KUBELET_CLIENT,
    KUBE_APISERVER_CLIENT_KUBELET,
    KUBELET_SERVING,
    SIGNERS,
    SUPERVISOR_SIGNERS,
    Extra,
)
from mooring.trust.joinrule import JoinRuleError, join_identity

# Issuance check `signer-policy`: refuses what the policy of the operator does not allow a signer to sign.
#
# Rules kept here:
# * A request is refused also when a person approved it: the policy binds the signer. The refusal names signer, rule and value.
# * A fresh key is one of which this cluster has no valid certificate: the issuance log has none of another request. The signer
#   claims the key by its entry of the issuance log, by compare-and-swap.
# * A cluster without the issuance log (another API server) is judged by what it has: no other CertificateSigningRequest with a
#   certificate has the key, and no NodeIdentity records it for another certificate. Issued requests are kept there for an hour.

# certificatesigningrequest-signing-controller: signs certificates of approved requests.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md):
# * Requests of the supervisor's signers are signed in a Mooring server only.
# * Requests that are Approved, not Denied, not Failed, without a certificate, and for a signer with an authority are signed.
#   Requests for other signers are left to those.
# * A request that breaks a rule of its signer, or can never become a certificate, gets the condition Failed through `/status`,
#   reason SignerValidationFailure.
# * The issuance checks are repeated, and once more when the certificate is published. A hold on an automatic approval fails
#   the request.
# * A request that waits for a person gets the condition WouldFail when it would fail after an approval, by the same judgement, so
#   that the person sees it before. It is judged again at intervals, and loses the condition when the cause went away. A request
#   that an approver decides within moments is left to the approver.
# * The profile determines the content of the certificate, the authority checks the result, and the status carries the leaf alone.
# * The issuance log gets an entry before the certificate is published.
# * An expired CA signs nothing; the request waits for a new one.
# * A device that holds the key signs in a thread. When it fails, the key is planned again. A request with thousands of
#   names is signed in a thread, too.

REASON = "SignerValidationFailure"
MAX_SIGNED_AT_ONCE = 8 << 10
"""Characters of a request, as base64, that is signed on the event loop: about 200 names, 5 ms."""
_APPROVED_BY_CONTROLLERS = frozenset({KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, *SUPERVISOR_SIGNERS})
"""Signers whose requests an approver decides about, or holds for a person."""


@dataclass(frozen=True, slots=True)
class CsrSigner:
    """Signs the requests of every signer that has an authority."""

    authority_for: Callable[[str], Authority | None]
    """Returns the authority that signs for a signer now; None for a signer that is left to other programs."""
    signing_duration: timedelta
    checks: tuple[IssuanceCheck, ...] = ()
    trusts_source_address: bool = False
    """True when the API server itself records the address of each requester, as Mooring does."""
    policy: Callable[[], SigningPolicy] = lambda: NO_POLICY
    """Returns the signing policy in force."""
    guards_extra: bool = False
    """True when the API server lets only its supervisor state who joins, as Mooring does."""
    name: str = "certificatesigningrequest-signing-controller"

    @property
    def watches(self) -> tuple[str, ...]:
        return watched(self.checks)

    def keys(self, plural: str, obj: Obj, deleted: bool, views: Views) -> Sequence[Key]:
        if plural != REQUESTS or deleted or not (self._waits_for_person(obj) or self._authority_of(obj) is not None):
            return ()
        return (("", obj["metadata"]["name"]),)

    def plan(self, key: Key, views: Views, now: datetime, entropy: Entropy) -> Sequence[Action]:
        csr = views[REQUESTS].get(key[1])
        if csr is not None and self._waits_for_person(csr):
            return self._preview(csr, views, now)
        authority = None if csr is None else self._authority_of(csr)
        if csr is None or authority is None:
            return ()
        # After a restore, a tombstone that waits to be settled may be about this machine: nothing is issued meanwhile.
        if tombstones.refusal(views):
            return (Requeue(now + tombstones.UNSETTLED_FOR),)
        if now >= authority.not_after:
            return (Retry(f"the CA expired at {rfc3339(authority.not_after)}: nothing can be signed"),)
        # The checks ran before the approval. They are repeated, because the facts may have changed since.
        judged = self._judge(csr, views, now, automatic=is_automatic(csr))
        if isinstance(judged, Hold):
            return (_mark_failed(csr, judged.message, judged.reason),)
        if isinstance(judged, Reservation):
            return reserved(judged, now)
        spec = csr["spec"]
        template = partial(
            from_request,
            judged.request,
            spec.get("usages") or (),
            now,
            spec.get("expirationSeconds"),
            self._longest(judged, views),
        )
        sign = partial(
            _sign,
            csr,
            authority,
            template,
            now,
            # It follows from the uid: records are written before the signature, and signing again repeats it.
            request_serial_number(csr["metadata"]["uid"]),
            self.trusts_source_address,
            _settled(no_hold(self.checks, judged)),
            self._wants_fresh_key(judged),
        )
        # A device may take long, and a certificate with thousands of names takes tens of milliseconds to read.
        takes_long = authority.in_device or len(csr["spec"]["request"]) > MAX_SIGNED_AT_ONCE
        return (InThread(sign),) if takes_long else sign()

    def _judge(self, csr: Obj, views: Views, now: datetime, *, automatic: bool) -> Hold | Reservation | PendingIssue:
        """Return the issuance of a request, or what stands between the request and its certificate."""
        request = _request_of(csr)
        if isinstance(request, Hold):
            return request
        pending = PendingIssue(csr=csr, request=request, now=now, automatic=automatic)
        try:
            finding = find(self.checks, pending, views)
            if finding is not None:
                return finding
            profiles.check(csr["spec"].get("usages") or ())
            return pending
        except IssueError as error:
            return Hold(REASON, str(error))

    def _waits_for_person(self, csr: Obj) -> bool:
        """Return true for a request that a person decides about, and that would be signed here."""
        name = (csr.get("spec") or {}).get("signerName", "")
        if not is_undecided(csr) or (name in SUPERVISOR_SIGNERS and not self.guards_extra):
            return False
        is_held = any(one.get("type") == NEEDS_APPROVAL for one in conditions_of(csr))
        return (is_held or name not in _APPROVED_BY_CONTROLLERS) and self.authority_for(name) is not None

    def _preview(self, csr: Obj, views: Views, now: datetime) -> Sequence[Action]:
        """Return the action that says whether the request would fail after the approval of a person."""
        finding = self._judge(csr, views, now, automatic=False)
        told = without_condition(csr, WOULD_FAIL)
        if isinstance(finding, Hold):
            present = next((one for one in conditions_of(csr) if one.get("type") == WOULD_FAIL), {})
            is_told = (present.get("reason"), present.get("message")) == (finding.reason, finding.message)
            told = csr if is_told else with_condition(csr, WOULD_FAIL, finding.reason, finding.message)
        change = () if told is csr else (Update(REQUESTS, told, "status"),)
        return (*change, Requeue(held_until(csr, now)))

    def _wants_fresh_key(self, pending: PendingIssue) -> bool:
        """Return true when the policy lets a key have one certificate."""
        rule = self.policy().rule_for(pending)
        return rule is not None and rule.fresh_key

    def _longest(self, pending: PendingIssue, views: Views) -> timedelta:
        """Return the longest lifetime of the certificate."""
        limit = self.policy().max_lifetime(pending) or self.signing_duration
        return longest_life(pending, views, min(limit, self.signing_duration))

    def _authority_of(self, csr: Obj) -> Authority | None:
        """Return the authority that is to sign the request now; None when it is in another stage, or for another signer."""
        if not is_approved_and_unsigned(csr):
            return None
        signer_name = (csr.get("spec") or {}).get("signerName", "")
        if signer_name in SUPERVISOR_SIGNERS and not self.guards_extra:
            return None
        return self.authority_for(signer_name)


def _request_of(csr: Obj) -> CertificateRequest | Hold:
    """Return the parsed request, or why no policy and no person makes its signer sign it."""
    spec = csr["spec"]
    try:
        request = parsed_request(csr)
    except RequestError as error:
        return Hold(REASON, str(error))
    except ValueError:
        return Hold(REASON, "spec.request is not base64")
    signer = SIGNERS.get(spec["signerName"])
    refusals = signer.refusals(request, spec.get("usages") or ()) if signer is not None else ()
    return Hold(REASON, "; ".join(refusals)) if refusals else request


def _settled(precondition: CommitPrecondition) -> CommitPrecondition:
    """Return the judgement of a certificate at its commit, which fails while a tombstone waits to be settled, too."""
    return lambda views, now: not tombstones.refusal(views) and precondition(views, now)


def _sign(
    csr: Obj,
    authority: Authority,
    template: Callable[[], Template],
    now: datetime,
    serial: int,
    trusts_source_address: bool,
    precondition: CommitPrecondition,
    fresh_key: bool,
) -> Sequence[Action]:
    """Return the entry of the issuance log and the update that carries the certificate, or the reason why there is none.

    Raises DeviceError.
    """
    try:
        certificate = authority.sign(template(), now, serial)
    except IssueError as error:
        return (_mark_failed(csr, str(error)),)
    text = base64.b64encode(certificates_pem([certificate])).decode()
    csr = without_condition(csr, WOULD_FAIL)
    entry = issued_entry(csr, certificate, authority, now, trusts_source_address=trusts_source_address)
    # The issuance log gets its entry before the certificate is published: no certificate exists without a record.
    return (
        RecordIssuance(entry, fresh_key),
        Update(
            REQUESTS,
            with_status(csr, certificate=text),
            "status",
            precondition,
            announcement=_issued_line(csr, entry),
            is_routine=True,
        ),
    )


def _issued_line(csr: Obj, entry: Obj) -> str:
    source = f" from {entry['sourceAddress']}" if "sourceAddress" in entry else ""
    subject = f" of {entry['subject']}" if "subject" in entry else ""  # of DNS names alone there is none
    return (
        f"the certificate {entry['serialNumber']}{subject} was issued to {requesting_machine(csr)}{source}, until "
        f"{entry['notAfter']}; its request is {entry['request']}"
    )


def _mark_failed(csr: Obj, message: str, reason: str = REASON) -> Action:
    return Update(REQUESTS, with_condition(csr, FAILED, reason, message), "status")


_KUBELET_CLIENT = (KUBE_APISERVER_CLIENT_KUBELET, K3S_KUBELET_CLIENT)


def issued_entry(
    csr: Obj, certificate: Certificate, authority: Authority, now: datetime, *, trusts_source_address: bool
) -> Obj:
    """Return the entry for a certificate that `authority` signed for the request `csr`. Values that are not known are empty."""
    spec, metadata = csr["spec"], csr["metadata"]
    subject = names.common_name(certificate.subject) or _uri(certificate)
    is_node = spec["signerName"] in _KUBELET_CLIENT and subject.startswith(NODE_PREFIX)
    requester = spec.get("username", "")
    entry = {
        "time": rfc3339(now),
        "event": EVENT_ISSUED,
        "token": bootstrap_token_id(requester),
        **_identity_entry(requester, spec.get("extra") or {}),
        "request": metadata["name"],
        "requestUID": metadata.get("uid", ""),
        "requester": requester,
        "credential": next(iter((spec.get("extra") or {}).get(CREDENTIAL_ID) or ()), ""),
        "sourceAddress": source_address_of(csr) if trusts_source_address else "",
        "signer": spec["signerName"],
        "subject": subject,
        "node": subject.removeprefix(NODE_PREFIX) if is_node else "",
        "publicKey": _fingerprint(certificate),
        "certificate": f"sha256:{certificate.fingerprint}",
        "serialNumber": f"{certificate.serial_number:x}",
        "issuer": f"sha256:{authority.key_fingerprint}",
        "notBefore": rfc3339(certificate.not_valid_before_utc),
        "notAfter": rfc3339(certificate.not_valid_after_utc),
    }
    return {name: _bounded(text) for name, text in entry.items() if text}


def _identity_entry(requester: str, extra: Extra) -> dict[str, str]:
    """Return the fields of an entry for an identity token; none for another credential, and for what another server misstates."""
    try:
        found = join_identity(requester, extra)
    except JoinRuleError:
        found = None
    if found is None:
        return {}
    names = ("joinRule", "identityIssuer", "identitySubject", "identityUse")
    return dict(zip(names, (found.rule, found.issuer, found.subject, found.use), strict=True))


def _uri(certificate: Certificate) -> str:
    """Return the first URI of a certificate; "" without one."""
    return next(iter(names.alternative_names(certificate.extensions).uris), "")


def _fingerprint(certificate: Certificate) -> str:
    return "sha256:" + public_key_fingerprint(accepted_public_key(certificate.public_key()))


def _bounded(text: str) -> str:
    """Return a text that a record accepts. Names of requests and users may hold other characters, and be longer."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:MAX_TEXT])


# Keys that have certificates: an index for rules that want a fresh key.
#
# Rules kept here:
# * The issuance log has an entry before a certificate is published, and keeps it beyond the end of the certificate. So a key is
#   known for the life of its certificate, also when the CertificateSigningRequest was deleted long ago.
# * A certificate that has ended does not count, nor does that of the request itself: its signature may be repeated.
# * Each object is read once after a change.

Certified = frozenset[tuple[str, tuple[str, datetime]]]
"""Fingerprints of keys, each with a certificate: what names it, and its end."""
_UNTIL_IT_GOES = datetime.max.replace(tzinfo=UTC)
"""End of a certificate that counts for as long as its object is there."""


class CertifiedKeys:
    """Index of the keys in one view."""

    def __init__(self, read: Callable[[Obj], Certified]) -> None:
        self._read = read
        self._follower = ViewFollower()
        self._by_object: dict[NamespacedName, Certified] = {}
        self._certificates: dict[str, dict[tuple[str, datetime], int]] = {}
        """By key: its certificates, each with the number of objects that have it."""

    def has(self, view: View, key: str, now: datetime, *, other_than: str) -> bool:
        """Return true when an object of the view has a certificate of the key that is valid at `now`, other than `other_than`."""
        self._follow(view)
        return any(name != other_than and end >= now for name, end in self._certificates.get(key, ()))

    def _follow(self, view: View) -> None:
        changes = self._follower.changes(view)
        if changes is None:
            return
        start_over, objects = changes
        if start_over:
            self._by_object.clear()
            self._certificates.clear()
        for name, obj in objects:
            for key, certificate in self._by_object.pop(name, frozenset()):
                counts = self._certificates[key]
                counts[certificate] -= 1
                if not counts[certificate]:
                    del counts[certificate]
                if not counts:
                    del self._certificates[key]
            found = frozenset() if obj is None else self._read(obj)
            if found:
                self._by_object[name] = found
            for key, certificate in found:
                counts = self._certificates.setdefault(key, {})
                counts[certificate] = counts.get(certificate, 0) + 1


def recorded_keys(record: Obj) -> Certified:
    """Return the keys in a record of the issuance log, each with the uid of its request."""
    found: set[tuple[str, tuple[str, datetime]]] = set()
    for entry in entries_of(record):
        if entry.get("event") == EVENT_ISSUED and "publicKey" in entry:
            with suppress(ValueError):
                found.add((entry["publicKey"], (entry.get("requestUID", ""), parse_rfc3339(entry.get("notAfter", "")))))
    return frozenset(found)


def _requested_keys(csr: Obj) -> Certified:
    if not is_issued(csr):
        return frozenset()
    try:
        request = parse_request(
            base64.b64decode((csr.get("spec") or {}).get("request") or "")
        )  # beside the small cache
    except (RequestError, ValueError):
        return frozenset()
    return frozenset({(f"sha256:{request.key_fingerprint}", (csr["metadata"].get("uid", ""), _UNTIL_IT_GOES))})


def _keys_of_node(identity: Obj) -> Certified:
    return frozenset(
        (str(key.get("publicKey", "")), (str(key.get("serialNumber", "")), _UNTIL_IT_GOES)) for key in keys_of(identity)
    )


POLICY_REASON = "SigningPolicy"


class SignerPolicy:
    """Checks requests against the policy in force."""

    name = "signer-policy"
    watches = (IDENTITIES,)

    def __init__(self, policy: Callable[[], SigningPolicy]) -> None:
        self._policy = policy
        self._issued = CertifiedKeys(_requested_keys)
        self._of_nodes = CertifiedKeys(_keys_of_node)
        self._issuance_log = CertifiedKeys(recorded_keys)

    def check(self, pending: PendingIssue, views: Views) -> CheckResult | None:
        policy = self._policy()
        if pending.signer_name not in policy.signers:
            return None
        rule = policy.rule_for(pending)
        if rule is None:
            return _hold(pending, f"no rule is for requests of {pending.username or 'an unknown user'}")
        problem = rule.refusal(pending.request, pending.csr["spec"].get("usages") or ())
        if not problem and rule.fresh_key and self._is_certified(pending, views):
            problem = "the key has a certificate already, and freshKey is true: make a new key and ask again"
        return _hold(pending, f'rule "{rule.name}": {problem}') if problem else None

    def _is_certified(self, pending: PendingIssue, views: Views) -> bool:
        key, now = f"sha256:{pending.request.key_fingerprint}", pending.now
        uid = pending.csr["metadata"].get("uid", "")
        issuance_log = views.get(LINEAGE_RECORDS)
        if issuance_log is not None and self._issuance_log.has(issuance_log, key, now, other_than=uid):
            return True
        own = f"{request_serial_number(uid):x}"  # the record of the name that is claimed for this request
        return self._issued.has(views[REQUESTS], key, now, other_than=uid) or self._of_nodes.has(
            views[IDENTITIES], key, now, other_than=own
        )


def _hold(pending: PendingIssue, problem: str) -> Hold:
    return Hold(POLICY_REASON, f"the signing policy of {pending.signer_name}: {problem}", denies=True)
