"""Tests of `mooring.api.paths`: what a client knows of each kind is what the kind says."""

from __future__ import annotations

from mooring.api.kinds import RESOURCES
from mooring.api.paths import PATHS
from mooring.apimachinery.resource import ResourcePath


def test_a_path_is_that_of_the_first_resource_of_its_plural() -> None:
    first: dict[str, ResourcePath] = {}
    for one in RESOURCES:
        path = ResourcePath(group=one.group, version=one.version, kind=one.kind, plural=one.plural)
        first.setdefault(one.plural, path)
    assert dict(PATHS) == first
