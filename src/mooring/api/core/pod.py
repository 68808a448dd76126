"""Pods: their updates and status, and the columns of their table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from mooring.api.core import poddefaults, podvalidation
from mooring.api.core.poddefaults import qos_class
from mooring.api.core.podvalidation import annotation_errors
from mooring.api.kind import Change, Kind, SubresourceStrategy
from mooring.api.objectmeta import NAME, NONE, reset_fields, spec_of
from mooring.api.signername import MIN_SECONDS, longest_seconds, signer_name_errors, user_annotation_errors
from mooring.apimachinery.names import dns1123_label_errors, dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE, age
from mooring.clock import rfc3339
from mooring.errors import FieldError, InvalidError, duplicate, forbidden, invalid, not_supported, required

# Validation of the sources `podCertificate` of a new Pod's volumes.
#
# Rules kept here (wording as kube-apiserver's; the request that a kubelet makes of a source must be accepted later):
# * The source names a signer, a type of key, and a file at least. Its paths stay in the volume. The lifetime is within the limits
#   of the signer. Keys of annotations have a domain.
# * Pods that are stored already are not judged: their volumes cannot change.

KEY_TYPES = ("RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519")
_PATHS = ("credentialBundlePath", "keyPath", "certificateChainPath")


def source_errors(pod: Obj) -> list[FieldError]:
    """Return the errors of all sources `podCertificate`."""
    errors: list[FieldError] = []
    for index, volume in enumerate(spec_of(pod).get("volumes") or ()):
        for place, part in enumerate((volume.get("projected") or {}).get("sources") or ()):
            if "podCertificate" in part:
                at = f"spec.volumes[{index}].projected.sources[{place}].podCertificate"
                errors += _errors(part["podCertificate"] or {}, at)
    return errors


def _errors(source: Obj, at: str) -> Iterator[FieldError]:
    signer, kind = source.get("signerName") or "", source.get("keyType") or ""
    # Else the validation of every Pod says that it is missing.
    if signer:
        yield from signer_name_errors(signer, f"{at}.signerName")
    yield from user_annotation_errors(source.get("userAnnotations") or {}, f"{at}.userAnnotations")
    if kind and kind not in KEY_TYPES:
        yield not_supported(f"{at}.keyType", kind, KEY_TYPES)
    seconds, longest = source.get("maxExpirationSeconds"), longest_seconds(signer)
    if seconds is not None and seconds < MIN_SECONDS:
        detail = f"if provided, maxExpirationSeconds must be >= {MIN_SECONDS}"
        yield invalid(f"{at}.maxExpirationSeconds", seconds, detail)
    if seconds is not None and seconds > longest:
        yield invalid(f"{at}.maxExpirationSeconds", seconds, f"if provided, maxExpirationSeconds must be <= {longest}")
    paths = [(name, source[name]) for name in _PATHS if source.get(name)]
    for name, path in paths:
        yield from _path_errors(path, f"{at}.{name}")
    if not paths:
        yield required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath")


def _path_errors(path: str, at: str) -> Iterator[FieldError]:
    if path.startswith("/"):
        yield invalid(at, path, "must be a relative path")
    if ".." in path.split("/"):
        yield invalid(at, path, "must not contain '..'")
    elif path.startswith(".."):
        yield invalid(at, path, "must not start with '..'")


# Print columns of Pod: ready containers, status word, restarts; with `-o wide` IP, node and readiness gates.
#
# Rules kept here (Kubernetes documentation "Pod Lifecycle"; words as kubectl prints them):
# * The status word is the phase, unless something more specific applies: a reason, scheduling gates, an init container that is
#   not done (`Init:…`), a waiting or terminated container, and Terminating for a deleted Pod.
# * Restartable init containers count as containers. While init containers run, only their restarts are counted.
# * The time since the last restart is printed with the count; a missing value prints `<none>`.

FINAL_PHASES = ("Failed", "Succeeded")
"""Phases that never change again."""


def _status(obj: Obj) -> Obj:
    status: Obj = obj.get("status") or {}
    return status


def _is_true(obj: Obj, condition: str) -> bool:
    conditions = _status(obj).get("conditions") or ()
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


def _sidecars(obj: Obj) -> set[str]:
    """Return the names of restartable init containers, which run as long as the Pod."""
    return {
        one.get("name", "") for one in spec_of(obj).get("initContainers") or () if one.get("restartPolicy") == "Always"
    }


def _ready(obj: Obj, now: datetime) -> str:
    sidecars, status = _sidecars(obj), _status(obj)
    total = len(spec_of(obj).get("containers") or ()) + len(sidecars)
    running = [one for one in status.get("containerStatuses") or () if "running" in (one.get("state") or {})]
    started = [
        one for one in status.get("initContainerStatuses") or () if one.get("name") in sidecars and one.get("started")
    ]
    if _init_status(obj) and not _is_true(obj, "Initialized"):
        running = []
    return f"{sum(bool(one.get('ready')) for one in (*running, *started))}/{total}"


def _init_status(obj: Obj) -> str:
    """Return the status word of the first unfinished init container; "" when all are done."""
    sidecars = _sidecars(obj)
    for index, one in enumerate(_status(obj).get("initContainerStatuses") or ()):
        state = one.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if terminated is not None:
            if not terminated.get("exitCode"):
                continue
            return "Init:" + _termination_word(terminated)
        if one.get("name") in sidecars and one.get("started"):
            continue
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            return f"Init:{waiting['reason']}"
        return f"Init:{index}/{len(spec_of(obj).get('initContainers') or ())}"
    return ""


def _termination_word(terminated: Obj) -> str:
    reason: str = terminated.get("reason", "")
    if reason:
        return reason
    return f"Signal:{terminated['signal']}" if terminated.get("signal") else f"ExitCode:{terminated.get('exitCode', 0)}"


def _status_word(obj: Obj, now: datetime) -> str:
    status = _status(obj)
    word: str = status.get("reason") or status.get("phase") or ""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "SchedulingGated":
            word = "SchedulingGated"
    init_status = _init_status(obj)
    word = init_status or word
    if not init_status or _is_true(obj, "Initialized"):
        word = _container_status(obj, word)
    if obj["metadata"].get("deletionTimestamp"):
        if status.get("reason") == "NodeLost":
            return "Unknown"
        if status.get("phase") not in FINAL_PHASES:
            return "Terminating"
    return word


def _container_status(obj: Obj, word: str) -> str:
    any_running = False
    for one in reversed(_status(obj).get("containerStatuses") or ()):
        state = one.get("state") or {}
        terminated, waiting = state.get("terminated"), state.get("waiting") or {}
        if waiting.get("reason"):
            word = waiting["reason"]
        elif terminated is not None:
            word = _termination_word(terminated)
        elif one.get("ready") and "running" in state:
            any_running = True
    if word == "Completed" and any_running:
        return "Running" if _is_true(obj, "Ready") else "NotReady"
    return word


def _restarts(obj: Obj, now: datetime) -> str:
    sidecars, status = _sidecars(obj), _status(obj)
    counted = list(status.get("initContainerStatuses") or ())
    if not _init_status(obj) or _is_true(obj, "Initialized"):
        counted = [one for one in counted if one.get("name") in sidecars]
        counted += status.get("containerStatuses") or ()
    total = sum(one.get("restartCount", 0) for one in counted)
    last = max(_restart_times(counted), default="")
    return f"{total} ({age(last, now)} ago)" if total and last else str(total)


def _restart_times(statuses: Iterable[Obj]) -> list[str]:
    """Return the times when containers last terminated before a restart. RFC 3339 texts of equal form sort like times."""
    times = [((one.get("lastState") or {}).get("terminated") or {}).get("finishedAt") for one in statuses]
    return [text for text in times if text]


def _ip(obj: Obj, now: datetime) -> str:
    address: str = _status(obj).get("podIP") or NONE
    return address


def _node(obj: Obj, now: datetime) -> str:
    node: str = spec_of(obj).get("nodeName") or NONE
    return node


def _nominated(obj: Obj, now: datetime) -> str:
    node: str = _status(obj).get("nominatedNodeName") or NONE
    return node


def _gates(obj: Obj, now: datetime) -> str:
    gates = spec_of(obj).get("readinessGates") or ()
    if not gates:
        return NONE
    return f"{sum(_is_true(obj, gate.get('conditionType', '')) for gate in gates)}/{len(gates)}"


COLUMNS = (
    NAME,
    Column("Ready", _ready, description="Containers that are ready, of all."),
    Column("Status", _status_word, description="One word about the state of the Pod."),
    Column("Restarts", _restarts, description="How often containers were started again, and when last."),
    AGE,
    Column("IP", _ip, description="Address of the Pod.", priority=1),
    Column("Node", _node, description="The node it runs on.", priority=1),
    Column("Nominated Node", _nominated, description="The node that is being cleared for it.", priority=1),
    Column("Readiness Gates", _gates, description="Readiness gates that are true, of all.", priority=1),
)


# Strategy and validation of a Pod's `/status` (wording as kube-apiserver's).
#
# Rules kept here (Kubernetes API reference, core/v1 PodStatus; docs/protocol/node-authorization.md#noderestriction):
# * Annotations that mark a mirror Pod or choose an AppArmor profile are immutable here, as in updates of the Pod.
# * The quality of service class is immutable. A Pod on a node has no new nominated node.
# * A missing observed generation keeps the stored one, for the Pod and for each condition.
# * Resource claims in the status match those of the spec, because the node authorizer lets a node read the claims in a status.

_OBSERVED_GENERATION = "observedGeneration"


def keep_observed_generations(new: Obj, old: Obj) -> None:
    """Keep observed generations that an older client does not send; conditions of one type are matched in order."""
    status, old_status = new.get("status") or {}, old.get("status") or {}
    if old_status.get(_OBSERVED_GENERATION) and not status.get(_OBSERVED_GENERATION):
        new["status"] = status = {**status, _OBSERVED_GENERATION: old_status[_OBSERVED_GENERATION]}
    stored: dict[str, list[int]] = {}
    for condition in old_status.get("conditions") or ():
        stored.setdefault(condition.get("type", ""), []).append(condition.get(_OBSERVED_GENERATION) or 0)
    for condition in status.get("conditions") or ():
        generations = stored.get(condition.get("type", ""))
        generation = generations.pop(0) if generations else 0
        if generation and not condition.get(_OBSERVED_GENERATION):
            condition[_OBSERVED_GENERATION] = generation


def validate_update(new: Obj, old: Obj) -> list[FieldError]:
    """Validate an update of a Pod's status."""
    spec, status, old_status = new.get("spec") or {}, new.get("status") or {}, old.get("status") or {}
    errors = annotation_errors(new, old)
    node = status.get("nominatedNodeName", "")
    if node and node != old_status.get("nominatedNodeName", ""):
        errors += [invalid("status.nominatedNodeName", node, detail) for detail in dns1123_subdomain_errors(node)]
        if spec.get("nodeName"):
            detail = "may not be set on pods that are already bound to a node"
            errors.append(forbidden("status.nominatedNodeName", detail))
    if (generation := status.get(_OBSERVED_GENERATION) or 0) < 0:
        errors.append(invalid(f"status.{_OBSERVED_GENERATION}", generation, "must be a non-negative integer"))
    if status.get("qosClass") != old_status.get("qosClass"):
        errors.append(invalid("status.qosClass", status.get("qosClass"), "field is immutable"))
    return (
        errors + _claim_errors(status, spec) + _extended_claim_errors(status.get("extendedResourceClaimStatus"), spec)
    )


def _claim_errors(status: Obj, spec: Obj) -> list[FieldError]:
    claims = {claim.get("name") for claim in spec.get("resourceClaims") or ()}
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, claim in enumerate(status.get("resourceClaimStatuses") or ()):
        path, name = f"status.resourceClaimStatuses[{index}]", claim.get("name", "")
        if name not in claims:
            errors.append(invalid(f"{path}.name", name, "must match the name of an entry in `spec.resourceClaims`"))
        if name in seen:
            errors.append(duplicate(f"{path}.name", name))
        seen.add(name)
        created = claim.get("resourceClaimName")
        if created is not None:
            errors += [
                invalid(f"{path}.resourceClaimName", created, detail) for detail in dns1123_subdomain_errors(created)
            ]
    return errors


def _extended_claim_errors(claim: Obj | None, spec: Obj) -> list[FieldError]:
    if claim is None:
        return []
    path = "status.extendedResourceClaimStatus"
    errors: list[FieldError] = []
    if not claim.get("requestMappings"):
        errors.append(required(f"{path}.requestMappings", "at least one request mapping is required"))
    containers = {
        one.get("name"): one for one in (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    }
    for index, mapping in enumerate(claim.get("requestMappings") or ()):
        at, name, resource = (
            f"{path}.requestMappings[{index}]",
            mapping.get("containerName", ""),
            mapping.get("resourceName", ""),
        )
        if name not in containers:
            detail = "must match the name of an entry in spec.initContainers.name or spec.containers.name"
            errors.append(invalid(f"{at}.containerName", name, detail))
        elif resource not in ((containers[name].get("resources") or {}).get("requests") or {}):
            detail = (
                "must match the extended resource name of an entry in spec.initContainers.resources.requests or "
                "spec.containers.resources.requests"
            )
            errors.append(invalid(f"{at}.resourceName", resource, detail))
        request = mapping.get("requestName", "")
        errors += [invalid(f"{path}.requestName", request, detail) for detail in dns1123_label_errors(request)]
    created = claim.get("resourceClaimName", "")
    if not created:
        errors.append(required(f"{path}.resourceClaimName"))
    return errors + [
        invalid(f"{path}.resourceClaimName", created, detail) for detail in dns1123_subdomain_errors(created) if created
    ]


# Pod: strategy of the main resource and of `/status`. No part of this server runs Pods; nodes read them, tokens are bound to
# them.
#
# Rules kept here (docs/protocol/node-authorization.md, docs/protocol/selectors.md, docs/protocol/patches.md#strategic-merge):
# * A new Pod is Pending, whatever status the client sends, and has the quality of service class of its resources.
# * A Pod with scheduling gates says so in a condition. Ephemeral containers are refused on create.
# * The main resource changes all but status. `/status` changes status only, keeps owner references and the quality of service
#   class.
# * A deleted Pod on a node stays until its grace period is over and the node deletes it with grace period 0. A Pod without a
#   node, or in a final phase, is removed at once.
# * There is no binding, eviction, log or exec: a Pod gets its node when it is created, or never.


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
    keep_observed_generations(new, old)


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
    default=poddefaults.default,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    validate=podvalidation.validate,
    validate_create=source_errors,
    validate_update=podvalidation.validate_update,
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
    subresources={"status": SubresourceStrategy(prepare_for_update=_prepare_status, validate_update=validate_update)},
    has_generation=True,
    grace_seconds=_grace_seconds,
)
