"""DefaultTolerationSeconds: Pods tolerate a node that is not ready or not reachable for five minutes.

Rules kept here (Kubernetes documentation "Taints and Tolerations", taint based evictions):
* A Pod that tolerates neither taint gets a toleration of each, for NoExecute and 300 s. One that names such a taint keeps its own.
* The node lifecycle controller sets these taints, and a kubelet starts no Pod that does not tolerate a NoExecute taint. Without the
  tolerations a machine that restarts slowly would lose its Pods.
"""

from __future__ import annotations

from mooring.controllers.node.taints import NO_EXECUTE, NOT_READY, UNREACHABLE
from mooring.registry.admission.request import AdmissionRequest

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
