"""OpenAPI v3 documents: the parts that kubectl reads for validation and explain.

Source: docs/protocol/openapi.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from mooring.apimachinery.discovery import digest
from mooring.apimachinery.metav1 import META
from mooring.apimachinery.openapi.v3 import PATCH_TYPES, REF, index_of, openapi_v3_document, openapi_v3_documents
from mooring.apimachinery.schema import Obj
from tests.support.shapes import GADGETS, RESOURCES, REVIEWS, WIDGETS

CORE = openapi_v3_document([WIDGETS])
TOOLS = openapi_v3_document([GADGETS])
SCHEMAS = CORE["components"]["schemas"]
EXAMPLE = SCHEMAS["io.example.v1.Example"]
PROPERTIES = EXAMPLE["properties"]


def _refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        here = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return here.union(*(_refs(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_refs(item) for item in value))
    return set()


def _names(operation: Obj) -> set[str]:
    return {parameter["name"] for parameter in operation.get("parameters", ())}


@pytest.mark.parametrize("document", [CORE, TOOLS, openapi_v3_document([REVIEWS])], ids=["core", "tools", "reviews"])
def test_every_reference_leads_somewhere(document: Obj) -> None:
    prefix = "#/components/schemas/"
    assert {ref.removeprefix(prefix) for ref in _refs(document)} <= set(document["components"]["schemas"])


@pytest.mark.parametrize("document", [CORE, TOOLS], ids=["core", "tools"])
def test_every_operation_has_an_id_of_its_own(document: Obj) -> None:
    ids = [
        item[method]["operationId"] for item in document["paths"].values() for method in item if method != "parameters"
    ]
    assert len(ids) == len(set(ids))


def test_paths_of_a_namespaced_resource() -> None:
    one = "/api/v1/namespaces/{namespace}/widgets/{name}"
    methods = {path: sorted(set(item) - {"parameters"}) for path, item in CORE["paths"].items()}
    assert methods == {
        "/api/v1/namespaces/{namespace}/widgets": ["delete", "get", "post"],
        one: ["delete", "get", "patch", "put"],
        f"{one}/status": ["get", "patch", "put"],
        f"{one}/token": ["post"],
        "/api/v1/widgets": ["get"],
    }
    assert [item["name"] for item in CORE["paths"][one]["parameters"]] == ["name", "namespace", "pretty"]


def test_paths_of_a_cluster_resource() -> None:
    assert sorted(TOOLS["paths"]) == [
        "/apis/tools.k8s.io/v1/gadgets",
        "/apis/tools.k8s.io/v1/gadgets/{name}",
        "/apis/tools.k8s.io/v1/gadgets/{name}/approval",
    ]


def test_paths_of_what_is_only_created() -> None:
    document = openapi_v3_document([REVIEWS])
    assert {path: sorted(item) for path, item in document["paths"].items()} == {
        "/apis/auth.k8s.io/v1/reviews": ["parameters", "post"]
    }
    assert "io.example.v1.PartList" not in document["components"]["schemas"]


def test_kubectl_finds_server_side_validation() -> None:
    """kubectl looks for a PATCH of the kind that takes fieldValidation."""
    patch = CORE["paths"]["/api/v1/namespaces/{namespace}/widgets/{name}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "Widget"}
    assert patch["x-kubernetes-action"] == "patch"
    assert _names(patch) == {"dryRun", "fieldManager", "fieldValidation", "force"}
    assert tuple(patch["requestBody"]["content"]) == PATCH_TYPES


@pytest.mark.parametrize(
    ("path", "method", "action", "operation", "some_parameters"),
    [
        ("/api/v1/widgets", "get", "list", "listCoreV1WidgetForAllNamespaces", {"watch", "limit", "sendInitialEvents"}),
        ("/api/v1/namespaces/{namespace}/widgets", "get", "list", "listCoreV1NamespacedWidget", {"labelSelector"}),
        ("/api/v1/namespaces/{namespace}/widgets", "post", "post", "createCoreV1NamespacedWidget", {"fieldValidation"}),
        (
            "/api/v1/namespaces/{namespace}/widgets",
            "delete",
            "deletecollection",
            "deleteCollectionCoreV1NamespacedWidget",
            {"fieldSelector", "propagationPolicy"},
        ),
        ("/api/v1/namespaces/{namespace}/widgets/{name}", "get", "get", "readCoreV1NamespacedWidget", set()),
        ("/api/v1/namespaces/{namespace}/widgets/{name}", "put", "put", "replaceCoreV1NamespacedWidget", {"dryRun"}),
        (
            "/api/v1/namespaces/{namespace}/widgets/{name}",
            "delete",
            "delete",
            "deleteCoreV1NamespacedWidget",
            {"dryRun"},
        ),
        (
            "/api/v1/namespaces/{namespace}/widgets/{name}/status",
            "put",
            "put",
            "replaceCoreV1NamespacedWidgetStatus",
            set(),
        ),
    ],
)
def test_operations(path: str, method: str, action: str, operation: str, some_parameters: set[str]) -> None:
    found = CORE["paths"][path][method]
    assert (found["x-kubernetes-action"], found["operationId"]) == (action, operation)
    assert found["tags"] == ["coreV1"]
    assert some_parameters <= _names(found)
    assert found["responses"]["401"] == {"description": "Unauthorized"}
    assert ("requestBody" in found) is (method != "get")


def test_an_operation_without_parameters_does_not_list_them() -> None:
    reading = CORE["paths"]["/api/v1/namespaces/{namespace}/widgets/{name}"]["get"]
    assert "parameters" not in reading  # Go drops an empty list, and then upstream finds the document changed


def test_lists_answer_with_lists_and_deletions_with_a_status() -> None:
    collection = CORE["paths"]["/api/v1/namespaces/{namespace}/widgets"]
    listed = collection["get"]["responses"]["200"]["content"]
    assert listed["application/json;stream=watch"]["schema"]["$ref"].endswith("/io.example.v1.ExampleList")
    deleted = collection["delete"]["responses"]["200"]["content"]
    assert deleted["application/json"]["schema"]["$ref"].endswith(META + "Status")


@pytest.mark.parametrize(("returned", "schema"), [(False, META + "Status"), (True, "/io.example.v1.Example")])
def test_a_deletion_answers_with_a_status_or_with_the_object(returned: bool, schema: str) -> None:
    paths = openapi_v3_document([replace(WIDGETS, returns_deleted=returned)])["paths"]
    one = paths["/api/v1/namespaces/{namespace}/widgets/{name}"]["delete"]["responses"]
    for code in ("200", "202"):
        assert one[code]["content"]["application/json"]["schema"]["$ref"].endswith(schema)
    all_of_them = paths["/api/v1/namespaces/{namespace}/widgets"]["delete"]["responses"]["200"]["content"]
    assert all_of_them["application/json"]["schema"]["$ref"].endswith(META + "Status")


def test_a_subresource_of_another_kind_has_its_own_schema() -> None:
    post = CORE["paths"]["/api/v1/namespaces/{namespace}/widgets/{name}/token"]["post"]
    assert post["operationId"] == "createCoreV1NamespacedWidgetToken".replace("CoreV1", "PartsExampleIoV1")
    assert post["x-kubernetes-group-version-kind"] == {
        "group": "parts.example.io",
        "version": "v1",
        "kind": "PartRequest",
    }
    assert post["requestBody"]["content"]["*/*"]["schema"]["$ref"].endswith("io.example.v1.Part")
    approval = TOOLS["paths"]["/apis/tools.k8s.io/v1/gadgets/{name}/approval"]["get"]
    assert approval["x-kubernetes-group-version-kind"] == {"group": "tools.k8s.io", "version": "v1", "kind": "Gadget"}


def test_top_level_objects_have_kind_and_api_version_and_their_names() -> None:
    assert {"kind", "apiVersion", "metadata", "onlyJson"} <= set(PROPERTIES)
    assert EXAMPLE["x-kubernetes-group-version-kind"] == [{"group": "", "version": "v1", "kind": "Widget"}]
    assert SCHEMAS["io.example.v1.ExampleList"]["x-kubernetes-group-version-kind"] == [
        {"group": "", "version": "v1", "kind": "WidgetList"}
    ]
    assert SCHEMAS["io.example.v1.ExampleList"]["required"] == ["items"]
    assert "kind" in SCHEMAS[META + "Status"]["properties"]


def test_one_schema_may_serve_several_kinds() -> None:
    document = openapi_v3_document([WIDGETS, GADGETS, WIDGETS])
    assert document["components"]["schemas"]["io.example.v1.Example"]["x-kubernetes-group-version-kind"] == [
        {"group": "tools.k8s.io", "version": "v1", "kind": "Gadget"},
        {"group": "", "version": "v1", "kind": "Widget"},
    ]


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        pytest.param("text", {"type": "string", "description": "Some text."}, id="text with its documentation"),
        pytest.param("small", {"type": "integer", "format": "int32", "description": ""}, id="a number with its format"),
        pytest.param("blob", {"type": "string", "format": "byte", "description": ""}, id="bytes"),
        pytest.param(
            "at",
            {"allOf": [{"$ref": REF + "io.k8s.apimachinery.pkg.apis.meta.v1.Time"}], "description": ""},
            id="a time is a definition of its own",
        ),
        pytest.param(
            "data",
            {"type": "object", "additionalProperties": {"type": "string", "format": "byte"}, "description": ""},
            id="a map",
        ),
        pytest.param(
            "part",
            {"allOf": [{"$ref": "#/components/schemas/io.example.v1.Part"}], "description": "One part."},
            id="a message",
        ),
        pytest.param("mode", {"type": "string", "enum": ["Fast", "Slow"], "description": "How."}, id="an enumeration"),
        pytest.param(
            "numbers",
            {
                "type": "array",
                "items": {"type": "integer", "format": "int64"},
                "description": "",
                "x-kubernetes-list-type": "atomic",
            },
            id="a list that is replaced whole",
        ),
        pytest.param(
            "words",
            {
                "type": "array",
                "items": {"type": "string"},
                "description": "",
                "x-kubernetes-list-type": "set",
                "x-kubernetes-patch-strategy": "merge",
            },
            id="a set",
        ),
        pytest.param(
            "parts",
            {
                "type": "array",
                "items": {"$ref": "#/components/schemas/io.example.v1.Part"},
                "description": "",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["id"],
                "x-kubernetes-patch-strategy": "merge",
                "x-kubernetes-patch-merge-key": "id",
            },
            id="a list that merges by a key",
        ),
    ],
)
def test_fields(name: str, wanted: Obj) -> None:
    assert PROPERTIES[name] == wanted


def test_atomic_messages_and_merging_lists_of_metadata() -> None:
    assert SCHEMAS[META + "OwnerReference"]["x-kubernetes-map-type"] == "atomic"
    assert SCHEMAS[META + "OwnerReference"]["required"] == ["apiVersion", "kind", "name", "uid"]
    meta = SCHEMAS[META + "ObjectMeta"]["properties"]
    assert meta["ownerReferences"]["x-kubernetes-patch-merge-key"] == "uid"
    assert meta["finalizers"]["x-kubernetes-patch-strategy"] == "merge"


def test_merging_lists_without_keys_for_apply() -> None:
    """Conditions of old kinds merge in a patch and say nothing about server-side apply."""
    from mooring.apimachinery.openapi.v3 import Schemas
    from mooring.apimachinery.schema import Field, ListOf, Message, Scalar

    schemas = Schemas()
    field = Field("a", 1, ListOf(Scalar.STRING), patch="merge", patch_key="type")
    schemas.add_object(Message("x.v1.Y", (field,)), ("x", "v1", "Y"))
    assert schemas.components["x.v1.Y"]["properties"]["a"] == {
        "description": "",
        "type": "array",
        "items": {"type": "string"},
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "type",
    }


def test_the_index_names_every_document_by_its_hash() -> None:
    documents = openapi_v3_documents(RESOURCES)
    assert list(documents) == ["api/v1", "apis/tools.k8s.io/v1", "apis/tools.k8s.io/v1beta1", "apis/auth.k8s.io/v1"]
    assert all(document.hash == digest(document.raw) for document in documents.values())
    assert msgspec.json.decode(documents["api/v1"].raw) == CORE
    index = index_of(documents)
    assert index["paths"]["api/v1"] == {"serverRelativeURL": f"/openapi/v3/api/v1?hash={documents['api/v1'].hash}"}


def test_documents_name_their_group_version() -> None:
    assert CORE["openapi"] == "3.0.0"
    assert CORE["info"]["version"] == "v1"
    assert TOOLS["info"]["version"] == "tools.k8s.io/v1"


def test_a_map_that_is_one_value_for_apply() -> None:
    from mooring.apimachinery.openapi.v3 import Schemas
    from mooring.apimachinery.schema import Field, MapOf, Message, Scalar

    schemas = Schemas()
    schemas.add_object(Message("x.v1.Y", (Field("a", 1, MapOf(Scalar.STRING), map_atomic=True),)), ("x", "v1", "Y"))
    assert schemas.components["x.v1.Y"]["properties"]["a"]["x-kubernetes-map-type"] == "atomic"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("apis.meta.v1.Time", {"type": "string", "format": "date-time"}),
        ("api.resource.Quantity", {"oneOf": [{"type": "string"}, {"type": "number"}]}),
        ("util.intstr.IntOrString", {"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        ("apis.meta.v1.FieldsV1", {"type": "object"}),
    ],
)
def test_scalars_with_a_form_of_their_own_are_definitions(name: str, wanted: Obj) -> None:
    found = SCHEMAS["io.k8s.apimachinery.pkg." + name]
    assert {key: value for key, value in found.items() if key != "description"} == wanted
    assert found["description"]
