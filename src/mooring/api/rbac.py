"""Kinds of rbac.authorization.k8s.io: roles and bindings, of a namespace and of the cluster."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mooring.api.kind import Kind
from mooring.api.objectmeta import CREATED_AT, NAME, label_selector_errors
from mooring.apimachinery.names import dns1123_subdomain_errors, path_segment_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Message, Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid, not_supported, required

# Validation of the policy rules in Role and ClusterRole, and the strategy of both kinds.
#
# Rules kept here (docs/protocol/rbac.md#validation-of-rbac-objects): a rule has verbs, and either URLs (never in a Role), or API
# groups and resources. Names of RBAC objects are one path segment, which may contain colons. PUT of a missing role creates it.

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


# Strategy and print columns that RoleBinding and ClusterRoleBinding share.
#
# Rules kept here (docs/protocol/rbac.md, docs/protocol/tables.md):
# * PUT of a missing binding creates it.
# * roleRef is immutable: permission to edit a binding must not include permission to grant another role.
# * Users and Groups belong to the API group rbac.authorization.k8s.io, which is the default. ServiceAccounts belong to "", and in
#   a ClusterRoleBinding they need a namespace.

_SUBJECT_KINDS = ("ServiceAccount", "User", "Group")


def binding_kind(kind: str, *, namespaced: bool) -> Kind:
    """Return one of the two kinds."""
    plural = f"{kind.lower()}s"
    return Kind(
        resource=Resource(
            group=GROUP,
            version="v1",
            kind=kind,
            plural=plural,
            namespaced=namespaced,
            schema=message(f"io.k8s.api.rbac.v1.{kind}"),
            columns=BINDING_COLUMNS,
        ),
        storage=f"/registry/{plural}",
        name_errors=path_segment_errors,
        default=default,
        validate=lambda obj: binding_errors(obj, namespaced=namespaced),
        validate_update=role_ref_errors,
        allow_create_on_update=True,
    )


def default(obj: Obj) -> None:
    """Fill in missing and empty API groups."""
    role = obj.get("roleRef")
    if role is not None and not role.get("apiGroup"):
        role["apiGroup"] = GROUP
    for subject in obj.get("subjects") or []:
        if subject.get("kind") in ("User", "Group") and not subject.get("apiGroup"):
            subject["apiGroup"] = GROUP


def binding_errors(obj: Obj, *, namespaced: bool) -> list[FieldError]:
    """Validate roleRef and subjects."""
    role = obj.get("roleRef") or {}
    group, kind, name = role.get("apiGroup", ""), role.get("kind", ""), role.get("name", "")
    kinds = ("Role", "ClusterRole") if namespaced else ("ClusterRole",)
    errors: list[FieldError] = []
    if group != GROUP:
        errors.append(not_supported("roleRef.apiGroup", group, (GROUP,)))
    if kind not in kinds:
        errors.append(not_supported("roleRef.kind", kind, kinds))
    if name:
        errors += [invalid("roleRef.name", name, detail) for detail in path_segment_errors(name)]
    else:
        errors.append(required("roleRef.name"))
    for index, subject in enumerate(obj.get("subjects") or []):
        errors += _subject_errors(subject, f"subjects[{index}]", namespaced)
    return errors


def _subject_errors(subject: Obj, path: str, namespaced: bool) -> list[FieldError]:
    kind, group, name = subject.get("kind", ""), subject.get("apiGroup", ""), subject.get("name", "")
    errors = [] if name else [required(f"{path}.name")]
    if kind == "ServiceAccount":
        if name:
            errors += [invalid(f"{path}.name", name, detail) for detail in dns1123_subdomain_errors(name)]
        if group:
            errors.append(not_supported(f"{path}.apiGroup", group, ("",)))
        if not namespaced and not subject.get("namespace"):
            errors.append(required(f"{path}.namespace"))
    elif kind in _SUBJECT_KINDS:
        if group != GROUP:
            errors.append(not_supported(f"{path}.apiGroup", group, (GROUP,)))
    else:
        errors.append(not_supported(f"{path}.kind", kind, _SUBJECT_KINDS))
    return errors


def role_ref_errors(new: Obj, old: Obj) -> list[FieldError]:
    """Return an error when roleRef changes."""
    role = new.get("roleRef") or {}
    if role == (old.get("roleRef") or {}):
        return []
    go_form = {"APIGroup": role.get("apiGroup", ""), "Kind": role.get("kind", ""), "Name": role.get("name", "")}
    return [invalid("roleRef", go_form, "cannot change roleRef")]


def _role(obj: Obj, now: datetime) -> str:
    role = obj.get("roleRef") or {}
    return f"{role.get('kind', '')}/{role.get('name', '')}"


def _subjects(kind: str) -> Callable[[Obj, datetime], str]:
    def cell(obj: Obj, now: datetime) -> str:
        names = [
            f"{subject.get('namespace', '')}/{subject.get('name', '')}"
            if kind == "ServiceAccount"
            else subject.get("name", "")
            for subject in obj.get("subjects") or []
            if subject.get("kind") == kind
        ]
        return ", ".join(names)

    return cell


BINDING_COLUMNS = (
    NAME,
    Column("Role", _role, description="The role that is granted."),
    AGE,
    Column("Users", _subjects("User"), description="Users it is granted to.", priority=1),
    Column("Groups", _subjects("Group"), description="Groups it is granted to.", priority=1),
    Column(
        "ServiceAccounts", _subjects("ServiceAccount"), description="Service accounts it is granted to.", priority=1
    ),
)


# Role: strategy.
#
# Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac`, without URLs.

ROLE = role_kind(message("io.k8s.api.rbac.v1.Role"), lambda obj: rule_errors(obj, namespaced=True), namespaced=True)


# ClusterRole: strategy.
#
# Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac`. An aggregation rule has at least one selector, and its
# selectors are valid.


def _validate(obj: Obj) -> list[FieldError]:
    errors = rule_errors(obj, namespaced=False)
    aggregation = obj.get("aggregationRule")
    if aggregation is not None:
        path, selectors = "aggregationRule.clusterRoleSelectors", aggregation.get("clusterRoleSelectors") or []
        if not selectors:
            errors.append(required(path, "at least one clusterRoleSelector required if aggregationRule is non-nil"))
        for index, selector in enumerate(selectors):
            found = label_selector_errors(selector, f"{path}[{index}]")
            errors += found
            if found:
                errors.append(invalid(f"{path}[{index}]", None, "invalid label selector."))
    return errors


CLUSTER_ROLE = role_kind(message("io.k8s.api.rbac.v1.ClusterRole"), _validate, namespaced=False)


# RoleBinding: strategy; it grants a role in one namespace.
#
# Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac`.

ROLE_BINDING = binding_kind("RoleBinding", namespaced=True)


# ClusterRoleBinding: strategy; it grants a ClusterRole in the whole cluster.
#
# Rules kept here (docs/protocol/rbac.md): those of `mooring.api.rbac`.

CLUSTER_ROLE_BINDING = binding_kind("ClusterRoleBinding", namespaced=False)
