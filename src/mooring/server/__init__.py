"""Serve the API over TLS: from the socket to the registry and back.

* `transport`: TLS, HTTP/1.1, HTTP/2, WebSocket; of the rest of this room it imports only `sharedmemory` and `workerqueries`.
* `sharedmemory`: what the workers of one host share. `workerqueries`: questions to the other workers.
* `pipeline`: authentication to audit, for every request. `router` dispatches to `resources` (kinds) or `endpoints` (other paths).
* `response`: negotiation and encoding of replies. `audit`, `flowcontrol`, `metrics`, `healthchecks`: what their names say.

`mooring.controlplane` assembles these parts. `mooring.cli` imports only `audit`, to check a policy before the start.
"""
