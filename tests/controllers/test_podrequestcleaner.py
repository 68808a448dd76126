"""podcertificaterequest-cleaner-controller: requests are deleted 15 minutes after their creation."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mooring.api.certificates.podcertificaterequest import PLURAL
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Requeue
from mooring.controllers.certificates.cleaner import PodRequestCleaner
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views

CLEANER = PodRequestCleaner()
KEY = ("shop", "r")
MINUTE = timedelta(minutes=1)
GONE = Delete(PLURAL, "shop", "r", "uid-of-r", "7")


def request(age: timedelta, *conditions: str, **metadata: str) -> Obj:
    status = {"conditions": [{"type": kind, "status": "True"} for kind in conditions]}
    return thing("r", "shop", status=status, metadata={"creationTimestamp": moment(-age), **metadata})


@pytest.mark.parametrize(
    ("found", "action"),
    [
        pytest.param(request(15 * MINUTE), GONE, id="due, and undecided"),
        pytest.param(request(16 * MINUTE, "Issued"), GONE, id="due, and issued"),
        pytest.param(request(HOUR, "Denied"), GONE, id="due, and denied"),
        pytest.param(request(HOUR, "Failed"), GONE, id="due, and failed"),
        pytest.param(request(14 * MINUTE), Requeue(NOW + MINUTE), id="not yet due: at the moment it will be"),
        pytest.param(request(-MINUTE, "Issued"), Requeue(NOW + 16 * MINUTE), id="made before the clock was set back"),
    ],
)
def test_when_a_request_is_deleted(found: Obj, action: Action) -> None:
    assert plan(CLEANER, KEY, views(podcertificaterequests=[found])) == [action]


@pytest.mark.parametrize(
    "requests",
    [
        pytest.param([], id="gone already"),
        pytest.param([request(HOUR, deletionTimestamp=moment(-MINUTE))], id="deleted already"),
        pytest.param([request(HOUR, creationTimestamp="yesterday")], id="without a readable time"),
        pytest.param([request(HOUR, creationTimestamp="9999-12-31T23:59:59Z")], id="made at the end of time"),
        pytest.param([thing("r", "shop")], id="without a time"),
    ],
)
def test_what_is_left_alone(requests: list[Obj]) -> None:
    assert plan(CLEANER, KEY, views(podcertificaterequests=requests)) == []


def test_every_request_is_planned() -> None:
    found = request(HOUR)
    assert enqueued(CLEANER, views(podcertificaterequests=[found])) == [KEY]
    assert CLEANER.keys(PLURAL, found, True, views()) == ()
