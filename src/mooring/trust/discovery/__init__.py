"""Discovery of a cluster, as kubeadm does it: `token`, `file`, `https`; and cluster-info, its signature and the pins of CAs."""
