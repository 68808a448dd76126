"""Events as client-go's recorders write them and as clients read them.

Sources: client-go tools/events (event_broadcaster.go: newer recorders post events.k8s.io/v1 and patch the series), tools/record
(event.go: older recorders post core/v1 and patch the count), and [sig-instrumentation] Events and Events API of
test/e2e/instrumentation, without those that run Pods. Requests are byte forms of protobuf and of JSON.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from tests.conformance.conftest import unique
from tests.support.typedclient import STRATEGIC, WATCH_LIST, Client, RefusedError, poll

NEWER = "events.events.k8s.io"
WHEN = "2026-01-01T00:00:00.123456Z"
LATER = "2026-01-01T00:06:00.654321Z"


def newer(name: str, space: str, **more: Any) -> Obj:
    """Return the Event that `makeEvent` of the newer recorder builds."""
    return {
        "metadata": {"name": name, "namespace": space},
        "eventTime": WHEN,
        "reportingController": "example.com/joiner",
        "reportingInstance": "joiner-host",
        "action": "Joining",
        "reason": "Joined",
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": space, "name": "p", "uid": "u"},
        "note": "it joined",
        "type": "Normal",
        **more,
    }


def older(name: str, space: str, **more: Any) -> Obj:
    """Return the Event that `makeEvent` of the older recorder builds: kubelets and most controllers use it."""
    return {
        "metadata": {"name": name, "namespace": space},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": space, "name": "p", "uid": "u"},
        "reason": "Pulled",
        "message": "image pulled",
        "source": {"component": "kubelet", "host": "n"},
        "firstTimestamp": "2026-01-01T00:00:00Z",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 1,
        "type": "Normal",
        "reportingComponent": "kubelet",
        "reportingInstance": "n",
        **more,
    }


def record(sink: Client, event: Obj) -> Obj:
    """Record as `recordEvent` of the newer broadcaster does: patch a series, create it when its Event no longer exists."""
    space, name = event["metadata"]["namespace"], event["metadata"]["name"]
    if "series" in event:
        try:
            return sink.patch(NEWER, space, name, {"series": event["series"]}, STRATEGIC)
        except RefusedError as refused:
            if refused.code != 404:
                raise
    return sink.create(NEWER, space, event)


def test_a_newer_recorder_posts_and_then_patches_its_series(client: Client, space: str) -> None:
    event = newer(unique("joined"), space)
    made = record(client, event)
    assert made["eventTime"] == WHEN
    series = {"count": 2, "lastObservedTime": LATER}
    again = record(client, {**event, "series": series})
    assert again["series"] == series
    assert again["note"] == "it joined"
    assert int(again["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])


def test_a_series_whose_event_is_gone_is_created(client: Client, space: str) -> None:
    event = newer(unique("joined"), space, series={"count": 7, "lastObservedTime": LATER})
    assert record(client, event)["series"]["count"] == 7


def test_a_newer_recorder_about_something_cluster_wide_posts_to_default(client: Client) -> None:
    event = newer(unique("node"), "default", regarding={"kind": "Node", "name": "n", "apiVersion": "v1"})
    assert record(client, event)["metadata"]["namespace"] == "default"


def test_an_older_recorder_posts_and_then_patches_its_count(client: Client, space: str) -> None:
    name = unique("pulled")
    client.create("events", space, older(name, space))
    more = {"count": 2, "lastTimestamp": "2026-01-01T00:01:00Z", "message": "pulled again"}
    patched = client.patch("events", space, name, more, STRATEGIC)
    assert (patched["count"], patched["message"], patched["firstTimestamp"]) == (
        2,
        "pulled again",
        "2026-01-01T00:00:00Z",
    )
    shown = client.get(NEWER, space, name)
    assert (shown["deprecatedCount"], shown["note"]) == (2, "pulled again")


def test_an_event_of_a_namespace_that_is_going_is_refused_as_recorders_expect(client: Client, typed: Client) -> None:
    """Check the cause in the refusal, by which recorders drop the Event instead of retrying."""
    name = unique("going")
    held = {"metadata": {"name": "held", "finalizers": ["example.com/f"]}}
    typed.create("namespaces", "", {"metadata": {"name": name}})
    typed.create("configmaps", name, held)
    typed.delete("namespaces", "", name)
    with pytest.raises(RefusedError) as refused:
        record(client, newer("e", name))
    assert refused.value.code == 403
    assert "NamespaceTerminating" in [cause["reason"] for cause in refused.value.status["details"]["causes"]]
    typed.patch("configmaps", name, "held", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("plural", ["events", NEWER])
def test_should_ensure_that_an_event_can_be_fetched_patched_deleted_and_listed(
    client: Client, space: str, plural: str
) -> None:
    name = unique("event-test")
    event = newer(name, space) if plural == NEWER else older(name, space)
    event["metadata"]["labels"] = {"testevent-constant": "true"}
    before = client.list(plural, space)["metadata"]["resourceVersion"]
    client.create(plural, space, event)
    listed = client.list(plural, "", labelSelector="testevent-constant=true")
    assert name in [item["metadata"]["name"] for item in listed["items"]]
    assert [item["metadata"]["name"] for item in client.list(plural, space)["items"]] == [name]
    client.patch(plural, space, name, {"metadata": {"labels": {"patched": "yes"}}}, STRATEGIC)
    got = client.get(plural, space, name)
    assert got["metadata"]["labels"] == {"testevent-constant": "true", "patched": "yes"}
    got["series"] = {"count": 100, "lastObservedTime": WHEN}
    updated = client.update(plural, space, got)
    assert updated["series"] == {"count": 100, "lastObservedTime": WHEN}
    with client.watch(plural, space, resourceVersion=before) as watching:
        for brief in (f"ADDED {name}", f"MODIFIED {name}", f"MODIFIED {name}"):
            assert watching.next().brief == brief
        client.delete(plural, space, name)
        assert watching.next().brief == f"DELETED {name}"
    assert client.list(plural, space)["items"] == []


@pytest.mark.parametrize("plural", ["events", NEWER])
def test_should_delete_a_collection_of_events(client: Client, space: str, plural: str) -> None:
    for number in range(3):
        name = f"test-event-{number}"
        event = newer(name, space) if plural == NEWER else older(name, space)
        event["metadata"]["labels"] = {"testevent-set": "true"}
        client.create(plural, space, event)
    client.delete_collection(plural, space, labelSelector="testevent-set=true")
    assert client.list(plural, space, labelSelector="testevent-set=true")["items"] == []


def test_informers_of_both_groups_see_the_same_in_the_same_order(client: Client, space: str) -> None:
    with client.watch("events", space, **WATCH_LIST) as old, client.watch(NEWER, space, **WATCH_LIST) as new:
        assert old.initial() == new.initial() == []
        for number in range(5):
            record(client, newer(f"n{number}", space))
            client.create("events", space, older(f"o{number}", space))
        told = [
            [(event.name, event.version) for event in (watching.next() for _ in range(10))] for watching in (old, new)
        ]
        assert told[0] == told[1]
        assert {event.object["apiVersion"] for event in new.events} == {"events.k8s.io/v1"}


def test_events_go_with_their_namespace_once(typed: Client) -> None:
    name = unique("evented")
    typed.create("namespaces", "", {"metadata": {"name": name}})
    record(typed, newer("a", name))
    typed.create("events", name, older("b", name))
    before = typed.list(NEWER, name)["metadata"]["resourceVersion"]
    with typed.watch(NEWER, name, resourceVersion=before) as watching:
        typed.delete("namespaces", "", name)
        assert {watching.next().brief, watching.next().brief} == {"DELETED a", "DELETED b"}

    def gone() -> bool:
        return typed.refusal("GET", f"/api/v1/namespaces/{name}") == 404

    poll(gone, "the namespace goes")
    assert typed.list(NEWER, name)["items"] == []
