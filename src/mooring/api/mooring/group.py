"""Group, version and storage prefix of Mooring's own kinds."""

from __future__ import annotations

GROUP = "mooring.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
STORAGE_PREFIX = f"/registry/{GROUP}/"
"""kube-apiserver stores custom resources under `/registry/<group>/<plural>`."""
