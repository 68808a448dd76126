"""CustomResourceDefinitions that follow from the declarations of kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mooring.api.customresource import custom_resource_definition
from mooring.api.kind import Kind
from mooring.api.kinds import BY_PLURAL, KINDS
from mooring.api.paths import GROUP
from mooring.apimachinery.schema import Obj

OURS = [kind for kind in KINDS if kind.resource.group == GROUP]


def version_of(plural: str) -> Obj:
    (version,) = custom_resource_definition(BY_PLURAL[plural])["spec"]["versions"]
    found: Obj = version
    return found


def nodes(value: Any) -> list[Obj]:
    """Return every object in a document."""
    below = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return [*([value] if isinstance(value, dict) else []), *(one for item in below for one in nodes(item))]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.resource.plural)
def test_every_kind_of_mooring_has_a_structural_definition(kind: Kind) -> None:
    definition = custom_resource_definition(kind)
    assert definition["metadata"]["name"] == f"{kind.resource.plural}.{GROUP}"
    assert definition["spec"]["scope"] == "Cluster"
    assert all("$ref" not in node for node in nodes(definition))


def test_names_and_scope() -> None:
    assert custom_resource_definition(BY_PLURAL["certificaterevocations"])["spec"]["names"] == {
        "kind": "CertificateRevocation",
        "listKind": "CertificateRevocationList",
        "plural": "certificaterevocations",
        "singular": "certificaterevocation",
        "shortNames": ["revocation", "revocations"],
    }
    nodes_spec = custom_resource_definition(BY_PLURAL["pods"])["spec"]
    assert (nodes_spec["scope"], nodes_spec["names"]["categories"]) == ("Namespaced", ["all"])


def test_a_column_that_shows_one_field_is_printed_from_its_path() -> None:
    columns = {one["name"]: one for one in version_of("nodeidentities")["additionalPrinterColumns"]}
    assert columns["Token"] == {
        "name": "Token",
        "type": "string",
        "jsonPath": ".spec.token",
        "description": "Token that obtained the name.",
    }
    assert columns["Source"]["priority"] == 1
    assert columns["Age"]["jsonPath"] == ".metadata.creationTimestamp"
    assert columns.keys().isdisjoint({"Name", "Key"}), "kubectl prints the name; the key is computed"


def test_a_field_that_may_not_change_has_a_rule_that_covers_adding_and_removing_it() -> None:
    spec = version_of("certificaterevocations")["schema"]["openAPIV3Schema"]["properties"]["spec"]
    rules = {one["message"]: one["rule"] for one in spec["x-kubernetes-validations"]}
    assert rules["serialNumber is immutable"] == (
        "has(self.serialNumber) == has(oldSelf.serialNumber) && (!has(self.serialNumber) || "
        "self.serialNumber == oldSelf.serialNumber)"
    )
    assert "message is immutable" not in rules


def test_a_status_stays_a_subresource_and_a_kind_without_columns_has_none() -> None:
    for plural in ("certificatesigningrequests", "nodeidentities"):
        assert version_of(plural)["subresources"] == {"status": {}}
    assert "subresources" not in version_of("lineagerecords")
    bare = replace(BY_PLURAL["leases"], resource=replace(BY_PLURAL["leases"].resource, columns=()))
    assert "additionalPrinterColumns" not in custom_resource_definition(bare)["spec"]["versions"][0]
