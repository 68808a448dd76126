"""Login record: a login with its renewal and credential; request and response of the exec plugin of kubectl."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from mooring.clock import parse_rfc3339, rfc3339
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.kubeconfig import Cluster

# Login record: the cluster of a login, the source of its renewals, and its present credential.
#
# Rules kept here (docs/adr/0020):
# * A record is one JSON text with a format version. A record that was cut or edited is one error, which never repeats its contents.
# * A password is never part of it. A refresh token of an OpenID provider is, for the next renewal.
# * A credential is renewed when less than a tenth of its lifetime is left, and is usable until `SPARE` before its end.

FORMAT = "mooring.dev/login-record/v1"
SPARE = timedelta(seconds=10)
"""Time for a request to arrive before the credential ends, on clocks that differ slightly."""

PASSWORD = "password"  # noqa: S105 - the name of a source
TOKEN_FILE = "token-file"  # noqa: S105 - likewise
TOKEN_GIVEN = "token-given"  # noqa: S105 - likewise
KUBECONFIG = "kubeconfig"
OIDC = "oidc"
SOURCES = {
    PASSWORD: {"username"},
    TOKEN_FILE: {"file"},
    TOKEN_GIVEN: set[str](),
    KUBECONFIG: {"files", "context"},
    OIDC: {"issuer", "clientID", "clientSecretFile", "caFile", "scopes", "grant", "port"},
}
"""Kinds of sources with the settings that each has; further ones are optional."""

CERTIFICATE = "certificate"
TOKEN = "token"  # noqa: S105 - the name of a kind of credential
KINDS = (CERTIFICATE, TOKEN)

_ID = re.compile(r"[0-9a-f]{16}")


class LoginRecordError(ConfigError):
    """A login record, or the request for its credential, cannot be used."""


@dataclass(frozen=True, slots=True)
class Place:
    """Cluster of a login. An empty `ca_pem` means the system's roots."""

    server: str
    ca_pem: bytes = b""
    tls_server_name: str = ""
    proxy_url: str = field(default="", repr=False)
    disable_compression: bool = False
    published: Mapping[str, Any] | None = None
    """Content of cluster-info when the login followed it last (`mooring.trust.discovery.refresh.MergeBase`)."""

    def cluster(self, name: str = "") -> Cluster:
        """Return the way to the cluster as an entry of a kubeconfig."""
        return Cluster(
            name,
            self.server,
            self.ca_pem,
            tls_server_name=self.tls_server_name,
            proxy_url=self.proxy_url,
            disable_compression=self.disable_compression,
            extensions=(dict(self.published),) if self.published else (),
        )


@dataclass(frozen=True, slots=True)
class IdentitySource:
    """Source of the user's identity: one of `SOURCES` with its settings. Only `refresh_token` is a secret."""

    kind: str
    settings: Mapping[str, str] = field(default_factory=dict)
    refresh_token: Secret | None = None


@dataclass(frozen=True, slots=True)
class Credential:
    """Credential that the cluster issued: a token, or a certificate and its key."""

    username: str
    issued: datetime
    expires: datetime
    token: Secret | None = None
    certificate_pem: bytes = b""
    key: Secret | None = None

    def fresh(self, now: datetime) -> bool:
        """Return True while more than a tenth of the lifetime is left."""
        return self.usable(now) and (self.expires - now) * 10 > self.expires - self.issued

    def usable(self, now: datetime) -> bool:
        """Return True while a request with it can arrive in time. On a clock before its issue its lifetime is unknown: False."""
        return self.issued - SPARE <= now < self.expires - SPARE


@dataclass(frozen=True, slots=True)
class Login:
    """One login. `name` is that of its entries in the kubeconfig.

    `without_cluster`: clients that pass no cluster to the plugin get the credential.
    """

    name: str
    place: Place
    source: IdentitySource
    kind: str = CERTIFICATE
    credential: Credential | None = None
    without_cluster: bool = False

    @property
    def id(self) -> str:
        """Return 16 hexadecimal digits, the same for the same name at the same server."""
        return hashlib.sha256(f"{self.place.server}\n{self.name}".encode()).hexdigest()[:16]

    def with_credential(self, credential: Credential) -> Login:
        """Return the login with a new credential."""
        return replace(self, credential=credential)

    def with_settings(self, settings: Mapping[str, str]) -> Login:
        """Return the login with further settings of its source."""
        return replace(self, source=replace(self.source, settings={**self.source.settings, **settings}))

    def with_refresh_token(self, token: Secret | None) -> Login:
        """Return the login with another refresh token, or without one."""
        return replace(self, source=replace(self.source, refresh_token=token))


def check_id(text: str) -> str:
    """Return `text` when it is the id of a login. Raises LoginRecordError."""
    if _ID.fullmatch(text) is None:
        raise LoginRecordError(
            "the id of a login has 16 hexadecimal digits; see the kubeconfig that mooring login wrote"
        )
    return text


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def dump(login: Login) -> bytes:
    """Return the record as JSON. It reveals the credential: it may only be written to a file of the owner."""
    place, source, credential = login.place, login.source, login.credential
    record: dict[str, Any] = {
        "format": FORMAT,
        "name": login.name,
        "server": place.server,
        "ca": place.ca_pem.decode("ascii"),
        "tlsServerName": place.tls_server_name,
        "proxyURL": place.proxy_url,
        "disableCompression": place.disable_compression,
        "published": place.published,
        "source": {
            "kind": source.kind,
            "settings": dict(source.settings),
            "refreshToken": _reveal(source.refresh_token),
        },
        "kind": login.kind,
        "withoutCluster": login.without_cluster,
    }
    if credential is not None:
        record["credential"] = {
            "username": credential.username,
            "issued": rfc3339(credential.issued),
            "expires": rfc3339(credential.expires),
            "token": _reveal(credential.token),
            "certificate": credential.certificate_pem.decode("ascii"),
            "key": _reveal(credential.key),
        }
    return json.dumps(record, indent=1).encode()


def _reveal(secret: Secret | None) -> str:
    return secret.reveal().decode() if secret else ""


def load(data: bytes) -> Login:
    """Return the login in a record. Raises LoginRecordError."""
    try:
        return _read_login(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise LoginRecordError("the record of the login cannot be read") from None


def _read_login(record: Any) -> Login:
    if record["format"] != FORMAT:
        raise ValueError("another format")
    source = record["source"]
    settings = source["settings"]
    place = Place(
        _read_text(record, "server"),
        _read_text(record, "ca").encode("ascii"),
        _read_text(record, "tlsServerName"),
        _read_text(record, "proxyURL"),
        record.get("disableCompression") is True,
        published if isinstance(published := record.get("published"), dict) else None,
    )
    if not SOURCES[source["kind"]] <= settings.keys() or record["kind"] not in KINDS:
        raise ValueError("a kind that is not known, or not whole")
    return Login(
        _read_text(record, "name"),
        place,
        IdentitySource(
            source["kind"], {key: _read_text(settings, key) for key in settings}, _secret(source, "refreshToken")
        ),
        record["kind"],
        _read_credential(record["credential"]) if record.get("credential") is not None else None,
        record.get("withoutCluster") is True,
    )


def _read_credential(record: Any) -> Credential:
    credential = Credential(
        _read_text(record, "username"),
        parse_rfc3339(_read_text(record, "issued")),
        parse_rfc3339(_read_text(record, "expires")),
        _secret(record, "token"),
        _read_text(record, "certificate").encode("ascii"),
        _secret(record, "key"),
    )
    # A record that another program wrote may have both, or half of one.
    if bool(credential.token) == bool(credential.certificate_pem and credential.key):
        raise ValueError("neither a token nor a certificate with its key")
    return credential


def _read_text(record: Any, key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise TypeError(key)
    return value


def _secret(record: Any, key: str) -> Secret | None:
    text = _read_text(record, key)
    return Secret(text) if text else None


# ExecCredential: the request and the response of an exec plugin of kubectl, for a login.
#
# Rules kept here (KEP-541, client.authentication.k8s.io/v1 and v1beta1; docs/adr/0020): a credential is given out only for the
# cluster that issued it. The server, the CAs and the verification in the request must be those of the login. A kubeconfig that has
# some of its CAs, and no other, counts: it was copied before a second one was published.

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


@dataclass(frozen=True, slots=True)
class ExecInfo:
    """Contents of KUBERNETES_EXEC_INFO. `cluster` is None when it is not set: by a user, or by a client that sets none."""

    api_version: str = API_VERSIONS[0]
    interactive: bool | None = None
    cluster: Mapping[str, Any] | None = None


def read_exec_info(text: str) -> ExecInfo:
    """Return the contents of KUBERNETES_EXEC_INFO, whose `text` is empty when it is not set. Raises LoginRecordError."""
    if not text:
        return ExecInfo()
    try:
        info = json.loads(text)
        api_version, spec = info["apiVersion"], info.get("spec") or {}
        cluster, interactive = spec.get("cluster") or {}, spec.get("interactive") or False
        valid = isinstance(cluster, dict) and isinstance(interactive, bool)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        valid = False
    if not valid:
        raise LoginRecordError("KUBERNETES_EXEC_INFO is not an ExecCredential")
    if api_version not in API_VERSIONS:
        raise LoginRecordError(f"KUBERNETES_EXEC_INFO asks for another version than {' or '.join(API_VERSIONS)}")
    return ExecInfo(api_version, interactive, cluster)


def check_cluster(info: ExecInfo, login: Login) -> None:
    """Raise LoginRecordError unless the kubeconfig of `info` means the cluster of `login`."""
    cluster, place = info.cluster, login.place
    # Without KUBERNETES_EXEC_INFO a user runs the plugin. Whether a client may name no cluster is said by the login,
    # which a kubeconfig cannot change.
    if cluster is None or (not cluster and login.without_cluster):
        return
    if not cluster:
        raise LoginRecordError(
            "the client passed no cluster to the plugin: kubectl does, where the kubeconfig's user has provideClusterInfo: true; "
            "kubernetes_asyncio, kubernetes before 32 and older kube-rs never do; to give them the credential all the same, run: "
            f"mooring login --name {shlex.quote(login.name)} --allow-clients-without-cluster"
        )
    try:
        ca_pem = base64.b64decode(cluster.get("certificate-authority-data") or "", validate=True)
    except (TypeError, ValueError, binascii.Error):
        # Equals no CA.
        ca_pem = b"?"
    same = str(cluster.get("server", "")).rstrip("/") == place.server.rstrip("/") and (
        ca_pem.strip() == place.ca_pem.strip() or _is_part(ca_pem, place.ca_pem)
    )
    # An attacker's kubeconfig could name this login beside his own server.
    if not same or cluster.get("insecure-skip-tls-verify"):
        raise LoginRecordError(
            f"this login is one of {place.server}, and the kubeconfig names another server, another CA, or none: "
            "the credential stays here. Where its address or CA was replaced, run: mooring kubeconfig refresh"
        )


def _is_part(ca_pem: bytes, of: bytes) -> bool:
    """Return True when a bundle has certificates of another one and nothing else. They are compared as text."""
    blocks, others = (
        re.findall(rb"-----BEGIN CERTIFICATE-----[^-]+-----END CERTIFICATE-----", pem) for pem in (ca_pem, of)
    )
    return bool(blocks) and set(blocks) <= set(others) and not re.sub(rb"\s", b"", _without(ca_pem, blocks))


def _without(text: bytes, parts: Sequence[bytes]) -> bytes:
    for part in parts:
        text = text.replace(part, b"")
    return text


def exec_credential(credential: Credential, api_version: str) -> bytes:
    """Return the ExecCredential for kubectl. It reveals the credential."""
    status = {"expirationTimestamp": rfc3339(credential.expires)}
    if credential.token is not None:
        status["token"] = credential.token.reveal().decode()
    else:
        # A credential without a token has a certificate and a key.
        assert credential.key is not None
        status["clientCertificateData"] = credential.certificate_pem.decode("ascii")
        status["clientKeyData"] = credential.key.reveal().decode()
    return json.dumps({"kind": "ExecCredential", "apiVersion": api_version, "status": status}).encode()
