"""Namespace: strategy, and the `/status` and `/finalize` subresources.

Rules kept here (docs/protocol/namespaces.md):
* A new Namespace is Active, with the finalizer `kubernetes` in spec and the label `kubernetes.io/metadata.name`, which always holds
  its name whatever a client sends.
* The main resource changes neither spec nor status; `/status` only status; `/finalize` only spec.finalizers.
* The phase is Active until the Namespace is deleted, then Terminating.
"""

from __future__ import annotations

from mooring.api.kind import Change, Kind, SubresourceStrategy
from mooring.api.objectmeta import NAME, finalizer_errors, reset_fields
from mooring.apimachinery.names import dns1123_label_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid

NAME_LABEL = "kubernetes.io/metadata.name"
FINALIZER = "kubernetes"
ACTIVE = "Active"
TERMINATING = "Terminating"


def _default(obj: Obj) -> None:
    status = obj.setdefault("status", {})
    status["phase"] = status.get("phase") or ACTIVE
    meta = obj["metadata"]
    if name := meta.get("name"):
        meta["labels"] = {**(meta.get("labels") or {}), NAME_LABEL: name}


def _prepare_for_create(obj: Obj, change: Change) -> None:
    # Again, because a generated name is known now.
    _default(obj)
    obj["status"] = {"phase": ACTIVE}
    spec = obj.setdefault("spec", {})
    finalizers = spec.get("finalizers") or []
    if FINALIZER not in finalizers:
        # The namespace stays until the controller has deleted what is in it.
        spec["finalizers"] = [*finalizers, FINALIZER]


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec", "status")


def _validate(obj: Obj) -> list[FieldError]:
    finalizers = (obj.get("spec") or {}).get("finalizers") or []
    return [error for finalizer in finalizers for error in finalizer_errors(finalizer, "spec.finalizers")]


def _validate_status(new: Obj, old: Obj) -> list[FieldError]:
    phase = (new.get("status") or {}).get("phase", "")
    if "deletionTimestamp" in new["metadata"]:
        expected, when = TERMINATING, "is not empty"
    else:
        expected, when = ACTIVE, "is empty"
    if phase == expected:
        return []
    return [invalid("status.Phase", phase, f"may only be '{expected}' if `deletionTimestamp` {when}")]


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="Namespace",
        plural="namespaces",
        namespaced=False,
        schema=message("io.k8s.api.core.v1.Namespace"),
        short_names=("ns",),
        verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
        subresources=(Subresource("finalize", ("update",)), Subresource("status", ("get", "patch", "update"))),
        columns=(
            NAME,
            Column(
                "Status",
                lambda obj, now: (obj.get("status") or {}).get("phase", ""),
                description="Active, or Terminating once deletion was asked for.",
            ),
            AGE,
        ),
    ),
    storage="/registry/namespaces",
    name_errors=dns1123_label_errors,
    default=_default,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate=_validate,
    selectable_fields=lambda obj: {
        "name": obj["metadata"]["name"],
        "status.phase": (obj.get("status") or {}).get("phase", ""),
    },
    field_labels=("name", "status.phase"),
    subresources={
        "status": SubresourceStrategy(
            prepare_for_update=lambda new, old, change: reset_fields(new, old, "spec"),
            validate_update=_validate_status,
        ),
        "finalize": SubresourceStrategy(prepare_for_update=lambda new, old, change: reset_fields(new, old, "status")),
    },
)
