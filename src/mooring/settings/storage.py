"""Settings of state: the data directory, the store of objects, and encryption at rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlsplit

from mooring.errors import ConfigError
from mooring.settings.declaration import BOOLEAN, COMMA_SEPARATED, TEXT, Settings, file_setting, setting

ETCD, MEMORY, SQLITE = SCHEMES = ("etcd", "memory", "sqlite")
"""Schemes of the URLs of stores."""


def _without_trailing_slash(text: str, key: str) -> str:
    return text.rstrip("/") or text[:1]


def etcd_urls(values: Iterable[str], key: str) -> tuple[str, ...]:
    """Return client URLs of etcd members without a final slash. Raises ConfigError, which repeats no URL (it may have a
    password)."""
    urls = tuple(value.strip().rstrip("/") for value in values if value.strip())
    schemes = set()
    for url in urls:
        try:
            parts = urlsplit(url)
            valid = bool(parts.scheme in ("http", "https") and parts.hostname and parts.port)
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(f"{key}: give client URLs of etcd members, for example https://10.0.0.1:2379")
        if "@" in parts.netloc or parts.path or parts.query or parts.fragment:
            raise ConfigError(f"{key}: a URL has a scheme, a host and a port only; for a password see --etcd-username")
        schemes.add(parts.scheme)
    if len(schemes) > 1:
        raise ConfigError(f"{key}: give URLs of one scheme, all http or all https")
    return urls


def storage_url(text: str, key: str) -> str:
    """Return the URL of a store, `<scheme>:<rest>`, in its normal form. Raises ConfigError, which repeats no URL."""
    scheme, colon, rest = text.partition(":")
    if not colon or scheme not in SCHEMES:
        known = ", ".join(f"{name}:" for name in SCHEMES)
        raise ConfigError(
            f"{key}: the URL must start with one of {known} (for example sqlite:/var/lib/mooring/mooring.db)"
        )
    if scheme == ETCD:
        servers = etcd_urls(rest.split(","), key)
        if not servers:
            raise ConfigError(f"{key}: etcd: needs client URLs, for example etcd:https://10.0.0.1:2379")
        return f"{ETCD}:{','.join(servers)}"
    if scheme == MEMORY and rest:
        raise ConfigError(f"{key}: memory: takes nothing after the colon; its data is lost on exit")
    if scheme == SQLITE and (not rest or "://" in rest):
        raise ConfigError(f"{key}: sqlite: needs the path of a file, for example sqlite:/var/lib/mooring/mooring.db")
    return text


def _store(text: str, key: str) -> str:
    return text and storage_url(text, key)


def _prefix(text: str, key: str) -> str:
    if not text.startswith("/") or not text.strip("/"):
        raise ConfigError(f"{key}: give a path that starts with a slash, for example /registry")
    return text.rstrip("/")


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings(Settings):
    """Data directory and storage driver."""

    heading: ClassVar[str] = "State"

    data_dir: str = setting(
        TEXT,
        default="",
        meaning="Directory of the keys, the kubeconfigs and the database.",
        default_note="/var/lib/mooring as root, else ~/.local/share/mooring",
        metavar="DIR",
        parse=_without_trailing_slash,
        everyday=True,
    )
    storage: str = setting(
        TEXT,
        default="",
        meaning="Store of the objects: sqlite:PATH, etcd:URL,URL,… or memory:.",
        default_note="sqlite in the data directory",
        metavar="URL",
        parse=_store,
        everyday=True,
    )
    etcd_servers: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=(),
        meaning="Client URLs of the etcd members that store the objects. The next one is used when one fails.",
        metavar="URL,...",
        parse=etcd_urls,
    )
    etcd_prefix: str = setting(
        TEXT,
        default="/registry",
        meaning="Prefix of the keys of objects in etcd.",
        metavar="PATH",
        parse=_prefix,
    )
    etcd_cafile: str = file_setting(
        "CA bundle that verifies the certificates of etcd.", default_note="gRPC's list of public CAs"
    )
    etcd_certfile: str = file_setting("Client certificate for etcd.")
    etcd_keyfile: str = file_setting("Key of the client certificate for etcd.")
    etcd_username: str = setting(TEXT, default="", meaning="User of etcd's own authentication.", metavar="NAME")
    etcd_password_file: str = file_setting("File with the password of the user of etcd.")

    def __post_init__(self) -> None:
        if self.etcd_servers and self.storage:
            raise ConfigError("etcd-servers: give --etcd-servers or --storage, not both")
        if bool(self.etcd_certfile) != bool(self.etcd_keyfile):
            raise ConfigError("etcd-certfile: a client certificate needs both --etcd-certfile and --etcd-keyfile")
        if bool(self.etcd_username) != bool(self.etcd_password_file):
            raise ConfigError("etcd-username: a user needs both --etcd-username and --etcd-password-file")

    @property
    def storage_url(self) -> str:
        """URL of the store of objects."""
        if self.etcd_servers:
            return f"{ETCD}:{','.join(self.etcd_servers)}"
        return self.storage or f"{SQLITE}:{self.data_dir}/mooring.db"

    @property
    def in_memory(self) -> bool:
        """Objects are lost when the process ends."""
        return self.storage_url.startswith("memory:")

    @property
    def is_in_data_dir(self) -> bool:
        """The store is a file in the data directory, beside the keys."""
        return self.storage_url.startswith(f"sqlite:{self.data_dir}/")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings(Settings):
    """File of the keys that encrypt stored objects."""

    heading: ClassVar[str] = "Encryption at rest"

    encryption_provider_config: str = file_setting(
        "EncryptionConfiguration (apiserver.config.k8s.io/v1): resources that are encrypted in the store, and keys.",
        default_note="objects are stored unencrypted",
    )
    encryption_provider_config_automatic_reload: bool = setting(
        BOOLEAN,
        default=False,
        meaning="Use --encryption-provider-config again when it changes.",
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for a reload of no file, as kube-apiserver does."""
        if self.encryption_provider_config_automatic_reload and not self.encryption_provider_config:
            raise ConfigError(
                "encryption-provider-config-automatic-reload: it needs encryption-provider-config, the file to reload"
            )
