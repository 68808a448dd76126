"""The table of controllers is complete, and its names are kube-controller-manager's."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from mooring import controllers
from mooring.api.kinds import BY_PLURAL
from mooring.controllers.actions import Controller
from mooring.controllers.table import CONTROLLERS, ControllerSettings, build
from mooring.pki.rootca import RootCa
from tests.support.plans import NOW
from tests.support.testca import ThrowawayCA

CA = ThrowawayCA(now=NOW)
SETTINGS = ControllerSettings(authority=CA.authority, root_ca=RootCa(CA.certificate_pem))


def test_every_file_that_defines_a_controller_is_in_the_table() -> None:
    defined = set()
    for module in pkgutil.walk_packages(controllers.__path__, "mooring.controllers."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and value is not Controller and hasattr(value, "plan"):
                defined.add(value)
    assert {type(controller) for controller in build(SETTINGS)} == defined


def test_the_names_are_those_of_kube_controller_manager() -> None:
    assert tuple(CONTROLLERS) == (
        "bootstrap-signer-controller",
        "token-cleaner-controller",
        "certificatesigningrequest-approving-controller",
        "certificatesigningrequest-signing-controller",
        "certificatesigningrequest-cleaner-controller",
        "root-ca-certificate-publisher-controller",
        "serviceaccount-controller",
        "serviceaccount-token-controller",
        "legacy-serviceaccount-token-cleaner-controller",
        "namespace-controller",
        "garbage-collector-controller",
        "pod-garbage-collector-controller",
        "clusterrole-aggregation-controller",
        "kubernetes-service-controller",
        "event-cleaner",
        "legacy-service-account-token-tracking",
    )


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_carries_the_name_of_its_row_and_watches_kinds_that_exist(name: str) -> None:
    controller = CONTROLLERS[name](SETTINGS)
    assert controller.name == name
    assert set(controller.watches) <= BY_PLURAL.keys()
    assert len(set(controller.watches)) == len(controller.watches)
