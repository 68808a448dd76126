"""Codecs of request and response bodies: JSON, YAML and protobuf, their limits, and their errors in the words of Go.

Import `requestbody` to decode a body of an expected kind, `json` and `yaml` for the formats alone and for the bounds of every body,
`unmarshal` to fit an object to its schema, `fieldreader` for configuration files.
"""
