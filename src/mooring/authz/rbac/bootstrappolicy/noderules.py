"""Static rules of kubelets: the ClusterRole `system:node` of Kubernetes 1.37.

Rules kept here (docs/protocol/rbac.md#default-roles, docs/protocol/node-authorization.md#rights):
* No subject is bound to the role by default. The Node authorizer grants these rules itself, except for the resources that it
  narrows to one node.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.rules import rule

NODE_RULES: tuple[Obj, ...] = (
    rule("create", "authentication.k8s.io", "tokenreviews"),
    rule("create", "authorization.k8s.io", "localsubjectaccessreviews,subjectaccessreviews"),
    rule("get,list,watch", "", "services"),
    rule("create,get,list,watch", "", "nodes"),
    rule("patch,update", "", "nodes/status"),
    rule("patch,update", "", "nodes"),
    rule("create,patch,update", ",events.k8s.io", "events"),
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
    rule("get,patch,update", "", "persistentvolumeclaims/status"),
    rule("get,list,watch", "storage.k8s.io", "csidrivers"),
    rule("create,delete,get,patch,update", "storage.k8s.io", "csinodes"),
    rule("get,list,watch", "node.k8s.io", "runtimeclasses"),
    rule("get", "resource.k8s.io", "resourceclaims"),
    rule("deletecollection", "resource.k8s.io", "resourceslices"),
    rule("get", "", "serviceaccounts"),
    rule("get,list,watch", "certificates.k8s.io", "clustertrustbundles"),
    rule("create,get,list,watch", "certificates.k8s.io", "podcertificaterequests"),
)
