"""`mooring node split`: of two machines with one identity, keep one.

Rules kept here:
* The key that is kept, and those of its renewals, stay. Every other key of the identity goes on the denylist and out of the record,
  and so do the certificates that were requested with it. Its requests that wait are denied.
* The key with which both sides were requested is in both hands. It cannot be kept: the command says so, and changes nothing.
* The records are read again until no new key appears: the other machine may renew while the command runs.
* Each step may be repeated. The record comes last, so that a run that was interrupted is repeated as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import click

from mooring.api.certificates.requeststate import REQUESTS, presented_certificate, requested_node
from mooring.api.mooring.membership import with_spec
from mooring.api.mooring.nodeidentity import PLURAL, boots_of, companions_of, keys_of, status_of, uses_of
from mooring.api.mooring.uniqueness import is_duplicate, keys_below
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import ENDED, QUALIFIED, REJECTED, REVOKED
from mooring.cli.certs.revoke import Revocation, write
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.csr.decision import may_be_issued, refuse_waiting
from mooring.cli.node.revoke import MAX_PASSES, RevokedMachine, print_revoked
from mooring.cli.options.flags import NODE, SHOWN, output_option
from mooring.cli.valuecompletion import complete_node
from mooring.client.cluster import ClusterClient
from mooring.clock import rfc3339
from mooring.errors import ConfigError, ConflictError, ForbiddenError, NotFoundError
from mooring.identity import NODE_PREFIX
from mooring.trust.discovery.pins import PinError, parse_pin
from mooring.trust.issuancelog import CREDENTIAL
from mooring.trust.k3s.nodepassword import NAMESPACE as PASSWORD_NAMESPACE
from mooring.trust.k3s.nodepassword import secret_name

_REASON = "keyCompromise"
MOST_KEYS = 3
"""Keys that one machine has while it renews. More that descend from one key are those of another machine, too."""
MAX_CONFLICTS = 10
"""Changes of the record by the server while this command writes it."""


@click.command("split")
@click.argument("name", type=NODE, shell_complete=complete_node)
@click.option(
    "--keep",
    required=True,
    metavar="sha256:HEX",
    help="Key of the machine that stays a member, as mooring node show prints it, or the SHA-256 of its certificate.",
)
@click.option(
    "--remove-node-password",
    is_flag=True,
    help="Remove the node password of k3s's way, too: that of the other machine, or one that both know.",
)
@click.option("--message", default="", help="The reason in one sentence, for other administrators.")
@click.option("--dry-run", is_flag=True, help="Let the server check the entries, and change nothing.")
@output_option(*SHOWN)
@ending_options
def split(
    name: str,
    keep: str,
    remove_node_password: bool,
    message: str,
    dry_run: bool,
    output: str,
    chosen: ChosenCluster,
) -> None:
    """Keep one of two machines that use one identity, and revoke the certificates of the other.

    The command may be repeated, also after it was interrupted. The other machine may join again, as a new machine.
    """
    name = name.removeprefix(NODE_PREFIX)
    try:
        kept = str(parse_pin(keep))
    except PinError:
        raise click.UsageError(
            "--keep must be sha256: and 64 hexadecimal digits, as `mooring node show` prints them"
        ) from None
    done = RevokedMachine()

    async def work(client: ClusterClient) -> None:
        await _Splitting(client, name, kept, remove_node_password, message, dry_run, chosen, done).run()

    try:
        chosen.run(work)
    finally:
        # Also after an error: what was done so far is done.
        print_revoked(done, "NodeSplit", name, output, (), dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Splitting:
    client: ClusterClient
    name: str
    kept: str
    removes_password: bool
    message: str
    dry_run: bool
    chosen: ChosenCluster
    revoked_machine: RevokedMachine

    async def run(self) -> None:
        """Take every step. Raises ApiError, PeerError, ConfigError."""
        identity, entries = await self._read()
        if problem := await inventory.unenforced(self.client):
            raise ConfigError(f"{problem}; no machine is split there")
        key = _certificates(identity, entries).get(self.kept, self.kept)
        _check(identity, entries, key)
        await self._check_accepted(key)
        if self.removes_password and spec_of(identity).get("nodePasswordUID"):
            await self._remove_password()
            identity, entries = await self._read()
        if not _others(identity, entries, key):
            self.revoked_machine.done.append((f"nodeidentity.mooring.dev/{self.name}", "unchanged"))
            if {one["publicKey"] for one in keys_of(identity)} - {key}:
                self.revoked_machine.left.append(
                    f"The other keys of {self.name} were requested with the one that you keep, as renewals are. If one is of "
                    "another machine, the key that you keep is on both: when the right machine has renewed, keep its new key, or "
                    f"end both: mooring node revoke {self.name}"
                )
            elif len(keys_of(identity)) > 1:
                self.revoked_machine.left.append(
                    f"All certificates of {self.name} have the key that you keep, as agents of k3s keep theirs. If another machine "
                    f"has it, too, end both, and let the right one join again: mooring node revoke {self.name}"
                )
            return
        revoked: set[str] = set()
        for _ in range(MAX_PASSES):
            new = _others(identity, entries, key) - revoked
            if not new:
                break
            for other in sorted(new):
                await self._revoke(other)
            revoked |= new
            if self.dry_run:
                break
            await self._refuse_requests({one for one, of in _certificates(identity, entries).items() if of in revoked})
            # Read until nothing new appears: a renewal that was under way may end after the first reading.
            identity, entries = await self._read()
        else:
            raise ConfigError("new certificates appear as fast as they are revoked; run this again")
        if revoked - {one["publicKey"] for one in keys_of(identity)}:
            self.revoked_machine.left.append(
                "Certificates for serving, for kube-proxy and for k3s's controller ended with the keys by which they were "
                f"requested. Where {self.name} has such a one, remove the file there, and restart the agent or the kubelet: it "
                "requests another."
            )
        if not self.dry_run:
            await self._drop(revoked)
        if spec_of(identity).get("nodePasswordUID") and not self.removes_password:
            self.revoked_machine.left.append(
                f"{self.name} has a node password, which the other machine knows, and may have set: with a token it gets another "
                "certificate by it. Run this again with --remove-node-password. Where you keep an agent of k3s, it is refused at "
                f"its next start then: kubectl delete node {self.name}, and let it join with a token."
            )
        self.revoked_machine.left.append(
            "Stop the agent of the other machine, remove its files (mooring leave --files-only), and let it join as a new machine."
        )

    async def _read(self) -> tuple[Obj, Sequence[Obj]]:
        """Return the record, and the entries of the issuance log, none for a user who may not read it."""
        try:
            identity = await self.chosen.retry(partial(self.client.get, PLURAL, self.name))
        except NotFoundError:
            raise ConfigError(
                f'the cluster does not know a machine "{self.name}"; mooring node list --all lists those that it knows'
            ) from None
        known, now = await self.chosen.retry(lambda: inventory.fetch(self.client)), rfc3339(self.chosen.clock.now())
        return identity, [one for one in known.issued.values() if one.get("notAfter", "") > now]

    async def _check_accepted(self, key: str) -> None:
        """Raise ConfigError for a key of which the server accepts no certificate: nothing would be kept."""
        known = await self.chosen.retry(lambda: inventory.fetch(self.client))
        found = [
            one
            for one in known.certificates(self.chosen.clock.now())
            if one.node == self.name and one.public_key == key
        ]
        if found and all(one.state in (REVOKED, ENDED, REJECTED) for one in found):
            raise ConfigError(
                f"the server does not accept the certificate of {key} ({found[0].state}): let the machine join again with a token "
                f"for its name (mooring token create --node-name {self.name}); mooring node revoke {self.name} ends the rest"
            )

    async def _revoke(self, key: str) -> None:
        message = self.message or f"another machine used the identity {self.name}, too"
        revocation = Revocation(subject={"publicKey": key}, reason=_REASON, message=message, dry_run=self.dry_run)
        written = await self.chosen.retry(lambda: write(self.client, revocation, self.chosen.clock))
        self.revoked_machine.done.append((f"{QUALIFIED}/{revocation.name}", written.done))

    async def _refuse_requests(self, certificates: Set[str]) -> None:
        """Deny the requests that wait and were made with a certificate of the other side."""

        async def find() -> Sequence[Obj]:
            found = await self.chosen.retry(lambda: inventory.readable_objects(self.client, REQUESTS)) or ()
            of_node = [csr for csr in found if requested_node(csr) == self.name and may_be_issued(csr)]
            return [csr for csr in of_node if presented_certificate(csr) in certificates]

        def report(name: str, done: str) -> None:
            self.revoked_machine.done.append((name, done))

        reason = f"the machine is not the one that is {self.name}"
        try:
            await refuse_waiting(self.client, self.chosen, find, "NodeSplit", reason, report)
        except ForbiddenError as error:
            self.revoked_machine.left.append(f"Deny the requests of the other machine that wait: {error}.")

    async def _remove_password(self) -> None:
        """Take the node password from the name, and delete its Secret: neither machine proves it any more."""
        secret = f"secrets/{PASSWORD_NAMESPACE}/{secret_name(self.name)}"
        if not self.dry_run:
            # The record first: a Secret that is gone frees the name.
            patch = {"spec": {"nodePasswordUID": None}}
            await self.chosen.retry(partial(self.client.patch, PLURAL, self.name, patch))
            with suppress(NotFoundError):
                await self.chosen.retry(
                    partial(self.client.delete, "secrets", secret_name(self.name), PASSWORD_NAMESPACE)
                )
        self.revoked_machine.done.append((secret, "deleted"))

    async def _drop(self, revoked: set[str]) -> None:
        """Take the revoked keys out of the record, and the boots: those of the other machine report no more."""
        for left in reversed(range(MAX_CONFLICTS)):
            identity = await self.chosen.retry(partial(self.client.get, PLURAL, self.name))
            lists = {"keys": keys_of(identity), "companions": companions_of(identity)}
            changed = with_spec(
                identity,
                **{field: [one for one in keys if one["publicKey"] not in revoked] for field, keys in lists.items()},
            )
            if changed["spec"] == identity["spec"]:
                return
            try:
                # The boots first: an interrupted run is repeated while the record has the revoked keys.
                if len(boots_of(identity)) > 1:
                    status = {**status_of(identity), "boots": []}
                    written = await self.client.update(PLURAL, {**identity, "status": status}, subresource="status")
                    changed["metadata"] = written["metadata"]
                await self.client.update(PLURAL, changed)
            except ConflictError:
                if not left:
                    raise
                continue
            self.revoked_machine.done.append((f"nodeidentity.mooring.dev/{self.name}", "split"))
            return


def _check(identity: Obj, entries: Sequence[Obj], kept: str) -> None:
    """Raise ConfigError for a key that the identity does not have, or that both machines have."""
    name, listed = identity["metadata"]["name"], [key["publicKey"] for key in keys_of(identity)]
    if kept not in listed:
        known = ", ".join(listed) or "none"
        raise ConfigError(f"{name} does not have the key {kept}; its keys are: {known}")
    is_suspect = is_duplicate(identity) or len(set(listed)) > MOST_KEYS
    if is_suspect and not _others(identity, entries, kept):
        raise ConfigError(
            f"the certificates of the other machine were requested with the key {kept}, which is on both machines then: when the "
            f"machine that you keep has renewed its certificate (mooring node show {name}), keep the new key. While it cannot "
            f"renew, end both, and let the right one join again: mooring node revoke {name}, then mooring token create --node-name "
            f"{name}"
        )


def _others(identity: Obj, entries: Sequence[Obj], kept: str) -> frozenset[str]:
    """Return the keys that are not of the kept machine: the others of the record, and those that were requested with them."""
    certificates = _certificates(identity, entries)
    mine = keys_below(identity, kept, certificates)
    others = {one["publicKey"] for one in keys_of(identity)} - mine
    # Companions and serving certificates of the other machine, which renewed by its client certificate.
    below = {one["publicKey"] for one in entries if certificates.get(_parent(one)) in others and one.get("publicKey")}
    return frozenset(others | below - mine)


def _certificates(identity: Obj, entries: Sequence[Obj]) -> Mapping[str, str]:
    """Return keys by the certificate."""
    found = {one["certificate"]: one["publicKey"] for one in entries if one.get("certificate") and one.get("publicKey")}
    return {**found, **{use["certificate"]: use["publicKey"] for use in uses_of(identity)}}


def _parent(entry: Obj) -> str:
    """Return the certificate with which one was requested, as sha256:<hex>; "" without one."""
    credential: str = entry.get("credential", "")
    return f"sha256:{credential.removeprefix(CREDENTIAL)}" if credential.startswith(CREDENTIAL) else ""
