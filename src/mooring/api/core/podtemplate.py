"""PodTemplate: strategy, validation, print columns. No part of this server creates Pods from it.

Rules kept here (k8s.io/api core/v1, generated.proto; docs/protocol/e2e-tests.md#teste2eapimachinery-with-stored-kinds, whose
tests of chunked lists and tables store hundreds of them):
* The template gets the defaults and the validation of a Pod; it has no ephemeral containers.
* Every field may change; generation counts the changes.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from mooring.api.core import podvalidation
from mooring.api.core.poddefaults import default_spec
from mooring.api.kind import Kind
from mooring.api.objectmeta import NAME, NONE, label_errors
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Obj, message
from mooring.errors import FieldError, forbidden


def _template(obj: Obj) -> Obj:
    template: Obj = obj.get("template") or {}
    return template


def _default(obj: Obj) -> None:
    default_spec(obj.setdefault("template", {}).setdefault("spec", {}))


def _validate(obj: Obj) -> list[FieldError]:
    template = _template(obj)
    spec, metadata = template.get("spec") or {}, template.get("metadata") or {}
    errors = label_errors(metadata.get("labels") or {}, "labels")
    errors += podvalidation.validate({"metadata": metadata, "spec": spec})
    if spec.get("ephemeralContainers"):
        errors.append(forbidden("spec.ephemeralContainers", "ephemeral containers not allowed in pod template"))
    return [replace(error, field=f"template.{error.field}") for error in errors]


def _joined_container_field(member: str, obj: Obj) -> str:
    spec = _template(obj).get("spec") or {}
    return ",".join(container.get(member, "") for container in spec.get("containers") or ())


def _names(obj: Obj, now: datetime) -> str:
    return _joined_container_field("name", obj)


def _images(obj: Obj, now: datetime) -> str:
    return _joined_container_field("image", obj)


def _labels(obj: Obj, now: datetime) -> str:
    labels = (_template(obj).get("metadata") or {}).get("labels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or NONE


KIND = Kind(
    resource=Resource(
        group="",
        version="v1",
        kind="PodTemplate",
        plural="podtemplates",
        namespaced=True,
        schema=message("io.k8s.api.core.v1.PodTemplate"),
        columns=(
            NAME,
            Column("Containers", _names, description="Names of the containers."),
            Column("Images", _images, description="Images of the containers."),
            Column("Pod Labels", _labels, description="Labels that the Pods get."),
        ),
        returns_deleted=True,
    ),
    storage="/registry/podtemplates",
    name_errors=dns1123_subdomain_errors,
    default=_default,
    validate=_validate,
    has_generation=True,
)
