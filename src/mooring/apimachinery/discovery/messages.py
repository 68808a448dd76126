"""Schemas of the discovery documents, for their protobuf form.

Numbers are those of k8s.io/apimachinery meta/v1 and k8s.io/api apidiscovery/v2 generated.proto.
"""

from __future__ import annotations

from mooring.apimachinery.metav1 import LIST_META, META, OBJECT_META, STRINGS
from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

_V2 = "io.k8s.api.apidiscovery.v2."

SERVER_ADDRESS = Message(
    META + "ServerAddressByClientCIDR",
    (Field("clientCIDR", 1, Scalar.STRING, required=True), Field("serverAddress", 2, Scalar.STRING, required=True)),
)
GROUP_VERSION = Message(
    META + "GroupVersionForDiscovery",
    (Field("groupVersion", 1, Scalar.STRING, required=True), Field("version", 2, Scalar.STRING, required=True)),
)
API_VERSIONS = Message(
    META + "APIVersions",
    (Field("versions", 1, STRINGS), Field("serverAddressByClientCIDRs", 2, ListOf(SERVER_ADDRESS))),
)
API_GROUP = Message(
    META + "APIGroup",
    (
        Field("name", 1, Scalar.STRING, required=True),
        Field("versions", 2, ListOf(GROUP_VERSION)),
        Field("preferredVersion", 3, GROUP_VERSION),
        Field("serverAddressByClientCIDRs", 4, ListOf(SERVER_ADDRESS)),
    ),
)
API_GROUP_LIST = Message(META + "APIGroupList", (Field("groups", 1, ListOf(API_GROUP)),))
API_RESOURCE = Message(
    META + "APIResource",
    (
        Field("name", 1, Scalar.STRING, required=True),
        Field("namespaced", 2, Scalar.BOOL, required=True),
        Field("kind", 3, Scalar.STRING, required=True),
        Field("verbs", 4, Scalar.STRING_LIST),
        Field("shortNames", 5, STRINGS),
        Field("singularName", 6, Scalar.STRING, required=True),
        Field("categories", 7, STRINGS),
        Field("group", 8, Scalar.STRING),
        Field("version", 9, Scalar.STRING),
        Field("storageVersionHash", 10, Scalar.STRING),
    ),
)
API_RESOURCE_LIST = Message(
    META + "APIResourceList",
    (Field("groupVersion", 1, Scalar.STRING, required=True), Field("resources", 2, ListOf(API_RESOURCE))),
)
GROUP_VERSION_KIND = Message(
    META + "GroupVersionKind",
    (Field("group", 1, Scalar.STRING), Field("version", 2, Scalar.STRING), Field("kind", 3, Scalar.STRING)),
)
SUBRESOURCE_DISCOVERY = Message(
    _V2 + "APISubresourceDiscovery",
    (
        Field("subresource", 1, Scalar.STRING),
        Field("responseKind", 2, GROUP_VERSION_KIND),
        Field("acceptedTypes", 3, ListOf(GROUP_VERSION_KIND)),
        Field("verbs", 4, STRINGS),
    ),
)
RESOURCE_DISCOVERY = Message(
    _V2 + "APIResourceDiscovery",
    (
        Field("resource", 1, Scalar.STRING),
        Field("responseKind", 2, GROUP_VERSION_KIND),
        Field("scope", 3, Scalar.STRING),
        Field("singularResource", 4, Scalar.STRING),
        Field("verbs", 5, STRINGS),
        Field("shortNames", 6, STRINGS),
        Field("categories", 7, STRINGS),
        Field("subresources", 8, ListOf(SUBRESOURCE_DISCOVERY)),
    ),
)
VERSION_DISCOVERY = Message(
    _V2 + "APIVersionDiscovery",
    (
        Field("version", 1, Scalar.STRING),
        Field("resources", 2, ListOf(RESOURCE_DISCOVERY)),
        Field("freshness", 3, Scalar.STRING),
    ),
)
GROUP_DISCOVERY = Message(
    _V2 + "APIGroupDiscovery",
    (Field("metadata", 1, OBJECT_META), Field("versions", 2, ListOf(VERSION_DISCOVERY))),
)
GROUP_DISCOVERY_LIST = Message(
    _V2 + "APIGroupDiscoveryList",
    (Field("metadata", 1, LIST_META), Field("items", 2, ListOf(GROUP_DISCOVERY))),
)
DOCUMENTS = {
    schema.name.rpartition(".")[2]: schema
    for schema in (API_VERSIONS, API_GROUP, API_GROUP_LIST, API_RESOURCE_LIST, GROUP_DISCOVERY_LIST)
}
"""Schemas of the documents by kind."""
