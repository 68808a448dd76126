"""Lease: strategy, validation. Leader election and node heartbeats renew Leases every few seconds.

Rules kept here (docs/protocol/objects.md#updates): PUT needs a resourceVersion, so that two holders can never both win; PUT of a
missing Lease creates it. Durations are positive, transition counts never negative; a preferred holder needs a strategy.
"""

from __future__ import annotations

from mooring.api.kind import Kind, is_untracked
from mooring.api.objectmeta import NAME
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, forbidden, invalid


def _validate(obj: Obj) -> list[FieldError]:
    spec = obj.get("spec") or {}
    errors: list[FieldError] = []
    duration = spec.get("leaseDurationSeconds", 1)
    if duration <= 0:
        errors.append(invalid("spec.leaseDurationSeconds", duration, "must be greater than 0"))
    transitions = spec.get("leaseTransitions", 0)
    if transitions < 0:
        errors.append(invalid("spec.leaseTransitions", transitions, "must be greater than or equal to 0"))
    if spec.get("preferredHolder") and not spec.get("strategy"):
        errors.append(forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined"))
    return errors


KIND = Kind(
    resource=Resource(
        group="coordination.k8s.io",
        version="v1",
        kind="Lease",
        plural="leases",
        namespaced=True,
        schema=message("io.k8s.api.coordination.v1.Lease"),
        columns=(
            NAME,
            Column(
                "Holder",
                lambda obj, now: (obj.get("spec") or {}).get("holderIdentity", ""),
                description="Who holds the lease.",
            ),
            AGE,
        ),
    ),
    storage="/registry/leases",
    tracks_creator=is_untracked,
    name_errors=dns1123_subdomain_errors,
    validate=_validate,
    allow_unconditional_update=False,
    allow_create_on_update=True,
    finalizers_need_domain=False,
)
