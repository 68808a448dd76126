"""OpenAPI documents v2 and v3 of the served resources, as JSON and protobuf. Import `v2`, `v3`, `v2protobuf` and `v3protobuf`."""
