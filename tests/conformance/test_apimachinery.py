"""[sig-api-machinery]: protocol.go, server_version.go, request_timeout.go, discovery.go, openapiv3.go and table_conversion.go of
test/e2e/apimachinery, as far as they need no more than the kinds served here (docs/protocol/e2e-tests.md#teste2eapimachinery).
"""

from __future__ import annotations

import json
import re

import pytest

from mooring.apimachinery.schema import Obj
from tests.support.typedclient import JSON, PROTOBUF, Client, RefusedError, Wire

TABLE_BETA = "application/json;as=Table;v=v1beta1;g=meta.k8s.io"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


@pytest.mark.parametrize("accept", [JSON, PROTOBUF, f"{PROTOBUF},{JSON}", f"{JSON},{PROTOBUF}"])
def test_client_go_should_negotiate_watch_and_report_errors(typed: Client, space: str, accept: str) -> None:
    before = typed.list("configmaps", space)["metadata"]["resourceVersion"]
    name = "e2e-client-go-test-negotiation"
    typed.create("configmaps", space, {"metadata": {"name": name}})
    only = f"metadata.name={name}"
    asking = typed.like(Wire(accept, PROTOBUF))
    with asking.watch("configmaps", space, resourceVersion=before, fieldSelector=only) as watching:
        assert watching.next().brief == f"ADDED {name}"
        assert watching.events[0].object["kind"] == "ConfigMap"
    with pytest.raises(RefusedError) as gone, asking.watch("configmaps", space, resourceVersion="junk"):
        pass
    assert gone.value.status["kind"] == "Status"


def test_server_version_should_find_the_server_version(typed: Client) -> None:
    version = json.loads(typed.send("GET", "/version", accept="application/json, */*").body)
    assert re.fullmatch("[1-9]", version["major"])
    found = re.search("[0-9]+", version["minor"])
    assert found
    assert found[0] == re.sub("[^0-9]+", "", version["minor"])


@pytest.mark.parametrize(
    ("timeout", "code"),
    [
        pytest.param("invalid", 400, id="400 if the user specifies an invalid timeout in the request URL"),
        pytest.param("3m", 200, id="default timeout if the specified timeout exceeds maximum allowed"),
        pytest.param("0s", 200, id="default timeout if the specified timeout is 0s"),
    ],
)
def test_server_request_timeout(typed: Client, timeout: str, code: int) -> None:
    answer = typed.send("GET", "/version", timeout=timeout)
    assert answer.code == code
    assert code == 200 or b"invalid timeout specified in the request URL" in answer.body


def test_discovery_should_validate_preferred_version_for_each_api_group(dynamic: Client) -> None:
    groups = dynamic.call("GET", "/apis/")["groups"]
    assert groups
    for group in groups:
        checked = dynamic.call("GET", f"/apis/{group['name']}/")
        versions = [version["groupVersion"] for version in checked["versions"]]
        assert checked["preferredVersion"]["groupVersion"] in versions


@pytest.mark.parametrize(
    ("path", "resource", "present"),
    [
        ("/api/v1", "pods", True),
        ("/apis/apps/v1", "deployments", True),
        ("/api/v1", "foobar", False),
        ("/apis/not-these-apps/v1", "deployments", False),
    ],
)
def test_discovery_should_accurately_determine_present_and_missing_resources(
    dynamic: Client, path: str, resource: str, present: bool
) -> None:
    """Check as discovery.IsResourceEnabled does: a missing group version is 404, and counts as "not present"."""
    answer = dynamic.send("GET", path)
    assert answer.code == (404 if "not-these" in path else 200)
    named = [one["name"] for one in json.loads(answer.body)["resources"]] if answer.code == 200 else []
    assert (resource in named) is present


def test_open_api_v3_should_round_trip_for_all_built_in_group_versions(dynamic: Client) -> None:
    """Check the types of every part: upstream parses each document into Go's spec3 types and back."""
    paths = dynamic.call("GET", "/openapi/v3")["paths"]
    versions = {path: entry for path, entry in paths.items() if path.startswith("apis/") and path.count("/") == 2}
    assert versions
    for path, entry in versions.items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{path}?hash=")
        document = json.loads(dynamic.send("GET", entry["serverRelativeURL"]).body)
        assert document["openapi"].startswith("3.0")
        assert isinstance(document["info"]["title"], str)
        for schema in document["components"]["schemas"].values():
            check_schema(schema)
        for item in document["paths"].values():
            check_path(item)


SCHEMA_TYPES: dict[str, type | tuple[type, ...]] = {
    "$ref": str,
    "description": str,
    "type": str,
    "format": str,
    "default": object,
    "properties": dict,
    "additionalProperties": (dict, bool),
    "items": dict,
    "required": list,
    "enum": list,
    "allOf": list,
    "oneOf": list,
    "anyOf": list,
    "nullable": bool,
    "uniqueItems": bool,
}


def check_schema(schema: Obj) -> None:
    for name, value in schema.items():
        if name.startswith("x-"):
            continue
        assert name in SCHEMA_TYPES, name
        assert isinstance(value, SCHEMA_TYPES[name]), name
        assert value not in ({}, []) or name in ("default", "items", "additionalProperties"), (
            f"Go drops an empty {name}"
        )
    for inner in [*schema.get("properties", {}).values(), *schema.get("allOf", ()), *schema.get("oneOf", ())]:
        check_schema(inner)
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            check_schema(schema[name])


def check_path(item: Obj) -> None:
    for method, operation in item.items():
        if method == "parameters":
            parameters = operation
        else:
            parameters = operation.get("parameters", [])
            assert operation.get("parameters") != [], f"Go drops an empty list: {operation['operationId']}"
            assert isinstance(operation["operationId"], str)
            assert all(isinstance(code, str) and "description" in told for code, told in operation["responses"].items())
        for parameter in parameters:
            assert parameter["in"] in ("query", "path")
            assert isinstance(parameter["name"], str)
            check_schema(parameter.get("schema", {}))


def test_table_should_return_a_406_for_a_backend_which_does_not_implement_metadata(client: Client) -> None:
    review = {
        "kind": "SelfSubjectAccessReview",
        "apiVersion": "authorization.k8s.io/v1",
        "spec": {"nonResourceAttributes": {"path": "/", "verb": "get"}},
    }
    with pytest.raises(RefusedError) as refused:
        client.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, accept=TABLE)
    assert refused.value.code == 406
    assert refused.value.status["code"] == 406


def test_table_should_return_generic_metadata_details_across_all_namespaces_for_nodes(typed: Client, node: str) -> None:
    table = typed.call("GET", "/api/v1/nodes", accept=TABLE_BETA)
    assert table["apiVersion"] == "meta.k8s.io/v1beta1"
    assert len(table["columnDefinitions"]) >= 2
    assert len(table["rows"][0]["cells"]) == len(table["columnDefinitions"])
    assert table["columnDefinitions"][0]["name"] == "Name"
    assert table["metadata"]["resourceVersion"]
    assert node in [row["cells"][0] for row in table["rows"]]
