"""Pod: strategy of the main resource and of `/status`. No part of this server runs Pods; nodes read them, tokens are bound to them.

Rules kept here (docs/protocol/node-authorization.md, docs/protocol/selectors.md, docs/protocol/patches.md#strategic-merge):
* A new Pod is Pending, whatever status the client sends, and has the quality of service class of its resources.
* A Pod with scheduling gates says so in a condition. Ephemeral containers are refused on create.
* The main resource changes all but status. `/status` changes status only, keeps owner references and the quality of service class.
* A deleted Pod on a node stays until its grace period is over and the node deletes it with grace period 0. A Pod without a node,
  or in a final phase, is removed at once.
* There is no binding, eviction, log or exec: a Pod gets its node when it is created, or never.
"""

from __future__ import annotations

from collections.abc import Mapping

from mooring.api.core.pod import defaults, podcertificatevolumes, statusstrategy, validation
from mooring.api.core.pod.printcolumns import COLUMNS, FINAL_PHASES
from mooring.api.core.pod.qos import qos_class
from mooring.api.kind import Change, Kind, SubresourceStrategy
from mooring.api.meta.resetfields import reset_fields
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.clock import rfc3339
from mooring.errors import InvalidError, forbidden


def _prepare_for_create(obj: Obj, change: Change) -> None:
    """Set status. Raises InvalidError for ephemeral containers."""
    spec = obj["spec"]
    if spec.get("ephemeralContainers"):
        error = forbidden("spec.ephemeralContainers", "cannot be set on create")
        raise InvalidError.of("", "Pod", obj["metadata"].get("name", ""), [error])
    obj["status"] = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        obj["status"]["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
                "lastTransitionTime": rfc3339(change.now),
            }
        ]


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "status")


def _prepare_status(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec")
    reset_fields(new.setdefault("metadata", {}), old["metadata"], "ownerReferences")
    old_class = (old.get("status") or {}).get("qosClass")
    if old_class and not (new.get("status") or {}).get("qosClass"):
        new["status"] = {**(new.get("status") or {}), "qosClass": old_class}
    statusstrategy.keep_observed_generations(new, old)


def _grace_seconds(obj: Obj, requested: int | None) -> int:
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in FINAL_PHASES:
        return 0
    seconds: int = spec.get("terminationGracePeriodSeconds", 0) if requested is None else requested
    return seconds if seconds >= 0 else 1


def _selectable_fields(obj: Obj) -> Mapping[str, str]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    return {
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.restartPolicy": spec.get("restartPolicy", ""),
        "spec.schedulerName": spec.get("schedulerName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "spec.hostNetwork": "true" if spec.get("hostNetwork") else "false",
        "status.phase": status.get("phase", ""),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": ",".join(address.get("ip", "") for address in status.get("podIPs") or ()),
        "status.nominatedNodeName": status.get("nominatedNodeName", ""),
    }


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="Pod",
        plural="pods",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.Pod"),
        short_names=("po",),
        categories=("all",),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=COLUMNS,
        returns_deleted=True,
    ),
    storage="/registry/pods",
    name_errors=dns1123_subdomain_errors,
    default=defaults.default,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate=validation.validate,
    validate_create=podcertificatevolumes.source_errors,
    validate_update=validation.validate_update,
    selectable_fields=_selectable_fields,
    field_labels=(
        "spec.nodeName",
        "spec.restartPolicy",
        "spec.schedulerName",
        "spec.serviceAccountName",
        "spec.hostNetwork",
        "status.phase",
        "status.podIP",
        "status.podIPs",
        "status.nominatedNodeName",
    ),
    subresources={
        "status": SubresourceStrategy(
            prepare_for_update=_prepare_status, validate_update=statusstrategy.validate_update
        )
    },
    has_generation=True,
    grace_seconds=_grace_seconds,
)
