"""Nodes: their validation, updates and status, and the columns of their table."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import datetime

from mooring.api.core.addresses import NOT_A_RANGE, range_warnings
from mooring.api.kind import Change, Kind, SubresourceStrategy, is_untracked
from mooring.api.objectmeta import NAME, NONE, UNKNOWN, reset_fields
from mooring.apimachinery.names import dns1123_subdomain_errors, label_value_errors, qualified_name_errors
from mooring.apimachinery.resource import Column, Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, duplicate, forbidden, invalid, not_supported, required

# Print columns of Node: readiness, roles, version; with `-o wide` addresses and software (docs/protocol/tables.md).
#
# Rules kept here: the status is Ready, NotReady, or Unknown without a Ready condition. Roles are read from labels, sorted. A
# missing value prints `<none>` (roles, addresses) or `<unknown>` (software). The architecture follows the kernel, as in
# Kubernetes 1.36.

_ROLE_PREFIX = "node-role.kubernetes.io/"
_ROLE = "kubernetes.io/role"


def _status(obj: Obj, now: datetime) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or []
    ready = {condition.get("type"): condition.get("status") for condition in conditions}.get("Ready")
    text = "Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"
    return f"{text},SchedulingDisabled" if (obj.get("spec") or {}).get("unschedulable") else text


def _roles(obj: Obj, now: datetime) -> str:
    roles = set()
    for key, value in (obj["metadata"].get("labels") or {}).items():
        if key.startswith(_ROLE_PREFIX):
            roles.add(key[len(_ROLE_PREFIX) :])
        elif key == _ROLE:
            roles.add(value)
    return ",".join(sorted(roles - {""})) or NONE


def _address(kind: str) -> Callable[[Obj, datetime], str]:
    def cell(obj: Obj, now: datetime) -> str:
        for address in (obj.get("status") or {}).get("addresses") or []:
            if address.get("type") == kind:
                text: str = address.get("address", "")
                return text
        return NONE

    return cell


def _software(name: str, missing: str) -> Callable[[Obj, datetime], str]:
    def cell(obj: Obj, now: datetime) -> str:
        text: str = ((obj.get("status") or {}).get("nodeInfo") or {}).get(name) or missing
        return text

    return cell


def _kernel(obj: Obj, now: datetime) -> str:
    architecture = ((obj.get("status") or {}).get("nodeInfo") or {}).get("architecture")
    version = _software("kernelVersion", UNKNOWN)(obj, now)
    return f"{version} ({architecture})" if architecture else version


COLUMNS = (
    NAME,
    Column("Status", _status, description="Whether the node is ready, and whether it takes new Pods."),
    Column("Roles", _roles, description="Roles named by the node's labels."),
    AGE,
    Column("Version", _software("kubeletVersion", ""), description="Version of the node's agent."),
    Column("Internal-IP", _address("InternalIP"), description="First address inside the cluster.", priority=1),
    Column("External-IP", _address("ExternalIP"), description="First address outside the cluster.", priority=1),
    Column("OS-Image", _software("osImage", UNKNOWN), description="The operating system.", priority=1),
    Column("Kernel-Version", _kernel, description="The kernel and the architecture.", priority=1),
    Column(
        "Container-Runtime",
        _software("containerRuntimeVersion", UNKNOWN),
        description="The container runtime and its version.",
        priority=1,
    ),
)


# Node: strategy, defaults, validation, warnings.
#
# Rules kept here (docs/protocol/tables.md, docs/protocol/selectors.md, docs/protocol/patches.md#strategic-merge; wording as
# kube-apiserver's):
# * A node may be created with its status. Afterwards the main resource changes all but status, `/status` all but spec.
# * `podCIDR` is the first of `podCIDRs`, at most one per IP family; both, and `providerID`, are set once.
# * Taints have a qualified key and a known effect, and are unique by key and effect.
# * Quantities of capacity and allocatable have qualified names and are not negative; allocatable defaults to capacity.

TAINT_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")
_TAINTS_PATH = "metadata.taints"
"""kube-apiserver reports errors of taints under metadata although they are in spec; tools expect it."""


def _default(obj: Obj) -> None:
    if spec := obj.get("spec"):
        first, cidrs = spec.get("podCIDR"), spec.get("podCIDRs")
        if first and (not cidrs or cidrs[0] != first):
            spec["podCIDRs"] = [first]
        elif cidrs and not first:
            spec["podCIDR"] = cidrs[0]
    status = obj.get("status")
    if status and status.get("capacity") and not status.get("allocatable"):
        status["allocatable"] = dict(status["capacity"])


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "status")


def _prepare_status(new: Obj, old: Obj, change: Change) -> None:
    reset_fields(new, old, "spec")


def _validate(obj: Obj) -> list[FieldError]:
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    errors: list[FieldError] = []
    if taints := spec.get("taints"):
        errors += _taint_errors(taints)
    for part in ("capacity", "allocatable"):
        if amounts := status.get(part):
            errors += _amount_errors(amounts, f"status.{part}")
    if cidrs := spec.get("podCIDRs"):
        errors += _cidr_errors(cidrs)
    return errors


def _taint_errors(taints: list[Obj]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        at = f"{_TAINTS_PATH}[{index}]"
        key, value, effect = taint.get("key", ""), taint.get("value", ""), taint.get("effect", "")
        errors += [invalid(f"{at}.key", key, detail) for detail in qualified_name_errors(key)]
        if details := label_value_errors(value):
            errors.append(invalid(f"{at}.value", value, ";".join(details)))
        if not effect:
            errors.append(required(f"{at}.effect"))
        elif effect not in TAINT_EFFECTS:
            errors.append(not_supported(f"{at}.effect", effect, TAINT_EFFECTS))
        if (key, effect) in seen:
            errors.append(FieldError("FieldValueDuplicate", at, "taints must be unique by key and effect pair", taint))
        seen.add((key, effect))
    return errors


def _amount_errors(amounts: Mapping[str, str], path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    for name, amount in amounts.items():
        errors += [invalid(f"{path}.{name}", name, detail) for detail in qualified_name_errors(name)]
        if str(amount).startswith("-"):
            errors.append(invalid(f"{path}.{name}", amount, "must be greater than or equal to 0"))
    return errors


def _cidr_errors(cidrs: list[str]) -> list[FieldError]:
    path = "spec.podCIDRs"
    errors: list[FieldError] = []
    families: list[int] = []
    for index, cidr in enumerate(cidrs):
        try:
            if "/" not in cidr:
                raise ValueError(cidr)
            families.append(ipaddress.ip_interface(cidr).version)
        except ValueError:
            errors.append(invalid(f"{path}[{index}]", cidr, NOT_A_RANGE))
    if not errors and len(families) != len(set(families)):
        errors.append(invalid(path, cidrs, "may specify no more than one CIDR for each IP family"))
    errors += [duplicate(f"{path}[{index}]", cidrs[index]) for index in _duplicate_indexes(cidrs)]
    return errors


def _duplicate_indexes(values: Iterable[Hashable]) -> list[int]:
    """Return the indexes of repeated values. Linear, because a node controls the length of its lists."""
    seen: set[Hashable] = set()
    found = []
    for index, value in enumerate(values):
        if value in seen:
            found.append(index)
        seen.add(value)
    return found


def _validate_update(new: Obj, old: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    spec, old_spec = new.get("spec") or {}, old.get("spec") or {}
    if old_spec.get("podCIDRs") and spec.get("podCIDRs") != old_spec["podCIDRs"]:
        errors.append(forbidden("spec.podCIDRs", 'node updates may not change podCIDR except from "" to valid'))
    if old_spec.get("providerID") and spec.get("providerID") != old_spec["providerID"]:
        errors.append(forbidden("spec.providerID", 'node updates may not change providerID except from "" to valid'))
    if spec.get("externalID") != old_spec.get("externalID"):
        errors.append(forbidden("spec.externalID", "may not be updated"))
    return errors + _address_errors(new)


def _address_errors(new: Obj) -> list[FieldError]:
    addresses = (new.get("status") or {}).get("addresses") or []
    pairs = ((address.get("type"), address.get("address")) for address in addresses)
    return [duplicate(f"status.addresses[{index}]", addresses[index]) for index in _duplicate_indexes(pairs)]


def _warnings(new: Obj, old: Obj | None) -> list[str]:
    spec = new["spec"]
    warnings = []
    if "configSource" in spec:
        warnings.append("spec.configSource: the feature is removed")
    if spec.get("externalID"):
        warnings.append("spec.externalID: this field is deprecated, and is unused by Kubernetes")
    for index, cidr in enumerate(spec.get("podCIDRs") or ()):
        warnings += range_warnings(f"spec.podCIDRs[{index}]", cidr)
    return warnings


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="Node",
        plural="nodes",
        namespaced=False,
        schema=message("io.k8s.api.core.v1.Node"),
        short_names=("no",),
        subresources=(Subresource("status", ("get", "patch", "update")),),
        columns=COLUMNS,
    ),
    is_known_by_uid=True,
    storage="/registry/minions",
    tracks_creator=is_untracked,
    name_errors=dns1123_subdomain_errors,
    default=_default,
    prepare_for_update=_prepare_for_update,
    validate=_validate,
    validate_update=_validate_update,
    warnings=_warnings,
    selectable_fields=lambda obj: {
        "spec.unschedulable": "true" if (obj.get("spec") or {}).get("unschedulable") else "false",
    },
    field_labels=("spec.unschedulable",),
    subresources={"status": SubresourceStrategy(prepare_for_update=_prepare_status, validate_update=_validate_update)},
)
