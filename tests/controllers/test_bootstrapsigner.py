"""bootstrap-signer-controller (docs/protocol/cluster-info.md#bootstrap-signer): keys, signatures, requeue times."""

from __future__ import annotations

from datetime import timedelta

import pytest

from mooring import base64url
from mooring.api.mooring import tombstones
from mooring.api.view import FixedView
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Requeue, Update
from mooring.controllers.bootstrap import CLUSTER_INFO, BootstrapSigner
from mooring.trust.discovery import clusterinfo
from tests.support.plans import HOUR, NOW, moment, plan, thing, token_secret, views

SIGNER = BootstrapSigner()
INFO = thing("cluster-info", "kube-public", data={"kubeconfig": "any text\n", "other": "stays"})


def info(**data: str) -> Obj:
    return {**INFO, "data": data}


@pytest.mark.parametrize(
    ("plural", "obj", "deleted", "enqueues"),
    [
        pytest.param("configmaps", INFO, False, True, id="cluster-info changed"),
        pytest.param("configmaps", INFO, True, False, id="cluster-info deleted: nothing could be written"),
        pytest.param("configmaps", thing("cluster-info", "default"), False, False, id="its namesake elsewhere"),
        pytest.param("configmaps", thing("other", "kube-public"), False, False, id="another ConfigMap"),
        pytest.param("secrets", token_secret(), False, True, id="a token changed"),
        pytest.param("secrets", token_secret(), True, True, id="a token deleted"),
        pytest.param("secrets", token_secret(namespace="default"), False, False, id="a token outside kube-system"),
        pytest.param("secrets", token_secret(kind="Opaque"), False, False, id="another Secret of kube-system"),
    ],
)
def test_keys_of_an_event(plural: str, obj: Obj, deleted: bool, enqueues: bool) -> None:
    assert list(SIGNER.keys(plural, obj, deleted, views())) == ([CLUSTER_INFO] if enqueues else [])


def test_a_new_token_is_signed_and_planned_again_at_its_expiry() -> None:
    seen = views(configmaps=[INFO], secrets=[token_secret(expiration=moment(HOUR))])
    update, requeue = plan(SIGNER, CLUSTER_INFO, seen)
    signature = clusterinfo.sign_encoded(base64url.encode(b"any text\n").encode(), "abcdef", b"0123456789abcdef")
    assert update == Update("configmaps", info(**INFO["data"], **{"jws-kubeconfig-abcdef": signature}))
    assert requeue == Requeue(NOW + HOUR)


def test_the_key_is_planned_again_at_the_earliest_expiry() -> None:
    tokens = [
        token_secret("aaaaaa"),
        token_secret("bbbbbb", expiration=moment(2 * HOUR)),
        token_secret("cccccc", expiration=moment(HOUR)),
        token_secret("dddddd", expiration=moment(-HOUR)),
        token_secret("eeeeee", expiration="never"),
    ]
    assert plan(SIGNER, CLUSTER_INFO, views(configmaps=[INFO], secrets=tokens))[1:] == [Requeue(NOW + HOUR)]


def test_a_signature_is_removed_when_its_token_expires() -> None:
    seen = views(configmaps=[INFO], secrets=[token_secret(expiration=moment(HOUR))])
    (update, _) = plan(SIGNER, CLUSTER_INFO, seen)
    assert isinstance(update, Update)
    signed = views(configmaps=[update.obj], secrets=seen["secrets"].list())
    assert plan(SIGNER, CLUSTER_INFO, signed, NOW + HOUR - timedelta(seconds=1)) == [Requeue(NOW + HOUR)]
    assert plan(SIGNER, CLUSTER_INFO, signed, NOW + HOUR) == [Update("configmaps", INFO)]


def test_the_signature_of_a_deleted_token_is_removed() -> None:
    left = info(kubeconfig="text", **{"jws-kubeconfig-abcdef": "old"})
    assert plan(SIGNER, CLUSTER_INFO, views(configmaps=[left])) == [Update("configmaps", info(kubeconfig="text"))]


def test_the_plan_does_not_change_objects_of_the_views() -> None:
    plan(SIGNER, CLUSTER_INFO, views(configmaps=[INFO], secrets=[token_secret()]))
    assert INFO["data"] == {"kubeconfig": "any text\n", "other": "stays"}


@pytest.mark.parametrize(
    "config_maps",
    [
        pytest.param([], id="without cluster-info, which it never creates"),
        pytest.param([info(**{"jws-kubeconfig-zzzzzz": "stale"})], id="without a kubeconfig: stale signatures stay"),
    ],
)
def test_nothing_is_written(config_maps: list[Obj]) -> None:
    assert plan(SIGNER, CLUSTER_INFO, views(configmaps=config_maps, secrets=[token_secret()])) == []


@pytest.mark.parametrize(("uid", "signs"), [("uid-of-bootstrap-token-abcdef", False), ("another", True)])
def test_a_token_that_came_back_with_a_restored_store_is_not_signed(uid: str, signs: bool) -> None:
    waiting = thing(
        tombstones.NAME, tombstones.NAMESPACE, data={"token.abcdef": tombstones.entry("abcdef", {"uid": uid})}
    )
    seen = views(configmaps=[INFO, waiting], secrets=[token_secret()])
    assert bool(plan(SIGNER, CLUSTER_INFO, seen)) is signs


def test_while_the_list_of_ends_cannot_be_read_signatures_stay_as_they_are() -> None:
    damaged = FixedView([INFO], unreadable={(tombstones.NAMESPACE, tombstones.NAME): "damaged"})
    seen = {**views(secrets=[token_secret()]), "configmaps": damaged}
    assert len(plan(SIGNER, CLUSTER_INFO, seen)) == 1, "nothing is issued for the token"
