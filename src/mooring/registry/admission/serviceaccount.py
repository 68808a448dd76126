"""ServiceAccount: every Pod runs as an account that exists, and gets what belongs to it.

Rules kept here (Kubernetes documentation "Configure Service Accounts for Pods", "Bound service account tokens"; issue of a token:
docs/protocol/service-account-tokens.md#tokenrequest):
* A Pod that names no account runs as `default`. An account that is not there is 403, and the message says which.
* Unless the Pod, or else its account, decides against it, a volume `kube-api-access-<5 characters>` projects a token that lives
  a little over an hour, the cluster's CA and the namespace; every container without a mount of its own at the usual place
  mounts it there. A Pod that brings such a volume keeps its own.
* A Pod without imagePullSecrets gets those of its account.
* An account with the annotation kubernetes.io/enforce-mountable-secrets lets its Pods use the Secrets it lists and no others.
* A mirror Pod is left as it is: its node runs it from a file, whatever is changed here. So it may not use an account, the token
  of one, or a Secret.
The five characters follow from the Pod's uid: admission draws no entropy of its own.
"""

from __future__ import annotations

import hashlib
from typing import Any

from mooring.api.core.pod.defaults import FILE_MODE
from mooring.api.core.pod.references import SECRETS, references
from mooring.api.core.pod.validation import MIRROR
from mooring.apimachinery.names import generate_name
from mooring.apimachinery.schema import Obj
from mooring.registry.admission.request import AdmissionRequest

DEFAULT = "default"
VOLUME = "kube-api-access-"
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_SECONDS = 3607
"""An hour and seven seconds: by the seven, the issuer knows a token that nobody asked for and may extend it."""
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
        if _automounted(spec, account):
            _mount_token(pod["metadata"].get("uid", ""), spec)
        if not spec.get("imagePullSecrets") and (secrets := account.get("imagePullSecrets")):
            spec["imagePullSecrets"] = [{"name": secret.get("name", "")} for secret in secrets]
        if (account["metadata"].get("annotations") or {}).get(ENFORCE) in _TRUE:
            _check_secrets(request, pod, account)


def _automounted(spec: Obj, account: Obj) -> bool:
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
    """Token, CA and namespace, where client libraries look for them."""
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
    if _mounted(pod) or spec.get("imagePullSecrets"):
        raise request.forbidden("a mirror pod may not reference secrets")
    for volume in spec.get("volumes") or ():
        if any("serviceAccountToken" in source for source in (volume.get("projected") or {}).get("sources") or ()):
            raise request.forbidden("a mirror pod may not use ServiceAccountToken volume projections")


def _check_secrets(request: AdmissionRequest, pod: Obj, account: Obj) -> None:
    name = account["metadata"]["name"]
    pulled = {reference.get("name", "") for reference in pod["spec"].get("imagePullSecrets") or ()}
    for used, member in ((_mounted(pod), "secrets"), (pulled, "imagePullSecrets")):
        listed = {reference.get("name", "") for reference in account.get(member) or ()}
        for secret in sorted(used - listed):
            raise request.forbidden(
                f'secret "{secret}" is not among the {member} of service account {name}, '
                f"whose annotation {ENFORCE} allows no others"
            )


def _mounted(pod: Obj) -> set[str]:
    """Every Secret that the Pod's containers can read."""
    apart = {**pod, "spec": {**pod["spec"], "imagePullSecrets": []}}
    return {name for resource, name in references(apart) if resource == SECRETS}
