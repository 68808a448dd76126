"""`mooring certs revoke`: put an entry on the denylist of client certificates.

Rules kept here:
* The name of an entry follows from what it revokes, so the command may be repeated: the entry of a serial number or key that
  exists stays as it is. For a node the moment moves to now, so that certificates which were issued since are revoked, too.
* The end of the entry is that of the certificate where it is known, else the end of the last CA that verifies clients. The entry of
  a key has no end, because another certificate could be issued for it.
* The caller's own certificate is refused without `--force`: the next command would get 401.
* After a node was revoked, the command waits until the moment of the revocation has passed: times in certificates have whole
  seconds. A certificate that is issued after the command has returned is not revoked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click
from cryptography import x509

from mooring.api.meta.printcolumns import spec_of
from mooring.api.mooring.certificaterevocation import KIND, REASONS, UNSPECIFIED, entry_name
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authn.clientcas.bundles import NAME as CLIENT_CAS
from mooring.authn.clientcas.bundles import NAMESPACE as CLIENT_CAS_NAMESPACE
from mooring.cli import cluster
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import PLURAL, QUALIFIED, parse_serial_number
from mooring.cli.options.client import kubeconfig_option, output_option
from mooring.cli.options.flags import usage
from mooring.cli.printing import output
from mooring.cli.printing.output import echo
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.client.http.credentials import Credentials
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.errors import AlreadyExistsError, ApiError, ConfigError, ConflictError, NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.pem import certificates
from mooring.pki.x509 import names
from mooring.trust.kubeconfig.model import Selected

_KEY = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_SECOND = 1.0
MAX_CONFLICTS = 10
"""Attempts, as in kubectl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Revocation:
    """A revocation to write. `expires` is None when the end is not known yet, or there is none."""

    subject: dict[str, str]
    reason: str
    message: str
    expires: datetime | None = None
    dry_run: bool = False

    @property
    def name(self) -> str:
        return entry_name(self.subject)

    def spec(self, expires: datetime | None) -> Obj:
        """Return the spec of the entry."""
        spec: Obj = {**self.subject, "reason": self.reason}
        if self.message:
            spec["message"] = self.message
        if expires is not None:
            spec["expiresAt"] = rfc3339(expires)
        return spec


@click.command("revoke")
@click.option("--serial", default="", metavar="HEX", help="Revoke the certificate with this serial number.")
@click.option("--key", default="", metavar="sha256:HEX", help="Revoke every certificate of this public key.")
@click.option(
    "--node", default="", metavar="NAME", help="Revoke every certificate of this node that was issued until now."
)
@click.option("--certificate", default="", metavar="FILE", help="Revoke the first certificate of this PEM file.")
@click.option(
    "--reason",
    type=click.Choice(REASONS),
    default=UNSPECIFIED,
    show_default=True,
    help="Reason of RFC 5280.",
)
@click.option("--message", default="", help="The reason in one sentence, for other administrators.")
@click.option("--force", is_flag=True, help="Revoke even the certificate that this command uses.")
@click.option("--dry-run", is_flag=True, help="Let the server check the entry without storing it.")
@output_option("text", "name", "json", "yaml")
@kubeconfig_option
@cluster.timeout_option
def revoke(
    serial: str,
    key: str,
    node: str,
    certificate: str,
    reason: str,
    message: str,
    force: bool,
    dry_run: bool,
    output: str,
    kubeconfig: str,
    context_name: str,
    timeout: timedelta,
) -> None:
    """Revoke client certificates: every server of the cluster refuses them within a second, on open connections too.

    Exactly one of --serial, --key, --node and --certificate says which. To take a revocation back, delete its entry with kubectl
    delete certificaterevocation.
    """
    clock = SystemClock()
    with usage():
        subject = _subject(serial, key, node, certificate)
    leaf = _read_certificate(certificate) if certificate else None
    if leaf is not None:
        subject = {"serialNumber": f"{leaf.serial_number:x}"}
    revocation = Revocation(
        subject=subject,
        reason=reason,
        message=message,
        expires=leaf.not_valid_after_utc if leaf is not None else None,
        dry_run=dry_run,
    )
    chosen = cluster.selected(kubeconfig, context_name)

    async def work(client: ClusterClient) -> tuple[Obj, str]:
        if not force:
            await _refuse_own(chosen, subject, clock)
        return await cluster.retry(lambda: write(client, revocation, clock), clock, timeout)

    _print(*cluster.run(chosen, clock, work), output, dry_run=dry_run)


def _subject(serial: str, key: str, node: str, certificate: str) -> dict[str, str]:
    given = [flag for flag in (serial, key, node, certificate) if flag]
    if len(given) != 1:
        raise click.UsageError("give exactly one of --serial, --key, --node and --certificate")
    if serial:
        return {"serialNumber": parse_serial_number(serial)}
    if key:
        if not _KEY.fullmatch(key.lower()):
            raise click.UsageError(
                "--key must be sha256: and 64 hexadecimal digits, the SHA-256 of the public key, as mooring certs show FILE "
                "prints it"
            )
        return {"publicKey": key.lower()}
    return {"nodeName": node.removeprefix(NODE_PREFIX)}


def _read_certificate(path: str) -> x509.Certificate:
    try:
        return certificates(read_limited(Path(path)))[0]
    except PkiError as error:
        raise ConfigError(f"{path}: {error}") from None


async def _refuse_own(chosen: Selected, subject: dict[str, str], clock: Clock) -> None:
    """Raise ConfigError when the entry would revoke the certificate that this command presents."""
    presented = await Credentials(chosen.user, chosen.cluster, clock.now).present()
    if not presented.certificate_pem:
        return
    own = certificates(presented.certificate_pem)[0]
    mine = {
        "serialNumber": f"{own.serial_number:x}",
        "publicKey": f"sha256:{public_key_fingerprint(accepted_public_key(own.public_key()))}",
        "nodeName": names.common_name(own.subject).removeprefix(NODE_PREFIX),
    }
    if any(mine[field] == value for field, value in subject.items()):
        raise ConfigError(
            f'this is the certificate of user "{chosen.user.name}", with which this command talks to the server: it would get 401 '
            "from then on; use other credentials with --kubeconfig, or add --force"
        )


async def write(client: ClusterClient, revocation: Revocation, clock: Clock) -> tuple[Obj, str]:
    """Write the entry. Return it, and `revoked` or `unchanged`. Raises ApiError, PeerError."""
    expires = revocation.expires or await _expiry(client, revocation.subject)
    obj = {
        "kind": KIND.resource.kind,
        "apiVersion": KIND.resource.api_version,
        "metadata": {"name": revocation.name},
        "spec": revocation.spec(expires),
    }
    try:
        created = await client.create(PLURAL, obj, dry_run=revocation.dry_run)
        done = "revoked"
    except AlreadyExistsError:
        created, done = await _write_again(client, revocation)
    except NotFoundError:
        raise await inventory.not_served(client) from None
    if "nodeName" in revocation.subject and not revocation.dry_run:
        await clock.sleep(_SECOND)
    return created, done


async def _write_again(client: ClusterClient, revocation: Revocation) -> tuple[Obj, str]:
    """Return the entry that exists. That of a node revokes until now afterwards."""
    for left in reversed(range(MAX_CONFLICTS)):
        stored = await client.get(PLURAL, revocation.name)
        if "nodeName" not in revocation.subject:
            return stored, "unchanged"
        changed = deep_copy(stored)
        changed["spec"] |= revocation.spec(None)
        del changed["spec"]["issuedBefore"]  # the server sets it to its own time
        try:
            return await client.update(PLURAL, changed, dry_run=revocation.dry_run), "revoked"
        except ConflictError:
            if not left:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _expiry(client: ClusterClient, subject: dict[str, str]) -> datetime | None:
    """Return the moment after which no certificate that the entry revokes is valid; None when it is not known."""
    if "publicKey" in subject:
        return None
    try:
        published = await client.get("configmaps", CLIENT_CAS, CLIENT_CAS_NAMESPACE)
        cas = certificates(published["data"]["client-ca-file"].encode())
    except (ApiError, PkiError, KeyError):
        return None  # without an end the entry stays until it is deleted
    return max(ca.not_valid_after_utc for ca in cas)


def _print(entry: Obj, done: str, form: str, *, dry_run: bool) -> None:
    name = entry["metadata"]["name"]
    if form in ("json", "yaml"):
        output.print_document(entry, form)
    elif form == "name":
        echo(f"{QUALIFIED}/{name}")
    else:
        suffix = " (server dry run)" if dry_run else ""
        echo(f"{QUALIFIED}/{name} {done}{suffix}")
        for hint in _hints(spec_of(entry), done):
            echo(hint, err=True)


def _hints(spec: Obj, done: str) -> Sequence[str]:
    if done == "unchanged":
        return (f"It was revoked before, with the reason {spec.get('reason')}.",)
    if node := spec.get("nodeName"):
        return (
            f"Certificates of node {node} that were issued before {spec.get('issuedBefore')} are refused.",
            f"To let the machine return, delete its Node (kubectl delete node {node}) and join it again.",
        )
    return ()
