"""Credentials of a kubeconfig user: certificate, bearer token, password, impersonation, or what an exec plugin prints."""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mooring.apimachinery.schema import Obj
from mooring.client.files import read_limited
from mooring.clock import parse_rfc3339
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.bootstraptoken.token import unfilled_placeholder
from mooring.trust.kubeconfig import Cluster, ExecPlugin, KubeconfigUser

# Exec credential plugin: run the command of a kubeconfig user that prints a token or a certificate.
#
# Rules kept here (KEP-541, client.authentication.k8s.io/v1 and v1beta1):
# * The command gets `KUBERNETES_EXEC_INFO`, with the cluster only when `provideClusterInfo` is true. Its stderr is the user's
#   terminal. Its stdout is a credential and appears in no message.
# * `interactiveMode: Always` needs a terminal. `IfAvailable` gets one when there is one. `Never` gets none.
# * A relative command with a slash is relative to the kubeconfig's directory; it was resolved before. One without a slash is looked
#   up in the PATH of this process, not in that of the plugin. A program that is found in the current directory, through a relative
#   entry of PATH, is not run (Go's `exec.ErrDot`).
# * The output must be an ExecCredential of the same apiVersion with a token, or a certificate and its key, or both. An empty kind
#   is ExecCredential, and null is an absent field, as in client-go.

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
MAX_OUTPUT = 1 << 20
"""Bytes of output: a certificate chain and a token take a few KiB."""
TIMEOUT = 300.0
"""Seconds: a person may have to log in with a browser."""
TOKEN_TIMEOUT = 30.0
"""Seconds for a command that prints a token, where no person takes part."""
GRACE = 1.0
"""Seconds after the end of a command for output that it left in the pipe, which a program in the background may keep open."""


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """Credential that a plugin printed. `expires` None means until the server refuses it."""

    token: Secret | None = None
    certificate_pem: bytes = b""
    key: Secret | None = None
    expires: datetime | None = None


async def run(plugin: ExecPlugin, cluster: Cluster) -> ExecCredential:
    """Run the plugin once. Raises ConfigError that names the command."""
    if plugin.api_version not in API_VERSIONS and not plugin.prints_token:
        raise ConfigError(
            f'exec plugin "{plugin.command}": apiVersion {plugin.api_version} is not supported, '
            f"use one of {', '.join(API_VERSIONS)}"
        )
    interactive = _use_terminal(plugin)
    environment = os.environ | {name: value.reveal().decode() for name, value in plugin.env}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(_exec_info(plugin, cluster, interactive))
    # A pipe of our own: asyncio waits for the end of one that it made, which a program in the background may keep open.
    reading, writing = os.pipe()
    process: asyncio.subprocess.Process | None = None
    try:
        process = await asyncio.create_subprocess_exec(
            _program(plugin.command),
            *plugin.args,
            env=environment,
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=writing,
            # So that what it has started can be ended with it. With a terminal it stays among the programs of that one.
            start_new_session=not interactive,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"{_named(plugin)} cannot be run: {reason}{hint}") from None
    except ValueError:
        raise ConfigError(
            f"{_named(plugin)} cannot be run: its command, an argument or a variable has a NUL, or the name of a variable has "
            '"="'
        ) from None
    finally:
        os.close(writing)
        if process is None:
            os.close(reading)
    limit = TOKEN_TIMEOUT if plugin.prints_token else TIMEOUT
    try:
        async with asyncio.timeout(limit):
            status, output = await _finished(process, reading, _named(plugin))
    except TimeoutError:
        raise ConfigError(f"{_named(plugin)} gave no credential within {limit:g} s") from None
    finally:
        if process.returncode is None:
            # Also after a cancellation: a plugin that waits for a person would stay.
            if interactive:
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if status < 0:
        raise ConfigError(f"{_named(plugin)} was ended by signal {-status}")
    if status != 0:
        raise ConfigError(f"{_named(plugin)} failed with exit status {status}; run it by hand to see why")
    return _parse_credential(plugin, output)


def _named(plugin: ExecPlugin) -> str:
    """Return the name of a plugin in messages. A line for a shell may hold more than a name, and is not repeated."""
    return "the command of --identity-token-command" if plugin.prints_token else f'exec plugin "{plugin.command}"'


def _program(command: str) -> str:
    """Return the path of the program. Raises FileNotFoundError, ConfigError."""
    if "/" in command:
        return command
    found = shutil.which(command)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program in PATH")
    # As Go's `exec.ErrDot`: in a directory of another user the name could be that of another program.
    if not Path(found).is_absolute():
        raise ConfigError(
            f'exec plugin "{command}" is found through a relative entry of PATH, which counts from the current directory, and '
            "is not run from there: give its path"
        )
    return found


async def _finished(process: asyncio.subprocess.Process, reading: int, name: str) -> tuple[int, bytes]:
    """Return the status of a command and its output. Raises ConfigError for too much of it."""
    loop, reader, output = asyncio.get_running_loop(), asyncio.StreamReader(), bytearray()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
    )

    async def read() -> None:
        while chunk := await reader.read(65536):
            output.extend(chunk)
            if len(output) > MAX_OUTPUT:
                raise ConfigError(f"{name} printed more than {MAX_OUTPUT} bytes")

    reads, waits = asyncio.ensure_future(read()), asyncio.ensure_future(process.wait())
    try:
        await asyncio.wait((reads, waits), return_when=asyncio.FIRST_COMPLETED)
        if reads.done():
            reads.result()
        status = await waits
        await asyncio.wait((reads,), timeout=GRACE)
        if reads.done():
            reads.result()
        return status, bytes(output)
    finally:
        reads.cancel()
        waits.cancel()
        transport.close()


def _use_terminal(plugin: ExecPlugin) -> bool:
    terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not terminal:
        raise ConfigError(f'exec plugin "{plugin.command}" needs a terminal, and there is none')
    return terminal and plugin.interactive_mode != "Never"


def _exec_info(plugin: ExecPlugin, cluster: Cluster, interactive: bool) -> Obj:
    spec: Obj = {"interactive": interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = {
            key: value
            for key, value in {
                "server": cluster.server,
                "certificate-authority-data": base64.b64encode(cluster.ca_pem).decode(),
                "tls-server-name": cluster.tls_server_name,
                "insecure-skip-tls-verify": cluster.insecure_skip_tls_verify,
                "proxy-url": cluster.proxy_url,
            }.items()
            if value
        }
    return {"kind": "ExecCredential", "apiVersion": plugin.api_version, "spec": spec}


def _parse_credential(plugin: ExecPlugin, output: bytes) -> ExecCredential:
    name = _named(plugin)
    if plugin.prints_token:
        if not output.strip():
            # Without one the request would be anonymous.
            raise ConfigError(f"{name} printed no token")
        return ExecCredential(Secret(output.strip()))
    try:
        printed: Any = json.loads(output)
    except (ValueError, RecursionError):
        raise ConfigError(f"{name} did not print JSON") from None
    if not isinstance(printed, dict) or printed.get("kind") not in (None, "", "ExecCredential"):
        raise ConfigError(f"{name} did not print an ExecCredential")
    if printed.get("apiVersion") != plugin.api_version:
        raise ConfigError(f"{name} printed another apiVersion than {plugin.api_version}")
    status = printed.get("status")
    fields = status if isinstance(status, dict) else {}
    texts = [fields.get(key) for key in ("token", "clientCertificateData", "clientKeyData", "expirationTimestamp")]
    token, certificate, key, expires = (text if isinstance(text, str) else "" for text in texts)
    if bool(certificate) != bool(key) or not (token or certificate):
        raise ConfigError(f"{name} printed neither a token nor a certificate with its key")
    try:
        moment = parse_rfc3339(expires) if expires else None
    except ValueError:
        raise ConfigError(f"{name} printed an expirationTimestamp that is not an RFC 3339 time") from None
    return ExecCredential(Secret(token) if token else None, certificate.encode(), Secret(key) if key else None, moment)


# Credentials of a kubeconfig user: certificate, bearer token, password and impersonation, as a client presents them.
#
# Rules kept here (client-go `transport`, `clientcmd`):
# * `tokenFile` is read again every minute.
# * An exec plugin runs when its credential is missing or expired, and again when the server answered 401.
# * Files are read again after a 401: a rotated certificate works without a restart.
# * `auth-provider` is refused by name: no client runs it since Kubernetes 1.26.
# * A token of several words or lines, from a wrong file for example, is refused before anything is sent, and so is a placeholder.
#   No message repeats it.

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
        self._exec: ExecCredential | None = None
        self._impersonation = _impersonation(user)

    async def present(self) -> Presented:
        """Return the present credentials. Raises ConfigError when a file or plugin fails."""
        user = self._user
        presented = Presented(impersonation=self._impersonation)
        if user.certificate_pem or user.certificate_file:
            certificate, key = self._certificate_and_key()
            presented = replace(presented, certificate_pem=certificate, key=key)
        # `tokenFile` before `token`, as in client-go.
        if user.token_file:
            return replace(presented, authorization=_bearer(self._token_of_file(), user.token_file))
        if user.token:
            return replace(presented, authorization=_bearer(user.token, "the value given as token"))
        if user.exec is not None:
            result = await self._exec_credential()
            if result.key is not None:
                presented = replace(presented, certificate_pem=result.certificate_pem, key=result.key)
            return replace(presented, authorization=_bearer(result.token, _named(user.exec)) if result.token else None)
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
            # While the file cannot be read, as during its replacement, the last token goes on.
            if self._file_token is None:
                raise
            return self._file_token[0]
        self._file_token = (Secret(token), now)
        return self._file_token[0]

    async def _exec_credential(self) -> ExecCredential:
        assert self._user.exec is not None  # the caller checked
        cached = self._exec
        if cached is None or (cached.expires is not None and cached.expires <= self._now()):
            cached = self._exec = await run(self._user.exec, self._cluster)
        return cached


def _bearer(token: Secret, source: str) -> Secret:
    if problem := unfilled_placeholder(token.reveal().decode("ascii", "replace")):
        raise ConfigError(f"{source} does not hold a token: {problem}")
    # Before anything is sent: a wrong file, such as a private key, must not leave this machine.
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
