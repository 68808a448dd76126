"""Pod: what is to run on a node. Nothing here runs one: nodes read Pods, service account tokens are bound to them.

Rules kept here (docs/protocol/node-authorization.md, docs/protocol/selectors.md, docs/protocol/patches.md#strategic-merge; defaults
and validation in files of their own):
* A new Pod is Pending, whatever status its author gave it, and has the class of service that its resources make.
* A Pod that waits for gates says so in a condition. Ephemeral containers are never there from the start.
* The main resource changes all but status; `/status` changes status only, leaves owner references alone and the class as it is.
* A Pod on a node stays, when deleted, until its time to stop is over and the node deletes it with no time left. One without a
  node, or that has ended, goes at once.
* No binding, eviction, log or exec: a Pod gets its node when it is created, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from mooring.api.core.pod import (
    defaults as poddefaults,
)
from mooring.api.core.pod import (
    status as podstatus,
)
from mooring.api.core.pod import (
    validation as podvalidation,
)
from mooring.api.core.pod import (
    warnings as podwarnings,
)
from mooring.api.core.pod.columns import COLUMNS, ENDED
from mooring.api.core.pod.resources import qos_class
from mooring.api.core.pod.schema import POD
from mooring.api.kind import Change, Kind, SubresourcePolicy
from mooring.api.meta.parts import restore
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Resource, Subresource
from mooring.apimachinery.schema import Obj
from mooring.errors import InvalidError, forbidden


def _prepare_create(obj: Obj, change: Change) -> None:
    """Raises InvalidError for ephemeral containers."""
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
            }
        ]


def _prepare_update(new: Obj, old: Obj, change: Change) -> None:
    restore(new, old, "status")


def _prepare_status(new: Obj, old: Obj, change: Change) -> None:
    restore(new, old, "spec")
    restore(new.setdefault("metadata", {}), old["metadata"], "ownerReferences")
    kept = (old.get("status") or {}).get("qosClass")
    if kept and not (new.get("status") or {}).get("qosClass"):
        new["status"] = {**(new.get("status") or {}), "qosClass": kept}
    podstatus.keep_observed_generations(new, old)


def _grace_seconds(obj: Obj, asked: int | None) -> int:
    spec, phase = obj.get("spec") or {}, (obj.get("status") or {}).get("phase")
    if not spec.get("nodeName") or phase in ENDED:
        return 0
    seconds: int = spec.get("terminationGracePeriodSeconds", 0) if asked is None else asked
    return seconds if seconds >= 0 else 1


def _fields(obj: Obj) -> Mapping[str, str]:
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
        singular="pod",
        namespaced=True,
        schema=POD,
        short_names=("po",),
        categories=("all",),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=COLUMNS,
        returns_deleted=True,
    ),
    storage="/registry/pods",
    name_errors=dns1123_subdomain_errors,
    default=poddefaults.default,
    prepare_create=_prepare_create,
    prepare_update=_prepare_update,
    validate=podvalidation.validate,
    validate_update=podvalidation.validate_update,
    warnings=podwarnings.pod_warnings,
    fields=_fields,
    selectable=(
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
        "status": SubresourcePolicy(
            prepare_update=_prepare_status,
            validate_update=podstatus.validate_update,
            warnings=podwarnings.status_warnings,
        )
    },
    has_generation=True,
    grace_seconds=_grace_seconds,
)
