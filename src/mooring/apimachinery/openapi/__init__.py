"""OpenAPI documents of the served resources, as JSON and protobuf. Import `v2`, `v3` and `v3protobuf`; `gnostic` is their tool."""
