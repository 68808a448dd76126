"""Requests of the e2e binary before each test: BeforeEach of test/e2e/framework.

Source: docs/protocol/e2e-tests.md#before-each-test.
"""

from __future__ import annotations

import pytest

from tests.conformance.conftest import framework_namespace
from tests.support.typedclient import WATCH_LIST, Client


@pytest.mark.parametrize(
    ("plural", "name"), [("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt")], ids=lambda text: str(text)
)
def test_objects_of_a_new_namespace_arrive_by_list_and_watch(client: Client, plural: str, name: str) -> None:
    """Wait by LIST and watch, as client-go does before WatchList or with it switched off."""
    space = framework_namespace(client, "listwatch")
    only = f"metadata.name={name}"
    listed = client.list(plural, space, fieldSelector=only, resourceVersion="0", limit="500")
    if not listed["items"]:
        with client.watch(
            plural, space, fieldSelector=only, resourceVersion=listed["metadata"]["resourceVersion"]
        ) as on:
            assert on.until(lambda event: event.type == "ADDED").name == name
    with client.watch(plural, space, **{**WATCH_LIST, "fieldSelector": only}) as watching:
        assert [event.name for event in watching.initial()] == [name]
    client.delete("namespaces", "", space)
