"""ServiceAccount: strategy.

Rules kept here (docs/protocol/service-account-tokens.md, docs/protocol/patches.md#strategic-merge): no Secret is created for it;
tokens come from the `token` subresource (kind TokenRequest of authentication.k8s.io). References to Secrets keep only the name.
"""

from __future__ import annotations

from mooring.api.kind import Change, Kind
from mooring.api.objectmeta import NAME
from mooring.api.reviews import TOKEN_REQUEST
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Resource, Subresource
from mooring.apimachinery.schema import Obj, message
from mooring.apimachinery.table import AGE

ENFORCE_MOUNTABLE = "kubernetes.io/enforce-mountable-secrets"


def _drop_reference_fields(obj: Obj) -> None:
    if references := obj.get("secrets"):
        obj["secrets"] = [{"name": reference["name"]} if reference.get("name") else {} for reference in references]


def _prepare_for_create(obj: Obj, change: Change) -> None:
    _drop_reference_fields(obj)


def _prepare_for_update(new: Obj, old: Obj, change: Change) -> None:
    _drop_reference_fields(new)


def _warnings(new: Obj, old: Obj | None) -> list[str]:
    if old is not None and ENFORCE_MOUNTABLE in (old["metadata"].get("annotations") or {}):
        return []
    if ENFORCE_MOUNTABLE not in (new["metadata"].get("annotations") or {}):
        return []
    detail = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    return [f"metadata.annotations[{ENFORCE_MOUNTABLE}]: {detail}"]


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="ServiceAccount",
        plural="serviceaccounts",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.ServiceAccount"),
        short_names=("sa",),
        subresources=(
            Subresource(
                "token",
                ("create",),
                kind="TokenRequest",
                group="authentication.k8s.io",
                version="v1",
                schema=TOKEN_REQUEST,
            ),
        ),
        columns=(NAME, AGE),
        returns_deleted=True,
    ),
    storage="/registry/serviceaccounts",
    name_errors=dns1123_subdomain_errors,
    prepare_for_create=_prepare_for_create,
    prepare_for_update=_prepare_for_update,
    warnings=_warnings,
)
