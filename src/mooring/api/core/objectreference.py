"""ObjectReference and LocalObjectReference, the messages by which objects refer to others.

Rules kept here: data only; field numbers from k8s.io/api core/v1 generated.proto.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Field, Message, Scalar

CORE = "io.k8s.api.core.v1."
"""Prefix of the OpenAPI names of the core group."""

OBJECT_REFERENCE = Message(
    CORE + "ObjectReference",
    (
        Field("kind", 1, Scalar.STRING, "Kind of the object referred to."),
        Field("namespace", 2, Scalar.STRING, "Its namespace; empty for cluster-scoped objects."),
        Field("name", 3, Scalar.STRING, "Its name."),
        Field("uid", 4, Scalar.STRING, "Its UID."),
        Field("apiVersion", 5, Scalar.STRING, "Its API version."),
        Field("resourceVersion", 6, Scalar.STRING, "The version of it that is meant, if a certain one is."),
        Field("fieldPath", 7, Scalar.STRING, "The part of it that is meant, such as spec.containers{name}."),
    ),
    "Says enough about an object to look it up.",
    atomic=True,
)

LOCAL_OBJECT_REFERENCE = Message(
    CORE + "LocalObjectReference",
    (Field("name", 1, Scalar.STRING, "Name of the object referred to."),),
    "Names an object of the same namespace.",
    atomic=True,
)
