"""Admission of certificate requests, revocations, and the records of what was issued and what ended."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from mooring.api.certificates import podcertificaterequest
from mooring.api.certificates.podrequestvalidation import is_same_status
from mooring.api.certificates.requestrecords import DENIED, conditions_of, record_known_revocations, source_address_of
from mooring.api.certificates.requeststate import is_undecided, requested_node
from mooring.api.mooring import certificaterevocation, nodeidentity, tombstones
from mooring.api.mooring.certificaterevocation import MAX_KNOWN
from mooring.api.mooring.certificaterevocation import PLURAL as REVOCATIONS
from mooring.api.mooring.joinrule import PLURAL as JOIN_RULES
from mooring.api.mooring.lineagerecord import MAX_TRIMMED, MIN_RETENTION, TrimmedLog, end_of, entries_of
from mooring.api.mooring.lineagerecord import PLURAL as LINEAGE_RECORDS
from mooring.api.objectmeta import spec_of
from mooring.api.view import View, ViewFollower
from mooring.apimachinery.codec.json import encode_json
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.authn.cel import CelError
from mooring.authn.joinrule import compile_rule
from mooring.authz.decision import Attributes
from mooring.clock import parse_rfc3339, rfc3339
from mooring.controllers.certificates.requester import joining_user, name_allowance, name_refusal, requests_allowed_name
from mooring.errors import Cause, InvalidError, forbidden, invalid, quoted
from mooring.identity import ANONYMOUS, API_SERVER, MASTERS, NAME_NOT_ALLOWED, NODE_PREFIX
from mooring.pki.errors import RequestError
from mooring.pki.x509.requests import CertificateRequest, parse_request
from mooring.pki.x509.signers import (
    CREDENTIAL,
    KUBE_APISERVER_CLIENT,
    KUBE_APISERVER_CLIENT_KUBELET,
    SIGNERS,
    SUPERVISOR_SIGNERS,
    issued_request,
)
from mooring.registry.admission.request import AdmissionRequest
from mooring.settings.addresses import Network, is_in
from mooring.trust.bootstraptoken.token import USAGE_AUTHENTICATION, TokenError
from mooring.trust.bootstraptoken.tokensecret import NOT_ACCEPTED, SECRET_TYPE, usage_enabled
from mooring.trust.issuancelog import START, Checkpoint, checkpoint_of, record_name, sequence_of, trimmed_to
from mooring.trust.joinrule import JoinRuleError, read_rule

# Admission plugins for certificate requests: the rights to approve and sign, and subjects that no request may have.
#
# Rules kept here (docs/protocol/certificate-signing-requests.md#admission, docs/protocol/pod-certificate-requests.md#rights):
# * CertificateApproval: a change of `/approval` needs the verb `approve` on the signer: resource `signers`, name that of the
#   signer, or `<domain>/*`.
# * CertificateSigning: a change of the certificate or the conditions through `/status` needs the verb `sign` on the signer alike.
# * ClusterTrustBundleAttest: a new ClusterTrustBundle of a signer, and a change of one, need the verb `attest` on the signer
#   alike. A change that only the garbage collector and server-side apply make needs none.
# * PodCertificateSigning: a change of the status of a PodCertificateRequest needs the verb `sign` on the signer alike. The
#   refusal is kube-apiserver's 422: there the strategy of the kind asks for the right.
# * CertificateSubjectRestriction: a request to the signer kube-apiserver-client may not name the group system:masters.

CSRS = "certificatesigningrequests"
BUNDLES = "clustertrustbundles"
POD_REQUESTS = podcertificaterequest.PLURAL
_COLLECTOR_FIELDS = frozenset({"ownerReferences", "finalizers", "managedFields"})
GROUP = "certificates.k8s.io"


class CertificateApproval:
    name = "CertificateApproval"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation == "UPDATE" and request.resource == f"{CSRS}/approval":
            _check_requested_signer(request, "approve")


class CertificateSigning:
    name = "CertificateSigning"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "UPDATE" or request.resource != f"{CSRS}/status":
            return
        if _outcome(request.new) != _outcome(request.old):
            _check_requested_signer(request, "sign")


class ClusterTrustBundleAttest:
    name = "ClusterTrustBundleAttest"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation not in ("CREATE", "UPDATE") or request.resource != BUNDLES or request.new is None:
            return
        signer = _signer(request.new)  # an update that changes it is refused by the validation
        if not signer or (request.old is not None and _meaning(request.new) == _meaning(request.old)):
            return
        if not _may(request, "attest", signer):
            raise request.forbidden(f'user not permitted to attest for signerName "{signer}"')


class PodCertificateSigning:
    name = "PodCertificateSigning"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource != f"{POD_REQUESTS}/status" or request.new is None or request.old is None:
            return
        signer = _signer(request.old)
        if is_same_status(request.new.get("status"), request.old.get("status")) or _may(request, "sign", signer):
            return
        resource, user = request.kind.resource, quoted(request.user.username)
        error = forbidden("spec.signerName", f'User {user} is not permitted to "sign" for signer {quoted(signer)}')
        raise InvalidError.of(resource.group, resource.kind, request.name, [error])


class CertificateSubjectRestriction:
    name = "CertificateSubjectRestriction"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != CSRS or request.new is None:
            return
        if _signer(request.new) != KUBE_APISERVER_CLIENT:
            return
        parsed = parse_new_request(request)
        if parsed is not None and MASTERS in parsed.organizations:
            raise request.forbidden(f"use of {KUBE_APISERVER_CLIENT} signer with {MASTERS} group is not allowed")


def parse_new_request(request: AdmissionRequest) -> CertificateRequest | None:
    """Parse the certificate request of a new CSR, with the names that its signer puts into the certificate.

    Return None when validation will refuse the object. Raises ForbiddenError.
    """
    assert request.new is not None  # callers handle CREATE only
    spec = request.new.get("spec") or {}
    try:
        parsed = parse_request(base64.b64decode(spec.get("request", ""), validate=True))
        return issued_request(parsed, spec.get("signerName", ""), spec.get("extra") or {})
    except (RequestError, binascii.Error) as error:
        if request.kind.validate(request.new):
            # Validation answers 422, which explains more than a 403.
            return None
        raise request.forbidden("unable to parse csr") from error


def _signer(obj: Obj) -> str:
    return str((obj.get("spec") or {}).get("signerName", ""))


def _outcome(obj: Obj | None) -> tuple[Any, Any]:
    status = (obj or {}).get("status") or {}
    return status.get("certificate") or "", status.get("conditions") or []


def _meaning(obj: Obj) -> Obj:
    """Return the object without the metadata that garbage collection and apply write."""
    kept = {name: value for name, value in obj["metadata"].items() if name not in _COLLECTOR_FIELDS}
    return {**obj, "metadata": kept}


def _check_requested_signer(request: AdmissionRequest, verb: str) -> None:
    assert request.old is not None  # UPDATE
    signer = _signer(request.old)
    if not _may(request, verb, signer):
        raise request.forbidden(f'user not permitted to {verb} requests with signerName "{signer}"')


def _may(request: AdmissionRequest, verb: str, signer: str) -> bool:
    """Return true when the user has the verb on the signer, or on all signers of its domain."""
    domain = signer.partition("/")[0]
    return any(
        request.authorize(
            Attributes(user=request.user, verb=verb, group=GROUP, version="*", resource="signers", name=name)
        ).allowed
        for name in (signer, f"{domain}/*")
    )


# Admission plugin BootstrapTokenLimits: node names that a bootstrap token, or an identity token, may request certificates for.
#
# Rules kept here: only CREATE of a CertificateSigningRequest by `system:bootstrap:<id>` or `system:joinrule:<name>` is judged, by
# the same rules as before its issuance (`mooring.controllers.certificates.requester`). A joining machine thereby gets its error at
# once, and not in a condition. The cause NodeNameNotAllowed tells it that a repetition is of no use.


@dataclass(frozen=True, slots=True)
class BootstrapTokenLimits:
    accepted: bool = True
    """The server accepts bootstrap tokens."""
    name: str = "BootstrapTokenLimits"

    def admit(self, request: AdmissionRequest) -> None:
        if not self.accepted and request.resource == "secrets" and _lets_in(request.new):
            request.change.warnings.append(NOT_ACCEPTED)
        if request.operation != "CREATE" or request.resource != CSRS:
            return
        try:
            allowed = name_allowance(request.user, request.views)
        except (TokenError, JoinRuleError) as error:
            raise request.forbidden(str(error)) from None
        if allowed is None or not allowed.restrictions.node_name:
            # Another user, or a token that was deleted a moment ago, which the issuance check rejects.
            return
        parsed = parse_new_request(request)
        if parsed is not None and not requests_allowed_name(_user(request, parsed), allowed.restrictions):
            message = name_refusal(allowed)
            refusal = request.forbidden(message)
            refusal.details = replace(
                refusal.details, causes=(*refusal.details.causes, Cause(NAME_NOT_ALLOWED, message))
            )
            raise refusal


def _lets_in(secret: Obj | None) -> bool:
    """Return true for the Secret of a bootstrap token that authenticates."""
    return secret is not None and secret.get("type") == SECRET_TYPE and usage_enabled(secret, USAGE_AUTHENTICATION)


def _user(request: AdmissionRequest, parsed: CertificateRequest) -> str | None:
    spec = (request.new or {}).get("spec") or {}
    return joining_user(spec.get("signerName", ""), parsed, spec.get("extra") or {})


# JoinRequests: requests of machines without any credential, which a person approves (docs/join-by-asking.md).
#
# Rules kept here:
# * Only CREATE of a CertificateSigningRequest by `system:anonymous` is judged, also where an administrator has bound the right.
#   It has REQUEST_SIZE bytes at most, comes from the networks of the setting, and nothing in its metadata keeps it. It asks for
#   what the signer of a node's client certificate signs.
# * At most MOST_WAITING such requests wait, and MOST_OF_A_SOURCE of one address. Those count, too, that were admitted IN_FLIGHT ago
#   and are not stored yet. A repeated request, whose name is known, is left to the answer that it exists.
# * A machine whose request was denied is told so for as long as the denied request is kept, whatever key it makes.

REQUEST_SIZE = 8 << 10
MOST_WAITING = 100
MOST_OF_A_SOURCE = 4
IN_FLIGHT = timedelta(seconds=10)
_REFUSED_METADATA = ("finalizers", "ownerReferences", "labels")


class JoinRequests:
    name = "JoinRequests"

    def __init__(self, networks: tuple[Network, ...] | None = None) -> None:
        """`networks`: those of the setting, none for all; None where this server takes no such requests."""
        self._networks = networks
        self._follower = ViewFollower()
        self._asked: dict[str, Obj] = {}
        self._admitted: dict[str, tuple[str, datetime]] = {}
        """Sources and times of requests that may not be stored yet, by name."""

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != CSRS or request.user.username != ANONYMOUS:
            return
        if self._networks is None:
            # The right may have been given by another server, or by an administrator.
            raise request.forbidden("this server takes no requests without a credential (--join-requests)")
        source, node = request.change.source, _asking_node(request)
        if not is_in(source, self._networks):
            raise request.forbidden("requests without a credential are not accepted from this network")
        asked, now = self._asked_in(request.views[CSRS]), request.change.now
        if request.name in asked:
            return
        for one in asked.values():
            if requested_node(one) == node and source_address_of(one) == source and (why := _denial(one)):
                raise request.forbidden(f"{DENIED_BEFORE}: {why}")
        self._admitted = {
            name: found
            for name, found in self._admitted.items()
            if name not in asked and now - found[1] < IN_FLIGHT and name != request.name
        }
        sources = [source_address_of(one) for one in asked.values() if is_undecided(one)]
        sources += [found for found, _ in self._admitted.values()]
        if len(sources) >= MOST_WAITING or sources.count(source) >= MOST_OF_A_SOURCE:
            raise request.forbidden("too many requests without a credential wait for a person: try again later")
        if not request.dry_run:
            self._admitted[request.name] = (source, now)

    def _asked_in(self, view: View) -> Mapping[str, Obj]:
        """Return the requests that were made without a credential, by name."""
        changes = self._follower.changes(view)
        if changes is not None:
            starts_over, objects = changes
            if starts_over:
                self._asked = {}
            for (_, name), obj in objects:
                self._asked.pop(name, None)
                if obj is not None and spec_of(obj).get("username") == ANONYMOUS:
                    self._asked[name] = obj
        return self._asked


def _asking_node(request: AdmissionRequest) -> str:
    """Return the node for which a machine without a credential asks. Raises ForbiddenError."""
    parsed, new = parse_new_request(request), request.new or {}
    node = parsed.common_name.removeprefix(NODE_PREFIX) if parsed is not None else ""
    if parsed is None or node == parsed.common_name or _signer(new) != KUBE_APISERVER_CLIENT_KUBELET:
        raise request.forbidden("without a credential, only the client certificate of a node can be requested")
    problems = SIGNERS[KUBE_APISERVER_CLIENT_KUBELET].refusals(parsed, spec_of(new).get("usages") or ())
    if problems := [*problems, *dns1123_subdomain_errors(node)]:
        raise request.forbidden(
            f"without a credential, only the client certificate of a node can be requested: {problems[0]}"
        )
    metadata = new.get("metadata") or {}
    if kept := next((field for field in _REFUSED_METADATA if metadata.get(field)), ""):
        raise request.forbidden(f"a request without a credential has no {kept}")
    if len(encode_json({**new, "metadata": {**metadata, "managedFields": None}})) > REQUEST_SIZE:
        raise request.forbidden(f"a request without a credential has at most {REQUEST_SIZE} bytes")
    return node


DENIED_BEFORE = "an administrator has denied this machine"


def _denial(csr: Obj) -> str:
    """Return the message of a denial; "" for a request that was not denied."""
    denied = next((one for one in conditions_of(csr) if one.get("type") == DENIED), None)
    return "" if denied is None else str(denied.get("message") or denied.get("reason") or "without a reason")


# JoinRuleExpressions: refuses a join rule whose expressions cannot be compiled. `mooring.trust.joinrule` judges all else of a rule.


class JoinRuleExpressions:
    name = "JoinRuleExpressions"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource != JOIN_RULES or request.new is None or request.operation == "DELETE":
            return
        try:
            compile_rule(read_rule(request.new))
        except JoinRuleError:
            return  # the validation reports it
        except CelError as error:
            resource = request.kind.resource
            fault = invalid("spec", "", f"an expression cannot be used: {error}")
            raise InvalidError.of(resource.group, resource.kind, request.name, [fault]) from None


# SupervisorRequests: only the supervisor creates requests for its signers.
#
# Rules kept here (docs/protocol/k3s.md#certificates): the signers of the supervisor decide every name in a certificate from what
# the supervisor states about the requester. A request that a client creates itself, by whatever user or impersonation, has no
# such statement. It is refused at once, with the path that answers such requests.


class SupervisorRequests:
    name = "SupervisorRequests"

    def admit(self, request: AdmissionRequest) -> None:
        if request.operation != "CREATE" or request.resource != CSRS or request.new is None:
            return
        signer = str((request.new.get("spec") or {}).get("signerName", ""))
        if signer in SUPERVISOR_SIGNERS and CREDENTIAL not in request.change.attested:
            raise request.forbidden(f"certificates of {signer} are requested by POST to /v1-k3s/… of the supervisor")


# KnownRevocations: records in a CertificateSigningRequest up to which revision the server knew the denylist.

REQUESTS = "certificatesigningrequests"


class KnownRevocations:
    name = "KnownRevocations"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource == REQUESTS and request.operation == "CREATE" and request.new is not None:
            record_known_revocations(request.new, request.views[REVOCATIONS].revision)


# KnownSerialNumbers: records which certificates the entry of a key or node revokes, for the CRL.
#
# Rules kept here:
# * A CRL lists serial numbers only. They are taken from the NodeIdentities at the write of the entry, because later a
#   NodeIdentity also has certificates that were issued after the revocation.
# * A change of a node's entry that keeps its moment adds none: the machine may have joined again since.
# * Certificates that have expired are left out. Serial numbers of an earlier write stay, and the newest ones count.
# * The server sets the field, whatever the client sends.

FIELD = "knownSerialNumbers"


class KnownSerialNumbers:
    name = "KnownSerialNumbers"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource != certificaterevocation.PLURAL or request.new is None:
            return
        spec: Obj = request.new.get("spec") or {}
        before = spec_of(request.old or {}).get(FIELD) or ()
        known = list(dict.fromkeys((*before, *_known(request, spec))))[-MAX_KNOWN:]
        spec.pop(FIELD, None)
        if known:
            spec[FIELD] = known


def _revokes_until_now(request: AdmissionRequest, spec: Obj) -> bool:
    before = certificaterevocation.time_of(spec, "issuedBefore")
    return before is None or before >= request.change.now


def _known(request: AdmissionRequest, spec: Obj) -> Iterator[str]:
    """Yield the serial numbers of unexpired certificates that the entry revokes."""
    identities = request.views[nodeidentity.PLURAL]
    public_key, node_name = spec.get("publicKey"), spec.get("nodeName")
    if node_name:
        if request.operation == "UPDATE" and not _revokes_until_now(request, spec):
            return
        identity = identities.get(node_name)
        found = [] if identity is None else [*nodeidentity.keys_of(identity), *nodeidentity.companions_of(identity)]
    elif public_key:
        keys = (
            key
            for identity in identities.list()
            for key in (*nodeidentity.keys_of(identity), *nodeidentity.companions_of(identity))
        )
        found = [key for key in keys if key.get("publicKey") == public_key]
    else:
        return
    for key in found:
        serial_number = (key.get("serialNumber") or "").lstrip("0")
        if serial_number and parse_rfc3339(key["notAfter"]) > request.change.now:
            yield serial_number


# Admission plugin LineageAppendOnly: records of the issuance log are only appended, each after the one that it names.
#
# Rules kept here: no user may change a record, not even its labels. A new record must follow the last one. A record is deleted
# only when a stored entry says that the log was trimmed up to it, when it is the oldest, and MIN_RETENTION after the end of its
# certificates, whatever the entry says. What bypasses the API, such as an edit of the database, is found by
# `mooring issuance verify`.


class LineageAppendOnly:
    name = "LineageAppendOnly"

    def __init__(self) -> None:
        self._trimmed = TrimmedLog()

    def admit(self, request: AdmissionRequest) -> None:
        if request.kind.resource.plural != LINEAGE_RECORDS:
            return
        if request.operation == "DELETE" and request.old is not None:
            self._check_deletion(request, request.old)
            return
        if request.new is None or request.operation != "CREATE":
            raise request.forbidden("records of the issuance log are never changed")
        if any(request.new["metadata"].get(field) for field in ("finalizers", "ownerReferences")):
            raise request.forbidden("a record of the issuance log has no finalizers and no owners")
        sequence = sequence_of(request.name or request.new["metadata"].get("name", ""))
        if sequence is None:
            return  # validation reports the name
        if _previous(request.new) != self._hash_before(request, sequence):
            raise request.forbidden(
                "a record of the issuance log must follow the last one: spec.previous is not its hash"
            )
        for entry in entries_of(request.new):
            if (trim := trimmed_to(entry)) is not None:
                self._check_trim(request, trim, entry.get("notAfter", ""))

    def _check_trim(self, request: AdmissionRequest, trim: Checkpoint, until: str) -> None:
        """Refuse an entry that does not say up to which record the log is trimmed, and when the certificates there ended."""
        view = request.views[LINEAGE_RECORDS]
        record, mark = view.get(record_name(trim.sequence)), self._trimmed.checkpoint(view).sequence
        if record is None or checkpoint_of(record) != trim or trim.sequence <= mark:
            raise request.forbidden(f"the issuance log has no record {trim} up to which it could be trimmed")
        if trim.sequence - mark > MAX_TRIMMED:
            raise request.forbidden(f"one entry trims at most {MAX_TRIMMED} records")
        ends = [end_of(view.get(record_name(number)) or {}) for number in range(mark + 1, trim.sequence + 1)]
        known = [end for end in ends if end is not None]
        if len(known) < len(ends):
            raise request.forbidden("the end of a certificate up to there is not known")
        if until != rfc3339(max(known)):
            raise request.forbidden(
                f"notAfter must be the last end of the certificates up to there, {rfc3339(max(known))}"
            )

    def _check_deletion(self, request: AdmissionRequest, record: Obj) -> None:
        view, sequence, end = request.views[LINEAGE_RECORDS], sequence_of(request.name), end_of(record)
        if sequence is None or self._trimmed.checkpoint(view).sequence < sequence:
            raise request.forbidden(
                "a record of the issuance log is deleted only where an entry says that the log was trimmed up to it"
            )
        before = record_name(sequence - 1)
        if view.get(before) is not None or view.problem(before):
            raise request.forbidden("records of the issuance log are deleted from the oldest on")
        if end is None or end > request.change.now - MIN_RETENTION:
            raise request.forbidden(
                f"a record of the issuance log stays for {MIN_RETENTION.days} days after the end of its certificates"
            )

    def _hash_before(self, request: AdmissionRequest, sequence: int) -> str | None:
        if sequence == START.sequence + 1:
            is_trimmed = self._trimmed.checkpoint(request.views[LINEAGE_RECORDS]) is not START
            return None if is_trimmed else START.hash
        before = request.views[LINEAGE_RECORDS].get(record_name(sequence - 1))
        return before["spec"].get("hash") if before is not None else None


def _previous(record: Obj) -> str:
    previous: str = (record.get("spec") or {}).get("previous", "")
    return previous


# Admission plugin SettledTombstones: the ConfigMap of tombstones loses an entry only when the tombstone is settled.
#
# Rules kept here: an entry is ended again by what the store has, or accepted, by any writer. So neither the deletion of the
# ConfigMap, nor a write that leaves an entry out or changes it, lets something come back for a moment. That further ends wait is
# known to the server alone that remembers them: no client takes this entry out. The ConfigMap is never immutable: servers write
# it.


class SettledTombstones:
    name = "SettledTombstones"

    def admit(self, request: AdmissionRequest) -> None:
        if request.resource != tombstones.CONFIG_MAPS or request.namespace != tombstones.NAMESPACE:
            return
        name = request.name or ((request.new or {}).get("metadata") or {}).get("name", "")
        if name != tombstones.NAME:
            return
        before, after = (request.old or {}).get("data") or {}, (request.new or {}).get("data") or {}
        lost = tombstones.withdrawn(before, after, request.views, request.change.now)
        if request.user.username == API_SERVER:
            lost = [key for key in lost if not tombstones.is_more(key)]
        if lost:
            raise request.forbidden(
                f"{lost[0]} is not settled: run mooring restore-check apply, or mooring restore-check accept to let it come back"
            )
        if (request.new or {}).get("immutable"):
            raise request.forbidden("servers write this ConfigMap: it may not be immutable")
