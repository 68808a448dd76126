"""Lease: schema, strategy, validation. Leader election and node heartbeats renew Leases every few seconds.

Rules kept here (docs/protocol/objects.md#updates): PUT needs a resourceVersion, so that two holders can never both win; PUT of a
missing Lease creates it. Durations are positive, transition counts never negative; a preferred holder needs a strategy.
"""

from __future__ import annotations

from mooring.api.kind import Kind, is_untracked
from mooring.api.meta.printcolumns import NAME
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Field, Message, Obj, Scalar
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, forbidden, invalid

API = "io.k8s.api.coordination.v1."

LEASE_SPEC = Message(
    API + "LeaseSpec",
    (
        Field("holderIdentity", 1, Scalar.STRING, "Who holds the lease; empty when nobody does.", pointer=True),
        Field(
            "leaseDurationSeconds",
            2,
            Scalar.INT32,
            "Seconds after renewTime that others wait before they take the lease.",
            pointer=True,
        ),
        Field("acquireTime", 3, Scalar.MICRO_TIME, "When the present holder took the lease.", pointer=True),
        Field("renewTime", 4, Scalar.MICRO_TIME, "When the holder last renewed it.", pointer=True),
        Field("leaseTransitions", 5, Scalar.INT32, "How often the lease changed hands.", pointer=True),
        Field("strategy", 6, Scalar.STRING, "How a coordinated election chooses the holder.", pointer=True),
        Field("preferredHolder", 7, Scalar.STRING, "Who should take the lease next; needs a strategy.", pointer=True),
    ),
    "Who holds the lease and until when.",
)

LEASE = Message(
    API + "Lease",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("spec", 2, LEASE_SPEC, "Who holds the lease and until when."),
    ),
    "A claim that is held for some time and must be renewed.",
)


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
        schema=LEASE,
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
