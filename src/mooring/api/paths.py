"""Resources by their plural, without schemas: what a command or an agent loads to send a request; and Mooring's own group."""

from __future__ import annotations

from collections.abc import Mapping

from mooring.apimachinery.resource import ResourcePath

# Group, version and storage prefix of Mooring's own kinds.

GROUP = "mooring.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
STORAGE_PREFIX = f"/registry/{GROUP}/"
"""kube-apiserver stores custom resources under `/registry/<group>/<plural>`."""


# Resources by their plural, without schemas: what a command or an agent loads to send a request.
#
# Rules kept here:
# * `mooring.api.kinds` takes a quarter of a second of processor time to load, because it has the schema of every kind. A client
#   needs the path and the kind. So this table repeats both; a test compares it with the kinds.

_KINDS: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("", "v1"): {
        "configmaps": "ConfigMap",
        "endpoints": "Endpoints",
        "events": "Event",
        "namespaces": "Namespace",
        "nodes": "Node",
        "persistentvolumeclaims": "PersistentVolumeClaim",
        "persistentvolumes": "PersistentVolume",
        "pods": "Pod",
        "podtemplates": "PodTemplate",
        "replicationcontrollers": "ReplicationController",
        "secrets": "Secret",
        "serviceaccounts": "ServiceAccount",
        "services": "Service",
    },
    ("apiextensions.k8s.io", "v1"): {
        "customresourcedefinitions": "CustomResourceDefinition",
    },
    ("apps", "v1"): {
        "daemonsets": "DaemonSet",
        "deployments": "Deployment",
        "replicasets": "ReplicaSet",
        "statefulsets": "StatefulSet",
    },
    ("authentication.k8s.io", "v1"): {
        "selfsubjectreviews": "SelfSubjectReview",
        "tokenreviews": "TokenReview",
    },
    ("authorization.k8s.io", "v1"): {
        "localsubjectaccessreviews": "LocalSubjectAccessReview",
        "selfsubjectaccessreviews": "SelfSubjectAccessReview",
        "selfsubjectrulesreviews": "SelfSubjectRulesReview",
        "subjectaccessreviews": "SubjectAccessReview",
    },
    ("batch", "v1"): {
        "cronjobs": "CronJob",
        "jobs": "Job",
    },
    ("certificates.k8s.io", "v1"): {
        "certificatesigningrequests": "CertificateSigningRequest",
        "clustertrustbundles": "ClusterTrustBundle",
        "podcertificaterequests": "PodCertificateRequest",
    },
    ("coordination.k8s.io", "v1"): {
        "leases": "Lease",
    },
    ("discovery.k8s.io", "v1"): {
        "endpointslices": "EndpointSlice",
    },
    ("mooring.dev", "v1alpha1"): {
        "authorizedmachines": "AuthorizedMachine",
        "certificateauthorityrollovers": "CertificateAuthorityRollover",
        "certificaterevocations": "CertificateRevocation",
        "joinrules": "JoinRule",
        "jointokens": "JoinToken",
        "lineagerecords": "LineageRecord",
        "nodeidentities": "NodeIdentity",
    },
    ("networking.k8s.io", "v1"): {
        "ingresses": "Ingress",
        "networkpolicies": "NetworkPolicy",
    },
    ("node.k8s.io", "v1"): {
        "runtimeclasses": "RuntimeClass",
    },
    ("policy", "v1"): {
        "poddisruptionbudgets": "PodDisruptionBudget",
    },
    ("rbac.authorization.k8s.io", "v1"): {
        "clusterrolebindings": "ClusterRoleBinding",
        "clusterroles": "ClusterRole",
        "rolebindings": "RoleBinding",
        "roles": "Role",
    },
    ("storage.k8s.io", "v1"): {
        "csidrivers": "CSIDriver",
        "csinodes": "CSINode",
    },
}

PATHS: Mapping[str, ResourcePath] = {
    plural: ResourcePath(group=group, version=version, kind=kind, plural=plural)
    for (group, version), kinds in _KINDS.items()
    for plural, kind in kinds.items()
}
"""By plural. Events are those of the core group."""
