"""Pods that may have a certificate, compared with the spec of a PodCertificateRequest.

Rules kept here (docs/protocol/pod-certificate-requests.md#rights):
* A request is for one Pod: the one with the uid that it names, on the node and with the service account that it names. A request
  that leaves one of them out is for none.
* A mirror Pod gets no certificate: its node wrote it.
* The identity of a Pod ends with the Pod: one in a final phase gets no certificate, nor one whose grace period is over, even if its
  node has not removed it. A Pod in its grace period still runs.
* Reasons have the words of kube-apiserver where it has some.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from mooring.api.core.pod.printcolumns import FINAL_PHASES
from mooring.api.core.pod.validation import MIRROR
from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.errors import quoted

_HEAD = "PodCertificateRequest for pod"


def pod_problem(pod: Obj, spec: Obj, now: datetime) -> str:
    """Return why this Pod gets no certificate by a request with this spec; "" for a Pod that may get one."""
    metadata, pod_spec = pod["metadata"], pod.get("spec") or {}
    name, uid, account = _place(pod), metadata.get("uid", ""), pod_spec.get("serviceAccountName", "")
    if not is_pod(pod, spec):
        return (
            f"{_HEAD} {name} contains pod UID ({_member(spec, 'podUID')}) which differs from running pod {quoted(uid)}"
        )
    if not _is_same(pod_spec.get("nodeName"), spec.get("nodeName")):
        return f"pod {name} is not running on node {_member(spec, 'nodeName')} named in the PodCertificateRequest"
    if MIRROR in (metadata.get("annotations") or {}):
        return f"pod {name} is a mirror pod"
    if not _is_same(account, spec.get("serviceAccountName")):
        named = _member(spec, "serviceAccountName")
        return f"{_HEAD} {name} contains serviceAccountName ({named}) that differs from running pod ({quoted(account)})"
    return f"pod {name} has ended" if _has_ended(pod, now) else ""


def account_problem(account: Obj, spec: Obj) -> str:
    """Return why a request with this spec is not for this service account; "" where it is."""
    metadata = account["metadata"]
    uid = metadata.get("uid", "")
    if _is_same(uid, spec.get("serviceAccountUID")):
        return ""
    pod, named = (
        quoted(f"{metadata.get('namespace', '')}/{spec.get('podName', '')}"),
        _member(spec, "serviceAccountUID"),
    )
    return f"{_HEAD} {pod} names service account UID {named}, which differs from the running service account ({quoted(uid)})"


def is_pod(pod: Obj, spec: Obj) -> bool:
    """Return true for the Pod that a request with this spec names, by its uid."""
    return _is_same(pod["metadata"].get("uid"), spec.get("podUID"))


def is_owner(reference: Obj, spec: Obj) -> bool:
    """Return true for an owner reference to the Pod that a request with this spec names. A kubelet sets it."""
    owner = tuple(reference.get(name) for name in ("apiVersion", "kind", "name", "uid"))
    return owner == ("v1", "Pod", spec.get("podName"), spec.get("podUID")) and not reference.get("blockOwnerDeletion")


def volume_signers(pod: Obj) -> Iterator[str]:
    """Yield the signers from which the volumes of the Pod want a certificate."""
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        for source in (volume.get("projected") or {}).get("sources") or ():
            if signer := (source.get("podCertificate") or {}).get("signerName"):
                yield signer


def _is_same(present: str | None, named: str | None) -> bool:
    return bool(named) and present == named


def _has_ended(pod: Obj, now: datetime) -> bool:
    deleted = pod["metadata"].get("deletionTimestamp")  # the end of the grace period
    return (pod.get("status") or {}).get("phase") in FINAL_PHASES or bool(deleted and parse_rfc3339(deleted) <= now)


def _place(pod: Obj) -> str:
    return quoted(f"{pod['metadata'].get('namespace', '')}/{pod['metadata']['name']}")


def _member(spec: Obj, name: str) -> str:
    return quoted(spec.get(name, ""))
