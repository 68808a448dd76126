"""SPIFFE IDs of workloads, which an X.509-SVID carries as its one URI.

Rules kept here (SPIFFE-ID 2.1 and 2.2, X509-SVID 2 and 4):
* A trust domain has lower-case letters, digits, dots, dashes and underscores, at most 255. It has no port and no user.
* The path of a ServiceAccount is `/ns/<namespace>/sa/<name>`, as with SPIRE and Istio. Both are names of objects: no segment is
  empty, `.` or `..`, and every character may stand in a path.
"""

from __future__ import annotations

import re

SCHEME = "spiffe://"
MAX_TRUST_DOMAIN = 255

_TRUST_DOMAIN = re.compile(rf"[a-z0-9._-]{{1,{MAX_TRUST_DOMAIN}}}", re.ASCII)


def is_trust_domain(text: str) -> bool:
    """Return whether a text is the name of a trust domain."""
    return _TRUST_DOMAIN.fullmatch(text) is not None


def service_account_id(trust_domain: str, namespace: str, name: str) -> str:
    """Return the SPIFFE ID of a ServiceAccount."""
    return f"{SCHEME}{trust_domain}/ns/{namespace}/sa/{name}"
