"""`mooring serviceaccount token`: issue a token for a ServiceAccount, as `kubectl create token` does.

Rules kept here (docs/protocol/service-account-tokens.md#tokenrequest): all arguments are checked before a request is sent, with
kubectl's rules. The output is the token alone, or the whole TokenRequest. A lifetime that the server shortened is reported on
stderr.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import click

from mooring.apimachinery.schema import Obj
from mooring.cli.cluster import ChosenCluster, changing_options
from mooring.cli.options.flags import DURATION, not_empty, output_option
from mooring.cli.printing import echo, print_document
from mooring.client.cluster import ClusterClient
from mooring.duration import format_duration

KINDS = ("Pod", "Secret", "Node")
_SECOND = timedelta(seconds=1)


@click.command("token")
@click.argument("name")
@click.option(
    "-n", "--namespace", default="", metavar="NAMESPACE", help="Namespace of the account. [default: the context's]"
)
@click.option(
    "--audience",
    "audiences",
    multiple=True,
    callback=not_empty,
    metavar="AUDIENCE",
    help="Audience of the token; repeatable. [default: the API server]",
)
@click.option(
    "--duration",
    type=DURATION,
    default="0s",
    help="Lifetime of the token, which the server may shorten. [default: as the server decides, an hour]",
)
@click.option(
    "--bound-object-kind",
    type=click.Choice(KINDS),
    default=None,
    help="Kind of an object in the account's namespace, or of a Node, with which the token becomes invalid.",
)
@click.option("--bound-object-name", default="", metavar="NAME", help="Name of that object.")
@click.option(
    "--bound-object-uid",
    default="",
    callback=not_empty,
    metavar="UID",
    help="Uid of that object. [default: its present one]",
)
@output_option("token", "json", "yaml")
@changing_options
def token(
    name: str,
    namespace: str,
    audiences: Sequence[str],
    duration: timedelta,
    bound_object_kind: str | None,
    bound_object_name: str,
    bound_object_uid: str,
    output: str,
    chosen: ChosenCluster,
) -> None:
    """Issue a token for the ServiceAccount NAME, and print it.

    A client with the token acts as the account until the token expires, or until the account or the bound object is deleted.
    """
    spec: Obj = {"audiences": list(audiences)}
    if duration < timedelta(0) or duration % _SECOND:
        raise click.UsageError("--duration must be a positive number of whole seconds")
    seconds = duration // _SECOND
    if seconds:
        spec["expirationSeconds"] = seconds
    if bound_object_kind:
        spec["boundObjectRef"] = _bound_object_ref(bound_object_kind, bound_object_name, bound_object_uid)
    elif bound_object_name or bound_object_uid:
        given = "--bound-object-name" if bound_object_name else "--bound-object-uid"
        raise click.UsageError(f"{given} is only of use with --bound-object-kind")
    request: Obj = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec}

    async def request_token(client: ClusterClient) -> Obj:
        account_namespace = namespace or client.namespace
        return await client.create("serviceaccounts", request, account_namespace, name=name, subresource="token")

    issued = chosen.run_with_retries(request_token)
    granted = issued["spec"].get("expirationSeconds", seconds)
    if granted < seconds:
        lifetime = format_duration(timedelta(seconds=granted))
        echo(f"The server shortened the life of the token: it is {lifetime}, not {format_duration(duration)}", err=True)
    if output == "token":
        echo(issued["status"]["token"])
    else:
        print_document(issued, output)


def _bound_object_ref(kind: str, name: str, uid: str) -> Obj:
    if not name:
        raise click.UsageError("--bound-object-name is needed with --bound-object-kind")
    return {"kind": kind, "apiVersion": "v1", "name": name, **({"uid": uid} if uid else {})}
