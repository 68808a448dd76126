"""CustomResourceDefinition: which foreign kinds are served. Here none, and so it can be read only (docs/adr/0015).

Rules kept here (reference/kubernetes.md 7.3; kubectl's crd_finder): a kind that has no PATCH with `fieldValidation`, as reviews,
is looked up among the CustomResourceDefinitions before kubectl validates it. An empty list lets kubectl go on; a 404 makes it fail.
"""

from __future__ import annotations

from mooring.kinds.columns import CREATED_AT, NAME
from mooring.kinds.kind import Kind
from mooring.kinds.meta import OBJECT_META
from mooring.wire.names import dns1123_subdomain_errors
from mooring.wire.resource import Resource
from mooring.wire.schema import Field, Message, Scalar

CUSTOM_RESOURCE_DEFINITION = Message(
    "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition",
    (
        Field("metadata", 1, OBJECT_META, "Standard object metadata."),
        Field("spec", 2, Scalar.RAW, "What the kind looks like.", required=True),
        Field("status", 3, Scalar.RAW, "Whether the kind is served."),
    ),
    "A kind that is not built in. This server serves none.",
)

KIND = Kind(
    resource=Resource(
        group="apiextensions.k8s.io",
        version="v1",
        kind="CustomResourceDefinition",
        plural="customresourcedefinitions",
        singular="customresourcedefinition",
        short_names=("crd", "crds"),
        categories=("api-extensions",),
        namespaced=False,
        schema=CUSTOM_RESOURCE_DEFINITION,
        verbs=("get", "list", "watch"),
        columns=(NAME, CREATED_AT),
    ),
    storage="/registry/apiextensions.k8s.io/customresourcedefinitions",
    name_errors=dns1123_subdomain_errors,
)
