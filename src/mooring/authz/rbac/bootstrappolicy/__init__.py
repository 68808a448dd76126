"""Default RBAC objects as data, by holder. Import `default_policy`, `kubeadm_policy` and `k3s_policy` of their modules."""
