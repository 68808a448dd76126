"""Signature of cluster-info: a detached JWS over its kubeconfig (RFC 7515 appendix F).

Rules kept here (docs/protocol/cluster-info.md#signature):
* The header is exactly `{"alg":"HS256","kid":"<id>"}`; the text is `<header>..<signature>`, base64url without padding.
* The key is the secret half of the token alone; no minimum length. The payload is the raw value, trailing newline included.
* Verifying recomputes the whole text and compares it in constant time, so neither another algorithm nor another
  layout of the header can pass.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from mooring import base64url
from mooring.trust.bootstraptoken.token import BootstrapToken, is_token_id
from mooring.trust.discovery.errors import NotSetUpError, SignatureMissingError, SignatureWrongError

KUBECONFIG_KEY = "kubeconfig"
SIGNATURE_PREFIX = "jws-kubeconfig-"


def sign_encoded(encoded_payload: bytes, token_id: str, token_secret: bytes) -> str:
    """Return the signature of a payload in base64url: a signer of thousands of tokens encodes the payload once."""
    if not is_token_id(token_id):
        raise ValueError("a signature carries a token id of 6 characters a-z and 0-9")
    header = base64url.encode(b'{"alg":"HS256","kid":"%s"}' % token_id.encode()).encode()
    signature = hmac.digest(token_secret, header + b"." + encoded_payload, "sha256")
    return f"{header.decode()}..{base64url.encode(signature)}"


def sign(payload: bytes, token_id: str, token_secret: bytes) -> str:
    """Return the detached signature of `payload` by the token."""
    return sign_encoded(base64url.encode(payload).encode(), token_id, token_secret)


def verify(data: Mapping[str, str], token: BootstrapToken, step: str = "verifying cluster-info") -> str:
    """Return the kubeconfig in the data of a cluster-info ConfigMap after verifying its signature by `token`.

    Raises NotSetUpError, SignatureMissingError or SignatureWrongError, each beginning with `step`.
    """
    text = data.get(KUBECONFIG_KEY)
    if not text:  # kubeadm takes an empty value for an absent one, too
        raise NotSetUpError(step)
    found = data.get(SIGNATURE_PREFIX + token.id)
    if not found:
        raise SignatureMissingError(step, token.id, others=any(key.startswith(SIGNATURE_PREFIX) for key in data))
    wanted = sign(text.encode("utf-8", "surrogatepass"), token.id, token.secret.reveal())
    if not hmac.compare_digest(wanted.encode(), found.encode("utf-8", "surrogatepass")):
        raise SignatureWrongError(step, token.id)
    return text
