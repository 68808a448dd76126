"""The default RBAC policy agrees with Kubernetes' own test data: marks, rules in their order, subjects.

`MOORING_KUBERNETES_SOURCE` names a source tree of Kubernetes. Of it `plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata` is
read.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy import default_policy
from tests.support.rbac import NOT_OF_KUBERNETES

SOURCE = os.environ.get("MOORING_KUBERNETES_SOURCE", "")
pytestmark = pytest.mark.skipif(not SOURCE, reason="MOORING_KUBERNETES_SOURCE names no source tree of Kubernetes")

FILES = [
    f"{scope}-{what}.yaml" for scope in ("cluster", "controller", "namespace") for what in ("roles", "role-bindings")
]
GATED = {("system:node", "clustertrustbundles"), ("system:node", "podcertificaterequests")}
"""Rules that the test data has only with feature gates, by role and resource."""


def by_key(objects: list[Obj]) -> dict[tuple[str, str, str], Obj]:
    """Return objects without empty fields and without the rules of `GATED`, by kind, namespace and name."""
    found = {}
    for obj in objects:
        metadata = {key: value for key, value in obj["metadata"].items() if value is not None}
        rules = [
            one
            for one in obj.get("rules") or ()
            if not GATED & {(metadata["name"], what) for what in one.get("resources", ())}
        ]
        plain = {key: value for key, value in {**obj, "metadata": metadata, "rules": rules}.items() if value}
        found[obj["kind"], metadata.get("namespace", ""), metadata["name"]] = plain
    return found


def test_the_default_policy_is_the_one_of_kubernetes() -> None:
    folder = Path(SOURCE, "plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata")
    ours = by_key(list(default_policy()))
    theirs = by_key([obj for name in FILES for obj in yaml.safe_load((folder / name).read_text())["items"]])
    assert {name for _, _, name in ours.keys() - theirs.keys()} <= NOT_OF_KUBERNETES
    different = {
        key: (ours[key], theirs[key])
        for key in ours.keys() & theirs.keys()
        if key[2] not in NOT_OF_KUBERNETES and ours[key] != theirs[key]
    }
    assert different == {}
