"""apps/v1: DaemonSet, Deployment, ReplicaSet, StatefulSet, all read-only."""
