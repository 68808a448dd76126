"""Controllers that create an object in every namespace: kube-root-ca.crt and the ServiceAccount default.

Source: docs/protocol/namespaces.md#objects-of-every-namespace.
"""

from __future__ import annotations

from typing import Any

import pytest

from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Controller, Create, Delete, Key, Update
from mooring.controllers.certificates.publishing import DESCRIPTION, RootCaCertPublisher
from mooring.controllers.serviceaccount import ServiceAccountController
from mooring.pki.pem import RootCa
from tests.support.plans import HOUR, moment, plan, thing, views, with_metadata

PUBLISHER, ACCOUNTS = RootCaCertPublisher(RootCa(b"CA\n")), ServiceAccountController()
ACTIVE = thing("a", status={"phase": "Active"})
GOING = [
    pytest.param([], id="that is gone"),
    pytest.param([thing("a", status={"phase": "Terminating"})], id="that is terminating"),
    pytest.param([with_metadata(ACTIVE, deletionTimestamp=moment(0 * HOUR))], id="that was deleted"),
]
CA_KEY, ACCOUNT_KEY = ("a", "kube-root-ca.crt"), ("a", "default")


def config_map(data: Any, annotations: Any = None, **more: Any) -> Obj:
    metadata = {"annotations": annotations} if annotations is not None else {}
    return thing("kube-root-ca.crt", "a", data=data, metadata=metadata, **more)


@pytest.mark.parametrize(
    ("controller", "plural", "obj", "deleted", "keys"),
    [
        pytest.param(PUBLISHER, "namespaces", ACTIVE, False, [CA_KEY], id="publisher: a namespace"),
        pytest.param(PUBLISHER, "namespaces", ACTIVE, True, [], id="publisher: not a namespace that is gone"),
        pytest.param(PUBLISHER, "configmaps", config_map({}), False, [CA_KEY], id="publisher: its ConfigMap changed"),
        pytest.param(PUBLISHER, "configmaps", config_map({}), True, [CA_KEY], id="publisher: its ConfigMap deleted"),
        pytest.param(PUBLISHER, "configmaps", thing("x", "a"), False, [], id="publisher: not another ConfigMap"),
        pytest.param(ACCOUNTS, "namespaces", ACTIVE, False, [ACCOUNT_KEY], id="accounts: a namespace"),
        pytest.param(ACCOUNTS, "namespaces", ACTIVE, True, [], id="accounts: not a namespace that is gone"),
        pytest.param(
            ACCOUNTS, "serviceaccounts", thing("default", "a"), True, [ACCOUNT_KEY], id="accounts: the default deleted"
        ),
        pytest.param(ACCOUNTS, "serviceaccounts", thing("default", "a"), False, [], id="accounts: not when it changes"),
        pytest.param(ACCOUNTS, "serviceaccounts", thing("x", "a"), True, [], id="accounts: not another one"),
    ],
)
def test_keys_of_an_event(controller: Controller, plural: str, obj: Obj, deleted: bool, keys: list[Key]) -> None:
    assert list(controller.keys(plural, obj, deleted, views())) == keys


@pytest.mark.parametrize("namespaces", GOING)
@pytest.mark.parametrize(
    ("controller", "key"), [(PUBLISHER, CA_KEY), (ACCOUNTS, ACCOUNT_KEY)], ids=["the CA", "accounts"]
)
def test_nothing_is_created_in_a_namespace(controller: Controller, key: Key, namespaces: list[Obj]) -> None:
    assert plan(controller, key, views(namespaces=namespaces)) == []


def test_a_missing_default_account_is_created() -> None:
    wanted = {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "default", "namespace": "a"}}
    assert plan(ACCOUNTS, ACCOUNT_KEY, views(namespaces=[ACTIVE])) == [Create("serviceaccounts", wanted)]


def test_an_existing_account_is_not_changed() -> None:
    seen = views(namespaces=[ACTIVE], serviceaccounts=[thing("default", "a", secrets=[{"name": "x"}])])
    assert plan(ACCOUNTS, ACCOUNT_KEY, seen) == []


def test_a_missing_ca_is_published() -> None:
    wanted = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {
            "name": "kube-root-ca.crt",
            "namespace": "a",
            "annotations": {"kubernetes.io/description": DESCRIPTION},
        },
        "data": {"ca.crt": "CA\n"},
    }
    assert plan(PUBLISHER, CA_KEY, views(namespaces=[ACTIVE])) == [Create("configmaps", wanted)]


RIGHT = {"ca.crt": "CA\n"}
DESCRIBED = {"kubernetes.io/description": DESCRIPTION}
OWN = {"kubernetes.io/description": "our own words", "example.com/a": "b"}
REMOVE = Delete("configmaps", "a", "kube-root-ca.crt", "uid-of-kube-root-ca.crt", "7")


@pytest.mark.parametrize(
    ("found", "actions"),
    [
        pytest.param(config_map(RIGHT, DESCRIBED), [], id="as it should be"),
        pytest.param(config_map(RIGHT, OWN), [], id="described in other words"),
        pytest.param(config_map(RIGHT), [Update("configmaps", config_map(RIGHT, DESCRIBED))], id="not described"),
        pytest.param(
            config_map({"ca.crt": "evil"}, OWN),
            [Update("configmaps", config_map(RIGHT, OWN))],
            id="another CA: only the data is put right",
        ),
        pytest.param(
            config_map({**RIGHT, "more": "x"}, DESCRIBED),
            [Update("configmaps", config_map(RIGHT, DESCRIBED))],
            id="more data",
        ),
        pytest.param(
            config_map(RIGHT, DESCRIBED, binaryData={"x": "AA=="}),
            [Update("configmaps", config_map(RIGHT, DESCRIBED))],
            id="binary data",
        ),
        pytest.param(config_map({"ca.crt": "evil"}, immutable=True), [REMOVE], id="another CA, immutable: replaced"),
        pytest.param(
            config_map(RIGHT, immutable=True),
            [Update("configmaps", config_map(RIGHT, DESCRIBED, immutable=True))],
            id="right and immutable, not described",
        ),
    ],
)
def test_a_published_ca_that_is(found: Obj, actions: list[Action]) -> None:
    assert plan(PUBLISHER, CA_KEY, views(namespaces=[ACTIVE], configmaps=[found])) == actions
