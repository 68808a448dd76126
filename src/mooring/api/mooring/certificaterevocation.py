"""CertificateRevocation: one entry of the denylist of client certificates; strategy, validation.

Rules kept here:
* An entry revokes exactly one of: the certificate with a serial number, of one issuer or of any; every certificate of a public
  key; every certificate of a node that was issued before a moment.
* The name follows from what is revoked: `serial-<hex>`, `serial-<hex>-<issuer hex>`, `key-<hex>`, `node-<name>`. The check of a
  certificate therefore finds its entries by name, and to revoke twice changes nothing.
* An update never revokes less: what is revoked cannot change, and neither `issuedBefore` nor `expiresAt` can become earlier. To
  revoke less, delete the entry.
* A write without `issuedBefore` means the moment of the write, by the server's clock, rounded up to the next whole second, because
  the times in certificates have whole seconds. Another API server sets nothing: there the moment is that of the creation.
* Entries are removed some time after `expiresAt`, and never without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta

from mooring.api.kind import Change, Kind
from mooring.api.objectmeta import NAME, NONE, spec_of
from mooring.api.paths import GROUP, STORAGE_PREFIX, VERSION
from mooring.apimachinery.names import SUBDOMAIN_MAX, dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.clock import human_duration, parse_rfc3339, rfc3339
from mooring.errors import FieldError, forbidden, invalid, not_supported, required, too_long

PLURAL = "certificaterevocations"
NODE_NAME_PREFIX = "node-"
REASONS = (
    "unspecified",
    "keyCompromise",
    "cACompromise",
    "affiliationChanged",
    "superseded",
    "cessationOfOperation",
    "certificateHold",
    "privilegeWithdrawn",
    "aACompromise",
)
"""Reasons of RFC 5280 5.3.1, apart from removeFromCRL, which only a delta CRL has."""
UNSPECIFIED = "unspecified"
MAX_SERIAL_DIGITS = 40
"""RFC 5280 4.1.2.2: a serial number has at most 20 octets."""
MAX_MESSAGE = 512
"""Bytes of a message: one sentence. Logs and refusals carry it."""
KEPT_AFTER_EXPIRY = timedelta(days=365)
"""Time that an entry outlives `expiresAt`: an expired certificate can still ask for recovery, and a revoked one must not."""

MAX_KNOWN = 64
"""Serial numbers that the entry of a key or node may list: those of a node that renews every day for two months."""

_SERIAL = re.compile(r"[1-9a-f][0-9a-f]*", re.ASCII)
_FINGERPRINT = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_SUBJECTS = ("serialNumber", "publicKey", "nodeName")
"""Fields that say what is revoked; an entry has exactly one."""
_MAX_NODE_NAME = SUBDOMAIN_MAX - len(NODE_NAME_PREFIX)


def serial_entry(serial_number: str, issuer: str = "") -> str:
    """Return the name of the entry of a serial number, of one issuer or of any."""
    return f"serial-{serial_number}" + (f"-{issuer.removeprefix('sha256:')}" if issuer else "")


def key_entry(public_key: str) -> str:
    """Return the name of the entry of a public key."""
    return f"key-{public_key.removeprefix('sha256:')}"


def entries_about(certificate: Obj) -> frozenset[str]:
    """Return the names of the entries that revoke a certificate in a NodeIdentity by its key or serial number."""
    found = {key_entry(certificate["publicKey"])} if certificate.get("publicKey") else set()
    if number := certificate.get("serialNumber", "").lstrip("0"):
        found |= {serial_entry(number), serial_entry(number, certificate.get("issuer", ""))}
    return frozenset(found)


def node_entry(node_name: str) -> str:
    """Return the name of the entry of a node."""
    return NODE_NAME_PREFIX + node_name


def entry_name(spec: Obj) -> str:
    """Return the name that an entry with this spec has; empty when it says nothing to revoke."""
    if serial_number := spec.get("serialNumber"):
        return serial_entry(serial_number, spec.get("issuer") or "")
    if public_key := spec.get("publicKey"):
        return key_entry(public_key)
    node_name = spec.get("nodeName")
    return node_entry(node_name) if node_name else ""


def time_of(spec: Obj, field: str) -> datetime | None:
    """Return a time of the spec; None when it is absent. Raises ValueError for a stored text that is not a time."""
    text = spec.get(field)
    return parse_rfc3339(text) if text else None


def issued_before(entry: Obj) -> datetime | None:
    """Return the moment up to which the entry of a node revokes; None when it has none, so that it revokes every certificate.

    An entry that another API server stored without the moment means that of its creation, in the next whole second.
    Raises ValueError for a stored text that is not a time.
    """
    moment = time_of(spec_of(entry), "issuedBefore")
    if moment is None and (created := entry["metadata"].get("creationTimestamp")):
        return parse_rfc3339(created) + timedelta(seconds=1)
    return moment


def revokes_known(entry: Obj) -> bool:
    """Return true when an entry revokes every certificate that was known at its write: it revokes up to then, or all of a key."""
    before, created = issued_before(entry), entry["metadata"].get("creationTimestamp")
    return before is None or (bool(created) and before >= parse_rfc3339(created))


def known_serial_numbers(spec: Obj) -> list[str]:
    """Return the serial numbers that the entry revokes for certain: its own, or those known at the write."""
    if serial_number := spec.get("serialNumber"):
        return [serial_number]
    return list(spec.get("knownSerialNumbers") or ())


def _default(obj: Obj) -> None:
    spec = obj.get("spec")
    if isinstance(spec, dict) and not spec.get("reason"):
        spec["reason"] = UNSPECIFIED


def _prepare_for_create(obj: Obj, change: Change) -> None:
    spec = obj.get("spec") or {}
    if spec.get("nodeName") and not spec.get("issuedBefore"):
        # The next whole second: times in certificates have no fractions, and one of this second is revoked, too.
        spec["issuedBefore"] = rfc3339(change.now + timedelta(seconds=1))


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    _prepare_for_create(new, change)


def _validate(obj: Obj) -> list[FieldError]:
    spec = obj.get("spec") or {}
    subjects = [field for field in _SUBJECTS if spec.get(field)]
    if not subjects:
        return [required("spec", "must have one of " + ", ".join(_SUBJECTS))]
    if len(subjects) > 1:
        return [forbidden(f"spec.{field}", f"may not be set beside {subjects[0]}") for field in subjects[1:]]
    errors = [*_subject_errors(spec), *_reason_errors(spec)]
    name, expected = obj["metadata"].get("name", ""), entry_name(spec)
    # The name follows from the subject, so that an entry is found by one lookup, and exists once.
    if not errors and name != expected:
        errors.append(invalid("metadata.name", name, f'must be "{expected}", which follows from what is revoked'))
    return errors


def _subject_errors(spec: Obj) -> Iterator[FieldError]:
    serial_number, issuer = spec.get("serialNumber") or "", spec.get("issuer") or ""
    if serial_number and not _is_serial_number(serial_number):
        yield invalid(
            "spec.serialNumber",
            serial_number,
            f"must be a hexadecimal number in lower case without leading zeros, of at most {MAX_SERIAL_DIGITS} digits",
        )
    if issuer and not serial_number:
        yield forbidden("spec.issuer", "may only be set beside serialNumber")
    for field in ("issuer", "publicKey"):
        if (value := spec.get(field)) and not _FINGERPRINT.fullmatch(value):
            yield invalid(f"spec.{field}", value, "must be sha256: and 64 hexadecimal digits in lower case")
    known = spec.get("knownSerialNumbers") or ()
    if len(known) > MAX_KNOWN or (known and serial_number):
        yield forbidden("spec.knownSerialNumbers", f"is set by the server, to at most {MAX_KNOWN} of a key or node")
    elif not all(map(_is_serial_number, known)):
        yield invalid("spec.knownSerialNumbers", known, "must be hexadecimal numbers; they are set by the server")
    node_name = spec.get("nodeName") or ""
    if len(node_name) > _MAX_NODE_NAME:
        yield too_long("spec.nodeName", _MAX_NODE_NAME)
    elif node_name:
        for detail in dns1123_subdomain_errors(node_name):
            yield invalid("spec.nodeName", node_name, detail)
    elif spec.get("issuedBefore"):
        yield forbidden("spec.issuedBefore", "may only be set beside nodeName")


def _is_serial_number(text: str) -> bool:
    return len(text) <= MAX_SERIAL_DIGITS and _SERIAL.fullmatch(text) is not None


def _reason_errors(spec: Obj) -> Iterator[FieldError]:
    reason, message = spec.get("reason"), spec.get("message") or ""
    if reason not in REASONS:
        yield not_supported("spec.reason", reason, REASONS)
    if len(message.encode()) > MAX_MESSAGE:
        yield too_long("spec.message", MAX_MESSAGE)
    elif not message.isprintable():
        yield invalid("spec.message", message, "must be one line of printable characters")


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    after, before = spec_of(new), spec_of(old)
    errors = [
        invalid(f"spec.{field}", after.get(field), "field is immutable")
        for field in (*_SUBJECTS, "issuer")
        if (after.get(field) or None) != (before.get(field) or None)
    ]
    for field, least in (
        ("issuedBefore", time_of(before, "issuedBefore")),
        ("expiresAt", time_of(before, "expiresAt")),
    ):
        moment = time_of(after, field)
        # A certificate that was refused must not be let in by an update.
        revokes_less = moment is not None and (least is None or moment < least)
        if revokes_less:
            errors.append(
                invalid(f"spec.{field}", after[field], "may not become earlier; to revoke less, delete the entry")
            )
    return errors


def _revoked(obj: Obj, now: datetime) -> str:
    spec = spec_of(obj)
    for field, word in (("serialNumber", "serial"), ("publicKey", "key"), ("nodeName", "node")):
        if value := spec.get(field):
            return f"{word} {value}"
    return NONE


def _expiry(obj: Obj, now: datetime) -> str:
    end = time_of(spec_of(obj), "expiresAt")
    if end is None:
        return "<never>"
    return human_duration(end - now) if end > now else "<passed>"


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version=VERSION,
        kind="CertificateRevocation",
        plural=PLURAL,
        namespaced=False,
        schema=message("dev.mooring.api.v1alpha1.CertificateRevocation"),
        short_names=("revocation", "revocations"),
        columns=(
            NAME,
            Column("Revokes", _revoked, description="The serial number, key or node whose certificates are revoked."),
            Column(
                "Reason", lambda obj, now: spec_of(obj).get("reason") or UNSPECIFIED, description="Reason of RFC 5280."
            ),
            Column("Expires", _expiry, description="Time until no certificate that the entry revokes can be valid."),
            AGE,
            Column(
                "Issued-Before",
                lambda obj, now: spec_of(obj).get("issuedBefore") or NONE,
                description="Certificates of the node that were issued before this moment are revoked.",
                priority=1,
            ),
            Column(
                "Message",
                lambda obj, now: spec_of(obj).get("message") or NONE,
                description="The reason in words.",
                priority=1,
            ),
        ),
        returns_deleted=False,
    ),
    garbage_collected=False,
    is_exact=True,
    storage=STORAGE_PREFIX + PLURAL,
    name_errors=dns1123_subdomain_errors,
    default=_default,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate=_validate,
    validate_update=_validate_update,
    has_generation=True,
)
