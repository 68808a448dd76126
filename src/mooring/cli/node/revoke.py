"""`mooring node revoke`: end all that a stolen machine can do in a cluster, in one command.

Rules kept here:
* The tokens and authorizations of its name alone end first, so that it gets no other certificate. Then the node and each of its
  keys go on the denylist, its requests that wait are denied, and at the end its Node is deleted.
* The records are read again until no new key appears: a certificate may be issued while the command runs.
* Each step may be repeated, so that a run that was interrupted is repeated as it is.
* What the user may not read is named as left to do.
* The denylist is written by the functions of `mooring certs revoke`, with its refusals: an unknown name, the caller's own
  certificate, and a server that does not read the denylist.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import click

from mooring.api.certificates.requeststate import REQUESTS, parsed_request, requested_node
from mooring.api.mooring import authorizedmachine, nodeidentity
from mooring.api.mooring.membership import NODES
from mooring.api.objectmeta import spec_of
from mooring.apimachinery.schema import Obj
from mooring.cli import printing as printed
from mooring.cli.certs import inventory
from mooring.cli.certs.inventory import QUALIFIED
from mooring.cli.certs.revoke import Revocation, refuse_own, refuse_unenforced, unknown, write
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.csr.decision import may_be_issued, refuse_waiting
from mooring.cli.csr.show import fingerprint
from mooring.cli.machine import QUALIFIED as QUALIFIED_MACHINE
from mooring.cli.options.flags import NODE, SHOWN, output_option
from mooring.cli.printing import echo
from mooring.cli.valuecompletion import complete_node
from mooring.client.cluster import ClusterClient
from mooring.errors import ConfigError, ForbiddenError, NotFoundError
from mooring.identity import BOOTSTRAP_USER_PREFIX, NODE_PREFIX
from mooring.pki.errors import PkiError
from mooring.trust.bootstraptoken.restrictions import read_restrictions
from mooring.trust.bootstraptoken.token import TokenError
from mooring.trust.bootstraptoken.tokensecret import NAME_PREFIX, NAMESPACE

_REASON = "keyCompromise"
MAX_PASSES = 10
"""Readings of the records while certificates are issued. A revoked key cannot renew: two are enough unless the machine is slow."""


@dataclass(slots=True)
class RevokedMachine:
    """Objects that were written or deleted, each with what was done, and what is left to do."""

    done: list[tuple[str, str]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    warning: str = ""


@click.command("revoke")
@click.argument("name", type=NODE, shell_complete=complete_node)
@click.option("--message", default="", help="The reason in one sentence, for other administrators.")
@click.option(
    "--force",
    is_flag=True,
    help="Revoke even a machine that the cluster does not know, or whose certificate this command uses; record entries on a "
    "server that does not read them.",
)
@click.option("--dry-run", is_flag=True, help="Let the server check the entries, and change nothing.")
@output_option(*SHOWN)
@ending_options
def revoke(name: str, message: str, force: bool, dry_run: bool, output: str, chosen: ChosenCluster) -> None:
    """End all that a stolen machine can do: its certificates, keys, Node, and the tokens that are bound to its name.

    The command may be repeated, also after it was interrupted. It says what is left to do: a thief may have read what the machine
    could read.
    """
    name = name.removeprefix(NODE_PREFIX)
    revoked_machine = RevokedMachine()

    async def work(client: ClusterClient) -> None:
        subject = {"nodeName": name}
        if not force:
            await refuse_unenforced(client)
            await refuse_own(chosen.selected, subject, chosen.clock)
        if problem := await chosen.retry(lambda: unknown(client, subject)):
            if not force:
                raise ConfigError(f"{problem}. See mooring node list --all; to revoke it all the same, add --force")
            echo(f"warning: {problem}.", err=True)
        await _Revoking(client, name, message, dry_run, chosen, revoked_machine).run()

    try:
        chosen.run(work)
    finally:
        # Also after an error: what was done so far is done.
        print_revoked(revoked_machine, "NodeRevocation", name, output, _left(name), dry_run=dry_run)


@dataclass(frozen=True, slots=True)
class _Revoking:
    client: ClusterClient
    name: str
    message: str
    dry_run: bool
    chosen: ChosenCluster
    revoked_machine: RevokedMachine
    requested: set[str] = field(default_factory=set)
    """Keys of requests for the node that wait."""

    async def run(self) -> None:
        """Take every step. Raises ApiError, PeerError, ConfigError."""
        # What lets the machine in again goes first: else it could join while its keys are revoked.
        await self._delete_tokens()
        await self._delete_machines()
        # Before the keys: certificates that were issued until now end at once, whatever is read next.
        await self._revoke({"nodeName": self.name})
        # Before the records are read: a request that waits would bring a certificate that no record has yet.
        tokens = await self._refuse_requests()
        revoked: set[str] = set()
        for _ in range(MAX_PASSES):
            # Read until nothing new appears: a renewal that was under way may end after the first reading.
            known = await self.chosen.retry(lambda: inventory.fetch(self.client))
            new = (_keys(known, self.name) | self.requested) - revoked
            if not new:
                break
            for key in sorted(new):
                await self._revoke({"publicKey": key})
            revoked |= new
        else:
            raise ConfigError("new certificates appear as fast as they are revoked; run this again")
        if not known.is_issuance_log_read:
            self.revoked_machine.left.append(
                "You may not read LineageRecords: keys of serving certificates, and keys that were replaced, are not revoked."
            )
        await self._delete(NODES, self.name, f"node/{self.name}")
        tokens |= {spec_of(one).get("token", "") for one in known.identities if one["metadata"]["name"] == self.name}
        for token in sorted(tokens - {""}):
            self.revoked_machine.left.append(
                f"The machine used the token {token}: if it may still have it, run mooring token impact {token}."
            )

    async def _delete_tokens(self) -> None:
        """Delete the tokens for this name alone. Those for more names are left, and named."""
        secrets = await self._listed("secrets", NAMESPACE)
        if secrets is None:
            self.revoked_machine.left.append(f"You may not read tokens: delete those that are bound to {self.name}.")
        for secret in secrets or ():
            token = secret["metadata"]["name"].removeprefix(NAME_PREFIX)
            if token == secret["metadata"]["name"]:
                continue
            try:
                bound = read_restrictions(secret)
            except TokenError:
                # It lets in no machine.
                continue
            # A pattern may be for other machines, too: such tokens are only named.
            if bound.node_name == self.name:
                await self._delete("secrets", secret["metadata"]["name"], f"token {token}", NAMESPACE)
            elif bound.node_name and bound.allows_name(self.name):
                self.revoked_machine.left.append(
                    f"The token {token} is for machines called {bound.node_name}: if the machine may have it, run mooring token "
                    f"delete {token}."
                )

    async def _delete_machines(self) -> None:
        machines = await self._listed(authorizedmachine.PLURAL)
        if machines is None:
            self.revoked_machine.left.append(
                f"You may not read AuthorizedMachines: delete those of {self.name}, with which it could ask for a certificate."
            )
        for machine in machines or ():
            if spec_of(machine).get("nodeName") == self.name:
                name = machine["metadata"]["name"]
                await self._delete(authorizedmachine.PLURAL, name, f"{QUALIFIED_MACHINE}/{name}")

    async def _refuse_requests(self) -> set[str]:
        """Deny the requests for the node that wait, and keep their keys. Return the tokens that made them."""

        async def find() -> Sequence[Obj]:
            found = await self._listed(REQUESTS) or ()
            return [csr for csr in found if requested_node(csr) == self.name]

        def report(name: str, done: str) -> None:
            self.revoked_machine.done.append((name, done))

        if await self._listed(REQUESTS) is None:
            self.revoked_machine.left.append(
                f"You may not read certificate requests: deny those of {self.name} that wait."
            )
        requests = [csr for csr in await find() if may_be_issued(csr)]
        for csr in requests:
            with suppress(PkiError, ValueError):
                # Kept before the denial: a signer may be faster.
                self.requested.add(fingerprint(parsed_request(csr)))
        if self.dry_run:
            for csr in requests:
                report(f"{REQUESTS}/{csr['metadata']['name']}", "denied")
        else:
            try:
                await refuse_waiting(
                    self.client, self.chosen, find, "NodeRevoked", f"the machine {self.name} was revoked", report
                )
            except ForbiddenError as error:
                self.revoked_machine.left.append(f"Deny the requests of {self.name} that wait: {error}.")
        users = (spec_of(csr).get("username", "") for csr in requests)
        return {user.removeprefix(BOOTSTRAP_USER_PREFIX) for user in users if user.startswith(BOOTSTRAP_USER_PREFIX)}

    async def _listed(self, plural: str, namespace: str = "") -> Sequence[Obj] | None:
        return await self.chosen.retry(lambda: inventory.readable_objects(self.client, plural, namespace))

    async def _revoke(self, subject: dict[str, str]) -> None:
        revocation = Revocation(subject=subject, reason=_REASON, message=self.message, dry_run=self.dry_run)
        written = await self.chosen.retry(lambda: write(self.client, revocation, self.chosen.clock))
        self.revoked_machine.warning = written.warning
        self.revoked_machine.done.append((f"{QUALIFIED}/{revocation.name}", written.done))

    async def _delete(self, plural: str, name: str, shown: str, namespace: str = "") -> None:
        """Delete an object. One that is gone already is fine."""
        call = self.client.get if self.dry_run else self.client.delete
        try:
            await self.chosen.retry(partial(call, plural, name, namespace))
        except NotFoundError:
            return
        self.revoked_machine.done.append((shown, "deleted"))


def _keys(known: inventory.Inventory, name: str) -> set[str]:
    """Return the public keys of the certificates of a machine: clients, users that machines share, and its HTTPS port."""
    keys = {
        key.get("publicKey", "")
        for identity in known.identities
        if identity["metadata"]["name"] == name
        for key in (*nodeidentity.keys_of(identity), *nodeidentity.companions_of(identity))
    }
    keys |= {
        entry.get("publicKey", "")
        for entry in known.issued.values()
        if entry.get("node") == name
        or (
            inventory.kind_of(entry) == inventory.SERVING and entry.get("subject", "").removeprefix(NODE_PREFIX) == name
        )
    }
    return keys - {""}


def _left(name: str) -> Sequence[str]:
    """Return what no command knows: what the machine could read."""
    return (
        f"Replace the Secrets and ServiceAccount tokens of its Pods: kubectl get pods -A --field-selector spec.nodeName={name}",
        "Replace other credentials that were on its disk: kubeconfigs of people (mooring certs revoke --certificate), SSH keys, "
        "passwords. If it was a server of the cluster, replace the CA: mooring ca rollover start --compromised",
    )


def print_revoked(
    revoked_machine: RevokedMachine, kind: str, name: str, form: str, more: Sequence[str], *, dry_run: bool
) -> None:
    """Print what was done, and what is left to do; `more` is left in any case. `kind`: that of the document."""
    if revoked_machine.warning:
        echo(f"warning: {revoked_machine.warning}.", err=True)
    left = [*revoked_machine.left, *more] if revoked_machine.done else []
    if form in ("json", "yaml"):
        done = [{"name": shown, "done": what} for shown, what in revoked_machine.done]
        document = {"kind": kind, "nodeName": name, "dryRun": dry_run, "done": done, "left": left}
        printed.print_document(document, form)
        return
    for shown, what in revoked_machine.done:
        echo(shown if form == "name" else f"{shown} {what}{' (server dry run)' if dry_run else ''}")
    if left:
        echo("Left to do:", *(f"  {line}" for line in left), err=True)
