"""Descent of certificates from a bootstrap token, through renewals.

Rules kept here:
* A certificate descends from the token that requested it, or from the certificate with which its request was authenticated. The
  request names that certificate by its hash (`authentication.kubernetes.io/credential-id`).
* A request whose credential is not recorded descends by name: a node that a token bought may have renewed with a certificate of
  which there is no record. This may list more than the token bought, and never less.
* Entries are in the order of their issue, so that one pass finds all.
"""

from __future__ import annotations

from collections.abc import Iterable

from mooring.apimachinery.schema import Obj
from mooring.identity import NODE_PREFIX, RECOVERING_NODE_PREFIX

CREDENTIAL = "X509SHA256="
"""Prefix of the credential id of a client certificate; the hash in hex follows."""


def node_of_user(username: str) -> str:
    """Return the node whose identity, or way back, the user has; "" for any other user."""
    for prefix in (NODE_PREFIX, RECOVERING_NODE_PREFIX):
        if username.startswith(prefix):
            return username.removeprefix(prefix)
    return ""


def descendants(entries: Iterable[Obj], token_id: str) -> list[Obj]:
    """Return the entries of the certificates that a token bought, and of their renewals, in order of issue."""
    found: list[Obj] = []
    certificates: set[str] = set()
    nodes: set[str] = set()
    recorded: set[str] = set()
    for entry in entries:
        credential = entry.get("credential", "").removeprefix(CREDENTIAL)
        if entry.get("token"):
            descends = entry["token"] == token_id
        elif credential in recorded:
            descends = credential in certificates
        else:
            descends = node_of_user(entry.get("requester", "")) in nodes - {""}
        certificate = entry.get("certificate", "").removeprefix("sha256:")
        recorded.add(certificate)
        if descends:
            found.append(entry)
            certificates.add(certificate)
            nodes.add(entry.get("node", ""))
    return found
