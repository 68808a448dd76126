"""rbac.authorization.k8s.io/v1: Role, ClusterRole, RoleBinding, ClusterRoleBinding.

`rules` and `bindings` hold what the namespaced and the cluster-wide kind share.
"""
