"""namespace-controller (reference/kubernetes.md 7.14): emptying a namespace, in stages, and letting it go."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.controllers.actions import Action, Delete, Update
from mooring.controllers.namespaces import CONTENT, STAGES, Namespaces
from mooring.kinds import BY_PLURAL
from mooring.kinds.view import Views
from mooring.wire.schema import Obj
from tests.support.plans import HOUR, moment, plan, thing, views

CONTROLLER = Namespaces()
KEY = ("", "a")


def namespace(*finalizers: str, deleted: bool = True, **status: Any) -> Obj:
    return thing(
        "a",
        metadata={"deletionTimestamp": moment(-HOUR)} if deleted else {},
        spec={"finalizers": list(finalizers)},
        status={"phase": "Terminating" if deleted else "Active", **status},
    )


GOING, STAYING = namespace("kubernetes"), namespace("kubernetes", deleted=False)


def held(name: str, *finalizers: str, place: str = "a") -> Obj:
    """Content that was deleted and waits for finalizers."""
    return thing(name, place, metadata={"deletionTimestamp": moment(-HOUR), "finalizers": list(finalizers)})


def test_every_namespaced_kind_is_content_and_belongs_to_one_stage() -> None:
    assert set(CONTENT) == {plural for plural, kind in BY_PLURAL.items() if kind.resource.namespaced}
    assert sorted(plural for stage in STAGES for plural in stage) == list(CONTENT)


@pytest.mark.parametrize(
    ("plural", "obj", "deleted", "known", "wakes"),
    [
        pytest.param("namespaces", GOING, False, GOING, True, id="a namespace that is to go"),
        pytest.param("namespaces", GOING, True, None, False, id="not one that is gone"),
        pytest.param("namespaces", STAYING, False, STAYING, False, id="not one that stays"),
        pytest.param("secrets", thing("s", "a"), True, GOING, True, id="content of one that is to go"),
        pytest.param("secrets", thing("s", "a"), False, STAYING, False, id="not content of one that stays"),
        pytest.param("secrets", thing("s", "a"), True, None, False, id="not content of one that is gone"),
    ],
)
def test_it_is_woken_by(plural: str, obj: Obj, deleted: bool, known: Obj | None, wakes: bool) -> None:
    seen = views(namespaces=[known] if known else [])
    assert list(CONTROLLER.keys(plural, obj, deleted, seen)) == ([KEY] if wakes else [])


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param(views(), id="one that is gone"),
        pytest.param(views(namespaces=[STAYING], secrets=[thing("s", "a")]), id="one that stays"),
        pytest.param(
            views(namespaces=[namespace("example.com/own")], secrets=[thing("s", "a")]),
            id="one that only others still hold",
        ),
        pytest.param(
            views(namespaces=[{**GOING, "spec": None}], secrets=[thing("s", "a")]), id="one without finalizers at all"
        ),
    ],
)
def test_nothing_is_done_to(seen: Views) -> None:
    assert plan(CONTROLLER, KEY, seen) == []


def test_pods_are_deleted_before_what_they_use() -> None:
    seen = views(namespaces=[GOING], pods=[thing("p", "a")], secrets=[thing("s", "a")])
    assert plan(CONTROLLER, KEY, seen) == [Delete("pods", "a", "p", "uid-of-p")]


def test_nothing_else_goes_while_a_pod_is_ending() -> None:
    seen = views(namespaces=[GOING], pods=[held("p", "example.com/f")], secrets=[thing("s", "a")])
    assert not any(isinstance(action, Delete) for action in plan(CONTROLLER, KEY, seen))


def test_everything_but_rights_is_deleted_after_the_pods() -> None:
    seen = views(
        namespaces=[GOING],
        secrets=[thing("s1", "a"), thing("s2", "a"), thing("other", "b")],
        events=[thing("e", "a")],
        roles=[thing("r", "a")],
        clusterroles=[thing("a")],
    )
    assert plan(CONTROLLER, KEY, seen) == [
        Delete("events", "a", "e", "uid-of-e"),
        Delete("secrets", "a", "s1", "uid-of-s1"),
        Delete("secrets", "a", "s2", "uid-of-s2"),
    ]


def test_rights_go_when_nothing_else_is_left() -> None:
    seen = views(namespaces=[GOING], roles=[thing("r", "a")], serviceaccounts=[thing("default", "a")])
    assert plan(CONTROLLER, KEY, seen) == [
        Delete("roles", "a", "r", "uid-of-r"),
        Delete("serviceaccounts", "a", "default", "uid-of-default"),
    ]


def test_what_was_deleted_already_is_not_deleted_again() -> None:
    seen = views(namespaces=[GOING], secrets=[held("s1", "example.com/f"), thing("s2", "a")])
    assert plan(CONTROLLER, KEY, seen) == [Delete("secrets", "a", "s2", "uid-of-s2")]


@pytest.mark.parametrize(
    ("before", "left"),
    [
        pytest.param(("kubernetes",), [], id="alone"),
        pytest.param(("example.com/own", "kubernetes"), ["example.com/own"], id="others keep holding it"),
    ],
)
def test_an_empty_namespace_is_let_go(before: tuple[str, ...], left: list[str]) -> None:
    found = namespace(*before)
    wanted = {**found, "spec": {"finalizers": left}}
    assert plan(CONTROLLER, KEY, views(namespaces=[found])) == [Update("namespaces", wanted, "finalize")]


def condition(kind: str, reason: str, message: str, since: str) -> Obj:
    return {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": since}


def waiting(since: str, secrets: int = 1) -> list[Obj]:
    return [
        condition(
            "NamespaceContentRemaining",
            "SomeResourcesRemain",
            f"Waiting for content to go: 1 leases, {secrets} secrets",
            since,
        ),
        condition(
            "NamespaceFinalizersRemaining",
            "SomeFinalizersRemain",
            f"Waiting for finalizers: 1 example.com/f, {secrets} example.com/g",
            since,
        ),
    ]


HELD = {"leases": [held("l", "example.com/f")], "secrets": [held("s", "example.com/g")]}


def told(conditions: list[Obj], **more: list[Obj]) -> list[Action]:
    found = namespace("kubernetes", conditions=conditions)
    return plan(CONTROLLER, KEY, views(**{"namespaces": [found], **HELD, **more}))


def test_a_namespace_tells_what_it_waits_for() -> None:
    other = {"type": "Other", "status": "False"}
    wanted = namespace("kubernetes", conditions=[other, *waiting(moment(0 * HOUR))])
    assert told([other]) == [Update("namespaces", wanted, "status")]


def test_it_tells_so_once() -> None:
    assert told(waiting(moment(-HOUR))) == []


def test_it_tells_what_changed_and_keeps_since_when_it_waits() -> None:
    more = [*HELD["secrets"], held("s2", "example.com/g")]
    wanted = namespace("kubernetes", conditions=waiting(moment(-HOUR), secrets=2))
    assert told(waiting(moment(-HOUR)), secrets=more) == [Update("namespaces", wanted, "status")]


def test_a_condition_that_was_not_true_begins_now() -> None:
    before = [{**one, "status": "False"} for one in waiting(moment(-HOUR))]
    wanted = namespace("kubernetes", conditions=waiting(moment(0 * HOUR)))
    assert told(before) == [Update("namespaces", wanted, "status")]
