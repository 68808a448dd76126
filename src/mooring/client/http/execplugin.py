"""Exec credential plugin: run the command of a kubeconfig user that prints a token or a certificate.

Rules kept here (KEP-541, client.authentication.k8s.io/v1 and v1beta1):
* The command gets `KUBERNETES_EXEC_INFO`, with the cluster only when `provideClusterInfo` is true. Its stderr is the user's
  terminal. Its stdout is a credential and appears in no message.
* `interactiveMode: Always` needs a terminal. `IfAvailable` gets one when there is one. `Never` gets none.
* A relative command with a slash is relative to the kubeconfig's directory; it was resolved before. One without a slash is looked
  up in the PATH of this process, not in that of the plugin. A program that is found in the current directory, through a relative
  entry of PATH, is not run (Go's `exec.ErrDot`).
* The output must be an ExecCredential of the same apiVersion with a token, or a certificate and its key, or both. An empty kind is
  ExecCredential, and null is an absent field, as in client-go.
"""

from __future__ import annotations

import asyncio
import base64
import errno
import json
import os
import shutil
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mooring.apimachinery.schema import Obj
from mooring.clock import parse_rfc3339
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.trust.kubeconfig.model import Cluster, ExecPlugin

API_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
MAX_OUTPUT = 1 << 20
"""Bytes of output: a certificate chain and a token take a few KiB."""
TIMEOUT = 300.0
"""Seconds: a person may have to log in with a browser."""


@dataclass(frozen=True, slots=True)
class ExecCredential:
    """Credential that a plugin printed. `expires` None means until the server refuses it."""

    token: Secret | None = None
    certificate_pem: bytes = b""
    key: Secret | None = None
    expires: datetime | None = None


async def run(plugin: ExecPlugin, cluster: Cluster) -> ExecCredential:
    """Run the plugin once. Raises ConfigError that names the command."""
    if plugin.api_version not in API_VERSIONS:
        raise ConfigError(
            f'exec plugin "{plugin.command}": apiVersion {plugin.api_version} is not supported, '
            f"use one of {', '.join(API_VERSIONS)}"
        )
    interactive = _use_terminal(plugin)
    environment = os.environ | {name: value.reveal().decode() for name, value in plugin.env}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(_exec_info(plugin, cluster, interactive))
    try:
        process = await asyncio.create_subprocess_exec(
            _program(plugin.command),
            *plugin.args,
            env=environment,
            stdin=None if interactive else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            limit=MAX_OUTPUT,
        )
    except OSError as error:
        hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f'exec plugin "{plugin.command}" cannot be run: {reason}{hint}') from None
    except ValueError:
        raise ConfigError(
            f'exec plugin "{plugin.command}" cannot be run: its command, an argument or a variable has a NUL, or the name of a '
            'variable has "="'
        ) from None
    try:
        async with asyncio.timeout(TIMEOUT):
            output = await _read_output(process, plugin.command)
            status = await process.wait()
    except TimeoutError:
        raise ConfigError(f'exec plugin "{plugin.command}" gave no credential within {TIMEOUT:g} s') from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if status != 0:
        raise ConfigError(f'exec plugin "{plugin.command}" failed with exit status {status}; run it by hand to see why')
    return _parse_credential(plugin, output)


def _program(command: str) -> str:
    """Return the path of the program. Raises FileNotFoundError, ConfigError."""
    if "/" in command:
        return command
    found = shutil.which(command)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, "there is no such program in PATH")
    if not Path(found).is_absolute():
        raise ConfigError(
            f'exec plugin "{command}" is found through a relative entry of PATH, which counts from the current directory, and '
            "is not run from there: give its path"
        )
    return found


async def _read_output(process: asyncio.subprocess.Process, command: str) -> bytes:
    assert process.stdout is not None  # requested above
    output = b""
    while chunk := await process.stdout.read(65536):
        output += chunk
        if len(output) > MAX_OUTPUT:
            raise ConfigError(f'exec plugin "{command}" printed more than {MAX_OUTPUT} bytes')
    return output


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
    name = f'exec plugin "{plugin.command}"'
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
