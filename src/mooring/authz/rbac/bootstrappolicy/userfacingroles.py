"""User-facing roles admin, edit and view, aggregated from the roles that carry their labels.

Rules kept here (docs/protocol/rbac.md):
1. `admin`, `edit` and `view` start without rules; the aggregation controller fills them.
2. `view` reads no Secret, because a Secret may hold a service account token, which grants more than reading.
3. `edit` may impersonate service accounts and create their tokens; `admin` adds roles and bindings of the namespace.
4. The roles name the usual Kubernetes resources, also those this server does not serve, so that an exported policy stays correct.
"""

from __future__ import annotations

from mooring.apimachinery.schema import Obj
from mooring.authz.rbac.bootstrappolicy.builders import cluster_role, default
from mooring.authz.rbac.rules import rule

READ = "get,list,watch"
WRITE = "create,delete,deletecollection,patch,update"
READ_WRITE = "create,delete,deletecollection,get,list,patch,update,watch"

_EVENT_GROUPS = ",events.k8s.io"
_LABEL = "rbac.authorization.k8s.io/aggregate-to-"

_VIEW = (
    rule(
        READ,
        "",
        "configmaps,endpoints,persistentvolumeclaims,persistentvolumeclaims/status,pods,replicationcontrollers,"
        "replicationcontrollers/scale,serviceaccounts,services,services/status",
    ),
    rule(
        READ,
        "",
        "bindings,limitranges,namespaces/status,pods/log,pods/status,replicationcontrollers/status,"
        "resourcequotas,resourcequotas/status",
    ),
    rule(READ, "", "namespaces"),
    rule(READ, _EVENT_GROUPS, "events"),
    rule(READ, "discovery.k8s.io", "endpointslices"),
    rule(
        READ,
        "apps",
        "controllerrevisions,daemonsets,daemonsets/status,deployments,deployments/scale,deployments/status,replicasets,"
        "replicasets/scale,replicasets/status,statefulsets,statefulsets/scale,statefulsets/status",
    ),
    rule(READ, "autoscaling", "horizontalpodautoscalers,horizontalpodautoscalers/status"),
    rule(READ, "batch", "cronjobs,cronjobs/status,jobs,jobs/status"),
    rule(
        READ,
        "extensions",
        "daemonsets,daemonsets/status,deployments,deployments/scale,deployments/status,ingresses,ingresses/status,"
        "networkpolicies,replicasets,replicasets/scale,replicasets/status,replicationcontrollers/scale",
    ),
    rule(READ, "policy", "poddisruptionbudgets,poddisruptionbudgets/status"),
    rule(READ, "networking.k8s.io", "ingresses,ingresses/status,networkpolicies"),
    rule(READ, "resource.k8s.io", "resourceclaims,resourceclaims/status,resourceclaimtemplates"),
)

_EDIT = (
    rule(READ, "", "pods/attach,pods/exec,pods/portforward,pods/proxy,secrets,services/proxy"),
    rule("impersonate", "", "serviceaccounts"),
    rule(WRITE, "", "pods,pods/attach,pods/exec,pods/portforward,pods/proxy"),
    rule("create", "", "pods/eviction"),
    rule(
        WRITE,
        "",
        "configmaps,persistentvolumeclaims,replicationcontrollers,replicationcontrollers/scale,secrets,"
        "serviceaccounts,services,services/proxy",
    ),
    rule("create", "", "serviceaccounts/token"),
    rule(WRITE, _EVENT_GROUPS, "events"),
    rule(
        WRITE,
        "apps",
        "daemonsets,deployments,deployments/rollback,deployments/scale,replicasets,replicasets/scale,statefulsets,"
        "statefulsets/scale",
    ),
    rule(WRITE, "autoscaling", "horizontalpodautoscalers"),
    rule(WRITE, "batch", "cronjobs,jobs"),
    rule(
        WRITE,
        "extensions",
        "daemonsets,deployments,deployments/rollback,deployments/scale,ingresses,networkpolicies,replicasets,"
        "replicasets/scale,replicationcontrollers/scale",
    ),
    rule(WRITE, "policy", "poddisruptionbudgets"),
    rule(WRITE, "networking.k8s.io", "ingresses,networkpolicies"),
    rule(READ_WRITE, "coordination.k8s.io", "leases"),
    rule(WRITE, "resource.k8s.io", "resourceclaims,resourceclaimtemplates"),
)

_ADMIN = (
    rule("create", "authorization.k8s.io", "localsubjectaccessreviews"),
    rule(READ_WRITE, "rbac.authorization.k8s.io", "rolebindings,roles"),
)


def _aggregated(name: str, into: str = "") -> Obj:
    role = default(cluster_role(name), {_LABEL + into: "true"} if into else None)
    role["aggregationRule"] = {"clusterRoleSelectors": [{"matchLabels": {_LABEL + name: "true"}}]}
    return role


def _aggregate_to(name: str, rules: tuple[Obj, ...]) -> Obj:
    return default(cluster_role(f"system:aggregate-to-{name}", *rules), {_LABEL + name: "true"})


USER_ROLES: tuple[Obj, ...] = (
    _aggregated("admin"),
    _aggregated("edit", into="admin"),
    _aggregated("view", into="edit"),
    _aggregate_to("admin", _ADMIN),
    _aggregate_to("edit", _EDIT),
    _aggregate_to("view", _VIEW),
)
