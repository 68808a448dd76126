"""`mooring machine`: machines that an administrator has authorized to join, and those that ask."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import click

from mooring.api.certificates.requestrecords import APPROVED, DENIED, source_address_of
from mooring.api.certificates.requeststate import is_undecided, requested_node
from mooring.api.mooring.authorizedmachine import KIND, PLURAL
from mooring.api.mooring.membership import has_ended, may_use_name
from mooring.api.mooring.nodeidentity import PLURAL as IDENTITIES
from mooring.api.mooring.nodeidentity import keys_of
from mooring.api.objectmeta import spec_of
from mooring.api.paths import API_VERSION
from mooring.apimachinery.codec.json import base64_field
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli import printing as printed
from mooring.cli.cluster import ChosenCluster, changing_options, cluster_options, ending_options, printed_deletions
from mooring.cli.csr.decision import CsrDecision, decide
from mooring.cli.csr.show import PLURAL as REQUESTS
from mooring.cli.csr.show import key_of
from mooring.cli.options.flags import LISTED, MACHINE, SHOWN, not_empty, output_option
from mooring.cli.printing import echo
from mooring.cli.valuecompletion import complete_machine
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import other_program
from mooring.errors import AlreadyExistsError, ConfigError, NotFoundError
from mooring.identity import ANONYMOUS
from mooring.pki.errors import PkiError
from mooring.pki.keys import public_key_der
from mooring.pki.x509.canonicalnames import canonical
from mooring.pki.x509.requests import parse_request
from mooring.pki.x509.signers import KUBE_APISERVER_CLIENT_KUBELET
from mooring.settings.declaration import split_commas
from mooring.trust.discovery import clusterinfo
from mooring.trust.discovery.pins import PinError, parse_pin, pins_of
from mooring.trust.discovery.trustedcluster import published_cluster
from mooring.trust.nodename import comparison_code, generate_code, same_code, verifier
from mooring.trust.requestfacts import facts_of, parse_facts

# `mooring machine authorize`: let one machine join without the approval of a person.
#
# Rules kept here: the code is printed once, alone on standard output, so that `> FILE` makes the file of `--machine-code-file`,
# and is stored nowhere. The server gets its public half (`mooring.trust.nodename`). A lost response makes no second code: the
# entry of a retry is compared with the one that exists.

QUALIFIED = f"{KIND.resource.singular}.{KIND.resource.group}"


@click.command("authorize")
@click.argument("name", type=MACHINE)
@click.option(
    "--node-name",
    default="",
    callback=not_empty,
    metavar="PATTERN",
    help="Name that the node may have, in which * stands for any characters but a dot. [default: NAME]",
)
@click.option(
    "--key-fingerprint",
    default="",
    callback=not_empty,
    metavar="sha256:HEX",
    help="Fingerprint of the machine's public key, as mooring join prints it.",
)
@click.option("--code", is_flag=True, help="Print a one-time code, which the machine proves that it knows.")
@click.option(
    "--allow-cidr",
    multiple=True,
    callback=not_empty,
    metavar="CIDR,...",
    help="Networks from which the machine may ask; repeatable, or with commas. [default: any]",
)
@click.option(
    "--request-annotation",
    multiple=True,
    callback=not_empty,
    metavar="NAME=VALUE,...",
    help="Facts that the request of the machine must say (mooring join --request-annotation, --request-fact), beside its proof; "
    "repeatable, or with commas.",
)
@click.option(
    "--serving-name",
    multiple=True,
    metavar="NAME,...",
    help="DNS names and addresses that serving certificates of the machine may have beside its own, also those of an API server on "
    "the same machine; repeatable, or with commas.",
)
@output_option(*SHOWN)
@changing_options
def authorize(
    name: str,
    node_name: str,
    key_fingerprint: str,
    code: bool,
    allow_cidr: Sequence[str],
    request_annotation: Sequence[str],
    serving_name: Sequence[str],
    output: str,
    chosen: ChosenCluster,
) -> None:
    """Authorize a machine to join as node NAME, once.

    With a key or a code the machine needs no other approval. Without either only its name is listed, which is of use with
    --machine-inventory=required.
    """
    if code and output == "name":
        raise click.UsageError("--code cannot be mixed with -o name, which does not print the code")
    secret = generate_code(os.urandom) if code else None
    obj = _entry(
        name,
        node_name,
        key_fingerprint,
        verifier(secret) if secret else "",
        split_commas(allow_cidr),
        split_commas(serving_name),
        split_commas(request_annotation),
    )

    async def create(client: ClusterClient) -> Obj:
        async def attempt() -> Obj:
            try:
                return await client.create(PLURAL, obj)
            except AlreadyExistsError:
                found = await client.get(PLURAL, name)
                if found.get("spec") != obj["spec"]:
                    raise
                return found
            except NotFoundError:
                raise await cluster.not_served(client, PLURAL) from None

        created = await chosen.retry(attempt)
        if allow_cidr and (program := await other_program(client)):
            echo(
                f"Warning: {client.server} is {program}, not Mooring, and does not record where a request comes from: an entry "
                "with networks fits no request there, and a person decides",
                err=True,
            )
        return created

    created = chosen.run(create)
    shown = secret.reveal().decode() if secret else ""
    if output in ("json", "yaml"):
        printed.print_document({**created, "code": shown} if shown else created, output)
    elif output == "name":
        echo(f"{QUALIFIED}/{name}")
    else:
        echo(f"{QUALIFIED}/{name} authorized", err=bool(shown))
        if shown:
            echo(
                "The code is shown only now. On the machine, write it to a file that only root reads: mooring join … "
                "--machine-code-file FILE",
                err=True,
            )
            echo(shown)


def _entry(
    name: str,
    node_name: str,
    fingerprint: str,
    code_verifier: str,
    cidrs: Sequence[str],
    serving_names: Sequence[str],
    facts: Sequence[str],
) -> Obj:
    try:
        key = str(parse_pin(fingerprint)) if fingerprint else ""
    except PinError:
        raise click.UsageError(
            "--key-fingerprint must be sha256: and 64 hexadecimal digits, as `mooring csr show` prints it"
        ) from None
    spec = {
        "nodeName": node_name or name,
        "keyFingerprint": key,
        "codeVerifier": code_verifier,
        "allowedCIDRs": list(cidrs),
        "servingNames": [str(canonical(name)) for name in serving_names],
        "requestAnnotations": parse_facts(facts, "--request-annotation"),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": KIND.resource.kind,
        "metadata": {"name": name},
        "spec": {field: value for field, value in spec.items() if value},
    }


# `mooring machine list`: list the machines that may join, and those that have.


@click.command("list")
@click.option("--pending", is_flag=True, help="The machines that ask to join (mooring join --ask), each with its code.")
@output_option(*LISTED)
@cluster_options
def list_machines(pending: bool, output: str, chosen: ChosenCluster) -> None:
    """List authorized machines, or those that ask."""
    if pending:
        _print_asking(chosen.run_with_retries(_asking), output)
        return

    async def fetch(client: ClusterClient) -> Sequence[Obj]:
        try:
            return (await client.list(PLURAL)).items
        except NotFoundError:
            raise await cluster.not_served(client, PLURAL) from None

    print_list(chosen.run_with_retries(fetch), output, chosen.clock.now())


def print_list(found: Sequence[Obj], form: str, now: datetime) -> None:
    """Print machines in one of the forms of a list."""
    if form in ("json", "yaml"):
        printed.print_document({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": list(found)}, form)
    elif form == "name":
        for obj in found:
            echo(f"{QUALIFIED}/{obj['metadata']['name']}")
    elif not found:
        echo("No authorized machines found.", err=True)
    else:
        columns = [column for column in KIND.resource.columns if form == "wide" or not column.priority]
        rows = [[str(column.cell(obj, now)) for column in columns] for obj in found]
        printed.print_table([column.name.upper() for column in columns], rows)


# `mooring machine remove`: withdraw the authorization of machines.
#
# Rules kept here: a machine that has joined keeps its certificate; its Node is deleted, or its certificate revoked, to end that.


@click.command("remove")
@click.argument("name", nargs=-1, type=MACHINE, required=True, shell_complete=complete_machine)
@output_option(*SHOWN)
@ending_options
def remove(name: Sequence[str], output: str, chosen: ChosenCluster) -> None:
    """Withdraw the authorization of machines. Those that have joined keep their certificates."""

    async def work(client: ClusterClient) -> None:
        with printed_deletions(output) as report:
            for one in name:
                try:
                    await chosen.retry(partial(client.delete, PLURAL, one))
                except NotFoundError:
                    await _check_is_served(client)
                    raise
                report(f"{QUALIFIED}/{one}", f"{QUALIFIED}/{one} removed")

    chosen.run(work)


async def _check_is_served(client: ClusterClient) -> None:
    """Raise PeerError when the server does not serve the kind."""
    try:
        await client.list(PLURAL)
    except NotFoundError:
        raise await cluster.not_served(client, PLURAL) from None


# Machines that ask: `mooring machine list --pending`, `approve` and `deny` (docs/join-by-asking.md).
#
# Rules kept here:
# * A machine that asks has made a certificate request without a credential. Its code is computed here, from the key of the request
#   and the CAs that cluster-info names: the server is not asked for it.
# * Without `--code` a person compares it on the terminal. Of several machines that ask under one name the code says which.


MOST_SHOWN = 48
"""Characters of what a machine says of itself that the table shows; -o json has all."""


@dataclass(frozen=True, slots=True)
class AskingMachine:
    """A machine that asks to join, and what a person compares."""

    node: str
    code: str
    request: Obj
    owner: str = ""
    """Key of the member that has the name; "" for a name that is free, or this machine's own."""

    def document(self) -> dict[str, Any]:
        metadata = self.request["metadata"]
        return {
            "node": self.node,
            "code": self.code,
            "source": source_address_of(self.request),
            "publicKey": key_of(self.request),
            "nameOwner": self.owner,
            "says": facts_of(self.request),
            "request": metadata["name"],
            "created": metadata.get("creationTimestamp", ""),
        }


async def _asking(client: ClusterClient) -> Sequence[AskingMachine]:
    """Return the machines that ask, in order of their requests."""
    listed = (await client.list(REQUESTS, field_selector=f"spec.signerName={KUBE_APISERVER_CLIENT_KUBELET}")).items
    waiting = [one for one in listed if spec_of(one).get("username") == ANONYMOUS and is_undecided(one)]
    if not waiting:
        return ()
    config_map = await client.get("configmaps", clusterinfo.NAME, clusterinfo.NAMESPACE)
    text = (config_map.get("data") or {}).get(clusterinfo.KUBECONFIG_KEY, "")
    pins = tuple(map(str, pins_of(published_cluster("reading cluster-info", text)[1].ca_pem)))
    found = []
    for one in sorted(waiting, key=lambda obj: str(obj["metadata"].get("creationTimestamp", ""))):
        try:
            parsed = parse_request(base64_field(spec_of(one).get("request")))
        except PkiError:
            continue
        node, code = requested_node(one), comparison_code(public_key_der(parsed.public_key), pins)
        owner = await _owner(client, node, f"sha256:{parsed.key_fingerprint}")
        found.append(AskingMachine(node, code, one, owner))
    return found


async def _owner(client: ClusterClient, node: str, key: str) -> str:
    """Return the newest key of the member that has a name, unless it is `key`; "" for a free name."""
    identity, kept = await _found(client, IDENTITIES, node), await _found(client, "nodes", node)
    if identity is None:
        return "unknown" if kept is not None else ""
    if has_ended(identity, kept) or may_use_name(identity, key, ""):
        return ""
    return str(keys_of(identity)[-1].get("publicKey"))


async def _found(client: ClusterClient, plural: str, name: str) -> Obj | None:
    try:
        return await client.get(plural, name)
    except NotFoundError:
        return None


def _print_asking(found: Sequence[AskingMachine], form: str) -> None:
    if form in ("json", "yaml"):
        items = [one.document() for one in found]
        printed.print_document({"kind": "AskingMachines", "items": items}, form)
    elif form == "name":
        for one in found:
            echo(f"certificatesigningrequest.certificates.k8s.io/{one.request['metadata']['name']}")
    elif not found:
        echo("No machine asks to join.", err=True)
    else:
        columns = ("NODE", "CODE", "SOURCE", "SAYS", "REQUEST")
        rows = [
            (
                f"{one.node} (taken)" if one.owner else one.node,
                one.code,
                source_address_of(one.request) or "unknown",
                _shortened(",".join(f"{name}={value}" for name, value in facts_of(one.request).items())),
                one.request["metadata"]["name"],
            )
            for one in found
        ]
        printed.print_table(columns, rows)


def _shortened(text: str) -> str:
    """Return what a row of the table has room for: a stranger wrote the text."""
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"


def _chosen_machine(found: Sequence[AskingMachine], name: str, code: str) -> AskingMachine:
    """Return the machine that a node name, or the name of a request, and a code stand for. Raises ConfigError."""
    named = [one for one in found if name in (one.node, one.request["metadata"]["name"])]
    if not named:
        raise ConfigError(f'no machine asks to join as "{name}": see mooring machine list --pending')
    fitting = [one for one in named if not code or same_code(one.code, code)]
    if not fitting:
        raise ConfigError(
            f'no machine that asks as "{name}" has the code {code}: it sees another cluster or the CAs of before a rollover, or '
            "another machine asks; nothing was decided"
        )
    if len(fitting) > 1:
        codes = ", ".join(one.code for one in fitting)
        raise ConfigError(
            f'{len(fitting)} machines ask as "{name}" ({codes}): give --code with the code of the right one'
        )
    return fitting[0]


def _decided(
    name: str, code: str, decision: CsrDecision, chosen: ChosenCluster, *, replaces: bool | None = None
) -> Obj:
    """Decide about one machine. `replaces`: an approval may take the name from a member; None for a denial."""

    async def work(client: ClusterClient) -> Obj:
        one = _chosen_machine(await chosen.retry(partial(_asking, client)), name, code)
        if replaces is False and one.owner:
            raise ConfigError(
                f"the name {one.node} belongs to a member with another key ({one.owner}): let this machine ask under another "
                "--node-name, or give --replace, which ends the membership of the other one"
            )
        if replaces is not None and not code:
            _compare(one)
        # By its uid, so that a request that was made again while a person compares is not decided.
        about = replace(decision, uid=one.request["metadata"].get("uid", ""))
        return await chosen.retry(partial(decide, client, one.request["metadata"]["name"], about, chosen.clock))

    return chosen.run(work)


def _compare(one: AskingMachine) -> None:
    """Let a person compare the code. Raises ConfigError unless the person agrees."""
    source = source_address_of(one.request) or "an unknown address"
    if not sys.stdin.isatty():
        raise ConfigError(f"nothing was decided: give --code with the code that the machine {one.node} shows")
    if not click.confirm(f"Does the machine {one.node}, which asks from {source}, show the code {one.code}?", err=True):
        raise ConfigError("nothing was decided")


_CODE = click.option(
    "--code", default="", callback=not_empty, metavar="XXXX-XXXX", help="The code that the machine shows."
)


@click.command("approve")
@click.argument("name")
@_CODE
@click.option(
    "--replace", "replaces", is_flag=True, help="Take the name from the member that has it, whose key counts no more."
)
@output_option(*SHOWN)
@changing_options
def approve(name: str, code: str, replaces: bool, output: str, chosen: ChosenCluster) -> None:
    """Let a machine that asks join. NAME is that of its node, or of its request.

    Compare the code first: a machine that shows another one sees another cluster.
    """
    message = "A person has compared the code of the machine."
    decision = CsrDecision(condition=APPROVED, message=message, reason="JoinRequestApproved")
    _report(_decided(name, code, decision, chosen, replaces=replaces), "approved", output)


@click.command("deny")
@click.argument("name")
@_CODE
@click.option(
    "--reason", default="an administrator has denied it", metavar="TEXT", help="Told to the machine for a day."
)
@output_option(*SHOWN)
@changing_options
def deny(name: str, code: str, reason: str, output: str, chosen: ChosenCluster) -> None:
    """Refuse a machine that asks. For a day it may not ask again under the name from its address."""
    decision = CsrDecision(condition=DENIED, message=reason, reason="JoinRequestDenied")
    _report(_decided(name, code, decision, chosen), "denied", output)


def _report(decided: Obj, word: str, form: str) -> None:
    name = f"certificatesigningrequest.certificates.k8s.io/{decided['metadata']['name']}"
    if form in ("json", "yaml"):
        printed.print_document(decided, form)
    else:
        echo(name if form == "name" else f"{name} {word}")
