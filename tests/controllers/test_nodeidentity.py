"""node-identity-controller: when a NodeIdentity is deleted, and when the end of a membership is taken back."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import GRACE, Action, Delete, Requeue, Update
from mooring.controllers.node import KEPT_FOR, NodeIdentityController
from tests.support.plans import HOUR, NOW, moment, plan, thing, views

CONTROLLER = NodeIdentityController(timedelta(hours=2))
REREGISTERING = NodeIdentityController(timedelta(hours=2), deletion_ends_membership=False)
ELSEWHERE = NodeIdentityController(timedelta(hours=2), records_nodes=True)
KEY = ("", "n1")


def identity(*ends: str, **spec: object) -> Obj:
    spec |= {"keys": [{"notAfter": end} for end in ends]} if ends else {}
    return thing("n1", spec=spec, metadata={"creationTimestamp": moment(-HOUR)})


EXPIRED = identity(moment(HOUR), moment(-KEPT_FOR))
YOUNG = identity(moment(-KEPT_FOR), moment(HOUR))
ENDED = identity(moment(HOUR), nodeUID="u1", token="abcdef")
KEYLESS = identity(nodeUID="u1")


@pytest.mark.parametrize(
    ("obj", "node", "actions"),
    [
        pytest.param(EXPIRED, False, [Requeue(NOW + GRACE)], id="a day after that is seen"),
        pytest.param(EXPIRED, True, [], id="not while there is a Node"),
        pytest.param(YOUNG, False, [Requeue(NOW + HOUR + KEPT_FOR)], id="later"),
        pytest.param(
            identity(nodePasswordUID="u5"), False, [Requeue(NOW + HOUR)], id="without keys after a certificate's life"
        ),
        pytest.param(KEYLESS, False, [], id="never, when it keeps out a certificate that was made by hand"),
        pytest.param(
            identity(moment(-KEPT_FOR), formerCertificate="sha256:1"), False, [], id="nor when the machine had one"
        ),
        pytest.param(
            identity(moment(HOUR), silenceSeconds=60),
            False,
            [Requeue(NOW + HOUR)],
            id="an ephemeral one at its last end",
        ),
        pytest.param(
            identity(moment(HOUR), silenceSeconds=60, companions=[{"notAfter": moment(2 * HOUR)}]),
            False,
            [Requeue(NOW + 2 * HOUR)],
            id="of whatever certificate",
        ),
        pytest.param(
            identity(silenceSeconds=60, certifiedNames=[{"notAfter": moment(3 * HOUR)}]),
            False,
            [Requeue(NOW + 3 * HOUR)],
            id="of names alone, too",
        ),
        pytest.param(
            identity(silenceSeconds=60, nodePasswordUID="u5"),
            False,
            [Requeue(NOW + HOUR)],
            id="and one that obtained nothing after the life of its certificates",
        ),
        pytest.param(identity("junk", silenceSeconds=60), False, [], id="never without a readable end"),
        pytest.param(identity("junk"), False, [], id="never, when the end cannot be read"),
        pytest.param(ENDED, False, [Requeue(NOW + HOUR + KEPT_FOR)], id="an ended membership as late"),
    ],
)
def test_when_an_identity_is_deleted(obj: Obj, node: bool, actions: list[Action]) -> None:
    assert plan(CONTROLLER, KEY, views(nodeidentities=[obj], nodes=[thing("n1")] if node else [])) == actions


def test_the_identity_of_an_ephemeral_machine_without_a_certificate_goes_after_two_days() -> None:
    controller = NodeIdentityController(KEPT_FOR)
    obj = identity(silenceSeconds=60, nodePasswordUID="u5")
    assert plan(controller, KEY, views(nodeidentities=[obj])) == [Requeue(NOW + 23 * HOUR)]


def test_an_identity_is_deleted_when_the_clock_has_said_for_a_day_that_it_is_needed_no_more() -> None:
    controller, stored = NodeIdentityController(timedelta(hours=2)), views(nodeidentities=[EXPIRED])
    gone = [Delete.of("nodeidentities", EXPIRED)]
    assert plan(controller, KEY, stored) == [Requeue(NOW + GRACE)]
    assert plan(controller, KEY, stored, NOW + GRACE) == gone
    assert plan(controller, KEY, views(), NOW + GRACE) == []
    assert plan(controller, KEY, stored, NOW + 2 * GRACE) == [Requeue(NOW + 3 * GRACE)], "another of the name"


def test_a_clock_that_ran_years_ahead_for_some_hours_deletes_no_identity() -> None:
    controller, stored, years = NodeIdentityController(timedelta(hours=2)), views(nodeidentities=[YOUNG]), 5 * KEPT_FOR
    assert plan(controller, KEY, stored, NOW + years) == [Requeue(NOW + years + GRACE)]
    assert plan(controller, KEY, stored, NOW + years + 23 * HOUR) == [Requeue(NOW + years + GRACE)]
    assert plan(controller, KEY, stored) == [Requeue(NOW + HOUR + KEPT_FOR)]
    assert plan(controller, KEY, stored, NOW + years + GRACE) == [Requeue(NOW + years + 2 * GRACE)]


def test_a_missing_identity_needs_nothing() -> None:
    assert plan(CONTROLLER, KEY, views()) == []


NODE = thing("n1", metadata={"uid": "u2"})
MAY_RETURN = identity(moment(HOUR), nodeUID="u1", reregisters=True)


@pytest.mark.parametrize(
    ("controller", "before", "nodes", "spec"),
    [
        pytest.param(CONTROLLER, ENDED, [NODE], None, id="a Node that an administrator created again changes nothing"),
        pytest.param(
            CONTROLLER, MAY_RETURN, [], {"nodeUID": "u1"}, id="after a change of the setting a deletion counts"
        ),
        pytest.param(CONTROLLER, MAY_RETURN, [NODE], {}, id="not for a machine that returned before"),
        pytest.param(
            REREGISTERING, ENDED, [], {"nodeUID": "u1", "reregisters": True, "token": "abcdef"}, id="or no longer"
        ),
        pytest.param(REREGISTERING, MAY_RETURN, [NODE], {}, id="a machine that returned has no record"),
        pytest.param(REREGISTERING, YOUNG, [NODE], None, id="a Node that was never deleted needs none"),
        pytest.param(
            ELSEWHERE, YOUNG, [NODE], {"nodeUID": "u2", "reregisters": True}, id="elsewhere every Node is recorded"
        ),
        pytest.param(ELSEWHERE, MAY_RETURN, [NODE], {"nodeUID": "u2", "reregisters": True}, id="and the next one"),
    ],
)
def test_the_record_of_a_node(
    controller: NodeIdentityController, before: Obj, nodes: list[Obj], spec: Obj | None
) -> None:
    actions = plan(controller, KEY, views(nodeidentities=[before], nodes=nodes))
    if spec is None:
        assert not any(isinstance(action, Update) for action in actions)
        return
    (update,) = actions
    assert isinstance(update, Update)
    assert update.obj["spec"] == {**spec, "keys": before["spec"]["keys"]}


def test_elsewhere_a_missing_node_needs_no_record() -> None:
    assert plan(ELSEWHERE, KEY, views(nodeidentities=[MAY_RETURN])) == [Requeue(NOW + HOUR + KEPT_FOR)]


@pytest.mark.parametrize(
    ("plural", "deleted", "keys"),
    [
        ("nodeidentities", False, [KEY]),
        ("nodeidentities", True, []),
        ("nodes", False, []),
        ("nodes", True, [KEY]),
    ],
)
def test_which_events_plan_for_an_identity(plural: str, deleted: bool, keys: list[tuple[str, str]]) -> None:
    assert list(CONTROLLER.keys(plural, thing("n1"), deleted, views())) == keys


def test_a_node_that_may_need_a_record_plans_for_it() -> None:
    assert list(ELSEWHERE.keys("nodes", NODE, False, views())) == [KEY]
    assert list(REREGISTERING.keys("nodes", NODE, False, views(nodeidentities=[MAY_RETURN]))) == [KEY]
    assert list(REREGISTERING.keys("nodes", NODE, False, views(nodeidentities=[YOUNG]))) == []
