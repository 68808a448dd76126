"""What is wrong with a Pod, and what of one may change (wording as kube-apiserver's).

Rules kept here (Kubernetes API reference, core/v1 Pod; docs/protocol/node-authorization.md#noderestriction):
* At least one container; names of containers and volumes are DNS labels and unique in the Pod; a mount names a volume.
* A volume has one source. Choices are among the known ones. Requests are not above limits, and nothing is negative.
* Kernel parameters are named once, each as one can be named: [sig-node] Sysctls of the e2e tests.
* A mirror Pod names its node, and stays one; no other Pod becomes one.
* After creation only images, activeDeadlineSeconds (given or lowered), tolerations (added), scheduling gates (removed) and
  terminationGracePeriodSeconds (from below zero to 1) change.
What only a node or a scheduler can judge is left to them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mooring.api.core.pod.containervalidation import container_errors
from mooring.api.core.pod.placement import placement_errors
from mooring.api.core.pod.volumevalidation import volume_errors
from mooring.api.meta.objectmeta import label_errors
from mooring.apimachinery.names import dns1123_label_errors, dns1123_subdomain_errors, qualified_name_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, forbidden, invalid, not_supported, required

MIRROR = "kubernetes.io/config.mirror"
"""Annotation that marks the API's picture of a Pod which a node runs from a file."""
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"
"""Begins annotations that chose the AppArmor profile of a container before its security context could."""
MAX_DEADLINE = (1 << 31) - 1
RESTART_POLICIES = ("Always", "OnFailure", "Never")
DNS_POLICIES = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
MAX_SYSCTL = 253
"""Characters in the name of a kernel parameter: kube-apiserver's limit."""
_SYSCTL_PART = "[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_SYSCTL = re.compile(rf"({_SYSCTL_PART}[\./])*{_SYSCTL_PART}")
_CHANGES = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def validate(obj: Obj) -> list[FieldError]:
    """What is wrong with a Pod that has its defaults, on create and on update alike."""
    spec = obj.get("spec") or {}
    volumes, errors = volume_errors(spec.get("volumes") or [])
    errors += container_errors(spec, volumes)
    errors += _choice_errors(spec) + _name_errors(spec) + placement_errors(spec)
    errors += _sysctl_errors((spec.get("securityContext") or {}).get("sysctls") or ())
    deadline = spec.get("activeDeadlineSeconds")
    if deadline is not None and not 1 <= deadline <= MAX_DEADLINE:
        why = f"must be between 1 and {MAX_DEADLINE}, inclusive"
        errors.append(invalid("spec.activeDeadlineSeconds", deadline, why))
    for index, toleration in enumerate(spec.get("tolerations") or ()):
        errors += _toleration_errors(toleration, f"spec.tolerations[{index}]")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        errors.append(forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared"))
    annotations = obj["metadata"].get("annotations") or {}
    if MIRROR in annotations and not spec.get("nodeName"):
        why = "must set spec.nodeName if mirror pod annotation is set"
        errors.append(invalid(f"metadata.annotations[{MIRROR}]", annotations[MIRROR], why))
    return errors


def _choice_errors(spec: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    restart, dns = spec.get("restartPolicy", ""), spec.get("dnsPolicy", "")
    if restart not in RESTART_POLICIES:
        errors.append(not_supported("spec.restartPolicy", restart, RESTART_POLICIES))
    if dns not in DNS_POLICIES:
        errors.append(not_supported("spec.dnsPolicy", dns, DNS_POLICIES))
    elif dns == "None" and not (spec.get("dnsConfig") or {}).get("nameservers"):
        errors.append(required("spec.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None"))
    return errors


def _name_errors(spec: Obj) -> list[FieldError]:
    errors = label_errors(spec.get("nodeSelector") or {}, "spec.nodeSelector")
    for name, rule in (
        ("serviceAccountName", dns1123_subdomain_errors),
        ("nodeName", dns1123_subdomain_errors),
        ("hostname", dns1123_label_errors),
        ("subdomain", dns1123_label_errors),
    ):
        if value := spec.get(name):
            errors += [invalid(f"spec.{name}", value, why) for why in rule(value)]
    gates = [gate.get("name", "") for gate in spec.get("schedulingGates") or ()]
    seen: set[str] = set()
    for index, gate in enumerate(gates):
        path = f"spec.schedulingGates[{index}]"
        errors += [invalid(path, gate, why) for why in qualified_name_errors(gate)]
        if gate in seen:
            errors.append(duplicate(path, gate))
        seen.add(gate)
    return errors


def _sysctl_errors(sysctls: Iterable[Obj]) -> list[FieldError]:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, sysctl in enumerate(sysctls):
        path, name = f"spec.securityContext.sysctls[{index}].name", sysctl.get("name", "")
        if not name:
            errors.append(required(path))
        elif len(name) > MAX_SYSCTL or not _SYSCTL.fullmatch(name):
            why = f"must have at most {MAX_SYSCTL} characters and match regex ^{_SYSCTL.pattern}$"
            errors.append(invalid(path, name, why))
        elif name in seen:
            errors.append(duplicate(path, name))
        seen.add(name)
    return errors


def _toleration_errors(toleration: Obj, path: str) -> list[FieldError]:
    key, operator, effect = toleration.get("key", ""), toleration.get("operator", ""), toleration.get("effect", "")
    errors: list[FieldError] = []
    if key:
        errors += [invalid(f"{path}.key", key, why) for why in qualified_name_errors(key)]
    elif operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        errors.append(invalid(f"{path}.operator", operator, why))
    if toleration.get("tolerationSeconds") is not None and effect != "NoExecute":
        errors.append(invalid(f"{path}.effect", effect, "effect must be 'NoExecute' when `tolerationSeconds` is set"))
    if operator == "Exists" and toleration.get("value"):
        errors.append(
            invalid(f"{path}.operator", toleration["value"], "value must be empty when `operator` is 'Exists'")
        )
    elif operator not in ("", "Equal", "Exists", "Lt", "Gt"):
        errors.append(not_supported(f"{path}.operator", operator, ("Equal", "Exists")))
    if effect and effect not in EFFECTS:
        errors.append(not_supported(f"{path}.effect", effect, EFFECTS))
    return errors


def validate_update(new: Obj, old: Obj) -> list[FieldError]:
    """What of the change is not allowed."""
    errors = annotation_errors(new, old)
    spec, kept = new.get("spec") or {}, old.get("spec") or {}
    for name in ("containers", "initContainers"):
        if len(spec.get(name) or ()) != len(kept.get(name) or ()):
            return [*errors, forbidden(f"spec.{name}", "pod updates may not add or remove containers")]
    errors += _deadline_errors(spec.get("activeDeadlineSeconds"), kept.get("activeDeadlineSeconds"))
    errors += _added_errors(spec, kept)
    if _without_what_may_change(spec, kept) != _without_what_may_change(kept, kept):
        errors.append(forbidden("spec", _CHANGES))
    return errors


def annotation_errors(new: Obj, old: Obj) -> list[FieldError]:
    """Return the changes of annotations that no update may make, through the Pod or its status."""
    before = old["metadata"].get("annotations") or {}
    after = new["metadata"].get("annotations") or {}
    errors: list[FieldError] = []
    for name in sorted({*before, *after}):
        if before.get(name) == after.get(name) or not (name == MIRROR or name.startswith(APP_ARMOR)):
            continue
        what = "mirror pod annotation" if name == MIRROR else "AppArmor annotations"
        verb = "remove or update" if name in before else "add"
        errors.append(forbidden(f"metadata.annotations[{name}]", f"may not {verb} {what}"))
    return errors


def _deadline_errors(new: int | None, old: int | None) -> list[FieldError]:
    path = "spec.activeDeadlineSeconds"
    if old is None:
        return []
    if new is None:
        return [invalid(path, None, "must not update from a positive integer to nil value")]
    return [invalid(path, new, "must be less than or equal to previous value")] if new > old else []


def _added_errors(spec: Obj, kept: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    there = {_without_seconds(one) for one in spec.get("tolerations") or ()}
    if any(_without_seconds(one) not in there for one in kept.get("tolerations") or ()):
        why = "existing toleration can not be modified except its tolerationSeconds"
        errors.append(forbidden("spec.tolerations", why))
    gates = {gate.get("name", "") for gate in kept.get("schedulingGates") or ()}
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        name = gate.get("name", "")
        if name not in gates:
            why = f"only deletion is allowed, but found new scheduling gate '{name}'"
            errors.append(forbidden(f"spec.schedulingGates[{index}].name", why))
    return errors


def _without_seconds(toleration: Obj) -> frozenset[tuple[str, str]]:
    return frozenset((name, value) for name, value in toleration.items() if name != "tolerationSeconds")


def _without_what_may_change(spec: Obj, kept: Obj) -> Obj:
    """A copy of `spec` in which everything that may change is left out."""
    left_out = ("activeDeadlineSeconds", "tolerations", "schedulingGates", "containers", "initContainers")
    rest: Obj = {name: value for name, value in spec.items() if name not in left_out and value not in (None, "", [])}
    for name in ("containers", "initContainers"):
        rest[name] = [{**container, "image": ""} for container in spec.get(name) or ()]
    if kept.get("terminationGracePeriodSeconds", 0) < 0 and spec.get("terminationGracePeriodSeconds") == 1:
        rest["terminationGracePeriodSeconds"] = kept["terminationGracePeriodSeconds"]
    return rest
