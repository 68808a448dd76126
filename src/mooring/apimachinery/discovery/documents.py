"""Discovery documents: what this server offers, legacy and aggregated, derived from the resources.

Source: docs/protocol/discovery.md.

Rules kept here:
* `/api` → APIVersions, `/apis` → APIGroupList, `/apis/<g>` → APIGroup, `/api/v1` and `/apis/<g>/<v>` → APIResourceList.
* Aggregated (apidiscovery.k8s.io/v2): `/api` carries the group with the empty name, `/apis` all others.
* Groups come in the order of the resources given; versions from the most to the least stable, the first being preferred.
* `storageVersionHash` as k8s.io/apiserver `discovery.StorageVersionHash`: base64 of the first 8 bytes of SHA-256 of
  group/version/kind; only what is stored has one.
* The ETag of an aggregated document is the quoted upper-case hex SHA-512 of its bytes.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence

from mooring.apimachinery.negotiation import DISCOVERY_GROUP
from mooring.apimachinery.resource import Resource, Subresource
from mooring.apimachinery.schema import Obj

_VERSION = re.compile(r"v(\d+)(?:(alpha|beta)(\d+))?", re.ASCII)
_STABILITY = {"alpha": 0, "beta": 1, None: 2}


def version_order(version: str) -> tuple[int, int, int]:
    """Sort key of an API version: v2 before v1 before v1beta2 before v1beta1 before v1alpha1 before anything else."""
    match = _VERSION.fullmatch(version)
    if match is None:
        return (1, 0, 0)
    major, stage, minor = match.groups()
    return (-_STABILITY[stage], -int(major), -int(minor or 0))


def groups(resources: Sequence[Resource]) -> list[str]:
    """API groups, core first, the others in the order of the resources."""
    return sorted(dict.fromkeys(resource.group for resource in resources), key=bool)


def versions(resources: Sequence[Resource], group: str) -> list[str]:
    """Versions of one group, the preferred one first; empty when there is no such group."""
    return sorted({resource.version for resource in resources if resource.group == group}, key=version_order)


def group_paths(resources: Sequence[Resource]) -> list[str]:
    """Where each group and each version of it has its document."""
    paths = []
    for group in groups(resources):
        base = f"/apis/{group}" if group else "/api"
        paths += [base, *(f"{base}/{version}" for version in versions(resources, group))]
    return paths


def api_versions(server_address: str) -> Obj:
    """`/api`: the versions of the core group, and where clients of any network reach this server (`host:port`)."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    }


def group_list(resources: Sequence[Resource]) -> Obj:
    """`/apis`: every group but core."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(resources, group) for group in groups(resources) if group],
    }


def group(resources: Sequence[Resource], name: str) -> Obj | None:
    """`/apis/<group>`; None when there is no such group."""
    if not name or name not in groups(resources):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1"} | _group(resources, name)


def _group(resources: Sequence[Resource], name: str) -> Obj:
    offered = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions(resources, name)]
    return {"name": name, "versions": offered, "preferredVersion": offered[0]}


def resource_list(resources: Sequence[Resource], group: str, version: str) -> Obj | None:
    """`/api/v1` and `/apis/<group>/<version>`; None when there is no such group version."""
    here = of_version(resources, group, version)
    if not here:
        return None
    entries = [entry for resource in here for entry in (_entry(resource), *_subentries(resource))]
    version_of_list = {"apiVersion": "v1"} if group else {}  # kube-apiserver leaves it out of the core group's list
    return {
        "kind": "APIResourceList",
        **version_of_list,
        "groupVersion": here[0].api_version,
        "resources": sorted(entries, key=lambda entry: str(entry["name"])),
    }


def of_version(resources: Sequence[Resource], group: str, version: str) -> list[Resource]:
    """The resources of one group version, by plural; none when there is no such group version."""
    found = [resource for resource in resources if (resource.group, resource.version) == (group, version)]
    return sorted(found, key=lambda resource: resource.plural)


def storage_version_hash(group: str, version: str, kind: str) -> str:
    """Names the form in which a kind is stored; it changes when that form does."""
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
    """APIGroupDiscoveryList v2: of the core group for `/api`, of all others for `/apis`."""
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
                        "resources": [_aggregated(resource) for resource in of_version(resources, name, version)],
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
    """Upper-case hex SHA-512: the hash by which discovery and OpenAPI documents are known."""
    return hashlib.sha512(raw).hexdigest().upper()


def etag(raw: bytes) -> str:
    """ETag header of a document."""
    return f'"{digest(raw)}"'
