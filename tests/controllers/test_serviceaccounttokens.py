"""serviceaccount-token-controller: tokens in Secrets.

Source: docs/protocol/service-account-tokens.md#secrets-for-legacy-tokens.
"""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import pytest

from mooring.api.mooring import tombstones
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Delete, Key, Requeue, Update
from mooring.controllers.serviceaccount import GRACE_PERIOD, ServiceAccountTokenController
from mooring.pki.jwt.serviceaccount import LegacyToken, read_legacy
from mooring.pki.jwt.token import TokenKeys, TokenSigner, decode_unverified, verify_token
from mooring.pki.keys import generate_key
from mooring.pki.pem import RootCa
from tests.support.plans import HOUR, NOW, enqueued, moment, plan, thing, views, with_metadata

KEYS = TokenKeys(TokenSigner(generate_key(), "https://mooring.example"))
CONTROLLER = ServiceAccountTokenController(KEYS, RootCa(b"CA\n"))
KEY = ("a", "robot-token")
NAME, UID = "kubernetes.io/service-account.name", "kubernetes.io/service-account.uid"
ROBOT = thing("robot", "a")
FULL = {"ca.crt": base64.b64encode(b"CA\n").decode(), "namespace": "YQ==", "token": "dG9rZW4="}


def secret(data: Obj | None = None, uid: str = "", *, age: timedelta = HOUR, **more: Any) -> Obj:
    annotations = {NAME: "robot"} | ({UID: uid} if uid else {})
    metadata = {"annotations": annotations, "creationTimestamp": moment(-age), **more.pop("metadata", {})}
    return thing(
        "robot-token", "a", type="kubernetes.io/service-account-token", data=data or {}, metadata=metadata, **more
    )


def planned(found: Obj | None, *accounts: Obj) -> list[Action]:
    return plan(CONTROLLER, KEY, views(secrets=[found] if found else [], serviceaccounts=accounts))


def filled_in(found: Obj, *accounts: Obj) -> Obj:
    [action] = planned(found, *accounts)
    assert isinstance(action, Update)
    assert action.plural == "secrets"
    assert action.obj["metadata"]["resourceVersion"] == "7"
    return action.obj


def test_an_empty_secret_gets_uid_token_namespace_and_ca() -> None:
    made = filled_in(secret(), ROBOT)
    assert made["metadata"]["annotations"] == {NAME: "robot", UID: "uid-of-robot"}
    data = {name: base64.b64decode(value) for name, value in made["data"].items()}
    assert {name: data[name] for name in ("ca.crt", "namespace")} == {"ca.crt": b"CA\n", "namespace": b"a"}
    claims = verify_token(
        data["token"].decode(), KEYS.verifying, NOW, issuers=("kubernetes/serviceaccount",), require_expiry=False
    )
    assert read_legacy(claims) == LegacyToken("a", "robot-token", "robot", "uid-of-robot")


def test_a_removed_token_is_signed_again_with_the_current_key() -> None:
    keys = TokenKeys(TokenSigner(generate_key(), "https://mooring.example"))
    controller = ServiceAccountTokenController(keys, RootCa(b"CA\n"))
    new = TokenSigner(generate_key(), "https://mooring.example")
    keys.replace(new, ())
    found = secret({name: value for name, value in FULL.items() if name != "token"}, "uid-of-robot")
    [action] = plan(controller, KEY, views(secrets=[found], serviceaccounts=[ROBOT]))
    assert isinstance(action, Update)
    header, _ = decode_unverified(base64.b64decode(action.obj["data"]["token"]).decode())
    assert header["kid"] == new.key_id


@pytest.mark.parametrize(
    ("data", "uid", "kept"),
    [
        pytest.param({"token": "dG9rZW4="}, "uid-of-robot", ("token",), id="a token that is there stays"),
        pytest.param({**FULL, "ca.crt": "eA=="}, "uid-of-robot", ("token", "namespace"), id="another CA is put right"),
        pytest.param({**FULL, "namespace": ""}, "uid-of-robot", ("token", "ca.crt"), id="an empty namespace"),
        pytest.param({"mine": "eA=="}, "uid-of-robot", ("mine",), id="what else is in it stays"),
        pytest.param(FULL, "", ("token", "namespace", "ca.crt"), id="only the uid is missing"),
    ],
)
def test_missing_data_is_filled_in_and_existing_data_stays(data: Obj, uid: str, kept: tuple[str, ...]) -> None:
    made = filled_in(secret(data, uid), ROBOT)
    assert {name: made["data"][name] for name in kept} == {name: data[name] for name in kept}
    assert made["metadata"]["annotations"][UID] == "uid-of-robot"
    assert set(made["data"]) >= set(FULL)
    assert all(made["data"].values())


@pytest.mark.parametrize(
    ("found", "accounts"),
    [
        pytest.param(secret(FULL, "uid-of-robot"), [ROBOT], id="that has everything"),
        pytest.param(secret(immutable=True), [ROBOT], id="that is immutable"),
        pytest.param(secret(metadata={"deletionTimestamp": moment(0 * HOUR)}), [], id="that is being deleted"),
        pytest.param({**secret(), "type": "Opaque"}, [], id="of another type"),
        pytest.param(None, [ROBOT], id="that is gone, and nobody refers to it"),
    ],
)
def test_no_action_for_a_secret(found: Obj | None, accounts: list[Obj]) -> None:
    assert planned(found, *accounts) == []


def test_without_signing_keys_only_secrets_of_absent_accounts_are_deleted() -> None:
    controller = ServiceAccountTokenController(None, RootCa(b"CA\n"))
    assert plan(controller, KEY, views(secrets=[secret()], serviceaccounts=[ROBOT])) == []
    assert plan(controller, KEY, views(secrets=[secret()])) == [GONE]


GONE = Delete("secrets", "a", "robot-token", "uid-of-robot-token", "7")


@pytest.mark.parametrize(
    ("found", "accounts"),
    [
        pytest.param(secret(FULL, "uid-of-robot"), [], id="whose account is gone"),
        pytest.param(secret(), [], id="whose account never was"),
        pytest.param(secret(age=GRACE_PERIOD), [], id="whose account was waited for"),
        pytest.param(secret(FULL, "uid-of-before"), [ROBOT], id="of an earlier account of that name"),
        pytest.param(secret(), [thing("robot", "b")], id="whose account is in another namespace"),
        pytest.param(secret(metadata={"annotations": None}), [ROBOT], id="that names no account"),
        pytest.param(secret(FULL, "uid-of-before", age=timedelta(0)), [ROBOT], id="new, of an earlier account"),
    ],
)
def test_a_secret_is_deleted(found: Obj, accounts: list[Obj]) -> None:
    assert planned(found, *accounts) == [GONE]


def test_a_new_secret_waits_for_its_account() -> None:
    assert planned(secret(age=timedelta(seconds=1))) == [Requeue(NOW - timedelta(seconds=1) + GRACE_PERIOD)]


def test_an_account_loses_its_reference_to_a_deleted_secret() -> None:
    both = thing("robot", "a", secrets=[{"name": "robot-token"}, {"name": "x"}], automountServiceAccountToken=False)
    only = thing("other", "a", secrets=[{"name": "robot-token"}])
    elsewhere = thing("robot", "b", secrets=[{"name": "robot-token"}])
    assert planned(None, both, only, elsewhere) == [
        Update("serviceaccounts", thing("other", "a")),
        Update("serviceaccounts", {**both, "secrets": [{"name": "x"}]}),
    ]
    assert planned(secret(FULL, "uid-of-robot"), both) == [], "while it is there the reference stays"


@pytest.mark.parametrize("deleted", [False, True], ids=["there", "gone"])
@pytest.mark.parametrize(
    ("plural", "obj", "keys"),
    [
        pytest.param("secrets", secret(), [KEY], id="a token Secret"),
        pytest.param("secrets", thing("x", "a", type="Opaque"), [], id="another Secret"),
        pytest.param("serviceaccounts", ROBOT, [KEY], id="the account of one"),
        pytest.param("serviceaccounts", thing("x", "a"), [], id="another account"),
        pytest.param("serviceaccounts", thing("robot", "b"), [], id="an account elsewhere"),
    ],
)
def test_keys_of_an_event(plural: str, obj: Obj, keys: list[Key], deleted: bool) -> None:
    controller = ServiceAccountTokenController(KEYS, RootCa(b"CA\n"))
    other = thing("robot-other", "a", type="Opaque", metadata={"annotations": {NAME: "robot"}})
    seen = views(secrets=[secret(), other])
    enqueued(controller, seen)
    assert list(controller.keys(plural, obj, deleted, seen)) == keys


def test_an_account_enqueues_its_current_token_secrets() -> None:
    controller = ServiceAccountTokenController(KEYS, RootCa(b"CA\n"))
    seen = views()

    def enqueued_by_account() -> list[Key]:
        return list(controller.keys("serviceaccounts", ROBOT, False, seen))

    second = with_metadata(secret(), name="second")
    for one in (secret(), second):
        controller.keys("secrets", one, False, seen)
    assert enqueued_by_account() == [KEY, ("a", "second")]
    moved = with_metadata(secret(), annotations={NAME: "somebody"})
    controller.keys("secrets", moved, False, seen)
    assert enqueued_by_account() == [("a", "second")], "the annotation names another account now"
    controller.keys("secrets", second, True, seen)
    assert enqueued_by_account() == [], "deleted"


def test_at_start_every_token_secret_is_enqueued() -> None:
    assert enqueued(CONTROLLER, views(secrets=[secret()], serviceaccounts=[ROBOT])) == [KEY, KEY]


def test_the_plan_does_not_change_the_secret_of_the_view() -> None:
    found = secret()
    before = with_metadata(found)
    planned(found, ROBOT)
    assert found == before


def test_no_token_is_signed_while_an_end_waits_to_be_settled() -> None:
    waiting = {"metadata": {"name": tombstones.NAME, "namespace": tombstones.NAMESPACE}, "data": {"node.n1": "{}"}}
    seen = views(secrets=[secret()], serviceaccounts=[ROBOT], configmaps=[waiting])
    assert plan(CONTROLLER, KEY, seen) == [Requeue(NOW + tombstones.UNSETTLED_FOR)]
