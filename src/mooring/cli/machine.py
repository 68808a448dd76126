"""`mooring machine`: machines that an administrator has authorized to join."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from functools import partial

import click

from mooring.api.mooring.authorizedmachine import KIND, PLURAL
from mooring.api.paths import API_VERSION
from mooring.apimachinery.schema import Obj
from mooring.cli import cluster
from mooring.cli import printing as printed
from mooring.cli.cluster import ChosenCluster, changing_options, cluster_options, ending_options, printed_deletions
from mooring.cli.options.flags import LISTED, MACHINE, SHOWN, not_empty, output_option
from mooring.cli.printing import echo
from mooring.cli.valuecompletion import complete_machine
from mooring.client.cluster import ClusterClient
from mooring.client.serverversion import other_program
from mooring.errors import AlreadyExistsError, NotFoundError
from mooring.pki.x509.canonicalnames import canonical
from mooring.settings.declaration import split_commas
from mooring.trust.discovery.pins import PinError, parse_pin
from mooring.trust.nodename import generate_code, verifier
from mooring.trust.requestfacts import parse_facts

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
@output_option(*LISTED)
@cluster_options
def list_machines(output: str, chosen: ChosenCluster) -> None:
    """List authorized machines."""

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
