"""The OpenAPI v2 document: the parts that kubectl up to 1.27 reads, and that its protobuf form equals its JSON form.

The protobuf form is read back with the project's decoder (itself checked against Google's runtime in test_protobuf_runtime.py)
and the messages of gnostic's openapiv2/OpenAPIv2.proto, declared here once more; kubectl itself reads it in tests/compat.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from mooring.api.kinds import KINDS
from mooring.apimachinery.codec.protobuf import decode_message
from mooring.apimachinery.metav1 import META
from mooring.apimachinery.openapi.v2 import ACCEPTED, CONTENT_TYPE, DEFINITIONS, encode_document, openapi_v2_document
from mooring.apimachinery.schema import Field, ListOf, Message, Obj, Scalar, Type
from tests.support.shapes import RESOURCES

DOCUMENT = openapi_v2_document(RESOURCES)
SERVED = openapi_v2_document([kind.resource for kind in KINDS])
ONE = DOCUMENT["paths"]["/api/v1/namespaces/{namespace}/widgets/{name}"]
MANY = DOCUMENT["paths"]["/api/v1/namespaces/{namespace}/widgets"]
QUANTITY = "io.k8s.apimachinery.pkg.api.resource.Quantity"
INT_OR_STRING = "io.k8s.apimachinery.pkg.util.intstr.IntOrString"
EXAMPLE = DOCUMENT["definitions"]["io.example.v1.Example"]["properties"]


def _refs(value: Any) -> set[str]:
    if isinstance(value, dict):
        here = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return here.union(*(_refs(item) for item in value.values()))
    if isinstance(value, list):
        return set().union(*(_refs(item) for item in value))
    return set()


@pytest.mark.parametrize("document", [DOCUMENT, SERVED], ids=["the examples", "every kind that is served"])
def test_every_reference_is_a_definition(document: Obj) -> None:
    refs = _refs(document)
    assert refs
    assert {ref.removeprefix(DEFINITIONS) for ref in refs} <= set(document["definitions"])


@pytest.mark.parametrize("word", ["#/components", "requestBody", "oneOf", "allOf", '"content"'])
def test_nothing_of_version_3_is_left(word: str) -> None:
    assert word not in json.dumps(SERVED)


def test_the_document_names_its_version() -> None:
    assert DOCUMENT["swagger"] == "2.0"
    assert DOCUMENT["security"] == [{"BearerToken": []}]
    assert DOCUMENT["securityDefinitions"]["BearerToken"]["in"] == "header"


def test_paths_of_all_group_versions_are_in_one_document() -> None:
    assert list(DOCUMENT["paths"]) == sorted(DOCUMENT["paths"])
    paths = [path for path in DOCUMENT["paths"] if "/watch/" not in path]
    assert {path.rsplit("/", 1)[0] for path in paths if path.endswith(("gadgets", "reviews"))} == {
        "/apis/auth.k8s.io/v1",
        "/apis/tools.k8s.io/v1",
        "/apis/tools.k8s.io/v1beta1",
    }


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if "patch" in kind.resource.verbs], ids=lambda kind: kind.resource.plural
)
def test_kubectl_finds_server_side_validation_of(kind: Any) -> None:
    """It looks for a PATCH that names the group, version and kind, and takes fieldValidation in the query."""
    resource = kind.resource
    wanted = {"group": resource.group, "version": resource.version, "kind": resource.kind}
    found = [
        item["patch"]
        for item in SERVED["paths"].values()
        if item.get("patch", {}).get("x-kubernetes-group-version-kind") == wanted
    ]
    assert found
    for patch in found:
        assert {"name": "fieldValidation", "in": "query", "type": "string"}.items() <= next(
            item for item in patch["parameters"] if item["name"] == "fieldValidation"
        ).items()


def test_an_operation_in_the_form_of_version_2() -> None:
    patch = ONE["patch"]
    assert patch["consumes"] == [
        "application/apply-patch+yaml",
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/strategic-merge-patch+json",
    ]
    assert patch["produces"] == ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"]
    assert patch["schemes"] == ["https"]
    assert patch["operationId"] == "patchCoreV1NamespacedWidget"
    assert patch["parameters"][0] == {
        "name": "body",
        "in": "body",
        "required": True,
        "schema": {"$ref": DEFINITIONS + META + "Patch"},
    }
    assert patch["responses"]["200"] == {"description": "OK", "schema": {"$ref": DEFINITIONS + "io.example.v1.Example"}}
    assert patch["responses"]["401"] == {"description": "Unauthorized"}


def test_a_body_that_may_be_left_out_is_not_required() -> None:
    assert ONE["delete"]["parameters"][0] == {
        "name": "body",
        "in": "body",
        "schema": {"$ref": DEFINITIONS + META + "DeleteOptions"},
    }


def test_reading_has_no_body_and_a_list_can_be_watched() -> None:
    assert "parameters" not in ONE["get"]  # kube-openapi leaves out an empty list
    assert ONE["get"]["consumes"] == ["*/*"]
    assert "application/json;stream=watch" in MANY["get"]["produces"]


def test_parameters_of_the_path() -> None:
    assert ONE["parameters"][0] == {
        "name": "name",
        "in": "path",
        "required": True,
        "description": "Name of the Widget.",
        "type": "string",
        "uniqueItems": True,
    }


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        pytest.param("memory", {"$ref": DEFINITIONS + QUANTITY}, id="a quantity"),
        pytest.param("port", {"$ref": DEFINITIONS + INT_OR_STRING}, id="int-or-string"),
        pytest.param("part", {"$ref": DEFINITIONS + "io.example.v1.Part", "description": "One part."}, id="a message"),
        pytest.param(
            "named",
            {"type": "object", "additionalProperties": {"$ref": DEFINITIONS + "io.example.v1.Part"}},
            id="a map of messages",
        ),
        pytest.param(
            "parts",
            {
                "type": "array",
                "items": {"$ref": DEFINITIONS + "io.example.v1.Part"},
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
    assert {"description": ""} | EXAMPLE[name] == {"description": ""} | wanted


def test_a_shared_definition_names_the_kinds_of_every_group_once() -> None:
    gvks = DOCUMENT["definitions"][META + "DeleteOptions"]["x-kubernetes-group-version-kind"]
    assert [(gvk["group"], gvk["version"]) for gvk in gvks] == [
        ("", "v1"),
        ("tools.k8s.io", "v1"),
        ("tools.k8s.io", "v1beta1"),
        ("auth.k8s.io", "v1"),
    ]
    assert len(DOCUMENT["definitions"][META + "Status"]["x-kubernetes-group-version-kind"]) == 1


# The messages of OpenAPIv2.proto, as far as the document uses them.


def _message(name: str, *fields: tuple[str, int, Type]) -> Message:
    return Message(name, tuple(Field(key, number, kind) for key, number, kind in fields))


def _entries(name: str, value: Type, at: int = 1) -> Message:
    named = _message("Named" + name, ("name", 1, Scalar.STRING), ("value", 2, value))
    return _message(name + "s", ("entries", at, ListOf(named)))


_TEXT = Scalar.STRING
_TEXTS = ListOf(_TEXT)
_ANY = _message("Any", ("yaml", 2, _TEXT))
_EXTENSIONS = ListOf(_message("NamedAny", ("name", 1, _TEXT), ("value", 2, _ANY)))


def _schema(depth: int) -> Message:
    """Schema refers to itself; a message of this project cannot, so that each level of nesting is one of its own."""
    plain: tuple[tuple[str, int, Type], ...] = (
        ("$ref", 1, _TEXT),
        ("format", 2, _TEXT),
        ("description", 4, _TEXT),
        ("required", 19, _TEXTS),
        ("enum", 20, ListOf(_ANY)),
        ("type", 22, _message("TypeItem", ("value", 1, _TEXTS))),
        ("extensions", 31, _EXTENSIONS),
    )
    if depth == 0:
        return _message("Schema", *plain)
    inner = _schema(depth - 1)
    return _message(
        "Schema",
        *plain,
        ("additionalProperties", 21, _message("AdditionalPropertiesItem", ("schema", 1, inner))),
        ("items", 23, _message("ItemsItem", ("schema", 1, ListOf(inner)))),
        ("properties", 25, _entries("Schema", inner)),
    )


_SCHEMA = _schema(4)
_QUERY = _message(
    "QueryParameterSubSchema",
    ("required", 1, Scalar.BOOL),
    ("in", 2, _TEXT),
    ("description", 3, _TEXT),
    ("name", 4, _TEXT),
    ("type", 6, _TEXT),
    ("uniqueItems", 20, Scalar.BOOL),
)
_PATH = _message(
    "PathParameterSubSchema",
    ("required", 1, Scalar.BOOL),
    ("in", 2, _TEXT),
    ("description", 3, _TEXT),
    ("name", 4, _TEXT),
    ("type", 5, _TEXT),
    ("uniqueItems", 19, Scalar.BOOL),
)
_BODY = _message(
    "BodyParameter",
    ("description", 1, _TEXT),
    ("name", 2, _TEXT),
    ("in", 3, _TEXT),
    ("required", 4, Scalar.BOOL),
    ("schema", 5, _SCHEMA),
)
_PARAMETERS = ListOf(
    _message(
        "ParametersItem",
        (
            "one",
            1,
            _message(
                "Parameter",
                ("body", 1, _BODY),
                ("other", 2, _message("NonBodyParameter", ("query", 3, _QUERY), ("path", 4, _PATH))),
            ),
        ),
    )
)
_RESPONSE = _message(
    "Response", ("description", 1, _TEXT), ("schema", 2, _message("SchemaItem", ("schema", 1, _SCHEMA)))
)
_OPERATION = _message(
    "Operation",
    ("tags", 1, _TEXTS),
    ("description", 3, _TEXT),
    ("operationId", 5, _TEXT),
    ("produces", 6, _TEXTS),
    ("consumes", 7, _TEXTS),
    ("parameters", 8, _PARAMETERS),
    ("responses", 9, _entries("Response", _message("ResponseValue", ("response", 1, _RESPONSE)))),
    ("schemes", 10, _TEXTS),
    ("extensions", 13, _EXTENSIONS),
)
_METHODS = {"get": 2, "put": 3, "post": 4, "delete": 5, "patch": 8}
_PATH_ITEM = _message(
    "PathItem",
    *((method, number, _OPERATION) for method, number in _METHODS.items()),
    ("parameters", 9, _PARAMETERS),
)
_API_KEY = _message(
    "ApiKeySecurity", ("type", 1, _TEXT), ("name", 2, _TEXT), ("in", 3, _TEXT), ("description", 4, _TEXT)
)
_DOCUMENT = _message(
    "Document",
    ("swagger", 1, _TEXT),
    ("info", 2, _message("Info", ("title", 1, _TEXT), ("version", 2, _TEXT))),
    ("paths", 8, _entries("PathItem", _PATH_ITEM, at=2)),
    ("definitions", 9, _entries("Schema", _SCHEMA)),
    ("security", 12, ListOf(_entries("StringArray", _message("StringArray", ("value", 1, _TEXTS))))),
    ("securityDefinitions", 13, _entries("Item", _message("Item", ("apiKey", 2, _API_KEY)))),
)


def _map(entries: Obj) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", {}) for entry in entries.get("entries", [])}


def _with_extensions(obj: Obj) -> Obj:
    extensions = {entry["name"]: json.loads(entry["value"]["yaml"]) for entry in obj.pop("extensions", [])}
    return obj | extensions


def _read_schema(obj: Obj) -> Obj:
    out = _with_extensions(obj)
    if "type" in out:
        (out["type"],) = out["type"]["value"]
    if "enum" in out:
        out["enum"] = [json.loads(item["yaml"]) for item in out["enum"]]
    if "items" in out:
        (item,) = out["items"]["schema"]
        out["items"] = _read_schema(item)
    if "additionalProperties" in out:
        out["additionalProperties"] = _read_schema(out["additionalProperties"]["schema"])
    if "properties" in out:
        out["properties"] = {name: _read_schema(held) for name, held in _map(out["properties"]).items()}
    return out


def _read_parameter(obj: Obj) -> Obj:
    one: Obj = obj["one"]
    if "body" in one:
        body: Obj = one["body"]
        return body | {"schema": _read_schema(body["schema"])}
    other = one["other"]
    where = next(iter(other))
    assert other[where]["in"] == where
    held: Obj = other[where]
    return held


def _read_response(obj: Obj) -> Obj:
    response: Obj = obj["response"]
    if "schema" in response:
        response["schema"] = _read_schema(response["schema"]["schema"])
    return response


def _read_operation(obj: Obj) -> Obj:
    out = _with_extensions(obj)
    if "parameters" in out:
        out["parameters"] = [_read_parameter(item) for item in out["parameters"]]
    out["responses"] = {code: _read_response(held) for code, held in _map(out["responses"]).items()}
    return out


def _read_path_item(obj: Obj) -> Obj:
    operations = {method: _read_operation(obj[method]) for method in _METHODS if method in obj}
    return operations | {"parameters": [_read_parameter(item) for item in obj["parameters"]]}


def _read(data: bytes) -> Obj:
    """The document in its JSON form."""
    out = decode_message(data, _DOCUMENT)
    out["paths"] = {path: _read_path_item(item) for path, item in _map(out["paths"]).items()}
    out["definitions"] = {name: _read_schema(schema) for name, schema in _map(out["definitions"]).items()}
    out["security"] = [{name: held.get("value", []) for name, held in _map(item).items()} for item in out["security"]]
    out["securityDefinitions"] = {name: item["apiKey"] for name, item in _map(out["securityDefinitions"]).items()}
    return out


def _without_empty_texts(value: Any) -> Any:
    """An empty string is an absent one in protobuf."""
    if isinstance(value, dict):
        return {key: _without_empty_texts(held) for key, held in value.items() if held != "" or key == "group"}
    if isinstance(value, list):
        return [_without_empty_texts(item) for item in value]
    return value


@pytest.mark.parametrize("document", [DOCUMENT, SERVED], ids=["the examples", "every kind that is served"])
def test_both_forms_are_equal(document: Obj) -> None:
    assert _read(encode_document(document)) == _without_empty_texts(document)


def test_both_spellings_of_the_media_type_are_known() -> None:
    assert CONTENT_TYPE in ACCEPTED
    assert [name.replace("@", ".") for name in ACCEPTED] == [CONTENT_TYPE] * 2


def test_a_key_that_has_no_number_is_not_dropped() -> None:
    with pytest.raises(KeyError, match="nullable"):
        encode_document({"definitions": {"x": {"nullable": True}}})


def test_values_of_several_types_are_text_with_a_format() -> None:
    definitions = DOCUMENT["definitions"]
    assert definitions[QUANTITY]["type"] == "string"
    assert (definitions[INT_OR_STRING]["type"], definitions[INT_OR_STRING]["format"]) == ("string", "int-or-string")
