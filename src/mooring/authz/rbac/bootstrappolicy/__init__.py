"""Default RBAC objects as data, by holder. Import `policy.default_policy` and `kubeadm.kubeadm_policy`."""
