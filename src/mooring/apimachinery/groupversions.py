"""API groups and versions of a set of resources, in the order of discovery.

Rules kept here: groups are in the order of the resources; versions are ordered from the most to the least stable, and the first is
preferred.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mooring.apimachinery.resource import Resource

_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?", re.ASCII)
_STABILITY = {"alpha": 0, "beta": 1, None: 2}


def version_order(version: str) -> tuple[int, int, int]:
    """Return the sort key of an API version: v2 before v1 before v1beta2 before v1beta1 before v1alpha1 before anything else."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (1, 0, 0)
    major, stage, minor = match.groups()
    return (-_STABILITY[stage], -int(major), -int(minor or 0))


def groups(resources: Sequence[Resource]) -> list[str]:
    """Return the API groups, core first, the others in the order of the resources."""
    return sorted(dict.fromkeys(resource.group for resource in resources), key=bool)


def versions(resources: Sequence[Resource], group: str) -> list[str]:
    """Return the versions of one group, the preferred one first."""
    return sorted({resource.version for resource in resources if resource.group == group}, key=version_order)


def resources_of(resources: Sequence[Resource], group: str, version: str) -> list[Resource]:
    """Return the resources of one group version, sorted by plural name."""
    found = [resource for resource in resources if (resource.group, resource.version) == (group, version)]
    return sorted(found, key=lambda resource: resource.plural)
