"""Schemas of the discovery documents, for their protobuf form."""

from __future__ import annotations

from mooring.apimachinery.metav1 import META
from mooring.apimachinery.schema import message

DOCUMENTS = {
    name.rpartition(".")[2]: message(name)
    for name in (
        *(META + kind for kind in ("APIVersions", "APIGroup", "APIGroupList", "APIResourceList")),
        "io.k8s.api.apidiscovery.v2.APIGroupDiscoveryList",
    )
}
"""Schemas of the documents by kind."""
