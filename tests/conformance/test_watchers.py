"""[sig-api-machinery] Watchers: the five tests of test/e2e/apimachinery/watch.go.

Source: docs/protocol/e2e-tests.md#teste2eapimachinery.

Where upstream waits ten seconds for the absence of events, the tests compare the whole history of each watch at the end.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mooring.apimachinery.schema import Obj
from tests.support.typedclient import Client, RefusedError, Watching

LABEL = "watch-this-configmap"
A, B = "multiple-watchers-A", "multiple-watchers-B"


def config_map(name: str, label: str) -> Obj:
    return {"metadata": {"name": name, "labels": {LABEL: label}}}


def mutate(client: Client, space: str, name: str, value: str) -> Obj:
    return client.retry_update("configmaps", space, name, lambda obj: obj.update(data={"mutation": value}))


def relabel(client: Client, space: str, name: str, label: str) -> Obj:
    return client.retry_update("configmaps", space, name, lambda obj: obj["metadata"]["labels"].update({LABEL: label}))


def selected(*labels: str) -> str:
    return f"{LABEL} in ({','.join(labels)})"


def expect(watching: Watching, event_type: str, obj: Obj | None = None) -> None:
    event = watching.next()
    assert event.type == event_type
    if obj is not None:
        assert event.object == obj


def test_should_observe_add_update_and_delete_watch_notifications_on_configmaps(client: Client, space: str) -> None:
    with ExitStack() as stack:

        def watch(*labels: str) -> Watching:
            return stack.enter_context(client.watch("configmaps", space, labelSelector=selected(*labels)))

        watch_a, watch_b, watch_ab = watch(A), watch(B), watch(A, B)
        name_a, name_b = "e2e-watch-test-configmap-a", "e2e-watch-test-configmap-b"

        made = client.create("configmaps", space, config_map(name_a, A))
        expect(watch_a, "ADDED", made)
        expect(watch_ab, "ADDED", made)
        for value in ("1", "2"):
            changed = mutate(client, space, name_a, value)
            expect(watch_a, "MODIFIED", changed)
            expect(watch_ab, "MODIFIED", changed)
        client.delete("configmaps", space, name_a)
        expect(watch_a, "DELETED")
        expect(watch_ab, "DELETED")

        made = client.create("configmaps", space, config_map(name_b, B))
        expect(watch_b, "ADDED", made)
        expect(watch_ab, "ADDED", made)
        client.delete("configmaps", space, name_b)
        expect(watch_b, "DELETED")
        expect(watch_ab, "DELETED")

        last = client.create("configmaps", space, config_map("last", A))
        expect(watch_a, "ADDED", last)
        assert [event.name for event in watch_a.events] == [name_a] * 4 + ["last"]
        assert [event.name for event in watch_b.events] == [name_b] * 2


def test_should_be_able_to_start_watching_from_a_specific_resource_version(client: Client, space: str) -> None:
    name, label = "e2e-watch-test-resource-version", "from-resource-version"
    client.create("configmaps", space, config_map(name, label))
    first = mutate(client, space, name, "1")
    second = mutate(client, space, name, "2")
    client.delete("configmaps", space, name)
    version = first["metadata"]["resourceVersion"]
    with client.watch("configmaps", space, resourceVersion=version, labelSelector=selected(label)) as watching:
        expect(watching, "MODIFIED", second)
        expect(watching, "DELETED")


def test_should_be_able_to_restart_watching_from_the_last_resource_version_observed_by_the_previous_watch(
    client: Client, space: str
) -> None:
    name, label = "e2e-watch-test-watch-closed", "watch-closed-and-restarted"
    with client.watch("configmaps", space, labelSelector=selected(label)) as broken:
        made = client.create("configmaps", space, config_map(name, label))
        mutate(client, space, name, "1")
        expect(broken, "ADDED", made)
        last = broken.next()
        assert last.type == "MODIFIED"
    second = mutate(client, space, name, "2")
    with client.watch("configmaps", space, resourceVersion=last.version, labelSelector=selected(label)) as again:
        client.delete("configmaps", space, name)
        expect(again, "MODIFIED", second)
        expect(again, "DELETED")


def test_should_observe_an_object_deletion_if_it_stops_meeting_the_requirements_of_the_selector(
    client: Client, space: str
) -> None:
    name, label = "e2e-watch-test-label-changed", "label-changed-and-restored"
    with client.watch("configmaps", space, labelSelector=selected(label)) as watching:
        made = client.create("configmaps", space, config_map(name, label))
        first = mutate(client, space, name, "1")
        relabel(client, space, name, "wrong-value")
        expect(watching, "ADDED", made)
        expect(watching, "MODIFIED", first)
        expect(watching, "DELETED")
        mutate(client, space, name, "2")
        restored = relabel(client, space, name, label)
        third = mutate(client, space, name, "3")
        client.delete("configmaps", space, name)
        expect(watching, "ADDED", restored)
        expect(watching, "MODIFIED", third)
        expect(watching, "DELETED")


@contextmanager
def produced(client: Client, space: str) -> Iterator[None]:
    """Create, update and delete at random from another connection until the block ends."""
    stop = threading.Event()
    failures: list[Exception] = []

    def produce() -> None:
        chance, existing, number = random.Random(7), list[str](), 0
        writer = client.like()
        try:
            while not stop.wait(0.005):
                action = chance.randrange(3) if existing else 0
                if action == 0:
                    existing.append(f"cm-{number}")
                    number += 1
                    writer.create("configmaps", space, {"metadata": {"name": existing[-1]}})
                elif action == 1:
                    writer.update("configmaps", space, {"metadata": {"name": chance.choice(existing)}})
                else:
                    writer.delete("configmaps", space, existing.pop(chance.randrange(len(existing))))
        except (RefusedError, OSError) as failure:
            failures.append(failure)
        finally:
            writer.close()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    assert not failures


def test_should_receive_events_on_concurrent_watches_in_same_order(client: Client, space: str) -> None:
    version = client.list("configmaps", space)["metadata"]["resourceVersion"]
    with ExitStack() as stack:
        stack.enter_context(produced(client, space))
        watches: list[Watching] = []
        for _ in range(100):
            watches.append(stack.enter_context(client.watch("configmaps", space, resourceVersion=version)))
            version = watches[0].next().version
            assert {watching.next().version for watching in watches[1:]} <= {version}
