"""`mooring certs revoke`: put an entry on the denylist of client certificates.

Rules kept here:
* The name of an entry follows from what it revokes, so the command may be repeated: the entry of a serial number or key that
  exists stays as it is. For a node the moment moves to now, so that certificates which were issued since are revoked, too.
* The end of the entry is that of the certificate where it is known, else the end of the last CA that verifies clients. The entry of
  a key has no end, because another certificate could be issued for it.
* A CA of the cluster is refused, whether it verifies clients, proxies or servers: the denylist does not concern it, since CAs are
  replaced. An intermediate CA may be revoked.
* The caller's own certificate is refused without `--force`: the next command would get 401.
* What no object knows is refused without `--force`: an error of typing would look like a success. A certificate in a file is proof
  enough. With `--force` the command warns. Objects that the user may not read are named, because they may know it.
* After a node was revoked, the command waits until the moment of the revocation has passed: times in certificates have whole
  seconds. A certificate that is issued after the command has returned is not revoked.
* Another API server stores entries where `mooring controllers` has installed their kind, and goes on accepting the certificates.
  The command says so and refuses; with `--force` it writes the entry, and calls it recorded. Such a server sets no moment either:
  the command gives it, by the server's clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from difflib import get_close_matches
from pathlib import Path

import click

from mooring.api.certificates.requeststate import REQUESTS, requested_node
from mooring.api.mooring import lineagerecord, nodeidentity
from mooring.api.mooring.certificaterevocation import KIND, REASONS, UNSPECIFIED, entry_name, known_serial_numbers
from mooring.api.mooring.membership import NODES
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.codec.json import deep_copy
from mooring.apimachinery.schema import Obj
from mooring.authn.clientcas import NAME as CLIENT_CAS
from mooring.authn.clientcas import NAMESPACE as CLIENT_CAS_NAMESPACE
from mooring.cli import cluster, printing, serverreport
from mooring.cli.certs import inventory
from mooring.cli.certs.ending import of_server
from mooring.cli.certs.inventory import PLURAL, PUBLISHED_CLIENT_CAS, QUALIFIED, parse_serial_number, published_cas
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.options.flags import NODE, SHOWN, output_option, usage
from mooring.cli.printing import echo
from mooring.cli.valuecompletion import complete_node
from mooring.client.cluster import ClusterClient
from mooring.client.files import read_limited
from mooring.client.http.credentials import ClientCredentials
from mooring.clock import Clock, rfc3339
from mooring.errors import AlreadyExistsError, ApiError, ConfigError, ConflictError, NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.pki.keys import accepted_public_key, public_key_fingerprint
from mooring.pki.x509 import names
from mooring.pki.x509.bundles import certificates, certificates_among, key_identities
from mooring.pki.x509.certificate import Certificate
from mooring.trust.kubeconfig import Selected

_KEY = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_END_ACCESS = "To end access there, remove the rights of the user, or replace the CA."
_SECOND = 1.0
_CLUSTER_CAS = (
    PUBLISHED_CLIENT_CAS,
    (CLIENT_CAS, CLIENT_CAS_NAMESPACE, "requestheader-client-ca-file"),
    ("kube-root-ca.crt", "kube-system", "ca.crt"),
)
"""Names, namespaces and keys of the ConfigMaps that publish the CAs of clients, proxies and servers."""
_NOUNS = {
    "nodeName": "machine",
    "serialNumber": "certificate with the serial number",
    "publicKey": "certificate with the key",
}
"""Subjects of revocations in messages, by their fields."""
_NEAR = 0.75
"""Likeness of a name from which it may be an error of typing; w-2 and w-21 have 0.86."""
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


@dataclass(frozen=True, slots=True)
class Written:
    """An entry as it is stored, and what was done: `revoked`, `recorded` or `unchanged`."""

    entry: Obj
    done: str
    warning: str = ""
    """Promise that the server does not enforce; "" for a Mooring server."""
    unknown: str = ""
    """Sentence that the cluster does not know what is revoked."""


@click.command("revoke")
@click.option("--serial", default="", metavar="HEX", help="Revoke the certificate with this serial number.")
@click.option("--key", default="", metavar="sha256:HEX", help="Revoke every certificate of this public key.")
@click.option(
    "--node",
    type=NODE,
    default="",
    metavar="NAME",
    help="Revoke every certificate of this node that was issued until now.",
    shell_complete=complete_node,
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
@click.option(
    "--force",
    is_flag=True,
    help="Revoke even the certificate that this command uses, or what the cluster does not know; record an entry on a server that "
    "does not read it.",
)
@click.option("--dry-run", is_flag=True, help="Let the server check the entry without storing it.")
@output_option(*SHOWN)
@ending_options
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
    chosen: ChosenCluster,
) -> None:
    """Revoke client certificates: every Mooring server of the cluster refuses them within a second, on open connections too.

    Another Kubernetes API server does not read the entry, and accepts the certificates until they expire. The command refuses
    there; with --force it records the entry for mooring controllers.

    Exactly one of --serial, --key, --node and --certificate says which. To take a revocation back, delete its entry with kubectl
    delete certificaterevocation.
    """
    with usage():
        subject = _subject(serial, key, node, certificate)
    leaf = read_certificate(certificate) if certificate else None
    if leaf is not None:
        subject = {"serialNumber": f"{leaf.serial_number:x}"}
    revocation = Revocation(
        subject=subject,
        reason=reason,
        message=message,
        expires=leaf.not_valid_after_utc if leaf is not None else None,
        dry_run=dry_run,
    )

    async def work(client: ClusterClient) -> Written:
        # Also with --force: the entry would change nothing, or take the access of all.
        await _refuse_ca(client, subject)
        if not force:
            await refuse_unenforced(client)
            await refuse_own(chosen.selected, subject, chosen.clock)
        # The file itself shows that the certificate exists.
        problem = "" if leaf is not None else await unknown(client, subject)
        # Only now: it asks every server.
        if problem and await _is_of_server(chosen.selected, subject, chosen.clock):
            problem = ""
        if problem and not force:
            raise ConfigError(f"{problem}. See mooring certs list; to revoke it all the same, add --force")
        return replace(await write(client, revocation, chosen.clock), unknown=problem)

    _print(chosen.run_with_retries(work), output, dry_run=dry_run)


def _subject(serial: str, key: str, node: str, certificate: str) -> dict[str, str]:
    subjects = [flag for flag in (serial, key, node, certificate) if flag]
    if len(subjects) != 1:
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


def read_certificate(path: str) -> Certificate:
    """Return the first certificate of a file, which may contain its key, too. Raises ConfigError."""
    try:
        return certificates_among(read_limited(Path(path)))[0]
    except PkiError as error:
        raise ConfigError(f"{path}: {error}") from None


async def _refuse_ca(client: ClusterClient, subject: dict[str, str]) -> None:
    """Raise ConfigError when the entry names a CA of the cluster: it would change nothing, or take everybody's access."""
    for ca in [one for key in _CLUSTER_CAS for one in await published_cas(client, *key)]:
        if subject.get("serialNumber") == f"{ca.serial_number:x}" or subject.get("publicKey") in key_identities(ca):
            raise ConfigError(
                f"this is a CA of the cluster ({names.printable(ca.subject)}), and CAs are replaced, not revoked: use "
                "mooring ca rollover start --compromised, or remove it from client-ca-file"
            )


async def refuse_unenforced(client: ClusterClient) -> None:
    """Raise ConfigError when the server does not read the denylist."""
    if unenforced := await inventory.unenforced(client):
        raise ConfigError(
            f"{unenforced}. Nothing is revoked there. Only mooring controllers reads entries, for the requests that it approves "
            "and signs; add --force to record one for it"
        )


async def refuse_own(chosen: Selected, subject: dict[str, str], clock: Clock) -> None:
    """Raise ConfigError when the entry would revoke the certificate that this command presents."""
    presented = await ClientCredentials(chosen.user, chosen.cluster, clock.now).present()
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


async def unknown(client: ClusterClient, subject: dict[str, str]) -> str:
    """Return the sentence that no object knows what the entry would revoke; "" when one does."""
    ((field, value),) = subject.items()
    # One that waits is all that is known of a first join.
    requests = (REQUESTS,) if field == "nodeName" else ()
    unreadable: list[str] = []
    known: set[str] = set()
    # The longest list comes last, and is read only when the others do not know the name.
    for plural in (NODES, nodeidentity.PLURAL, PLURAL, *requests, lineagerecord.PLURAL):
        objects = await _readable(client, plural)
        if objects is None:
            unreadable.append(plural)
        known.update(one for obj in objects or () for one in _names_in(plural, obj, field))
        if value in known:
            return ""
    near = get_close_matches(value, known, n=3, cutoff=_NEAR)
    problem = f'the cluster knows no {_NOUNS[field]} "{value}"'
    if unreadable:
        problem += f", as far as you may read: {' and '.join(unreadable)} are not readable"
    if near:
        problem += f"; near are {', '.join(near)}"
    return problem


async def _is_of_server(selected: Selected, subject: dict[str, str], clock: Clock) -> bool:
    """Return true for the serial number of a client certificate that a server has, such as that of its admin.conf.

    Raises ConfigError for that of a serving certificate.
    """
    if "serialNumber" not in subject:
        return False
    for report in await serverreport.fetch(selected, clock):
        for one in of_server(report.report, clock.now()) if report.report is not None else ():
            if one.serial_number == subject["serialNumber"]:
                if not one.description.startswith("client certificate"):
                    raise ConfigError(
                        f"this is the {one.description} of {one.place}: the denylist is read for client certificates only; replace "
                        "it, and the CA if its key was stolen"
                    )
                return True
    return False


async def _readable(client: ClusterClient, plural: str) -> Sequence[Obj] | None:
    """Return the objects of a kind; None when they cannot be read, also because one of them is damaged."""
    try:
        return await inventory.readable_objects(client, plural)
    except ApiError as error:
        if cluster.is_transient(error):
            raise
        return None


def _names_in(plural: str, obj: Obj, field: str) -> Iterator[str]:
    """Yield the values of a field of a revocation's subject that an object knows."""
    name, spec = obj["metadata"]["name"], spec_of(obj)
    if plural == lineagerecord.PLURAL:
        for entry in lineagerecord.entries_of(obj):
            yield entry.get({"serialNumber": "serialNumber", "publicKey": "publicKey"}.get(field, "node"), "")
    elif plural == PLURAL:
        yield spec.get(field, "")
        if field == "serialNumber":
            yield from known_serial_numbers(spec)
    elif plural == REQUESTS:
        yield requested_node(obj)
    elif field == "nodeName":
        yield name
    elif plural == nodeidentity.PLURAL:
        for key in (*nodeidentity.keys_of(obj), *nodeidentity.companions_of(obj)):
            yield inventory.normalized(key.get(field, "")) if field == "serialNumber" else key.get(field, "")


async def write(client: ClusterClient, revocation: Revocation, clock: Clock) -> Written:
    """Write the entry. Raises ApiError, PeerError."""
    expires = revocation.expires or await _expiry(client, revocation.subject)
    warning = await inventory.unenforced(client)
    now = _moment(client, clock) if warning and "nodeName" in revocation.subject else ""
    obj = {
        "kind": KIND.resource.kind,
        "apiVersion": KIND.resource.api_version,
        "metadata": {"name": revocation.name},
        "spec": revocation.spec(expires) | ({"issuedBefore": now} if now else {}),
    }
    try:
        created = await client.create(PLURAL, obj, dry_run=revocation.dry_run)
        is_new = True
    except AlreadyExistsError:
        created, is_new = await _write_again(client, revocation, now)
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL) from None
    if "nodeName" in revocation.subject and not revocation.dry_run:
        await clock.sleep(_SECOND)
    done = ("recorded" if warning else "revoked") if is_new else "unchanged"
    return Written(created, done, warning)


def _moment(client: ClusterClient, clock: Clock) -> str:
    """Return the time of the server, in the next whole second; that of this machine when the server does not tell its time."""
    server, here = client.server_time or (clock.now(), clock.now())
    return rfc3339(server + (clock.now() - here) + timedelta(seconds=1))


async def _write_again(client: ClusterClient, revocation: Revocation, now: str) -> tuple[Obj, bool]:
    """Return the entry that exists, and whether it changed. That of a node revokes until now afterwards.

    `now` is "" for a server that sets the moment to its own time.
    """
    for left in reversed(range(MAX_CONFLICTS)):
        stored = await client.get(PLURAL, revocation.name)
        if "nodeName" not in revocation.subject:
            return stored, False
        changed = deep_copy(stored)
        changed["spec"] |= revocation.spec(None)
        changed["spec"].pop("issuedBefore", None)
        if now:
            changed["spec"]["issuedBefore"] = max(now, spec_of(stored).get("issuedBefore") or "")
        try:
            return await client.update(PLURAL, changed, dry_run=revocation.dry_run), True
        except ConflictError:
            if not left:
                raise
    raise AssertionError("unreachable: the last attempt returns or raises")


async def _expiry(client: ClusterClient, subject: dict[str, str]) -> datetime | None:
    """Return the moment after which no certificate that the entry revokes is valid; None when it is not known."""
    if "publicKey" in subject:
        return None
    # Without an end the entry stays until it is deleted.
    return max((ca.not_valid_after_utc for ca in await published_cas(client, *PUBLISHED_CLIENT_CAS)), default=None)


def _print(written: Written, form: str, *, dry_run: bool) -> None:
    entry, name = written.entry, written.entry["metadata"]["name"]
    if written.warning:
        echo(f"warning: {written.warning}.", err=True)
    if written.unknown:
        echo(f"warning: {written.unknown}.", err=True)
    if form in ("json", "yaml"):
        printing.print_document(entry, form)
    elif form == "name":
        echo(f"{QUALIFIED}/{name}")
    else:
        suffix = " (server dry run)" if dry_run else ""
        echo(f"{QUALIFIED}/{name} {written.done}{suffix}")
        for hint in _hints_elsewhere(spec_of(entry)) if written.warning else _hints(spec_of(entry), written.done):
            echo(hint, err=True)


def _hints_elsewhere(spec: Obj) -> Sequence[str]:
    """Return what an entry means on a server that does not read it."""
    read = "Only mooring controllers reads the entry, and approves and signs no request that it concerns"
    if node := spec.get("nodeName"):
        return (
            f"{read}: those of node {node} from before {spec.get('issuedBefore')}.",
            "To end the access of the machine there, replace the CA. It may create a deleted Node again.",
        )
    if "publicKey" in spec:
        return (f"{read}: those with this key.", _END_ACCESS)
    return (
        "mooring controllers denies requests by key and by node, so that this entry has no effect there.",
        _END_ACCESS,
    )


def _hints(spec: Obj, done: str) -> Sequence[str]:
    if done == "unchanged":
        return (f"It was revoked before, with the reason {spec.get('reason')}.",)
    if node := spec.get("nodeName"):
        return (
            f"Certificates of node {node} that were issued before {spec.get('issuedBefore')} are refused.",
            f"To let the machine return, delete its Node (kubectl delete node {node}) and join it again.",
        )
    return ()
