"""[sig-api-machinery] API Streaming (aka. WatchList): test/e2e/apimachinery/watchlist.go.

Source: docs/protocol/e2e-tests.md#teste2eapimachinery.

The tests send the requests of upstream's informers and reflectors.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from tests.support.typedclient import PROTOBUF, WATCH_LIST, Client, bare

LABEL = "watchlist=true"
ASKED = {**WATCH_LIST, "labelSelector": LABEL}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_PARTIAL = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_PARTIALS = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA = f"{PROTOBUF};{_PARTIAL},application/json;{_PARTIAL},application/json"
METADATA_LIST = f"{PROTOBUF};{_PARTIALS},application/json;{_PARTIALS},application/json"


@pytest.fixture
def five(typed: Client, space: str) -> list[Obj]:
    """Create the five Secrets of every test. Return them as the server answered."""
    return [
        typed.create("secrets", space, {"metadata": {"name": f"secret-{number}", "labels": {"watchlist": "true"}}})
        for number in range(1, 6)
    ]


def secrets_path(space: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{space}/secrets" + (f"/{name}" if name else "")


def modify(typed: Client, space: str) -> Obj:
    secret = typed.get("secrets", space, "secret-1")
    return typed.update("secrets", space, {**secret, "stringData": {"foo": "bar"}})


def test_should_be_requested_by_informers_when_watch_list_client_is_enabled(
    client: Client, space: str, five: list[Obj]
) -> None:
    with client.watch("secrets", space, **ASKED) as watching:
        assert [event.object for event in watching.initial()] == five
        updated = modify(client, space)
        event = watching.next()
        assert (event.type, event.object) == ("MODIFIED", updated)


def test_should_be_requested_by_metadatainformer_when_watch_list_client_is_enabled(
    typed: Client, space: str, five: list[Obj]
) -> None:
    def listed() -> list[Obj]:
        items: list[Obj] = typed.call("GET", secrets_path(space), accept=METADATA_LIST)["items"]
        return items

    with typed.watch("secrets", space, accept=METADATA, **WATCH_LIST) as watching:
        assert [bare(event.object) for event in watching.initial()] == listed()
        modify(typed, space)
        event = watching.next()
        assert event.type == "MODIFIED"
        assert listed()[0] == bare(event.object)
        assert event.object["kind"] == "PartialObjectMetadata"


def test_should_not_be_requested_by_client_gos_list_method(client: Client, space: str, five: list[Obj]) -> None:
    assert client.list("secrets", space, labelSelector=LABEL)["items"] == [bare(secret) for secret in five]


def test_should_not_be_requested_by_dynamic_clients_list_method(dynamic: Client, space: str, five: list[Obj]) -> None:
    listed = dynamic.list("secrets", space, labelSelector=LABEL)
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "SecretList")
    named = [
        {**item, "apiVersion": "v1", "kind": "Secret"} for item in listed["items"]
    ]  # as Go's UnstructuredList does
    assert named == five


def test_should_not_be_requested_by_metadata_clients_list_method(typed: Client, space: str, five: list[Obj]) -> None:
    single = [typed.call("GET", secrets_path(space, obj["metadata"]["name"]), accept=METADATA) for obj in five]
    listed = typed.call("GET", secrets_path(space), accept=METADATA_LIST, labelSelector=LABEL)
    assert listed["items"] == [bare(obj) for obj in single]


def ageless(table: Obj, column: int) -> Obj:
    """Return the table as typed Go decodes it, without the column of ages, which changes with time."""
    rows = [{**row, "cells": row["cells"][:column] + row["cells"][column + 1 :]} for row in table["rows"]]
    return {**table, "rows": rows}


def test_server_supports_sending_resources_in_table_format(dynamic: Client, space: str, five: list[Obj]) -> None:
    single = [dynamic.call("GET", secrets_path(space, obj["metadata"]["name"]), accept=TABLE) for obj in five]
    age = [column["name"] for column in single[0]["columnDefinitions"]].index("Age")
    for table in single[1:]:
        table["columnDefinitions"] = None  # only the first event carries them; Go distinguishes nil from an empty list
    with dynamic.watch("secrets", space, accept=TABLE, **ASKED) as watching:
        for expected in single:
            event = watching.next()
            assert event.type == "ADDED"
            assert ageless(event.object, age) == ageless(expected, age)
        bookmark: Any = watching.next()
        assert bookmark.type == "BOOKMARK"
        (row,) = bookmark.object["rows"]
        assert row["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert len(row["cells"]) == len(single[0]["columnDefinitions"])


def test_reflector_does_not_support_receiving_resources_as_tables(dynamic: Client, space: str, five: list[Obj]) -> None:
    """Check that the server sends a Table in place of a Secret, because of which upstream's reflector never syncs."""
    with dynamic.watch("secrets", space, accept=TABLE, **ASKED) as watching:
        assert watching.next().object["kind"] == "Table"


def test_reflector_using_standard_list_does_not_support_receiving_resources_as_tables(
    dynamic: Client, space: str, five: list[Obj]
) -> None:
    answer = dynamic.call("GET", secrets_path(space), accept=TABLE, labelSelector=LABEL)
    assert answer["kind"] == "Table"
