"""Test the conversion of a CustomResourceDefinition from the form in which kube-apiserver stores it."""

from __future__ import annotations

import pytest

from mooring.api.apiextensions import from_v1beta1
from mooring.apimachinery.schema import Obj

NAMES = {"plural": "things", "kind": "Thing"}
SCHEMA = {"openAPIV3Schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        pytest.param({}, {"versions": [], "conversion": {"strategy": "None"}}, id="an empty spec"),
        pytest.param(
            {"names": NAMES, "version": "v1", "validation": SCHEMA, "preserveUnknownFields": False,
             "versions": [{"name": "v1", "storage": True}, {"name": "v2"}], "subresources": {"status": {}}},
            {"names": NAMES, "conversion": {"strategy": "None"},
             "versions": [{"name": "v1", "storage": True, "schema": SCHEMA, "subresources": {"status": {}}},
                          {"name": "v2", "schema": SCHEMA, "subresources": {"status": {}}}]},
            id="fields of all versions",
        ),
        pytest.param(
            {"version": "v1", "validation": SCHEMA, "preserveUnknownFields": True},
            {"versions": [{"name": "v1", "served": True, "storage": True, "schema": SCHEMA}], "preserveUnknownFields": True,
             "conversion": {"strategy": "None"}},
            id="one version, and unknown fields are kept",
        ),
        pytest.param(
            {"versions": [{"name": "v1", "schema": SCHEMA, "additionalPrinterColumns": [{"name": "Age", "JSONPath": ".a"}]}],
             "conversion": {"strategy": "Webhook", "webhookClientConfig": {"url": "u"}, "conversionReviewVersions": ["v1"]}},
            {"versions": [{"name": "v1", "schema": SCHEMA, "additionalPrinterColumns": [{"name": "Age", "jsonPath": ".a"}]}],
             "conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "u"}, "conversionReviewVersions": ["v1"]}}},
            id="columns, and a webhook",
        ),
    ],
)  # fmt: skip
def test_each_version_gets_what_the_older_form_has_for_all(stored: Obj, shown: Obj) -> None:
    old = {"apiVersion": "apiextensions.k8s.io/v1beta1", "kind": "CustomResourceDefinition", "spec": stored}
    new = from_v1beta1(old)
    assert new == {**old, "apiVersion": "apiextensions.k8s.io/v1", "spec": shown}
    assert old["spec"] is stored
