"""event-cleaner: Events are deleted after an hour (kube-apiserver's --event-ttl)."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Requeue
from mooring.controllers.cleanup import EventCleaner
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views

KEY = ("x", "e")
MINUTE = timedelta(minutes=1)
GONE = Delete("events", "x", "e", "uid-of-e", "7")
OLD = {"metadata": {"creationTimestamp": moment(-3 * HOUR)}}


def event(**more: Obj | str) -> Obj:
    return thing("e", "x", **more)


@pytest.mark.parametrize(
    ("found", "action"),
    [
        pytest.param(event(metadata={"creationTimestamp": moment(-HOUR)}), GONE, id="an hour old: gone"),
        pytest.param(
            event(metadata={"creationTimestamp": moment(-MINUTE)}), Requeue(NOW + 59 * MINUTE), id="younger: later"
        ),
        pytest.param(event(**OLD), GONE, id="older: gone"),
        pytest.param(
            event(**OLD, lastTimestamp=moment(-MINUTE)), Requeue(NOW + 59 * MINUTE), id="reported again: stays"
        ),
        pytest.param(event(**OLD, lastTimestamp=moment(-2 * HOUR)), GONE, id="reported again, long ago"),
        pytest.param(event(**OLD, eventTime=moment(-MINUTE)), Requeue(NOW + 59 * MINUTE), id="of the newer style"),
        pytest.param(
            event(**OLD, series={"lastObservedTime": moment(-MINUTE)}),
            Requeue(NOW + 59 * MINUTE),
            id="seen again in a series",
        ),
        pytest.param(event(**OLD, lastTimestamp=moment(900 * HOUR)), GONE, id="a claim about the future is none"),
        pytest.param(
            event(metadata={"creationTimestamp": moment(HOUR)}), Requeue(NOW + HOUR), id="made before the clock was set"
        ),
        pytest.param(event(**OLD, lastTimestamp="yesterday"), GONE, id="what cannot be read does not count"),
    ],
)
def test_when_an_event_is_deleted(found: Obj, action: Action) -> None:
    assert plan(EventCleaner(), KEY, views(events=[found])) == [action]


@pytest.mark.parametrize(
    "events",
    [
        pytest.param([], id="gone already"),
        pytest.param([event(metadata={"deletionTimestamp": moment(-HOUR)})], id="deleted already"),
        pytest.param([event()], id="without any time"),
    ],
)
def test_no_action_is_planned_for(events: list[Obj]) -> None:
    assert plan(EventCleaner(), KEY, views(events=events)) == []


def test_every_event_is_planned_until_it_is_deleted() -> None:
    seen = views(events=[event()])
    assert enqueued(EventCleaner(), seen) == [KEY]
    assert EventCleaner().keys("events", event(), True, seen) == ()
