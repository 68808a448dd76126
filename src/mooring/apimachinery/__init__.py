"""API machinery: the grammar of the Kubernetes API, without I/O and without knowledge of single kinds.

`schema` and `resource` declare kinds; `requestinfo`, `options`, `negotiation` and `selectors` read requests; `codec`, `patch` and
`apply` decode and change objects; `status`, `table`, `watchevent`, `discovery` and `openapi` make responses. Modules are imported
directly.
"""
