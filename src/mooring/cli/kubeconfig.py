"""Kubeconfig files: `mooring kubeconfig user` with a new client certificate, `mooring kubeconfig discovery` with a bootstrap token.

Rules kept here:
* The key is generated here and leaves this machine only in the kubeconfig. The certificate is requested and approved through the
  API (signer kubernetes.io/kube-apiserver-client) with the administrator's rights, so that every rule of the cluster applies.
* The certificate is checked before it is written: same key, user and groups, valid now. The file has mode 0600 and an existing
  one is never overwritten.
* A discovery document is the kubeconfig of cluster-info, which the administrator's connection has verified, with the token as its
  user. Where none is published, it names the administrator's cluster.
"""

from __future__ import annotations

import base64
import os
import re
import secrets
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import click

from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, changing_options, cluster_options
from mooring.cli.csr.decision import CsrDecision, decide
from mooring.cli.csr.show import PLURAL
from mooring.cli.options.flags import DURATION, TOKEN, not_empty, usage
from mooring.cli.printing import echo
from mooring.cli.token.list import allowance
from mooring.cli.valuecompletion import complete_token
from mooring.client.cluster import ClusterClient
from mooring.client.files import check_writable, read_limited, write_atomic
from mooring.clock import Clock
from mooring.duration import format_duration
from mooring.errors import ConfigError, ForbiddenError, NotFoundError, PeerError
from mooring.pki.keys import ALGORITHMS, DEFAULT_ALGORITHM, generate_key, private_key_pem
from mooring.pki.x509 import bundles
from mooring.pki.x509.authority import check_matches_request
from mooring.pki.x509.profiles import CLIENT_AUTH, DIGITAL_SIGNATURE
from mooring.pki.x509.requests import build_request, parse_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT
from mooring.secret import Secret
from mooring.settings.declaration import split_commas
from mooring.trust.bootstraptoken.token import USAGE_AUTHENTICATION, TokenError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, TokenRecord, from_secret, secret_name
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.clusterinfo import KUBECONFIG_KEY
from mooring.trust.k3s.token import bootstrap_token_id, parse_token
from mooring.trust.kubeconfig import (
    CLUSTER_NAME,
    Kubeconfig,
    KubeconfigError,
    KubeconfigUser,
    Selected,
    discovery_cluster,
    flatten_cluster,
    user_kubeconfig,
)
from mooring.trust.kubeconfigtext import format_kubeconfig, parse_kubeconfig

MIN_EXPIRATION = timedelta(minutes=10)
"""Shortest lifetime that signers grant (docs/protocol/certificate-signing-requests.md#validation)."""
POLL_SECONDS = 0.2
"""Interval of reads until the certificate is issued. A signer needs a tenth of it."""
_NOT_NAME = re.compile(r"[^a-z0-9-]+")


out_option = click.option(
    "--out",
    default="",
    callback=not_empty,
    metavar="FILE",
    help="File to write, readable by you alone; - is standard output. [default: -]",
)


@click.command("user")
@click.argument("name")
@click.option(
    "--group", "groups", multiple=True, metavar="GROUP,...", help="A group of the user; repeatable, or with commas."
)
@click.option(
    "--expiration",
    type=DURATION,
    default=None,
    help="Lifetime of the certificate, at least 10m. [default: as the signer decides]",
)
@click.option(
    "--key-algorithm",
    type=click.Choice(tuple(ALGORITHMS)),
    default=DEFAULT_ALGORITHM,
    show_default=True,
    help="Algorithm of the key.",
)
@click.option("--cluster-name", default="kubernetes", show_default=True, help="Name of the cluster in the kubeconfig.")
@out_option
@changing_options
def user(
    name: str,
    groups: Sequence[str],
    expiration: timedelta | None,
    key_algorithm: str,
    cluster_name: str,
    out: str,
    chosen: ChosenCluster,
) -> None:
    """Issue a client certificate for the user NAME, and print a complete kubeconfig.

    RBAC decides what the user may do: bind roles to NAME or to its groups.
    """
    if not name.strip():
        raise click.UsageError("NAME must not be empty")
    if expiration is not None and expiration < MIN_EXPIRATION:
        raise click.UsageError(f"--expiration must be at least {format_duration(MIN_EXPIRATION)}")
    out = _new_file(out)
    clock = chosen.clock
    key = generate_key(key_algorithm)
    request_pem = build_request(key, name, split_commas(groups))
    wanted = build_signing_request(name, request_pem, expiration)
    if out:
        # Before the certificate is issued, whose key would be lost.
        check_writable(Path(out))
    certificate_pem = chosen.run(lambda client: request_certificate(client, wanted, clock, chosen.timeout))
    leaf = bundles.certificates(certificate_pem)[0]
    # Before the file is written: another signer may have answered the request.
    check_matches_request(leaf, parse_request(request_pem), clock.now())
    found = KubeconfigUser(name, certificate_pem=certificate_pem, key=Secret(private_key_pem(key)))
    written = _kubeconfig(chosen.selected, found, cluster_name)
    _write(written, out, f"user {name}, valid until {leaf.not_valid_after_utc:%Y-%m-%dT%H:%M:%SZ}")


def _new_file(out: str) -> str:
    """Return the file to write, "" for standard output. Raises ConfigError for one that exists."""
    if out and out != "-" and os.path.lexists(out):
        raise ConfigError(f"{out} exists already; remove it, or choose another name")
    return "" if out == "-" else out


def _write(config: Kubeconfig, out: str, content: str) -> None:
    """Write a kubeconfig to a file, and say what is in it, or to standard output. Raises ConfigError."""
    text = format_kubeconfig(config)
    if out:
        write_atomic(Path(out), text.encode())
        echo(f"Wrote {out}: {content}", err=True)
    else:
        echo(*text.rstrip("\n").split("\n"))


TOKEN_USER = "tls-bootstrap-token-user"  # noqa: S105 - a user name, no secret
"""Name of the user, as kubeadm writes it."""


@click.command("discovery")
@click.argument("token", type=TOKEN, shell_complete=complete_token)
@out_option
@cluster_options
def discovery(token: str, out: str, chosen: ChosenCluster) -> None:
    """Print a discovery document that carries a bootstrap token, given as its id or as a whole.

    A machine joins by it where the server accepts no anonymous requests: mooring join --discovery-file FILE
    --allow-discovery-credentials, or kubeadm join --discovery-file FILE. Keep it as secret as the token.
    """
    with usage():
        token_id = bootstrap_token_id(token)
        given = None if token == token_id else parse_token(token).bootstrap
    out = _new_file(out)
    record = chosen.run_with_retries(lambda client: _usable_token(client, token_id, chosen.clock.now()))
    if given is not None and not record.token.secret.matches(given.secret):
        raise ConfigError(f'the bootstrap token "{token_id}" has another secret than the one given; give its id alone')
    found = KubeconfigUser(TOKEN_USER, token=Secret(record.token.reveal()))
    config = _kubeconfig(chosen.selected, found, CLUSTER_NAME)
    if published := chosen.run_with_retries(_published):
        first = discovery_cluster(published)
        others = (one for one in published.clusters if one != first)
        config = replace(config, clusters=(replace(first, name=CLUSTER_NAME), *others))
    _write(config, out, f"a discovery document with token {token_id}")
    echo(allowance(record, chosen.clock.now()), err=True)


async def _usable_token(client: ClusterClient, token_id: str, now: datetime) -> TokenRecord:
    """Return a token that lets machines in. Raises ConfigError for another."""
    try:
        record = from_secret(await client.get("secrets", secret_name(token_id), NAMESPACE))
    except NotFoundError:
        raise ConfigError(f'there is no bootstrap token "{token_id}"; see mooring token list') from None
    except TokenError as error:
        raise ConfigError(str(error)) from None
    if USAGE_AUTHENTICATION not in record.usages or (record.expires is not None and record.expires <= now):
        raise ConfigError(f"the bootstrap token lets no machine in: {allowance(record, now)}")
    return record


async def _published(client: ClusterClient) -> Kubeconfig | None:
    """Return the kubeconfig of cluster-info; None where none is published."""
    try:
        info = await client.get("configmaps", clusterinfo.NAME, clusterinfo.NAMESPACE)
        text: str = (info.get("data") or {}).get(KUBECONFIG_KEY, "")
        config = parse_kubeconfig(text)
        discovery_cluster(config)
        return config
    except (NotFoundError, ForbiddenError, KubeconfigError):
        return None


def build_signing_request(name: str, request_pem: bytes, expiration: timedelta | None) -> Obj:
    label = _NOT_NAME.sub("-", name.lower()).strip("-")[:40] or "user"
    spec: Obj = {
        "request": base64.b64encode(request_pem).decode(),
        "signerName": KUBE_APISERVER_CLIENT,
        "usages": [CLIENT_AUTH, DIGITAL_SIGNATURE],
    }
    if expiration is not None:
        spec["expirationSeconds"] = int(expiration.total_seconds())
    return {
        "kind": "CertificateSigningRequest",
        "apiVersion": "certificates.k8s.io/v1",
        "metadata": {"name": f"mooring-user-{label}-{secrets.token_hex(4)}"},
        "spec": spec,
    }


async def request_certificate(client: ClusterClient, wanted: Obj, clock: Clock, limit: timedelta) -> bytes:
    """Create a request, approve it and wait for the certificate, which is returned. Raises ApiError, PeerError, ConfigError."""
    created = await cluster.retry(lambda: client.create(PLURAL, wanted), clock, limit)
    name = created["metadata"]["name"]
    uid = created["metadata"].get("uid", "")
    # By its uid: only the request that was just created is approved.
    decision = CsrDecision(condition="Approved", message="Approved by mooring kubeconfig user.", uid=uid)
    await cluster.retry(lambda: decide(client, name, decision, clock), clock, limit)
    deadline = clock.monotonic() + limit.total_seconds()
    while True:
        request = await cluster.retry(lambda: client.get(PLURAL, name), clock, limit)
        status = request.get("status") or {}
        for condition in status.get("conditions") or ():
            if condition.get("type") in ("Denied", "Failed"):
                reason = ": ".join(part for part in (condition.get("reason"), condition.get("message")) if part)
                raise PeerError(
                    f"the request {name} was not granted: {condition['type']} ({reason or 'no reason given'})"
                )
        if status.get("certificate"):
            return base64_field(status["certificate"])
        if clock.monotonic() >= deadline:
            raise PeerError(
                f"the request {name} was approved, but no certificate was issued within {format_duration(limit)}; "
                "see whether the cluster's controllers run, then try again"
            )
        await clock.sleep(POLL_SECONDS)


def _kubeconfig(chosen: Selected, found: KubeconfigUser, cluster_name: str) -> Kubeconfig:
    """Return a kubeconfig for the administrator's cluster and the new user, without the administrator's credentials."""
    flat = flatten_cluster(chosen.cluster, lambda path: read_limited(Path(path)))
    made = user_kubeconfig(flat.server, flat.ca_pem, found, cluster_name)
    return replace(made, clusters=(replace(flat, name=cluster_name, extensions=()), *chosen.others))
