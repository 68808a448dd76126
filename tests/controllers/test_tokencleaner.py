"""token-cleaner-controller.

Source: docs/protocol/bootstrap-tokens.md#token-cleaner.
"""

from __future__ import annotations

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Requeue
from mooring.controllers.bootstrap import TokenCleaner
from mooring.trust.bootstraptoken.restrictions import JOINED_KEYS, MAX_JOINS
from tests.support.plans import HOUR, NOW, moment, plan, thing, token_secret, views, with_metadata

CLEANER = TokenCleaner()
KEY = ("kube-system", "bootstrap-token-abcdef")
GONE = Delete("secrets", *KEY, "uid-of-bootstrap-token-abcdef", "7")


def used_up(**data: str) -> Obj:
    """Return a token for one machine, which has joined."""
    return with_metadata(token_secret(**data), annotations={MAX_JOINS: "1", JOINED_KEYS: "0" * 64})


@pytest.mark.parametrize(
    ("obj", "deleted", "keys"),
    [
        pytest.param(token_secret(), False, [KEY], id="a token"),
        pytest.param(token_secret(), True, [], id="not a token that is gone"),
        pytest.param(token_secret(namespace="default"), False, [], id="not one outside kube-system"),
        pytest.param(thing("x", "kube-system", type="Opaque"), False, [], id="not another Secret"),
    ],
)
def test_keys_of_an_event(obj: Obj, deleted: bool, keys: list[tuple[str, str]]) -> None:
    assert list(CLEANER.keys("secrets", obj, deleted, views())) == keys


@pytest.mark.parametrize(
    ("secret", "actions"),
    [
        pytest.param(token_secret(expiration=moment(-HOUR)), [GONE], id="an expired token goes"),
        pytest.param(token_secret(expiration=moment(0 * HOUR)), [GONE], id="the expiry instant is expired"),
        pytest.param(token_secret(expiration="tomorrow"), [GONE], id="an unreadable expiration is expired"),
        pytest.param(
            token_secret(expiration=moment(-HOUR), token_id="", token_secret=""), [GONE], id="whatever else it says"
        ),
        pytest.param(
            token_secret(expiration=moment(HOUR)), [Requeue(NOW + HOUR)], id="a live one is planned again at its end"
        ),
        pytest.param(token_secret(), [], id="one without expiration stays"),
        pytest.param(used_up(), [], id="so does one that is used up"),
        pytest.param(
            used_up(expiration=moment(HOUR)), [Requeue(NOW + HOUR)], id="one that is used up is kept until its end, too"
        ),
        pytest.param(used_up(expiration=moment(-HOUR)), [GONE], id="and goes then"),
        pytest.param(
            with_metadata(token_secret(expiration=moment(-HOUR)), deletionTimestamp=moment(-HOUR)),
            [],
            id="one that is being deleted is left to its finalizers",
        ),
        pytest.param(
            token_secret(kind="Opaque", expiration=moment(-HOUR)), [], id="one that is no token any more stays"
        ),
    ],
)
def test_what_is_planned_for_a_token(secret: Obj, actions: list[Action]) -> None:
    assert plan(CLEANER, KEY, views(secrets=[secret])) == actions


@pytest.mark.parametrize(
    ("expiration", "reason"),
    [
        pytest.param("2026-01-02T03:04:05", "the expiration is not an RFC 3339 time", id="no zone"),
        pytest.param("2099-01-02T03:04:05Z\n", "the expiration is not an RFC 3339 time", id="a newline of echo"),
        pytest.param(" 2099-01-02T03:04:05Z", "the expiration is not an RFC 3339 time", id="a blank"),
        pytest.param("2099-02-30T03:04:05Z", "the expiration is not a time that exists", id="no such day"),
        pytest.param(moment(-HOUR), "", id="an end that has passed is ordinary"),
    ],
)
def test_a_deletion_for_an_expiration_that_cannot_be_read_is_logged_with_the_reason(
    expiration: str, reason: str
) -> None:
    (action,) = plan(CLEANER, KEY, views(secrets=[token_secret(expiration=expiration)]))
    assert isinstance(action, Delete)
    wanted = f"the token Secret kube-system/{KEY[1]} was deleted, because its expiration counts as past: {reason}"
    assert action.announcement.startswith(wanted) if reason else not action.announcement


def test_a_deleted_token_needs_no_action() -> None:
    assert plan(CLEANER, KEY, views()) == []
