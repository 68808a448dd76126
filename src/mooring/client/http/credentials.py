"""Credentials of a kubeconfig user: certificate, bearer token, password and impersonation, as a client presents them.

Rules kept here (client-go `transport`, `clientcmd`):
* `tokenFile` wins over `token`, is read again every minute, and keeps its last good value while it cannot be read.
* An exec plugin runs when its credential is missing or expired, and again when the server answered 401.
* Files are read again after a 401: a rotated certificate works without a restart.
* `auth-provider` is refused by name: no client runs it since Kubernetes 1.26.
* A token of several words or lines, from a wrong file for example, is refused before anything is sent, and so is a placeholder. No
  message repeats it.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import quote

from mooring.client.files import read_limited
from mooring.client.http import execplugin
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import unfilled_placeholder
from mooring.trust.kubeconfig.model import Cluster, KubeconfigUser

TOKEN_FILE_PERIOD = timedelta(minutes=1)
"""Time between two reads of a token file, as in client-go."""
_TOKEN = re.compile(rb"[!-~]+")
"""One word of a header. RFC 6750 allows fewer characters."""


@dataclass(frozen=True, slots=True)
class Presented:
    """Client certificate of a connection, and headers of a request."""

    certificate_pem: bytes = b""
    key: Secret | None = None
    authorization: Secret | None = None
    impersonation: tuple[tuple[str, str], ...] = ()


class ClientCredentials:
    """Credentials of one user for one cluster, renewed when they expire."""

    def __init__(self, user: KubeconfigUser, cluster: Cluster, now: Callable[[], datetime]) -> None:
        if user.auth_provider is not None:
            raise ConfigError(
                f'user "{user.name}" uses auth-provider, which is no longer supported; use an exec plugin, a token or a certificate'
            )
        self._user = user
        self._cluster = cluster
        self._now = now
        self._certificate: tuple[bytes, Secret] | None = None
        self._file_token: tuple[Secret, datetime] | None = None
        self._exec: execplugin.ExecCredential | None = None
        self._impersonation = _impersonation(user)

    async def present(self) -> Presented:
        """Return the present credentials. Raises ConfigError when a file or plugin fails."""
        user = self._user
        presented = Presented(impersonation=self._impersonation)
        if user.certificate_pem or user.certificate_file:
            certificate, key = self._certificate_and_key()
            presented = replace(presented, certificate_pem=certificate, key=key)
        if user.token_file:
            return replace(presented, authorization=_bearer(self._token_of_file(), user.token_file))
        if user.token:
            return replace(presented, authorization=_bearer(user.token, "the value given as token"))
        if user.exec is not None:
            result = await self._exec_credential()
            if result.key is not None:
                presented = replace(presented, certificate_pem=result.certificate_pem, key=result.key)
            plugin = f"the plugin {user.exec.command}"
            return replace(presented, authorization=_bearer(result.token, plugin) if result.token else None)
        if user.username or user.password:
            pair = user.username.encode() + b":" + (user.password.reveal() if user.password else b"")
            return replace(presented, authorization=Secret(b"Basic " + base64.b64encode(pair)))
        return presented

    def forget(self) -> bool:
        """Forget cached credentials after a 401. Return True when a file or plugin can give new ones."""
        self._certificate = self._file_token = self._exec = None
        return bool(self._user.token_file or self._user.certificate_file or self._user.exec)

    def _certificate_and_key(self) -> tuple[bytes, Secret]:
        if self._certificate is None:
            user = self._user
            certificate = user.certificate_pem or read_limited(Path(user.certificate_file))
            key = user.key or (Secret(read_limited(Path(user.key_file))) if user.key_file else None)
            if key is None:
                raise ConfigError(f'user "{user.name}" has a client certificate without a key')
            self._certificate = (certificate, key)
        return self._certificate

    def _token_of_file(self) -> Secret:
        now = self._now()
        if self._file_token is not None and now - self._file_token[1] < TOKEN_FILE_PERIOD:
            return self._file_token[0]
        try:
            token = read_limited(Path(self._user.token_file)).strip()
        except ConfigError:
            if self._file_token is None:
                raise
            return self._file_token[0]
        self._file_token = (Secret(token), now)
        return self._file_token[0]

    async def _exec_credential(self) -> execplugin.ExecCredential:
        assert self._user.exec is not None  # the caller checked
        cached = self._exec
        if cached is None or (cached.expires is not None and cached.expires <= self._now()):
            cached = self._exec = await execplugin.run(self._user.exec, self._cluster)
        return cached


def _bearer(token: Secret, source: str) -> Secret:
    if problem := unfilled_placeholder(token.reveal().decode("ascii", "replace")):
        raise ConfigError(f"{source} does not hold a token: {problem}")
    if not _TOKEN.fullmatch(token.reveal()):
        raise ConfigError(f"{source} does not hold a token, which is one word without spaces; is it the right one?")
    return Secret(b"Bearer " + token.reveal())


def _impersonation(user: KubeconfigUser) -> tuple[tuple[str, str], ...]:
    """Return the headers of docs/protocol/impersonation.md. Keys of extra are percent-encoded, because header names allow less."""
    if not user.impersonate:
        return ()
    headers = [("Impersonate-User", user.impersonate)]
    if user.impersonate_uid:
        headers.append(("Impersonate-Uid", user.impersonate_uid))
    headers += [("Impersonate-Group", group) for group in user.impersonate_groups]
    headers += [
        (f"Impersonate-Extra-{quote(key, safe='')}", value)
        for key, values in user.impersonate_extra
        for value in values
    ]
    return tuple(headers)
