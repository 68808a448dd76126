"""ConfigMap kube-public/cluster-info: its contents, and its signatures by the tokens that are eligible."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from datetime import datetime

from mooring import base64url
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.trust.bootstraptoken.token import USAGE_SIGNING, BootstrapToken, is_token_id
from mooring.trust.bootstraptoken.tokensecret import (
    KEY_ID,
    KEY_SECRET,
    SECRET_TYPE,
    data_bytes,
    data_value,
    expired,
    token_id_of_name,
    usage_enabled,
)
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE as TOKEN_NAMESPACE
from mooring.trust.discovery.errors import NotSetUpError, SignatureMissingError, SignatureWrongError
from mooring.trust.discovery.pins import Pin
from mooring.trust.kubeconfig import cluster_info_kubeconfig
from mooring.trust.kubeconfigtext import format_kubeconfig

# Signature of cluster-info: a detached JWS over its kubeconfig (RFC 7515 appendix F).
#
# Rules kept here (docs/protocol/cluster-info.md#signature):
# * The header is exactly `{"alg":"HS256","kid":"<id>"}`; the text is `<header>..<signature>`, base64url without padding.
# * The key is the secret half of the token alone; no minimum length. The payload is the raw value, trailing newline included.
# * Verifying recomputes the whole text and compares it in constant time, so neither another algorithm nor another
#   layout of the header can pass.

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
    # kubeadm takes an empty value for an absent one, too.
    if not text:
        raise NotSetUpError(step)
    found = data.get(SIGNATURE_PREFIX + token.id)
    if not found:
        raise SignatureMissingError(step, token.id, others=any(key.startswith(SIGNATURE_PREFIX) for key in data))
    wanted = sign(text.encode("utf-8", "surrogatepass"), token.id, token.secret.reveal())
    if not hmac.compare_digest(wanted.encode(), found.encode("utf-8", "surrogatepass")):
        raise SignatureWrongError(step, token.id)
    return text


# ConfigMap kube-public/cluster-info: its contents, and its signatures by the tokens that are eligible.
#
# Rules kept here (docs/protocol/cluster-info.md):
# * It holds a kubeconfig with one cluster without a name, and `jws-kubeconfig-<id>` for every eligible token. Further addresses
#   of the cluster are entries named by their address. `certificate-authority-data` verifies the server; an extension of the
#   entry holds the CAs of client certificates where they differ, and another one the id of the cluster.
# * During a rollover of the CA, `superseded-cas` holds the pins of CAs whose certificates members are asked to renew, separated
#   by commas. It is not signed: members read it from a server that they have verified.
# * Eligible: a Secret of the token type in kube-system whose name is strictly `bootstrap-token-<id>`, whose `token-id` equals
#   that id, whose `token-secret` is not empty (its format is not checked), not expired, usage `signing` exactly `true`.
#   deletionTimestamp does not matter.
# * The text under `kubeconfig` is signed unread. Without that key nothing changes: stale signatures stay.
# * `signed` returns None when nothing changes, so that a controller that watches its own writes stops.

NAMESPACE = "kube-public"
NAME = "cluster-info"
SUPERSEDED_KEY = "superseded-cas"
"""Key of the ConfigMap; its value names CAs whose certificates members are asked to renew."""
PATH = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{NAME}"
"""Path of cluster-info on every Kubernetes API server."""


def config_map(
    server: str,
    ca_pem: bytes,
    *,
    others: Iterable[str] = (),
    client_ca_pem: bytes = b"",
    superseded: Iterable[Pin] = (),
    cluster_id: str = "",
) -> Obj:
    """Return a new, unsigned cluster-info with the contents of `cluster_info_kubeconfig`."""
    published = cluster_info_kubeconfig(
        server, ca_pem, others=others, client_ca_pem=client_ca_pem, cluster_id=cluster_id
    )
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": NAME, "namespace": NAMESPACE},
        "data": {
            KUBECONFIG_KEY: format_kubeconfig(published),
            **({SUPERSEDED_KEY: ",".join(pins)} if (pins := [str(pin) for pin in superseded]) else {}),
        },
    }


def signing_token(secret_obj: Obj, now: datetime) -> tuple[str, bytes] | None:
    """Return (id, secret) of a token that is eligible at `now`; None for any other Secret."""
    metadata = secret_obj["metadata"]
    if secret_obj.get("type") != SECRET_TYPE or metadata.get("namespace") != TOKEN_NAMESPACE:
        return None
    token_id = token_id_of_name(metadata["name"])
    # Strictly by its name: the id inside alone would let another Secret sign in the name of a token.
    if token_id is None or data_value(secret_obj, KEY_ID) != token_id:
        return None
    token_secret = data_bytes(secret_obj, KEY_SECRET)
    if not token_secret or not usage_enabled(secret_obj, USAGE_SIGNING) or expired(secret_obj, now):
        return None
    return token_id, token_secret


def signatures(config_map: Obj, token_secrets: Iterable[Obj], now: datetime) -> dict[str, str]:
    """Return the entries `jws-kubeconfig-<id>` for the ConfigMap; empty when it has no kubeconfig."""
    text = (config_map.get("data") or {}).get(KUBECONFIG_KEY)
    if text is None:
        return {}
    payload = base64url.encode(text.encode("utf-8", "surrogatepass")).encode()
    tokens = (token for secret_obj in token_secrets if (token := signing_token(secret_obj, now)) is not None)
    return {SIGNATURE_PREFIX + token_id: sign_encoded(payload, token_id, secret) for token_id, secret in tokens}


def signed(config_map: Obj, token_secrets: Iterable[Obj], now: datetime) -> Obj | None:
    """Return the ConfigMap with exactly the right signatures; None when it has them already, or has no kubeconfig."""
    data = config_map.get("data") or {}
    if KUBECONFIG_KEY not in data:
        return None
    wanted = signatures(config_map, token_secrets, now)
    if wanted == {key: value for key, value in data.items() if key.startswith(SIGNATURE_PREFIX)}:
        return None
    rest = {key: value for key, value in data.items() if not key.startswith(SIGNATURE_PREFIX)}
    return deep_copy({**config_map, "data": {}}) | {"data": rest | wanted}
