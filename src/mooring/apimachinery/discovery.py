"""Documents of API discovery, and their protobuf messages."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

from mooring.apimachinery.metav1 import META
from mooring.apimachinery.negotiation import DISCOVERY_GROUP
from mooring.apimachinery.resource import Resource, Subresource
from mooring.apimachinery.schema import Obj, message

# API groups and versions of a set of resources, in the order of discovery.
#
# Rules kept here: groups are in the order of the resources; versions are ordered from the most to the least stable, and the first
# is preferred.

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


# Discovery documents, legacy and aggregated, derived from the resources.
#
# Source: docs/protocol/discovery.md.
#
# Rules kept here:
# * `/api` → APIVersions, `/apis` → APIGroupList, `/apis/<g>` → APIGroup, `/api/v1` and `/apis/<g>/<v>` → APIResourceList.
# * Aggregated (apidiscovery.k8s.io/v2): `/api` has the group with the empty name, `/apis` all others.
# * `storageVersionHash` as k8s.io/apiserver `discovery.StorageVersionHash`: base64 of the first 8 bytes of SHA-256 of
#   group/version/kind, for stored resources only.
# * The ETag of an aggregated document is the quoted upper-case hex SHA-512 of its bytes.


def group_paths(resources: Sequence[Resource]) -> list[str]:
    """Return the paths of the documents of all groups and their versions."""
    paths = []
    for group in groups(resources):
        base = f"/apis/{group}" if group else "/api"
        paths += [base, *(f"{base}/{version}" for version in versions(resources, group))]
    return paths


def api_versions(server_address: str) -> Obj:
    """Return `/api`: the versions of the core group, and the address of this server (`host:port`) for every client network."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    }


def group_list(resources: Sequence[Resource]) -> Obj:
    """Return `/apis`: every group but core."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(resources, group) for group in groups(resources) if group],
    }


def group(resources: Sequence[Resource], name: str) -> Obj | None:
    """Return `/apis/<group>`; None for an unknown group."""
    if not name or name not in groups(resources):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(resources, name)


def _group(resources: Sequence[Resource], name: str) -> Obj:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions(resources, name)]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def resource_list(resources: Sequence[Resource], group: str, version: str) -> Obj | None:
    """Return `/api/v1` or `/apis/<group>/<version>`; None for an unknown group version."""
    here = resources_of(resources, group, version)
    if not here:
        return None
    entries = [entry for resource in here for entry in (_entry(resource), *_subentries(resource))]
    # kube-apiserver omits it in the list of the core group.
    version_of_list = {"apiVersion": "v1"} if group else {}
    return {
        "kind": "APIResourceList",
        **version_of_list,
        "groupVersion": here[0].api_version,
        "resources": sorted(entries, key=lambda entry: str(entry["name"])),
    }


def storage_version_hash(group: str, version: str, kind: str) -> str:
    """Return the hash of the form in which a kind is stored."""
    digest = hashlib.sha256(f"{group}/{version}/{kind}".encode()).digest()
    return base64.b64encode(digest[:8]).decode()


def _entry(resource: Resource) -> Obj:
    entry: Obj = {
        "name": resource.plural,
        "singularName": resource.singular,
        "namespaced": resource.namespaced,
        "kind": resource.kind,
        "verbs": sorted(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if "get" in resource.verbs:
        stored_as = resource.stored_as or (resource.group, resource.version, resource.kind)
        entry["storageVersionHash"] = storage_version_hash(*stored_as)
    return entry


def _subentries(resource: Resource) -> list[Obj]:
    entries = []
    for sub in resource.subresources:
        entry: Obj = {"name": f"{resource.plural}/{sub.name}", "singularName": "", "namespaced": resource.namespaced}
        if sub.group:
            entry["group"] = sub.group
        if sub.version:
            entry["version"] = sub.version
        entries.append(entry | {"kind": sub.kind or resource.kind, "verbs": sorted(sub.verbs)})
    return entries


def aggregated(resources: Sequence[Resource], core: bool) -> Obj:
    """Return the APIGroupDiscoveryList v2 of the core group for `/api`, of all others for `/apis`."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"{DISCOVERY_GROUP}/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": name} if name else {},
                "versions": [
                    {
                        "version": version,
                        "resources": [_aggregated(resource) for resource in resources_of(resources, name, version)],
                        "freshness": "Current",
                    }
                    for version in versions(resources, name)
                ],
            }
            for name in groups(resources)
            if core is not bool(name)
        ],
    }


def _aggregated(resource: Resource) -> Obj:
    entry: Obj = {
        "resource": resource.plural,
        "responseKind": _kind(resource.group, resource.version, resource.kind),
        "scope": "Namespaced" if resource.namespaced else "Cluster",
        "singularResource": resource.singular,
        "verbs": sorted(resource.verbs),
    }
    if resource.short_names:
        entry["shortNames"] = list(resource.short_names)
    if resource.categories:
        entry["categories"] = list(resource.categories)
    if resource.subresources:
        ordered = sorted(resource.subresources, key=lambda sub: sub.name)
        entry["subresources"] = [
            {"subresource": sub.name, "responseKind": _subkind(resource, sub), "verbs": sorted(sub.verbs)}
            for sub in ordered
        ]
    return entry


def _kind(group: str, version: str, kind: str) -> Obj:
    return {"group": group, "version": version, "kind": kind}


def _subkind(resource: Resource, sub: Subresource) -> Obj:
    if not sub.kind:
        return _kind(resource.group, resource.version, resource.kind)
    return _kind(sub.group or resource.group, sub.version or resource.version, sub.kind)


def digest(raw: bytes) -> str:
    """Return the upper-case hex SHA-512 of a document, its hash in discovery and OpenAPI."""
    return hashlib.sha512(raw).hexdigest().upper()


def etag(raw: bytes) -> str:
    """Return the ETag header of a document."""
    return f'"{digest(raw)}"'


# Schemas of the discovery documents, for their protobuf form.

DOCUMENTS = {
    name.rpartition(".")[2]: message(name)
    for name in (
        *(META + kind for kind in ("APIVersions", "APIGroup", "APIGroupList", "APIResourceList")),
        "io.k8s.api.apidiscovery.v2.APIGroupDiscoveryList",
    )
}
"""Schemas of the documents by kind."""
