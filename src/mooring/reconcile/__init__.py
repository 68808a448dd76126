"""The controller runtime: one loop, its work queue, leader election, and the clusters that it can run against.

Import `loop.Reconciler` and `leaderelection.LeaderElector`, with `registryapi.RegistryApi` for the local registry or
`remote.RemoteApi` for another API server.
"""
