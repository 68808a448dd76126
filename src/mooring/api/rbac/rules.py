"""Validation of the policy rules in Role and ClusterRole, and the strategy of both kinds.

Rules kept here (docs/protocol/rbac.md#validation-of-rbac-objects): a rule has verbs, and either URLs (never in a Role), or API
groups and resources. Names of RBAC objects are one path segment, which may contain colons. PUT of a missing role creates it.
"""

from __future__ import annotations

from collections.abc import Callable

from mooring.api.kind import Kind
from mooring.api.meta.printcolumns import CREATED_AT, NAME
from mooring.apimachinery.names import path_segment_errors
from mooring.apimachinery.resource import Resource
from mooring.apimachinery.schema import Message, Obj
from mooring.errors import FieldError, invalid, required

GROUP = "rbac.authorization.k8s.io"


def role_kind(schema: Message, validate: Callable[[Obj], list[FieldError]], *, namespaced: bool) -> Kind:
    """Return one of the two kinds, which is named like its schema."""
    name = schema.name.rpartition(".")[2]
    plural = f"{name.lower()}s"
    return Kind(
        resource=Resource(
            group=GROUP,
            version="v1",
            kind=name,
            plural=plural,
            namespaced=namespaced,
            schema=schema,
            columns=(NAME, CREATED_AT),
        ),
        storage=f"/registry/{plural}",
        name_errors=path_segment_errors,
        validate=validate,
        allow_create_on_update=True,
    )


def rule_errors(obj: Obj, *, namespaced: bool) -> list[FieldError]:
    """Validate `obj.rules`."""
    errors: list[FieldError] = []
    for index, rule in enumerate(obj.get("rules") or []):
        at = f"rules[{index}]"
        if not rule.get("verbs"):
            errors.append(required(f"{at}.verbs", "verbs must contain at least one value"))
        if urls := rule.get("nonResourceURLs"):
            path = f"{at}.nonResourceURLs"
            if namespaced:
                errors.append(invalid(path, urls, "namespaced rules cannot apply to non-resource URLs"))
            if rule.get("apiGroups") or rule.get("resources") or rule.get("resourceNames"):
                detail = "rules cannot apply to both regular resources and non-resource URLs"
                errors.append(invalid(path, urls, detail))
            continue
        if not rule.get("apiGroups"):
            errors.append(required(f"{at}.apiGroups", "resource rules must supply at least one api group"))
        if not rule.get("resources"):
            errors.append(required(f"{at}.resources", "resource rules must supply at least one resource"))
    return errors
