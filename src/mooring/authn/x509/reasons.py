"""Reason codes."""

from __future__ import annotations

from mooring.authn.reasons import Code

NO_COMMON_NAME = Code("certificate-without-common-name")
CERTIFICATE_REVOKED = Code("certificate-revoked")
KEY_REVOKED = Code("certificate-key-revoked")
NODE_REVOKED = Code("certificate-node-revoked")
NODE_DELETED = Code("node-deleted")
NODE_KEY_REPLACED = Code("node-key-replaced")
RETIRED_CA = Code("retired-ca")
CRL_REVOKED = Code("certificate-on-crl")
CRL_MISSING = Code("crl-missing")
CRL_NOT_CURRENT = Code("crl-not-current")
