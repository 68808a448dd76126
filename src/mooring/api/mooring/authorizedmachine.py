"""AuthorizedMachine: a machine that may join, and how it proves to be that machine. Validation, print columns.

Rules kept here:
* `spec` says which node names the machine may have, and names its key, a one-time code, or neither. It cannot be changed.
* `status.usedBy` is written by the update that first uses the entry; the resourceVersion of that update makes it exclusive. The
  same key may use it again for the same name. Another key cannot: to let the machine be installed again, delete the entry and
  authorize it again.
* An entry may name facts that the request of the machine has to say. They are a further condition, and prove nothing.
* An entry with neither key nor code lists a name. It authorizes none by itself (`mooring.controllers.certificates.inventory`).
"""

from __future__ import annotations

import re
from datetime import datetime

from mooring.api.kind import Change, Kind
from mooring.api.objectmeta import NAME, NONE, spec_of
from mooring.api.paths import GROUP, STORAGE_PREFIX, VERSION
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, forbidden, invalid, required, too_long
from mooring.pki.x509.canonicalnames import address_fault, canonical, name_fault
from mooring.trust.bootstraptoken.restrictions import parse_networks
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.nodename import is_verifier
from mooring.trust.requestfacts import MAX_FACTS, fact_problem

PLURAL = "authorizedmachines"
MAX_CIDRS = 16
"""Networks of one machine: it has a few addresses."""
MAX_SERVING_NAMES = 32
"""Names and addresses of one machine, as many as a serving certificate of a node has."""
MAX_TEXT = 512
"""Bytes of a field that the server writes."""
_FINGERPRINT = re.compile("sha256:[0-9a-f]{64}", re.ASCII)
_SHOWN_DIGITS = 16


def used_by(obj: Obj) -> Obj | None:
    """Return the use of an entry; None before it was used."""
    found: Obj | None = (obj.get("status") or {}).get("usedBy")
    return found


def serving_names_of(obj: Obj) -> list[str]:
    """Return the names and addresses that an administrator has granted to the machine."""
    names: list[str] = spec_of(obj).get("servingNames") or []
    return names


def _prepare_for_create(obj: Obj, change: Change) -> None:
    # A use that a client brings would let another machine in as the one that has used the entry.
    obj.pop("status", None)


def _validate(obj: Obj) -> list[FieldError]:
    spec = spec_of(obj)
    name, cidrs = spec.get("nodeName", ""), spec.get("allowedCIDRs") or []
    errors = [] if name else [required("spec.nodeName")]
    if name and dns1123_subdomain_errors(name.replace("*", "x")):
        errors.append(
            invalid("spec.nodeName", name, "must be a node name, in which * may stand for any characters but a dot")
        )
    fingerprint, code = spec.get("keyFingerprint", ""), spec.get("codeVerifier", "")
    if fingerprint and _FINGERPRINT.fullmatch(fingerprint) is None:
        errors.append(invalid("spec.keyFingerprint", fingerprint, "must be sha256: and 64 lower-case hex digits"))
    if code and not is_verifier(code):
        errors.append(invalid("spec.codeVerifier", code, "must be ed25519: and a public key in base64"))
    if len(cidrs) > MAX_CIDRS:
        errors.append(invalid("spec.allowedCIDRs", len(cidrs), f"must have at most {MAX_CIDRS} items"))
    errors += [
        error
        for index, one in enumerate(cidrs[:MAX_CIDRS])
        for error in _cidr_errors(one, f"spec.allowedCIDRs[{index}]")
    ]
    return errors + _fact_errors(obj) + _serving_errors(obj) + _use_errors(used_by(obj))


def _fact_errors(obj: Obj) -> list[FieldError]:
    facts, path = spec_of(obj).get("requestAnnotations") or {}, "spec.requestAnnotations"
    if len(facts) > MAX_FACTS:
        return [invalid(path, len(facts), f"must have at most {MAX_FACTS} items")]
    problems = {name: problem for name, value in facts.items() if (problem := fact_problem(name, value))}
    return [invalid(f"{path}[{name}]", facts[name], problem) for name, problem in problems.items()]


def _serving_errors(obj: Obj) -> list[FieldError]:
    names, path = serving_names_of(obj), "spec.servingNames"
    if len(names) > MAX_SERVING_NAMES:
        return [invalid(path, len(names), f"must have at most {MAX_SERVING_NAMES} items")]
    errors = []
    if names and "*" in spec_of(obj).get("nodeName", ""):
        errors.append(
            invalid(path, len(names), "must be empty where nodeName has *: the names would be those of many machines")
        )
    for index, text in enumerate(names):
        name = canonical(text)
        if (name_fault(text) if isinstance(name, str) else address_fault(name)) or str(name) != text:
            errors.append(
                invalid(
                    f"{path}[{index}]", text, "must be a DNS name in lower case, or an IP address in its usual form"
                )
            )
    return errors


def _cidr_errors(text: str, path: str) -> list[FieldError]:
    try:
        networks = parse_networks(text)
    except TokenError:
        networks = ()
    return (
        [] if len(networks) == 1 else [invalid(path, text, "must be a network such as 10.1.0.0/16, without host bits")]
    )


def _use_errors(use: Obj | None) -> list[FieldError]:
    if use is None:
        return []
    errors: list[FieldError] = []
    if _FINGERPRINT.fullmatch(use.get("publicKey", "")) is None:
        errors.append(
            invalid("status.usedBy.publicKey", use.get("publicKey", ""), "must be sha256: and 64 lower-case hex digits")
        )
    return errors + [
        too_long(f"status.usedBy.{name}", MAX_TEXT)
        for name in ("nodeName", "request")
        if len(use.get(name, "").encode()) > MAX_TEXT
    ]


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    errors = (
        []
        if spec_of(new) == spec_of(old)
        else [forbidden("spec", "cannot be changed; delete the object and create another")]
    )
    # An entry lets one machine in: after its use it stays that of the key that used it.
    if used_by(old) is not None and _user_of(new) != _user_of(old):
        errors.append(forbidden("status.usedBy", "cannot be changed; delete the object and create another"))
    return errors


def _user_of(obj: Obj) -> tuple[str, str]:
    """Return the key and the name of the node that used an entry."""
    use = used_by(obj) or {}
    return use.get("publicKey", ""), use.get("nodeName", "")


def proof_of(obj: Obj) -> str:
    """Return what the machine must prove: `key`, `code`, `key,code` or `none`."""
    spec = spec_of(obj)
    return (
        ",".join(word for word, name in (("key", "keyFingerprint"), ("code", "codeVerifier")) if spec.get(name))
        or "none"
    )


def _used_by_cell(obj: Obj, now: datetime) -> str:
    use = used_by(obj)
    return NONE if use is None else str(use.get("publicKey", ""))[: len("sha256:") + _SHOWN_DIGITS]


KIND = Kind(
    resource=Resource(
        group=GROUP,
        version=VERSION,
        kind="AuthorizedMachine",
        plural=PLURAL,
        namespaced=False,
        schema=message("dev.mooring.api.v1alpha1.AuthorizedMachine"),
        short_names=("machine",),
        columns=(
            NAME,
            Column(
                "Node", lambda obj, now: spec_of(obj).get("nodeName", ""), description="Name that the node may have."
            ),
            Column("Proof", lambda obj, now: proof_of(obj), description="What the machine must prove."),
            Column("Used By", _used_by_cell, description="First digits of the key that has used the entry."),
            AGE,
            Column(
                "Networks",
                lambda obj, now: ",".join(spec_of(obj).get("allowedCIDRs") or ()) or NONE,
                description="Networks from which the machine may ask.",
                priority=1,
            ),
        ),
    ),
    garbage_collected=False,
    is_exact=True,
    storage=f"{STORAGE_PREFIX}{PLURAL}",
    name_errors=dns1123_subdomain_errors,
    prepare_for_create=_prepare_for_create,
    validate=_validate,
    validate_update=_validate_update,
    allow_unconditional_update=False,
)
