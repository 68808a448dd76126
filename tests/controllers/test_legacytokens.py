"""Legacy token tracking, and the cleaner of unused auto-generated tokens.

Source: docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens; KEP-2799.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Key, Requeue, Update
from mooring.controllers.serviceaccount import LegacyTokenCleaner, LegacyTokenTracking
from tests.support.plans import NOW, moment, plan, thing, views

CLEANER, TRACKER = LegacyTokenCleaner(), LegacyTokenTracking()
DAY = timedelta(days=1)
YEAR = 365 * DAY
AGAIN = Requeue(NOW + DAY)
KEY = ("a", "robot-token")
USED, INVALID = "kubernetes.io/legacy-token-last-used", "kubernetes.io/legacy-token-invalid-since"
TRACKING = "kube-apiserver-legacy-service-account-token-tracking"
GONE = Delete("secrets", "a", "robot-token", "uid-of-robot-token", "7")
ROBOT = thing("robot", "a", secrets=[{}, {"name": "x"}, {"name": "robot-token"}])


def date(after: timedelta) -> str:
    return (NOW + after).date().isoformat()


def secret(age: timedelta = 2 * YEAR, *, kind: str = "kubernetes.io/service-account-token", **labels: str) -> Obj:
    named = {{"used": USED, "invalid": INVALID}.get(name, name): value for name, value in labels.items()}
    metadata: dict[str, Any] = {
        "creationTimestamp": moment(-age),
        "annotations": {"kubernetes.io/service-account.name": "robot"},
    }
    if named:
        metadata["labels"] = named
    return thing("robot-token", "a", type=kind, metadata=metadata)


def tracking(since: str | None = date(-2 * YEAR), **more: Any) -> Obj:
    return thing(TRACKING, "kube-system", data=None if since is None else {"since": since}, **more)


def pod(**spec: Any) -> Obj:
    return thing("p", "a", spec=spec)


def planned(
    found: Obj | None, *, account: Obj = ROBOT, since: Obj | None = None, pods: tuple[Obj, ...] = ()
) -> list[Action]:
    seen = views(
        secrets=[found] if found else [], serviceaccounts=[account], configmaps=[since or tracking()], pods=pods
    )
    return plan(CLEANER, KEY, seen)


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(secret(), id="never used"),
        pytest.param(secret(used=date(-YEAR)), id="used a year ago"),
        pytest.param(secret(age=YEAR), id="a year old"),
        pytest.param(secret(invalid="soon"), id="marked with what is no day"),
    ],
)
def test_an_unused_secret_is_marked(found: Obj) -> None:
    update, again = planned(found)
    assert isinstance(update, Update)
    labels = found["metadata"].get("labels") or {}
    assert update.obj == {**found, "metadata": {**found["metadata"], "labels": {**labels, INVALID: date(0 * DAY)}}}
    assert again == AGAIN


@pytest.mark.parametrize(
    ("found", "more"),
    [
        pytest.param(secret(used=date(DAY - YEAR)), {}, id="used a day less than a year ago"),
        pytest.param(secret(used="soon"), {}, id="used on what is no day"),
        pytest.param(secret(age=YEAR - DAY), {}, id="younger than a year"),
        pytest.param(secret(), {"since": tracking(date(DAY - YEAR))}, id="when uses are not written down for a year"),
        pytest.param(secret(), {"since": tracking("soon")}, id="when nobody knows since when uses are written down"),
        pytest.param(secret(), {"since": tracking(None)}, id="when the ConfigMap is empty"),
        pytest.param(secret(), {"since": thing("x", "kube-system")}, id="when there is no such ConfigMap"),
        pytest.param(
            secret(), {"pods": (pod(), pod(volumes=[{"name": "v", "secret": {"secretName": "robot-token"}}]))},
            id="that a Pod mounts",
        ),
        pytest.param(secret(invalid=date(DAY - YEAR)), {}, id="marked for less than a year"),
        pytest.param(secret(invalid=date(-YEAR), used=date(-DAY)), {}, id="marked, and used since"),
    ],
)  # fmt: skip
def test_a_secret_is_planned_again_in_a_day(found: Obj, more: dict[str, Any]) -> None:
    assert planned(found, **more) == [AGAIN]


def test_a_secret_marked_for_a_year_is_deleted() -> None:
    assert planned(secret(invalid=date(-YEAR))) == [GONE]
    assert planned(secret(invalid=date(-YEAR), used=date(-YEAR))) == [GONE]


@pytest.mark.parametrize(
    ("found", "account"),
    [
        pytest.param(None, ROBOT, id="that is gone"),
        pytest.param(secret(), thing("robot", "a"), id="that its account does not list: a person made it"),
        pytest.param(secret(), thing("other", "a", secrets=[{"name": "robot-token"}]), id="without its account"),
        pytest.param(secret(kind="Opaque"), ROBOT, id="of another type"),
        pytest.param(
            {"metadata": {**secret()["metadata"], "deletionTimestamp": moment(DAY)}}, ROBOT, id="on its way out"
        ),
    ],
)
def test_no_action_for_a_secret(found: Obj | None, account: Obj) -> None:
    assert planned(found, account=account) == []


@pytest.mark.parametrize(
    ("plural", "obj", "deleted", "keys"),
    [
        pytest.param("secrets", secret(), False, [KEY], id="a token Secret"),
        pytest.param("secrets", secret(), True, [], id="not one that is gone"),
        pytest.param("secrets", secret(kind="Opaque"), False, [], id="not another Secret"),
        pytest.param("serviceaccounts", ROBOT, False, [("a", "x"), KEY], id="an account that lists Secrets"),
        pytest.param("serviceaccounts", thing("x", "a"), False, [], id="not an account that lists none"),
        pytest.param("pods", pod(), False, [], id="not a Pod"),
        pytest.param("configmaps", tracking(), False, [], id="not a ConfigMap"),
    ],
)
def test_keys_of_an_event_for_the_cleaner(plural: str, obj: Obj, deleted: bool, keys: list[Key]) -> None:
    assert list(CLEANER.keys(plural, obj, deleted, views())) == keys


TRACK_KEY = ("kube-system", TRACKING)


def tracked(*found: Obj) -> list[Action]:
    return plan(TRACKER, TRACK_KEY, views(configmaps=found))


def test_a_missing_config_map_is_created() -> None:
    metadata = {"name": TRACKING, "namespace": "kube-system"}
    data = {"since": date(0 * DAY)}
    wanted = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": metadata, "data": data}
    assert tracked() == [Create("configmaps", wanted)]


@pytest.mark.parametrize("since", [date(-2 * YEAR), date(0 * DAY), date(DAY)], ids=["past", "today", "tomorrow"])
def test_a_valid_day_stays(since: str) -> None:
    assert tracked(tracking(since)) == []


@pytest.mark.parametrize(
    "since",
    [None, "", "soon", "2025-13-01", "20250101", "2025-W01-1", date(2 * DAY)],
    ids=["none", "empty", "no day", "no month", "another form", "a week", "in the future"],
)
def test_an_invalid_day_becomes_today(since: str | None) -> None:
    found = tracking(since)
    assert tracked(found) == [Update("configmaps", {**found, "data": {"since": date(0 * DAY)}})]
    frozen = tracking(since, immutable=True)
    assert tracked(frozen) == [Delete("configmaps", "kube-system", TRACKING, f"uid-of-{TRACKING}", "7")]


@pytest.mark.parametrize(
    ("plural", "obj", "deleted", "keys"),
    [
        pytest.param("configmaps", tracking(), False, [TRACK_KEY], id="its ConfigMap"),
        pytest.param("configmaps", tracking(), True, [TRACK_KEY], id="its ConfigMap that is gone"),
        pytest.param("configmaps", thing(TRACKING, "a"), False, [], id="not a namesake"),
        pytest.param("namespaces", thing("kube-system"), False, [TRACK_KEY], id="its namespace"),
        pytest.param("namespaces", thing("kube-system"), True, [], id="not its namespace when that is gone"),
        pytest.param("namespaces", thing("a"), False, [], id="not another namespace"),
    ],
)
def test_keys_of_an_event_for_the_tracker(plural: str, obj: Obj, deleted: bool, keys: list[Key]) -> None:
    assert list(TRACKER.keys(plural, obj, deleted, views())) == keys
