"""What a login leaves on the user's machine: where, how it is renewed, and the credential it got; and what kubectl is told of it.

Rules kept here (KEP-541, client.authentication.k8s.io/v1 and v1beta1; docs/adr/0020):
* A record is one JSON text of a version of its own. What is in it was written by ourselves, but may have been cut or edited:
  whatever is wrong with it is one error, which never repeats what is in it.
* A password is never part of it. A refresh token of an OpenID provider is, because that is what it is for.
* A credential is renewed when less than a tenth of its life is left, and is good until `SPARE` before its end.
* A credential is handed out for the cluster it was issued by, and for no other: who asks says which cluster it means, and server,
  CA and verification must be those of the login. A kubeconfig from a stranger could name this login beside a server of his own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import ConfigError
from mooring.secret import Secret

FORMAT = "mooring.dev/login-record/v1"
SPARE = timedelta(seconds=10)
"""A request that begins now should arrive before the credential ends, on clocks that differ a little."""
API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")

PASSWORD = "password"  # noqa: S105 - the word for a kind of source
TOKEN_FILE = "token-file"  # noqa: S105 - likewise
TOKEN_GIVEN = "token-given"  # noqa: S105 - likewise
KUBECONFIG = "kubeconfig"
OIDC = "oidc"
SOURCES = (PASSWORD, TOKEN_FILE, TOKEN_GIVEN, KUBECONFIG, OIDC)

CERTIFICATE = "certificate"
TOKEN = "token"  # noqa: S105 - the word for a kind of credential
KINDS = (CERTIFICATE, TOKEN)

_ID = re.compile(r"[0-9a-f]{16}")


class LoginRecordError(ConfigError):
    """The record of a login, or what asks for it, cannot be used."""


@dataclass(frozen=True, slots=True)
class Place:
    """The cluster of a login. An empty `ca_pem` means the machine's own roots."""

    server: str
    ca_pem: bytes = b""
    tls_server_name: str = ""
    proxy_url: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """How the user proves who they are: one of `SOURCES` with its settings, none of which is a secret but `refresh_token`."""

    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)
    refresh_token: Secret | None = None


@dataclass(frozen=True, slots=True)
class Credential:
    """What the cluster gave: a token, or a certificate and its key."""

    username: str
    issued: datetime
    expires: datetime
    token: Secret | None = None
    certificate_pem: bytes = b""
    key: Secret | None = None

    def fresh(self, now: datetime) -> bool:
        """Whether more than a tenth of its life is left."""
        return self.usable(now) and (self.expires - now) * 10 > self.expires - self.issued

    def usable(self, now: datetime) -> bool:
        """Whether it will still be good when it arrives. A clock that went back makes it none: its life is not known."""
        return self.issued - SPARE <= now < self.expires - SPARE


@dataclass(frozen=True, slots=True)
class Login:
    """One login. `name`: that of its entries in the kubeconfig."""

    name: str
    place: Place
    source: Source
    kind: str = CERTIFICATE
    credential: Credential | None = None

    @property
    def id(self) -> str:
        """Sixteen hexadecimal digits: the same for the same name at the same server."""
        return hashlib.sha256(f"{self.place.server}\n{self.name}".encode()).hexdigest()[:16]

    def with_credential(self, credential: Credential) -> Login:
        """The same login after a renewal."""
        return replace(self, credential=credential)

    def with_refresh_token(self, token: Secret | None) -> Login:
        """The same login after its provider was asked; one that gives no new refresh token means the old one to be kept."""
        return replace(self, source=replace(self.source, refresh_token=token)) if token else self


def check_id(text: str) -> str:
    """`text` itself when it is the id of a login. Raises LoginRecordError."""
    if _ID.fullmatch(text) is None:
        raise LoginRecordError(
            "the id of a login has 16 hexadecimal digits; see the kubeconfig that mooring login wrote"
        )
    return text


# ── the record ───────────────────────────────────────────────────────────────────────────────────────────────────


def dump(login: Login) -> bytes:
    """The record. It reveals the credential: it goes to a file of the owner, nowhere else."""
    place, source, credential = login.place, login.source, login.credential
    record: dict[str, Any] = {
        "format": FORMAT,
        "name": login.name,
        "server": place.server,
        "ca": place.ca_pem.decode("ascii"),
        "tlsServerName": place.tls_server_name,
        "proxyURL": place.proxy_url,
        "source": {
            "kind": source.kind,
            "settings": dict(source.settings),
            "refreshToken": _revealed(source.refresh_token),
        },
        "kind": login.kind,
    }
    if credential is not None:
        record["credential"] = {
            "username": credential.username,
            "issued": rfc3339(credential.issued),
            "expires": rfc3339(credential.expires),
            "token": _revealed(credential.token),
            "certificate": credential.certificate_pem.decode("ascii"),
            "key": _revealed(credential.key),
        }
    return json.dumps(record, indent=1).encode()


def _revealed(secret: Secret | None) -> str:
    return secret.reveal().decode() if secret else ""


def load(data: bytes) -> Login:
    """The login that `dump` wrote. Raises LoginRecordError."""
    try:
        return _login(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LoginRecordError("the record of the login cannot be read; run mooring login again") from None


def _login(record: Any) -> Login:
    if record["format"] != FORMAT:
        raise ValueError("another format")
    source = record["source"]
    settings = source["settings"]
    place = Place(
        _text(record, "server"),
        _text(record, "ca").encode("ascii"),
        _text(record, "tlsServerName"),
        _text(record, "proxyURL"),
    )
    if source["kind"] not in SOURCES or record["kind"] not in KINDS:
        raise ValueError("a kind that is not known")
    return Login(
        _text(record, "name"),
        place,
        Source(source["kind"], {key: _text(settings, key) for key in settings}, _secret(source, "refreshToken")),
        record["kind"],
        _credential(record["credential"]) if record.get("credential") is not None else None,
    )


def _credential(record: Any) -> Credential:
    credential = Credential(
        _text(record, "username"),
        parse_rfc3339(_text(record, "issued")),
        parse_rfc3339(_text(record, "expires")),
        _secret(record, "token"),
        _text(record, "certificate").encode("ascii"),
        _secret(record, "key"),
    )
    if bool(credential.token) == bool(credential.certificate_pem and credential.key):
        raise ValueError("neither a token nor a certificate with its key")
    return credential


def _text(record: Any, key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise TypeError(key)
    return value


def _secret(record: Any, key: str) -> Secret | None:
    text = _text(record, key)
    return Secret(text) if text else None


# ── what kubectl asks and is told ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Asked:
    """What KUBERNETES_EXEC_INFO says. Without it somebody runs the command by hand: `cluster` is None."""

    api_version: str = API_VERSIONS[0]
    interactive: bool | None = None
    cluster: Mapping[str, Any] | None = None


def read_asked(text: str) -> Asked:
    """What is asked; `text` is KUBERNETES_EXEC_INFO, empty when it is not set. Raises LoginRecordError."""
    if not text:
        return Asked()
    try:
        asked = json.loads(text)
        api_version, spec = asked["apiVersion"], asked.get("spec") or {}
        cluster, interactive = spec.get("cluster") or {}, spec.get("interactive") or False
        known = isinstance(cluster, dict) and isinstance(interactive, bool)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        known = False
    if not known:
        raise LoginRecordError("KUBERNETES_EXEC_INFO is not an ExecCredential")
    if api_version not in API_VERSIONS:
        raise LoginRecordError(f"KUBERNETES_EXEC_INFO asks for another version than {' or '.join(API_VERSIONS)}")
    return Asked(api_version, interactive, cluster)


def check_cluster(asked: Asked, place: Place) -> None:
    """Returns nothing when the credential may be handed out for the cluster that is asked for. Raises LoginRecordError."""
    cluster = asked.cluster
    if cluster is None:
        return
    if not cluster:
        raise LoginRecordError(
            "the kubeconfig does not say which cluster it means: give its user provideClusterInfo: true"
        )
    try:
        ca_pem = base64.b64decode(cluster.get("certificate-authority-data") or "", validate=True)
    except (TypeError, ValueError, binascii.Error):
        ca_pem = b"?"
    same = (
        str(cluster.get("server", "")).rstrip("/") == place.server.rstrip("/")
        and ca_pem.strip() == place.ca_pem.strip()
    )
    if not same or cluster.get("insecure-skip-tls-verify"):
        raise LoginRecordError(
            f"this login is one of {place.server}, and the kubeconfig names another server, another CA, or none: "
            "the credential stays here"
        )


def exec_credential(credential: Credential, api_version: str) -> bytes:
    """What kubectl reads. It reveals the credential."""
    status = {"expirationTimestamp": rfc3339(credential.expires)}
    if credential.token is not None:
        status["token"] = _revealed(credential.token)
    else:
        status["clientCertificateData"] = credential.certificate_pem.decode("ascii")
        status["clientKeyData"] = _revealed(credential.key)
    return json.dumps({"kind": "ExecCredential", "apiVersion": api_version, "status": status}).encode()
