"""Discovery of a cluster, as kubeadm does it: `fetch` by a token, `file`; and cluster-info, its signature and the pins of CAs."""
