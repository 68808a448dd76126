"""CustomResourceDefinition, a read-only kind, and the form in which kube-apiserver stores it: JSON of v1beta1, also in 1.36.

Rules kept here (k8s.io/apiextensions-apiserver pkg/apis/apiextensions, conversions of v1 and v1beta1):
* In v1beta1, `validation`, `subresources` and `additionalPrinterColumns` of the spec stand for those of every version. In v1 every
  version has its own. `version` is the first of `versions`.
* The webhook of a conversion is flat in v1beta1, and `JSONPath` of a column is `jsonPath` in v1.
* The form is read and never served.
"""

from __future__ import annotations

from dataclasses import replace

from mooring.api.kind import Alias
from mooring.api.objectmeta import CREATED_AT, NAME
from mooring.api.readonly import METADATA, read_only_kind
from mooring.apimachinery.schema import Field, Message, Obj, Scalar

_PER_VERSION = (("validation", "schema"), ("subresources", "subresources"), ("additionalPrinterColumns",) * 2)
"""Fields of the v1beta1 spec, and their names in a version of v1."""


def from_v1beta1(obj: Obj) -> Obj:
    """Return a CustomResourceDefinition of v1beta1 as one of v1."""
    spec = dict(obj.get("spec") or {})
    shared = {new: spec.pop(old) for old, new in _PER_VERSION if old in spec}
    first = spec.pop("version", "")
    versions = spec.get("versions") or ([{"name": first, "served": True, "storage": True}] if first else [])
    spec["versions"] = [_version({**shared, **version}) for version in versions]
    if not spec.get("preserveUnknownFields", True):
        del spec["preserveUnknownFields"]
    conversion = dict(spec.get("conversion") or {"strategy": "None"})
    webhook = {
        new: conversion.pop(old)
        for old, new in (
            ("webhookClientConfig", "clientConfig"),
            ("conversionReviewVersions", "conversionReviewVersions"),
        )
        if old in conversion
    }
    spec["conversion"] = {**conversion, "webhook": webhook} if webhook else conversion
    return {**obj, "apiVersion": "apiextensions.k8s.io/v1", "spec": spec}


def _version(version: Obj) -> Obj:
    columns = version.get("additionalPrinterColumns")
    if not columns:
        return version
    renamed = [{"jsonPath" if name == "JSONPath" else name: value for name, value in one.items()} for one in columns]
    return {**version, "additionalPrinterColumns": renamed}


CUSTOM_RESOURCE_DEFINITION = Message(
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    (
        METADATA,
        Field("spec", 2, Scalar.RAW, "What the kind looks like.", required=True),
        Field("status", 3, Scalar.RAW, "Whether the kind is served."),
    ),
    "A kind that is not built in. This server serves none.",
)

KIND = read_only_kind(
    CUSTOM_RESOURCE_DEFINITION,
    "apiextensions.k8s.io",
    "crd",
    "crds",
    why="this server has no custom kinds",
    storage="apiextensions.k8s.io/customresourcedefinitions",
    namespaced=False,
    categories=("api-extensions",),
    columns=(NAME, CREATED_AT),
)

STORED_FORM = replace(
    KIND,
    resource=replace(KIND.resource, version="v1beta1"),
    alias=Alias(of=KIND, to_storage=from_v1beta1, from_storage=dict),
)
"""The form in which kube-apiserver stores the kind."""
