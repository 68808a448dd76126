"""Admission of Pods: their service account, and the taints that they tolerate for a while."""

from __future__ import annotations

import hashlib
from typing import Any

from mooring.api.core.poddefaults import FILE_MODE, SECRETS, references
from mooring.api.core.podvalidation import MIRROR
from mooring.apimachinery.names import generate_name
from mooring.apimachinery.schema import Obj
from mooring.controllers.node import NO_EXECUTE, NOT_READY, UNREACHABLE
from mooring.registry.admission.request import AdmissionRequest

# ServiceAccount: every Pod runs as an existing service account, and receives its token volume and image pull secrets.
#
# Rules kept here (Kubernetes documentation "Configure Service Accounts for Pods", "Bound service account tokens";
# docs/protocol/service-account-tokens.md#tokenrequest):
# * A Pod that names no account runs as `default`. An account that does not exist is 403, and the message names it.
# * Unless the Pod, or else its account, disables it, a volume `kube-api-access-<5 characters>` projects a token that lives a
#   little over an hour, the cluster's CA and the namespace. Every container without a mount of its own at the standard path
#   mounts it there. A Pod that brings such a volume keeps its own.
# * A Pod without imagePullSecrets gets those of its account.
# * An account with the annotation kubernetes.io/enforce-mountable-secrets lets its Pods use only the Secrets that it lists.
# * A mirror Pod is not changed, because its node runs it from a file. So it may not use an account, a token or a Secret.
# * The five characters follow from the Pod's uid: admission draws no entropy.

DEFAULT = "default"
VOLUME = "kube-api-access-"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 3607
"""An hour and seven seconds. By the seven, the issuer recognises a token that the Pod did not request, and may extend it."""
ENFORCE = "kubernetes.io/enforce-mountable-secrets"
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})


class ServiceAccount:
    name = "ServiceAccount"

    def admit(self, request: AdmissionRequest) -> None:
        pod = request.new
        if request.operation != "CREATE" or request.resource != "pods" or pod is None:
            return
        spec: Obj = pod.setdefault("spec", {})
        if MIRROR in (pod["metadata"].get("annotations") or {}):
            _check_mirror(request, pod)
            return
        name = spec.get("serviceAccountName") or DEFAULT
        spec["serviceAccountName"] = spec["serviceAccount"] = name
        account = request.views["serviceaccounts"].get(name, request.namespace)
        if account is None:
            raise request.forbidden(
                f'error looking up service account {request.namespace}/{name}: serviceaccount "{name}" not found'
            )
        if _automounts_token(spec, account):
            _mount_token(pod["metadata"].get("uid", ""), spec)
        if not spec.get("imagePullSecrets") and (secrets := account.get("imagePullSecrets")):
            spec["imagePullSecrets"] = [{"name": secret.get("name", "")} for secret in secrets]
        if (account["metadata"].get("annotations") or {}).get(ENFORCE) in _TRUE:
            _check_secrets(request, pod, account)


def _automounts_token(spec: Obj, account: Obj) -> bool:
    of_pod, of_account = spec.get("automountServiceAccountToken"), account.get("automountServiceAccountToken")
    wanted: bool = of_pod if of_pod is not None else of_account is not False
    return wanted


def _mount_token(uid: str, spec: Obj) -> None:
    volumes: list[Obj] = spec.get("volumes") or []
    own = next((volume["name"] for volume in volumes if volume.get("name", "").startswith(VOLUME)), "")
    name = own or generate_name(VOLUME, hashlib.shake_256(uid.encode()).digest)
    bare = [
        container
        for containers in ("initContainers", "containers")
        for container in spec.get(containers) or ()
        if all(mount.get("mountPath") != MOUNT_PATH for mount in container.get("volumeMounts") or ())
    ]
    for container in bare:
        mount = {"name": name, "readOnly": True, "mountPath": MOUNT_PATH}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
    if bare and not own:
        spec["volumes"] = [*volumes, {"name": name, "projected": _projection()}]


def _projection() -> dict[str, Any]:
    """Return the projection of token, CA and namespace, in the files that client libraries read."""
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
        "defaultMode": FILE_MODE,
    }


def _check_mirror(request: AdmissionRequest, pod: Obj) -> None:
    spec = pod["spec"]
    if spec.get("serviceAccountName"):
        raise request.forbidden("a mirror pod may not reference service accounts")
    if _readable_secrets(pod) or spec.get("imagePullSecrets"):
        raise request.forbidden("a mirror pod may not reference secrets")
    for volume in spec.get("volumes") or ():
        if any("serviceAccountToken" in source for source in (volume.get("projected") or {}).get("sources") or ()):
            raise request.forbidden("a mirror pod may not use ServiceAccountToken volume projections")


def _check_secrets(request: AdmissionRequest, pod: Obj, account: Obj) -> None:
    name = account["metadata"]["name"]
    pulled = {reference.get("name", "") for reference in pod["spec"].get("imagePullSecrets") or ()}
    for used, member in ((_readable_secrets(pod), "secrets"), (pulled, "imagePullSecrets")):
        listed = {reference.get("name", "") for reference in account.get(member) or ()}
        for secret in sorted(used - listed):
            raise request.forbidden(
                f'secret "{secret}" is not among the {member} of service account {name}, '
                f"whose annotation {ENFORCE} allows no others"
            )


def _readable_secrets(pod: Obj) -> set[str]:
    """Return the names of the Secrets that the Pod's containers can read."""
    without_pull = {**pod, "spec": {**pod["spec"], "imagePullSecrets": []}}
    return {name for resource, name in references(without_pull) if resource == SECRETS}


# DefaultTolerationSeconds: Pods tolerate a node that is not ready or not reachable for five minutes.
#
# Rules kept here (Kubernetes documentation "Taints and Tolerations", taint based evictions):
# * A Pod that tolerates neither taint gets a toleration of each, for NoExecute and 300 s. One that names such a taint keeps its
#   own.
# * The node lifecycle controller sets these taints, and a kubelet starts no Pod that does not tolerate a NoExecute taint. Without
#   the tolerations a machine that restarts slowly would lose its Pods.

SECONDS = 300


class DefaultTolerationSeconds:
    name = "DefaultTolerationSeconds"

    def admit(self, request: AdmissionRequest) -> None:
        pod = request.new
        if request.resource != "pods" or pod is None:
            return
        spec = pod.setdefault("spec", {})
        present = spec.get("tolerations") or []
        tolerated = {one.get("key") or "" for one in present if one.get("effect") in (None, "", NO_EXECUTE)}
        missing = [key for key in (NOT_READY, UNREACHABLE) if tolerated.isdisjoint({key, ""})]
        if missing:
            spec["tolerations"] = [*present, *map(_toleration, missing)]


def _toleration(key: str) -> dict[str, object]:
    return {"key": key, "operator": "Exists", "effect": NO_EXECUTE, "tolerationSeconds": SECONDS}
