"""The table of controllers: names and order of kube-controller-manager, and the kinds that they watch."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from mooring.api.kinds import BY_PLURAL
from mooring.controllers.table import (
    CONTROLLERS,
    ISSUANCE_CHECKS,
    ControllerSettings,
    build,
    checks_before_password,
    without_effect,
)
from mooring.pki.pem import RootCa
from mooring.settings.signing import SIGNING_DURATION
from tests.support.plans import NOW
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
SETTINGS = ControllerSettings(
    authority_for=CA.cluster_ca.for_signer, root_ca=RootCa(CA.certificate_pem), signing_duration=SIGNING_DURATION
)


def test_every_check_but_that_of_the_name_comes_before_a_password() -> None:
    assert [check.name for check in checks_before_password(SETTINGS)] == [
        name for name in ISSUANCE_CHECKS if name != "name-ownership"
    ]


def test_the_names_are_those_of_kube_controller_manager() -> None:
    assert tuple(CONTROLLERS) == (
        "bootstrap-signer-controller",
        "token-cleaner-controller",
        "certificatesigningrequest-approving-controller",
        "certificatesigningrequest-signing-controller",
        "certificatesigningrequest-cleaner-controller",
        "podcertificaterequest-signing-controller",
        "podcertificaterequest-cleaner-controller",
        "kubelet-serving-approver",
        "machine-inventory-approver",
        "k3s-supervisor-approver",
        "root-ca-certificate-publisher-controller",
        "kube-apiserver-serving-clustertrustbundle-publisher-controller",
        "serviceaccount-controller",
        "serviceaccount-token-controller",
        "legacy-serviceaccount-token-cleaner-controller",
        "namespace-controller",
        "garbage-collector-controller",
        "pod-garbage-collector-controller",
        "node-identity-controller",
        "duplicate-identity-controller",
        "identity-event-controller",
        "node-lifecycle-controller",
        "silent-node-controller",
        "k3s-node-password-controller",
        "clusterrole-aggregation-controller",
        "kubernetes-service-controller",
        "revocation-cleaner",
        "issuance-log-trimmer",
        "event-cleaner",
        "legacy-service-account-token-tracking",
    )


def test_a_setting_whose_controller_does_not_run_is_told() -> None:
    settings = replace(
        SETTINGS, end_silent_members_after=timedelta(days=90), issuance_log_retention=timedelta(days=365)
    )
    assert without_effect(SETTINGS, ()) == []
    assert without_effect(settings, CONTROLLERS.keys()) == []
    assert [line.partition(" ")[0] for line in without_effect(settings, ())] == [
        "end-silent-members-after",
        "issuance-log-retention",
    ]


def test_controllers_are_built_in_order_under_the_names_of_their_rows() -> None:
    assert [controller.name for controller in build(SETTINGS)] == list(CONTROLLERS)


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_watches_each_of_its_kinds_once(name: str) -> None:
    controller = CONTROLLERS[name](SETTINGS)
    assert set(controller.watches) <= BY_PLURAL.keys()
    assert len(set(controller.watches)) == len(controller.watches)
