"""Strategy and print columns that RoleBinding and ClusterRoleBinding share.

Rules kept here (docs/protocol/rbac.md, docs/protocol/tables.md):
* PUT of a missing binding creates it.
* roleRef is immutable: permission to edit a binding must not include permission to grant another role.
* Users and Groups belong to the API group rbac.authorization.k8s.io, which is the default. ServiceAccounts belong to "", and in a
  ClusterRoleBinding they need a namespace.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from mooring.api.kind import Kind
from mooring.api.meta.printcolumns import NAME
from mooring.api.rbac.rules import GROUP
from mooring.apimachinery.names import dns1123_subdomain_errors, path_segment_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE
from mooring.errors import FieldError, invalid, not_supported, required

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
