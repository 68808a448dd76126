"""Resources as clients see them: names, verbs, subresources, schema and printed columns; and errors for kinds of other servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from mooring.apimachinery.schema import Message, Obj
from mooring.errors import quoted

# Resources as clients see them: names, verbs, subresources, schema and printed columns.
#
# Rules kept here: data only. Discovery, OpenAPI, Table, request info and the codec read it; policy (defaults, validation)
# lives in `mooring.api.kind`, which contains a `Resource`.

Cell = str | int | bool | None
ALL_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True)
class Column:
    """One Table column. `cell` computes it from the object and the time of printing (docs/protocol/tables.md)."""

    name: str
    cell: Callable[[Obj, datetime], Cell]
    type: Literal["string", "integer", "date", "boolean"] = "string"
    format: str = ""
    description: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Subresource:
    """One subresource. `kind`/`group`/`version` are set only when they differ from the parent (serviceaccounts/token)."""

    name: str
    verbs: tuple[str, ...]
    kind: str = ""
    group: str = ""
    version: str = ""
    schema: Message | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePath:
    """Kind and path of a resource: all that a client needs to know of it."""

    group: str
    version: str
    kind: str
    plural: str

    @property
    def api_version(self) -> str:
        """`v1` or `<group>/<version>`, as objects have it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def prefix(self) -> str:
        """URL path of the group version: `/api/v1` or `/apis/<group>/<version>`."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of a collection, object or subresource. Validation has made names safe as path segments."""
        parts = [self.prefix]
        if namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource(ResourcePath):
    """One resource as clients see it."""

    namespaced: bool
    schema: Message
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()
    columns: tuple[Column, ...] = ()
    returns_deleted: bool = False
    """The response of a DELETE that removes an object is its last state instead of a Status, as declared in OpenAPI.
    (For namespaces OpenAPI declares a Status although the response is the object, as in kube-apiserver.)"""
    stored_as: tuple[str, str, str] | None = None
    """Group, version and kind of the form in which objects are stored, when it differs from this one."""

    @property
    def singular(self) -> str:
        """Name of one object in commands."""
        return self.kind.lower()


# Kinds registered in the schemes of kube-apiserver, and the errors for other kinds.
#
# Rules kept here:
# * The error for an unregistered kind or version names the scheme; the error for another registered kind says that it does not
#   convert.
# * Every group version has the options of requests.
# * Schemes have the names of kube-apiserver: the source files that create them.
#
# Source: discovery and OpenAPI of kube-apiserver 1.36; k8s.io/apimachinery runtime (error.go, conversion).

_API_SCHEME = "pkg/api/legacyscheme/scheme.go:30"
_OPTIONS_SCHEME = "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme/register.go:27"
_OPTIONS = frozenset(f"{name}Options" for name in ("Create", "Delete", "Get", "List", "Patch", "Table", "Update")) | {
    "WatchEvent"
}
_UNVERSIONED = frozenset({"APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "Status"})
_REQUESTS = ("Binding", "Eviction", "List", "Options", "Request", "Review", "Scale")
"""Suffixes of the names of kinds without a list kind."""
_KINDS = {
    "v1": "Binding ComponentStatus ConfigMap Endpoints Event LimitRange List Namespace Node PersistentVolume "
    "PersistentVolumeClaim Pod PodAttachOptions PodExecOptions PodLogOptions PodPortForwardOptions PodProxyOptions PodTemplate "
    "ReplicationController ResourceQuota Secret Service ServiceAccount",
    "admissionregistration.k8s.io/v1": "MutatingAdmissionPolicy MutatingAdmissionPolicyBinding MutatingWebhookConfiguration "
    "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding ValidatingWebhookConfiguration",
    "apps/v1": "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet",
    "authentication.k8s.io/v1": "SelfSubjectReview TokenRequest TokenReview",
    "authorization.k8s.io/v1": "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    "autoscaling/v1": "HorizontalPodAutoscaler Scale",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "CronJob Job",
    "certificates.k8s.io/v1": "CertificateSigningRequest ClusterTrustBundle PodCertificateRequest",
    "certificates.k8s.io/v1beta1": "CertificateSigningRequest ClusterTrustBundle PodCertificateRequest",
    "coordination.k8s.io/v1": "Lease",
    "discovery.k8s.io/v1": "EndpointSlice",
    "events.k8s.io/v1": "Event",
    "flowcontrol.apiserver.k8s.io/v1": "FlowSchema PriorityLevelConfiguration",
    "networking.k8s.io/v1": "IPAddress Ingress IngressClass NetworkPolicy ServiceCIDR",
    "node.k8s.io/v1": "RuntimeClass",
    "policy/v1": "Eviction PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding Role RoleBinding",
    "resource.k8s.io/v1": "DeviceClass ResourceClaim ResourceClaimTemplate ResourceSlice",
    "scheduling.k8s.io/v1": "PriorityClass",
    "storage.k8s.io/v1": "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass",
}
_REGISTERED = {api_version: frozenset(kinds.split()) for api_version, kinds in _KINDS.items()}
_SHARED = {("events.k8s.io", "Event"): "core"}
"""Kinds that are stored as a kind of another group."""


def _is_registered(api_version: str, kind: str) -> bool:
    kinds = _REGISTERED.get(api_version, frozenset())
    if not kinds:
        return False
    listed = kind.removesuffix("List")
    return (
        kind in kinds
        or kind in _OPTIONS
        or (api_version == "v1" and kind in _UNVERSIONED)
        or (listed != kind and listed in kinds and not listed.endswith(_REQUESTS))
    )


def _unregistered(api_version: str, kind: str, scheme: str) -> str:
    return f"no kind {quoted(kind)} is registered for version {quoted(api_version)} in scheme {quoted(scheme)}"


def unexpected_kind(api_version: str, kind: str, wanted_group: str, wanted: str) -> str:
    """Return the error for a body of another kind or version than `wanted`; empty for the same kind in another version."""
    if not _is_registered(api_version, kind):
        return _unregistered(api_version, kind, _API_SCHEME)
    group, _, version = api_version.rpartition("/")
    internal = internal_group(wanted_group, wanted)
    if kind == wanted and internal_group(group, kind) == internal:
        return ""
    return f"converting ({version}.{kind}) to ({internal}.{wanted}): unknown conversion"


def internal_group(group: str, kind: str) -> str:
    """Return the Go package of the internal type of a kind, as errors name it."""
    return _SHARED.get((group, kind)) or group.partition(".")[0] or "core"


def unexpected_options(api_version: str, kind: str) -> str:
    """Return the error for options of a DELETE that are of another kind."""
    if api_version == "v1" and kind in _UNVERSIONED:
        return f"converting (v1.{kind}) to (v1.DeleteOptions): unknown conversion"
    return _unregistered(api_version, kind, _OPTIONS_SCHEME)
