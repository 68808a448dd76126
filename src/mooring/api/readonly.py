"""Read-only kinds: they can be read and watched, but not created (docs/adr/0015).

Rules kept here: get, list and watch answer in every form that other kinds have; any other verb is refused with 405. Reasons:
* CustomResourceDefinitions (docs/protocol/openapi.md#clients; kubectl's crd_finder): kubectl looks up a kind that has no PATCH
  with `fieldValidation`, such as a review, among them before it validates the object. An empty list lets kubectl continue; a 404
  makes it fail.
* ReplicationControllers, ReplicaSets and DaemonSets: the e2e binary lists them before any test. Deployments and StatefulSets
  complete the group apps.
* Volumes, claims, Jobs, CronJobs and Ingresses: `kubectl apply --prune` processes a built-in list of kinds, and stops at the first
  that discovery does not name.
* CSIDrivers and RuntimeClasses: a kubelet's informers list and watch them, and log errors without end while that fails. The
  same of NetworkPolicies and the network policy controller of k3s's agents.
Objects of these kinds were written to the same store by another server, and are served unchanged. Their schemas name what clients
ask for, with free-form parts. `stored_fields` has all fields, without descriptions, to read what kube-apiserver stored as protobuf.
"""

from __future__ import annotations

from mooring.api.kind import Kind
from mooring.api.meta.printcolumns import NAME
from mooring.apimachinery.metav1 import OBJECT_META
from mooring.apimachinery.names import dns1123_subdomain_errors
from mooring.apimachinery.resource import Column, Resource
from mooring.apimachinery.schema import Field, Message, Scalar
from mooring.apimachinery.table import AGE

READ_VERBS = ("get", "list", "watch")

METADATA = Field("metadata", 1, OBJECT_META, "Standard object metadata.")
SPEC = Field("spec", 2, Scalar.RAW, "What is wanted.")
_STATUS = Field("status", 3, Scalar.RAW, "What there is.")


def read_only_kind(
    schema: Message,
    group: str,
    *short_names: str,
    stored_fields: Message | None,
    storage: str,
    namespaced: bool = True,
    categories: tuple[str, ...] = (),
    columns: tuple[Column, ...] = (NAME, AGE),
) -> Kind:
    """Return a kind that is named like its schema. Without `stored_fields` its objects are stored as JSON only."""
    name = schema.name.rpartition(".")[2]
    singular = name.lower()
    return Kind(
        resource=Resource(
            group=group,
            version="v1",
            kind=name,
            plural=_plural(singular),
            singular=singular,
            namespaced=namespaced,
            schema=schema,
            short_names=short_names,
            categories=categories,
            verbs=READ_VERBS,
            columns=columns,
        ),
        storage=f"/registry/{storage}",
        stored_fields=stored_fields,
        name_errors=dns1123_subdomain_errors,
    )


def _plural(singular: str) -> str:
    if singular.endswith("y"):
        return f"{singular[:-1]}ies"
    return f"{singular}es" if singular.endswith("s") else f"{singular}s"


def spec_and_status(stored_fields: Message, doc: str) -> Message:
    """Return the schema of a kind with metadata, and a spec and a status that are free-form."""
    return Message(stored_fields.name, (METADATA, SPEC, _STATUS), doc)


def workload(group: str, stored_fields: Message, short_name: str, doc: str, storage: str = "") -> Kind:
    """Return a kind with spec and status that `kubectl get all` lists."""
    name = stored_fields.name.rpartition(".")[2]
    return read_only_kind(
        spec_and_status(stored_fields, doc),
        group,
        *filter(None, (short_name,)),
        stored_fields=stored_fields,
        storage=storage or f"{name.lower()}s",
        categories=("all",),
    )
