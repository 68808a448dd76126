"""NodeIdentity: validation, print columns. It records to which keys the name of a node belongs.

Rules kept here:
* The object has the name of the Node. The server's controllers and administrators write it; nodes and tokens may not.
* `spec.keys` has one entry for each certificate, the newest last. No entry means that the name has no owner.
* `spec.nodeUID` is the uid of the Node that belongs to the identity, recorded before it is deleted at the latest. While no Node
  with that uid exists, or while that Node has a deletionTimestamp, the membership has ended.
* The status is written by servers alone: what was observed of the machine (`mooring.api.mooring.uniqueness` judges it).
* Every field is bounded, because each API server keeps all identities in memory.
"""

from __future__ import annotations

import re
from datetime import datetime

from mooring.api.core.addresses import address_errors, parse_address
from mooring.api.kind import Kind, SubresourceStrategy, is_untracked
from mooring.api.objectmeta import NAME, NONE, condition_list_errors, reset_fields, spec_of
from mooring.api.paths import GROUP, STORAGE_PREFIX, VERSION
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid, required, too_long
from mooring.trust.bootstraptoken.token import is_token_id

PLURAL = "nodeidentities"
MAX_KEYS = 16
"""Certificates in an identity. An agent has one or two that are valid, a kubelet at most three while it renews."""
MAX_CERTIFIED = 256
"""Names of serving certificates in an identity: eight times those of one request. A machine that changes its address each day, and
whose certificates last for a year, asks a person after eight months."""
MAX_USES = 16
"""Certificates whose use is recorded: those of the keys."""
MAX_BOOTS = 8
"""Boots that are recorded. A machine that is told from a copy of itself needs two."""
MAX_BOOT_ID = 64
"""Characters of a boot id; a UUID has 36, and a machine may report any text."""
MAX_NAME = 253
"""Characters of a DNS name."""
MAX_UID = 64
"""Bytes of a uid; a UUID has 36."""
MAX_SILENCE_SECONDS = 365 * 24 * 3600
"""Most silence after which a machine is removed: a year, as for a token."""
SILENT = "Silent"
"""Reason of an ended membership: the Node was deleted because its machine was silent."""

_FINGERPRINT = re.compile("sha256:[0-9a-f]{64}").fullmatch
# At most 20 octets (RFC 5280 4.1.2.2).
_SERIAL_NUMBER = re.compile("[0-9a-f]{1,40}").fullmatch
_SHOWN_DIGITS = 16
"""Hex digits of a key in the printed table: enough to compare by eye."""


def keys_of(obj: Obj) -> list[Obj]:
    """Return the entries of an identity, the newest last."""
    keys: list[Obj] = spec_of(obj).get("keys") or []
    return keys


def companions_of(obj: Obj) -> list[Obj]:
    """Return the entries of certificates that are bound to the machine and have a user that all machines share, the newest last."""
    companions: list[Obj] = spec_of(obj).get("companions") or []
    return companions


def certified_names_of(obj: Obj) -> list[Obj]:
    """Return the names and addresses of the serving certificates of the machine."""
    names: list[Obj] = spec_of(obj).get("certifiedNames") or []
    return names


def status_of(obj: Obj) -> Obj:
    """Return the status of an identity; empty where nothing was observed."""
    status: Obj = obj.get("status") or {}
    return status


def uses_of(obj: Obj) -> list[Obj]:
    """Return the certificates that were used, in the order of their first use."""
    uses: list[Obj] = status_of(obj).get("certificates") or []
    return uses


def boots_of(obj: Obj) -> list[Obj]:
    """Return the boots that reported the Node, in the order in which they took over."""
    boots: list[Obj] = status_of(obj).get("boots") or []
    return boots


def _validate(obj: Obj) -> list[FieldError]:
    spec, errors = spec_of(obj), []
    for field, keys in (("keys", keys_of(obj)), ("companions", companions_of(obj))):
        if len(keys) > MAX_KEYS:
            errors.append(invalid(f"spec.{field}", len(keys), f"must have at most {MAX_KEYS} items"))
        for index, key in enumerate(keys[:MAX_KEYS]):
            errors += _key_errors(key, f"spec.{field}[{index}]")
    for name in ("nodeUID", "nodePasswordUID"):
        if len(spec.get(name, "").encode()) > MAX_UID:
            errors.append(too_long(f"spec.{name}", MAX_UID))
    errors += _certified_errors(certified_names_of(obj))
    token = spec.get("token", "")
    if token and not is_token_id(token):
        errors.append(
            invalid("spec.token", token, "must be the id of a bootstrap token: 6 lower-case letters or digits")
        )
    silence = spec.get("silenceSeconds", 0)
    if not 0 <= silence <= MAX_SILENCE_SECONDS:
        errors.append(invalid("spec.silenceSeconds", silence, f"must be from 0 to {MAX_SILENCE_SECONDS}"))
    if spec.get("endReason", "") not in ("", SILENT):
        errors.append(invalid("spec.endReason", spec["endReason"], f"must be {SILENT}, or absent"))
    errors += _address_errors(spec.get("sourceAddress", ""), "spec.sourceAddress")
    return [*errors, *_fingerprint_errors(spec, "spec", "formerCertificate"), *_status_errors(obj)]


def _status_errors(obj: Obj) -> list[FieldError]:
    path, errors = "status", []
    for field, items, most in (("certificates", uses_of(obj), MAX_USES), ("boots", boots_of(obj), MAX_BOOTS)):
        if len(items) > most:
            errors.append(invalid(f"{path}.{field}", len(items), f"must have at most {most} items"))
    for index, use in enumerate(uses_of(obj)[:MAX_USES]):
        at = f"{path}.certificates[{index}]"
        errors += [
            required(f"{at}.{field}") for field in ("certificate", "publicKey", "firstUsed") if not use.get(field)
        ]
        for field in ("certificate", "publicKey", "parent", "returnedAfter"):
            errors += _fingerprint_errors(use, at, field)
        for field in ("sourceAddress", "returnedFrom"):
            errors += _address_errors(use.get(field, ""), f"{at}.{field}")
    for index, boot in enumerate(boots_of(obj)[:MAX_BOOTS]):
        at = f"{path}.boots[{index}]"
        errors += [required(f"{at}.{field}") for field in ("id", "since") if not boot.get(field)]
        if len(boot.get("id", "")) > MAX_BOOT_ID:
            errors.append(too_long(f"{at}.id", MAX_BOOT_ID))
    return errors + condition_list_errors(status_of(obj).get("conditions") or [], "status.conditions")


def _key_errors(key: Obj, path: str) -> list[FieldError]:
    errors = [] if key.get("publicKey") else [required(f"{path}.publicKey")]
    for name in ("publicKey", "issuer", "parent"):
        errors += _fingerprint_errors(key, path, name)
    serial_number = key.get("serialNumber", "")
    if serial_number and not _SERIAL_NUMBER(serial_number):
        errors.append(
            invalid(f"{path}.serialNumber", serial_number, "must be 1 to 40 lower-case hex digits without colons")
        )
    if not key.get("notAfter"):
        errors.append(required(f"{path}.notAfter"))
    return errors


def _certified_errors(names: list[Obj]) -> list[FieldError]:
    path = "spec.certifiedNames"
    errors = (
        [] if len(names) <= MAX_CERTIFIED else [invalid(path, len(names), f"must have at most {MAX_CERTIFIED} items")]
    )
    for index, one in enumerate(names[:MAX_CERTIFIED]):
        errors += [required(f"{path}[{index}].{field}") for field in ("name", "notAfter") if not one.get(field)]
        if len(one.get("name", "")) > MAX_NAME:
            errors.append(too_long(f"{path}[{index}].name", MAX_NAME))
    return errors


def _fingerprint_errors(holder: Obj, path: str, name: str) -> list[FieldError]:
    value = holder.get(name, "")
    if not value or _FINGERPRINT(value):
        return []
    return [invalid(f"{path}.{name}", value, "must be sha256: and 64 lower-case hex digits")]


def _address_errors(address: str, path: str) -> list[FieldError]:
    return address_errors(address, path) if address and parse_address(address) is None else []


def _newest(obj: Obj, name: str) -> str:
    keys = keys_of(obj)
    return str(keys[-1].get(name) or NONE) if keys else NONE


def _key_cell(obj: Obj, now: datetime) -> str:
    return _newest(obj, "publicKey")[: len("sha256:") + _SHOWN_DIGITS]


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version=VERSION,
        kind="NodeIdentity",
        plural=PLURAL,
        namespaced=False,
        schema=message("dev.mooring.api.v1alpha1.NodeIdentity"),
        short_names=("nodeid",),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=(
            NAME,
            Column("Key", _key_cell, description="First digits of the newest key."),
            Column(
                "Serial",
                lambda obj, now: _newest(obj, "serialNumber"),
                description="Serial number of the newest certificate.",
            ),
            Column("Expiry", lambda obj, now: _newest(obj, "notAfter"), description="End of the newest certificate."),
            Column(
                "Token", lambda obj, now: spec_of(obj).get("token") or NONE, description="Token that obtained the name."
            ),
            AGE,
            Column(
                "Source",
                lambda obj, now: spec_of(obj).get("sourceAddress") or NONE,
                description="Address from which the newest certificate was requested.",
                priority=1,
            ),
            Column(
                "Deleted Node",
                lambda obj, now: spec_of(obj).get("nodeUID") or NONE,
                description="uid of the Node that was deleted, which ended the membership.",
                priority=1,
            ),
        ),
    ),
    garbage_collected=False,
    is_exact=True,
    storage=f"{STORAGE_PREFIX}{PLURAL}",
    tracks_creator=is_untracked,
    name_errors=dns1123_subdomain_errors,
    prepare_for_create=lambda new, change: reset_fields(new, {}, "status"),
    prepare_for_update=lambda new, old, change: reset_fields(new, old, "status"),
    validate=_validate,
    allow_unconditional_update=False,
    subresources={
        "status": SubresourceStrategy(prepare_for_update=lambda new, old, change: reset_fields(new, old, "spec"))
    },
)
