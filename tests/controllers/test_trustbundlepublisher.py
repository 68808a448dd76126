"""The CAs that verify the API server, as a ClusterTrustBundle that replaces older ones."""

from __future__ import annotations

import hashlib

import pytest

from mooring.api.certificates.clustertrustbundle import KIND
from mooring.apimachinery.schema import Obj
from mooring.controllers.actions import Action, Create, Delete, Update
from mooring.controllers.certificates.publishing import ALL, SIGNER, TrustBundlePublisher
from mooring.pki.pem import RootCa
from tests.support.plans import NOW, plan, thing, views
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
PEM = CA.certificate_pem.decode()
NAME = f"kubernetes.io:kube-apiserver-serving:{hashlib.sha256(CA.certificate_pem).hexdigest()[:24]}"
PUBLISHER = TrustBundlePublisher(RootCa(CA.certificate_pem))
PLURAL = "clustertrustbundles"


def bundle(name: str = NAME, trust: str = PEM, signer: str = SIGNER) -> Obj:
    return thing(name, spec={"signerName": signer, "trustBundle": trust})


OLD = bundle("kubernetes.io:kube-apiserver-serving:old")
OTHER = bundle("example.com:web:one", signer="example.com/web")
NEW = {
    "kind": "ClusterTrustBundle",
    "apiVersion": "certificates.k8s.io/v1beta1",
    "metadata": {"name": NAME},
    "spec": {"signerName": SIGNER, "trustBundle": PEM},
}


@pytest.mark.parametrize(
    ("present", "actions"),
    [
        pytest.param([], [Create(PLURAL, NEW)], id="the first bundle"),
        pytest.param([OLD, OTHER], [Create(PLURAL, NEW), Delete.of(PLURAL, OLD)], id="a new one before the old is deleted"),
        pytest.param([bundle(), OTHER], [], id="nothing to do"),
        pytest.param([bundle(), OLD], [Delete.of(PLURAL, OLD)], id="an old one that was left"),
        pytest.param([bundle(trust="x"), OLD], [Update(PLURAL, bundle()), Delete.of(PLURAL, OLD)], id="one that was edited"),
    ],
)  # fmt: skip
def test_one_bundle_with_the_cas_in_force(present: list[Obj], actions: list[Action]) -> None:
    assert plan(PUBLISHER, ALL, views(clustertrustbundles=present)) == actions


def test_the_published_bundle_is_valid() -> None:
    assert [*KIND.validate(NEW), *KIND.validate_create(NEW)] == []


@pytest.mark.parametrize(
    ("plural", "obj", "is_planned"),
    [
        ("namespaces", thing("kube-system"), True),
        ("namespaces", thing("default"), False),
        (PLURAL, OLD, True),
        (PLURAL, OTHER, False),
    ],
)
def test_events_that_plan_the_bundle(plural: str, obj: Obj, is_planned: bool) -> None:
    assert list(PUBLISHER.keys(plural, obj, False, views())) == ([ALL] if is_planned else [])
