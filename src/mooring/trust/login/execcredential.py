"""ExecCredential: the request and the response of an exec plugin of kubectl, for a login.

Rules kept here (KEP-541, client.authentication.k8s.io/v1 and v1beta1; docs/adr/0020): a credential is given out only for the
cluster that issued it. The server, the CA and the verification in the request must be those of the login, because a kubeconfig of
an attacker could name this login beside another server, and leave provideClusterInfo out. A request without a cluster is therefore
refused, unless the login itself allows it: the kubeconfig cannot.
"""

from __future__ import annotations

import base64
import binascii
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooring.clock import rfc3339
from mooring.trust.login.loginrecord import Credential, Login, LoginRecordError

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
    """Return the ExecCredential for kubectl. It reveals the credential."""
    status = {"expirationTimestamp": rfc3339(credential.expires)}
    if credential.token is not None:
        status["token"] = credential.token.reveal().decode()
    else:
        assert credential.key is not None  # a credential without a token has a certificate and a key
        status["clientCertificateData"] = credential.certificate_pem.decode("ascii")
        status["clientKeyData"] = credential.key.reveal().decode()
    return json.dumps({"kind": "ExecCredential", "apiVersion": api_version, "status": status}).encode()
