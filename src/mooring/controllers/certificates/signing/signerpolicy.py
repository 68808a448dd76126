"""Issuance check `signer-policy`: refuses what the policy of the operator does not allow a signer to sign.

Rules kept here:
* A request is refused also when a person approved it: the policy binds the signer. The refusal names signer, rule and value.
* A fresh key is one of which this cluster has no valid certificate: the lineage has none of another request. The signer claims the
  key by its entry of the lineage, by compare-and-swap.
* A cluster without the lineage (another API server) is judged by what it has: no other CertificateSigningRequest with a certificate
  has the key, and no NodeIdentity records it for another certificate. Issued requests are kept there for an hour.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

from mooring.api.mooring.lineagerecord import PLURAL as LINEAGE
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.view import NamespacedName, ViewFollower, Views
from mooring.apimachinery.schema import Obj
from mooring.controllers.certificates.issuance import Finding, Issuance, Objection
from mooring.controllers.certificates.requeststate import REQUESTS, is_issued
from mooring.controllers.certificates.signing.certifiedkeys import CertifiedKeys
from mooring.controllers.certificates.signing.signingpolicy import SigningPolicy
from mooring.pki.errors import RequestError
from mooring.pki.x509.authority import request_serial_number
from mooring.pki.x509.requests import parse_request

REASON = "SigningPolicy"


class SignerPolicy:
    """Checks requests against the policy in force."""

    name = "signer-policy"
    watches = (IDENTITIES,)

    def __init__(self, policy: Callable[[], SigningPolicy]) -> None:
        self._policy = policy
        self._issued = _CertifiedKeys(_requested_keys)
        self._recorded = _CertifiedKeys(_recorded_keys)
        self._lineage = CertifiedKeys()

    def check(self, issuance: Issuance, views: Views) -> Finding | None:
        policy = self._policy()
        if issuance.signer_name not in policy.signers:
            return None
        rule = policy.rule_for(issuance)
        if rule is None:
            return _objection(issuance, f"no rule is for requests of {issuance.username or 'an unknown user'}")
        problem = rule.refusal(issuance.request, issuance.csr["spec"].get("usages") or ())
        if not problem and rule.fresh_key and self._is_certified(issuance, views):
            problem = "the key has a certificate already, and freshKey is true: make a new key and ask again"
        return _objection(issuance, f'rule "{rule.name}": {problem}') if problem else None

    def _is_certified(self, issuance: Issuance, views: Views) -> bool:
        key = issuance.request.key_fingerprint
        uid = issuance.csr["metadata"].get("uid", "")
        lineage = views.get(LINEAGE)
        if lineage is not None and self._lineage.has(lineage, f"sha256:{key}", issuance.now, other_than=uid):
            return True
        own = f"{request_serial_number(uid):x}"  # the record of the name that is claimed for this request
        return self._issued.has(views, REQUESTS, key, other_than=uid) or self._recorded.has(
            views, IDENTITIES, key, other_than=own
        )


def _objection(issuance: Issuance, problem: str) -> Objection:
    return Objection(REASON, f"the signing policy of {issuance.signer_name}: {problem}", denies=True)


Certified = frozenset[tuple[str, str]]
"""Fingerprints of keys, each with the uid of the request or the serial number of the certificate."""


def _requested_keys(csr: Obj) -> Certified:
    if not is_issued(csr):
        return frozenset()
    try:
        request = parse_request(
            base64.b64decode((csr.get("spec") or {}).get("request") or "")
        )  # beside the small cache
    except (RequestError, ValueError):
        return frozenset()
    return frozenset({(request.key_fingerprint, csr["metadata"].get("uid", ""))})


def _recorded_keys(identity: Obj) -> Certified:
    return frozenset(
        (str(key.get("publicKey", "")).removeprefix("sha256:"), str(key.get("serialNumber", "")))
        for key in keys_of(identity)
    )


class _CertifiedKeys:
    """Index of the keys in a view. Each object is read once after a change."""

    def __init__(self, read: Callable[[Obj], Certified]) -> None:
        self._read = read
        self._follower = ViewFollower()
        self._by_object: dict[NamespacedName, Certified] = {}
        self._certificates: dict[str, dict[str, int]] = {}

    def has(self, views: Views, plural: str, key: str, *, other_than: str) -> bool:
        """Return true when an object of the view has the key for a certificate other than `other_than`."""
        self._follow(views, plural)
        return any(one != other_than for one in self._certificates.get(key, ()))

    def _follow(self, views: Views, plural: str) -> None:
        changes = self._follower.changes(views[plural])
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
