"""Strategy and validation of a Pod's `/status` (wording as kube-apiserver's).

Rules kept here (Kubernetes API reference, core/v1 PodStatus; docs/protocol/node-authorization.md#noderestriction):
* Annotations that mark a mirror Pod or choose an AppArmor profile are immutable here, as in updates of the Pod.
* The quality of service class is immutable. A Pod on a node has no new nominated node.
* A missing observed generation keeps the stored one, for the Pod and for each condition.
* Resource claims in the status match those of the spec, because the node authorizer lets a node read the claims in a status.
"""

from __future__ import annotations

from mooring.api.core.pod.validation import annotation_errors
from mooring.apimachinery.names import dns1123_label_errors, dns1123_subdomain_errors
from mooring.apimachinery.schema import Obj
from mooring.errors import FieldError, duplicate, forbidden, invalid, required

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
