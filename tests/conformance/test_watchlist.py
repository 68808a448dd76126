"""[sig-api-machinery] API Streaming (aka. WatchList): test/e2e/apimachinery/watchlist.go (reference/kubernetes.md 8.5).

What upstream's informers and reflectors do inside is done here with the requests they send.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.wire.schema import Obj
from tests.support.typedclient import PROTOBUF, WATCH_LIST, Client

LABEL = "watchlist=true"
ASKED = {**WATCH_LIST, "labelSelector": LABEL}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
_PARTIAL = "as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_PARTIALS = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
METADATA = f"{PROTOBUF};{_PARTIAL},application/json;{_PARTIAL},application/json"
METADATA_LIST = f"{PROTOBUF};{_PARTIALS},application/json;{_PARTIALS},application/json"


@pytest.fixture
def five(client: Client, space: str) -> list[Obj]:
    """The secrets every test here starts with, as their creation answered."""
    return [
        client.create("secrets", space, {"metadata": {"name": f"secret-{number}", "labels": {"watchlist": "true"}}})
        for number in range(1, 6)
    ]


def secrets_path(space: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{space}/secrets" + (f"/{name}" if name else "")


def modify(client: Client, space: str) -> Obj:
    secret = client.get("secrets", space, "secret-1")
    return client.update("secrets", space, {**secret, "stringData": {"foo": "bar"}})


def test_should_be_requested_by_informers_when_watch_list_client_is_enabled(
    client: Client, space: str, five: list[Obj]
) -> None:
    with client.watch("secrets", space, **ASKED) as watching:
        assert [event.object for event in watching.initial()] == five
        updated = modify(client, space)
        event = watching.next()
        assert (event.type, event.object) == ("MODIFIED", updated)


def test_should_be_requested_by_metadatainformer_when_watch_list_client_is_enabled(
    client: Client, space: str, five: list[Obj]
) -> None:
    def listed() -> list[Obj]:
        items: list[Obj] = client.call("GET", secrets_path(space), accept=METADATA_LIST)["items"]
        return items

    with client.watch("secrets", space, accept=METADATA, **WATCH_LIST) as watching:
        store = {event.name: event.object for event in watching.initial()}
        assert list(store.values()) == listed()
        modify(client, space)
        event = watching.next()
        assert event.type == "MODIFIED"
        assert listed()[0] == event.object
        assert event.object["kind"] == "PartialObjectMetadata"


def test_should_not_be_requested_by_client_gos_list_method(client: Client, space: str, five: list[Obj]) -> None:
    found = client.list("secrets", space, labelSelector=LABEL)["items"]
    assert found == [{key: value for key, value in secret.items() if key not in _TYPE} for secret in five] or (
        found == five
    )


_TYPE = ("kind", "apiVersion")
"""Protobuf's items carry neither."""


def test_should_not_be_requested_by_dynamic_clients_list_method(
    dynamic: Client, client: Client, space: str, five: list[Obj]
) -> None:
    listed = dynamic.list("secrets", space, labelSelector=LABEL)
    assert listed["items"] == five
    assert (listed["apiVersion"], listed["kind"]) == ("v1", "SecretList")


def test_should_not_be_requested_by_metadata_clients_list_method(client: Client, space: str, five: list[Obj]) -> None:
    single = [client.call("GET", secrets_path(space, obj["metadata"]["name"]), accept=METADATA) for obj in five]
    listed = client.call("GET", secrets_path(space), accept=METADATA_LIST, labelSelector=LABEL)
    assert listed["items"] == single


def ageless(table: Obj, column: int) -> Obj:
    """As typed Go sees it, with the column that changes by itself left out."""
    rows = [{**row, "cells": row["cells"][:column] + row["cells"][column + 1 :]} for row in table["rows"]]
    return {**table, "rows": rows}


def test_server_supports_sending_resources_in_table_format(dynamic: Client, space: str, five: list[Obj]) -> None:
    single = [dynamic.call("GET", secrets_path(space, obj["metadata"]["name"]), accept=TABLE) for obj in five]
    age = [column["name"] for column in single[0]["columnDefinitions"]].index("Age")
    for table in single[1:]:
        table["columnDefinitions"] = None  # only the first event carries them; Go tells nil from an empty list
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


@pytest.mark.parametrize("query", [ASKED, {"watch": "", "labelSelector": LABEL}], ids=["reflector", "standard list"])
def test_reflector_does_not_support_receiving_resources_as_tables(
    dynamic: Client, space: str, five: list[Obj], query: dict[str, str]
) -> None:
    """Upstream's reflector never syncs because what comes is a Table, not a Secret: that is all the server does for it."""
    if query["watch"]:
        with dynamic.watch("secrets", space, accept=TABLE, **query) as watching:
            assert watching.next().object["kind"] == "Table"
    else:
        query = {"labelSelector": LABEL}
        assert dynamic.call("GET", secrets_path(space), accept=TABLE, **query)["kind"] == "Table"
