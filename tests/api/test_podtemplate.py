"""PodTemplate: defaults and validation of its template are those of a Pod (k8s.io/api core/v1)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from mooring.api.core.podtemplate import KIND
from mooring.apimachinery.schema import Obj
from tests.support.changes import created, updated

C = {"name": "c", "image": "i:1"}
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def template(metadata: Obj | None = None, **spec: Any) -> Obj:
    return {"template": {"metadata": metadata or {}, "spec": {"containers": [C], **spec}}}


def test_a_template_gets_the_shared_defaults_of_pods() -> None:
    limited = {**C, "resources": {"limits": {"cpu": "1"}}}
    obj, errors = created(KIND, template(containers=[limited], serviceAccountName="sa"))
    assert errors == []
    assert obj["template"]["spec"] == {
        "containers": [
            {
                **limited,
                "imagePullPolicy": "IfNotPresent",
                "terminationMessagePath": "/dev/termination-log",
                "terminationMessagePolicy": "File",
            }
        ],
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "serviceAccountName": "sa",
        "serviceAccount": "sa",
        "securityContext": {},
    }, "neither service links nor requests"
    assert "status" not in obj


@pytest.mark.parametrize(
    ("obj", "errors"),
    [
        pytest.param({}, ["template.spec.containers: Required value"], id="no template"),
        pytest.param(template(containers=[]), ["template.spec.containers: Required value"], id="no container"),
        pytest.param(
            template(restartPolicy="Sometimes"),
            [
                'template.spec.restartPolicy: Unsupported value: "Sometimes": '
                'supported values: "Always", "OnFailure", "Never"'
            ],
            id="a restart policy that there is not",
        ),
        pytest.param(
            template(ephemeralContainers=[{**C, "name": "d"}]),
            ["template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template"],
            id="ephemeral containers",
        ),
    ],
)
def test_an_invalid_template(obj: Obj, errors: list[str]) -> None:
    assert created(KIND, obj)[1] == errors


def test_labels_of_the_template_are_validated() -> None:
    errors = created(KIND, template({"labels": {"-": "v"}}))[1]
    assert [error.partition(":")[0] for error in errors] == ["template.labels"]


def test_every_field_may_change_and_generation_counts_it() -> None:
    before, _ = created(KIND, template())
    after, errors = updated(KIND, template({"labels": {"a": "b"}}, containers=[C, {**C, "name": "d"}]), before)
    assert (errors, after["metadata"]["generation"]) == ([], 2)
    same, errors = updated(KIND, before, before)
    assert (errors, same["metadata"]["generation"]) == ([], 1)


@pytest.mark.parametrize(
    ("obj", "cells"),
    [
        pytest.param({}, ["x", "", "", "<none>"], id="nothing in it"),
        pytest.param(
            template({"labels": {"b": "2", "a": "1"}}, containers=[C, {"name": "d", "image": "j"}]),
            ["x", "c,d", "i:1,j", "a=1,b=2"],
            id="two containers and two labels",
        ),
    ],
)
def test_print_columns(obj: Obj, cells: list[str]) -> None:
    named = {"metadata": {"name": "x"}, **obj}
    assert [column.cell(named, NOW) for column in KIND.resource.columns] == cells
