"""The table of read-only kinds: they can be read and watched, but not created (docs/adr/0015).

Rules kept here: get, list and watch answer in every form that other kinds have; any other verb is refused with 405, and the reason.
An object that is not there is 404 first, and an empty collection is deleted: programs that take down what they failed to set up
forgive nothing else. Why the kinds are served:
* CustomResourceDefinitions (docs/protocol/openapi.md#clients; kubectl's crd_finder): kubectl looks up a kind that has no PATCH
  with `fieldValidation`, such as a review, among them before it validates the object. An empty list lets kubectl continue; a 404
  makes it fail.
* ReplicationControllers, ReplicaSets and DaemonSets: the e2e binary lists them before any test. Deployments and StatefulSets
  complete the group apps.
* Volumes, claims, Jobs, CronJobs and Ingresses: `kubectl apply --prune` processes a built-in list of kinds, and stops at the first
  that discovery does not name.
* CSIDrivers and RuntimeClasses: a kubelet's informers list and watch them, and log errors without end while that fails.
* NetworkPolicies: an agent of k3s ends when it cannot list them. These and PodDisruptionBudgets were written by earlier versions,
  and can be deleted (docs/adr/0090).
Objects of these kinds were written to the same store by another server or version, and are served unchanged. Their schemas name
what clients ask for, with free-form parts. `data/api` has all fields, to read what kube-apiserver stored as protobuf.
"""

from __future__ import annotations

from mooring.api.kind import Kind
from mooring.api.objectmeta import NAME
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Field, Message, Scalar, message
from mooring.apimachinery.table import AGE

READ_VERBS = ("get", "list", "watch")
READ_AND_DELETE_VERBS = ("delete", "deletecollection", *READ_VERBS)
NO_WORKLOADS = "this server runs no workloads"
_NO_STORAGE = "this server attaches no storage"
_NO_TRAFFIC = "this server routes no traffic"

METADATA = Field("metadata", 1, OBJECT_META, "Standard object metadata.")
_SPEC = Field("spec", 2, Scalar.RAW, "What is wanted.")
_STATUS = Field("status", 3, Scalar.RAW, "What there is.")


def read_only_kind(
    schema: Message,
    group: str,
    *short_names: str,
    why: str,
    storage: str,
    is_stored_whole: bool = False,
    namespaced: bool = True,
    verbs: tuple[str, ...] = READ_VERBS,
    categories: tuple[str, ...] = (),
    columns: tuple[Column, ...] = (NAME, AGE),
) -> Kind:
    """Return a kind that is named like its schema. `why` it is only read."""
    name = schema.name.rpartition(".")[2]
    singular = name.lower()
    return Kind(
        resource=Resource(
            group=group,
            version="v1",
            kind=name,
            plural=_plural(singular),
            namespaced=namespaced,
            schema=schema,
            short_names=short_names,
            categories=categories,
            verbs=verbs,
            columns=columns,
        ),
        storage=f"/registry/{storage}",
        is_stored_whole=is_stored_whole,
        read_only_reason=why,
        name_errors=dns1123_subdomain_errors,
    )


def _plural(singular: str) -> str:
    if singular.endswith("y"):
        return f"{singular[:-1]}ies"
    return f"{singular}es" if singular.endswith("s") else f"{singular}s"


def _row(
    group: str,
    name: str,
    short_name: str,
    doc: str,
    *,
    why: str = NO_WORKLOADS,
    fields: tuple[Field, ...] = (_SPEC, _STATUS),
    storage: str = "",
    namespaced: bool = True,
    categories: tuple[str, ...] = (),
) -> Kind:
    return read_only_kind(
        Message(f"io.k8s.api.{group.partition('.')[0] or 'core'}.v1.{name}", (METADATA, *fields), doc),
        group,
        *filter(None, (short_name,)),
        why=why,
        is_stored_whole=True,
        storage=storage or f"{name.lower()}s",
        namespaced=namespaced,
        categories=categories,
    )


_ALL = ("all",)
"""Category of `kubectl get all`."""

ROWS: tuple[Kind, ...] = (
    _row(
        "",
        "ReplicationController",
        "rc",
        "Keeps Pods of one template running. This server runs none.",
        storage="controllers",
        categories=_ALL,
    ),
    _row(
        "",
        "PersistentVolume",
        "pv",
        "A piece of storage. This server attaches none.",
        why=_NO_STORAGE,
        namespaced=False,
    ),
    _row("", "PersistentVolumeClaim", "pvc", "A wish for storage. This server fulfils none.", why=_NO_STORAGE),
    _row("apps", "DaemonSet", "ds", "Keeps one Pod running on each node. This server runs none.", categories=_ALL),
    _row(
        "apps", "Deployment", "deploy", "Rolls out Pods of a changing template. This server runs none.", categories=_ALL
    ),
    _row("apps", "ReplicaSet", "rs", "Keeps Pods of one template running. This server runs none.", categories=_ALL),
    _row("apps", "StatefulSet", "sts", "Keeps Pods with an identity running. This server runs none.", categories=_ALL),
    _row("batch", "CronJob", "cj", "Makes Jobs at times. This server runs none.", categories=_ALL),
    _row("batch", "Job", "", "Runs Pods until they succeed. This server runs none.", categories=_ALL),
    _row(
        "networking.k8s.io",
        "Ingress",
        "ing",
        "A way in from outside. This server routes no traffic.",
        why=_NO_TRAFFIC,
        storage="ingress",
    ),
    # The next two have no free-form parts, which protobuf cannot show: a typed client, as in agents of k3s, may ask for it.
    read_only_kind(
        message("io.k8s.api.networking.v1.NetworkPolicy"),
        "networking.k8s.io",
        "netpol",
        why=_NO_TRAFFIC,
        storage="networkpolicies",
        verbs=READ_AND_DELETE_VERBS,
    ),
    read_only_kind(
        message("io.k8s.api.policy.v1.PodDisruptionBudget"),
        "policy",
        "pdb",
        why=NO_WORKLOADS,
        storage="poddisruptionbudgets",
        verbs=READ_AND_DELETE_VERBS,
    ),
    _row(
        "node.k8s.io",
        "RuntimeClass",
        "",
        "A way of running containers that Pods may choose. This server runs none.",
        fields=(
            Field("handler", 2, Scalar.STRING, "The configuration of the container runtime.", required=True),
            Field("overhead", 3, Scalar.RAW, "What running a Pod costs beside its containers."),
            Field("scheduling", 4, Scalar.RAW, "The nodes that have this runtime."),
        ),
        storage="runtimeclasses",
        namespaced=False,
    ),
    _row(
        "storage.k8s.io",
        "CSIDriver",
        "",
        "A storage driver of the cluster. This server attaches no volumes.",
        why=_NO_STORAGE,
        fields=(Field("spec", 2, Scalar.RAW, "What the driver can do.", required=True),),
        namespaced=False,
    ),
)
"""Every read-only kind but CustomResourceDefinition, which has two stored forms and a file of its own."""
