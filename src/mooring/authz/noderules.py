"""What the ClusterRole `system:node` holds: the static rules of kubelets (reference/kubernetes.md 6.5, 6.6).

By default nobody is bound to it: the Node authorizer grants these rules itself, except where a
node may touch only its own, or what its Pods use (`node`).
"""

from __future__ import annotations

from mooring.authz.rules import rule
from mooring.wire.schema import Obj

NODE_RULES: tuple[Obj, ...] = (
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "localsubjectaccessreviews,subjectaccessreviews"),
    rule("get,list,watch", "", "services"),
    rule("create,get,list,watch", "", "nodes"),
    rule("patch,update", "", "nodes/status"),
    rule("patch,update", "", "nodes"),
    rule("create,patch,update", "", "events"),
    rule("get,list,watch", "", "pods"),
    rule("create,delete", "", "pods"),
    rule("patch,update", "", "pods/status"),
    rule("create", "", "pods/eviction"),
    rule("get,list,watch", "", "configmaps,secrets"),
    rule("get", "", "persistentvolumeclaims,persistentvolumes"),
    rule("get", "", "endpoints"),
    rule("create,get,list,watch", "certificates.k8s.io", "certificatesigningrequests"),
    rule("create,delete,get,patch,update", "coordination.k8s.io", "leases"),
    rule("get", "storage.k8s.io", "volumeattachments"),
    rule("create", "", "serviceaccounts/token"),
    rule("get", "", "serviceaccounts"),
    rule("get,patch,update", "", "persistentvolumeclaims/status"),
    rule("get,list,watch", "storage.k8s.io", "csidrivers"),
    rule("create,delete,get,patch,update", "storage.k8s.io", "csinodes"),
    rule("get,list,watch", "node.k8s.io", "runtimeclasses"),
    rule("get", "resource.k8s.io", "resourceclaims"),
    rule("deletecollection", "resource.k8s.io", "resourceslices"),
    rule("create,delete,get,list,patch,update,watch", "resource.k8s.io", "resourceslices"),
    rule("get,list,watch", "certificates.k8s.io", "clustertrustbundles"),
    rule("create,get,list,watch", "certificates.k8s.io", "podcertificaterequests"),
)
