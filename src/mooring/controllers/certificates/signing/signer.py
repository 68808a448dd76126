"""certificatesigningrequest-signing-controller: signs certificates of approved requests.

Rules kept here (docs/protocol/certificate-signing-requests.md):
* Requests of the supervisor's signers are signed in a Mooring server only.
* Requests that are Approved, not Denied, not Failed, without a certificate, and for a signer with an authority are signed. Requests
  for other signers are left to those.
* A request that breaks a rule of its signer, or can never become a certificate, gets the condition Failed through `/status`,
  reason SignerValidationFailure.
* The issuance checks are repeated, and once more when the certificate is published. An objection to an automatic approval fails
  the request.
* A request that waits for a person gets the condition WouldFail when it would fail after an approval, by the same judgement, so
  that the person sees it before. It is judged again at intervals, and loses the condition when the cause went away. A request
  that an approver decides within moments is left to the approver.
* The profile determines the content of the certificate, the authority checks the result, and the status carries the leaf alone.
* The lineage gets an entry before the certificate is published.
* The serial number follows from the uid of the request, so that records of the certificate can be written before it is signed.
* An expired CA signs nothing; the request waits for a new one.
* A device that holds the key signs in a thread, because it may take long. When it fails, the key is planned again. A request with
  thousands of names is signed in a thread, too: reading its certificate again takes tens of milliseconds.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from mooring.api.certificates.conditions import FAILED, conditions_of
from mooring.api.certificates.sourceaddress import source_address_of
from mooring.api.mooring import ends
from mooring.api.mooring.lineagerecord import EVENT_ISSUED, MAX_TEXT
from mooring.api.view import Views
from mooring.apimachinery.schema import Obj
from mooring.clock import rfc3339
from mooring.controllers.actions import Action, Entropy, InThread, Key, RecordLineage, Requeue, Retry, Still, Update
from mooring.controllers.certificates.issuance import (
    NEEDS_APPROVAL,
    WOULD_FAIL,
    Issuance,
    IssuanceCheck,
    Objection,
    Preparation,
    find,
    held_until,
    is_automatic,
    prepared,
    unobjected,
    watched,
)
from mooring.controllers.certificates.requeststate import (
    REQUESTS,
    is_approved_and_unsigned,
    is_undecided,
    parsed_request,
    with_condition,
    with_status,
    without_condition,
)
from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY, SigningPolicy
from mooring.identity import CREDENTIAL_ID, NODE_PREFIX, bootstrap_token_id
from mooring.pki.errors import IssueError, RequestError
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.x509 import names, usages
from mooring.pki.x509.authority import Authority, request_serial_number
from mooring.pki.x509.bundles import certificates_pem
from mooring.pki.x509.certificate import Certificate
from mooring.pki.x509.profiles import Template, from_request
from mooring.pki.x509.requests import CertificateRequest
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET, KUBELET_SERVING, SIGNERS
from mooring.pki.x509.supervisorsigners import K3S_KUBELET_CLIENT, SUPERVISOR_SIGNERS

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
            return self._foretold(csr, views, now)
        authority = None if csr is None else self._authority_of(csr)
        if csr is None or authority is None:
            return ()
        if ends.refusal(views):
            return (Requeue(now + ends.UNSETTLED_FOR),)
        if now >= authority.not_after:
            return (Retry(f"the CA expired at {rfc3339(authority.not_after)}: nothing can be signed"),)
        judged = self._judge(csr, views, now, automatic=is_automatic(csr))
        if isinstance(judged, Objection):
            return (_mark_failed(csr, judged.message, judged.reason),)
        if isinstance(judged, Preparation):
            return prepared(judged, now)
        spec = csr["spec"]
        template = partial(
            from_request,
            judged.request,
            spec.get("usages") or (),
            now,
            spec.get("expirationSeconds"),
            self._longest(judged),
        )
        sign = partial(
            _sign,
            csr,
            authority,
            template,
            now,
            request_serial_number(csr["metadata"]["uid"]),
            self.trusts_source_address,
            _settled(unobjected(self.checks, judged)),
            self._wants_fresh_key(judged),
        )
        takes_long = authority.in_device or len(csr["spec"]["request"]) > MAX_SIGNED_AT_ONCE
        return (InThread(sign),) if takes_long else sign()

    def _judge(self, csr: Obj, views: Views, now: datetime, *, automatic: bool) -> Objection | Preparation | Issuance:
        """Return the issuance of a request, or what stands between the request and its certificate."""
        request = _request_of(csr)
        if isinstance(request, Objection):
            return request
        issuance = Issuance(csr=csr, request=request, now=now, automatic=automatic)
        try:
            finding = find(self.checks, issuance, views)
            if finding is not None:
                return finding
            usages.check(csr["spec"].get("usages") or ())
            return issuance
        except IssueError as error:
            return Objection(REASON, str(error))

    def _waits_for_person(self, csr: Obj) -> bool:
        """Return true for a request that a person decides about, and that would be signed here."""
        name = (csr.get("spec") or {}).get("signerName", "")
        if not is_undecided(csr) or (name in SUPERVISOR_SIGNERS and not self.guards_extra):
            return False
        is_held = any(one.get("type") == NEEDS_APPROVAL for one in conditions_of(csr))
        return (is_held or name not in _APPROVED_BY_CONTROLLERS) and self.authority_for(name) is not None

    def _foretold(self, csr: Obj, views: Views, now: datetime) -> Sequence[Action]:
        """Return the action that says whether the request would fail after the approval of a person."""
        finding = self._judge(csr, views, now, automatic=False)
        told = without_condition(csr, WOULD_FAIL)
        if isinstance(finding, Objection):
            present = next((one for one in conditions_of(csr) if one.get("type") == WOULD_FAIL), {})
            is_told = (present.get("reason"), present.get("message")) == (finding.reason, finding.message)
            told = csr if is_told else with_condition(csr, WOULD_FAIL, finding.reason, finding.message)
        change = () if told is csr else (Update(REQUESTS, told, "status"),)
        return (*change, Requeue(held_until(csr, now)))

    def _wants_fresh_key(self, issuance: Issuance) -> bool:
        """Return true when the policy lets a key have one certificate."""
        rule = self.policy().rule_for(issuance)
        return rule is not None and rule.fresh_key

    def _longest(self, issuance: Issuance) -> timedelta:
        """Return the longest lifetime of the certificate."""
        limit = self.policy().max_lifetime(issuance)
        return self.signing_duration if limit is None else min(limit, self.signing_duration)

    def _authority_of(self, csr: Obj) -> Authority | None:
        """Return the authority that is to sign the request now; None when it is in another stage, or for another signer."""
        if not is_approved_and_unsigned(csr):
            return None
        signer_name = (csr.get("spec") or {}).get("signerName", "")
        if signer_name in SUPERVISOR_SIGNERS and not self.guards_extra:
            return None
        return self.authority_for(signer_name)


def _request_of(csr: Obj) -> CertificateRequest | Objection:
    """Return the parsed request, or why no policy and no person makes its signer sign it."""
    spec = csr["spec"]
    try:
        request = parsed_request(csr)
    except RequestError as error:
        return Objection(REASON, str(error))
    except ValueError:
        return Objection(REASON, "spec.request is not base64")
    signer = SIGNERS.get(spec["signerName"])
    refusals = signer.refusals(request, spec.get("usages") or ()) if signer is not None else ()
    return Objection(REASON, "; ".join(refusals)) if refusals else request


def _settled(still: Still) -> Still:
    """Return the judgement of a certificate at its commit, which fails while an end waits to be settled, too."""
    return lambda views, now: not ends.refusal(views) and still(views, now)


def _sign(
    csr: Obj,
    authority: Authority,
    template: Callable[[], Template],
    now: datetime,
    serial: int,
    trusts_source_address: bool,
    still: Still,
    fresh_key: bool,
) -> Sequence[Action]:
    """Return the entry of the lineage and the update that carries the certificate, or the reason why there is none.

    Raises DeviceError.
    """
    try:
        certificate = authority.sign(template(), now, serial)
    except IssueError as error:
        return (_mark_failed(csr, str(error)),)
    text = base64.b64encode(certificates_pem([certificate])).decode()
    csr = without_condition(csr, WOULD_FAIL)
    entry = issued_entry(csr, certificate, authority, now, trusts_source_address=trusts_source_address)
    return (RecordLineage(entry, fresh_key), Update(REQUESTS, with_status(csr, certificate=text), "status", still))


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


def _uri(certificate: Certificate) -> str:
    """Return the first URI of a certificate; "" without one."""
    return next(iter(names.alternative_names(certificate.extensions).uris), "")


def _fingerprint(certificate: Certificate) -> str:
    return "sha256:" + public_key_fingerprint(accepted_public_key(certificate.public_key()))


def _bounded(text: str) -> str:
    """Return a text that a record accepts. Names of requests and users may hold other characters, and be longer."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:MAX_TEXT])
