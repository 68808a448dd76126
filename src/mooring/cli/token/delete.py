"""`mooring token delete`: delete bootstrap tokens.

Rules kept here (docs/protocol/bootstrap-tokens.md#the-kubeadm-token-commands, docs/protocol/k3s.md#token-commands): a token is
given as its id, as a whole, or as a whole in k3s's form. Messages contain the id only. All arguments are checked before the first
token is deleted. The first failure stops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from mooring.cli import cluster
from mooring.cli.cluster import ChosenCluster, ending_options
from mooring.cli.options.client import SHOWN, output_option
from mooring.cli.options.flags import TOKEN, usage
from mooring.cli.printing.deletions import printed_deletions
from mooring.cli.token.tokenformat import format_option
from mooring.cli.valuecompletion import complete_token
from mooring.client.cluster import ClusterClient
from mooring.errors import ApiError, ConfigError, NotFoundError
from mooring.trust.bootstraptoken.tokensecret import NAMESPACE, secret_name
from mooring.trust.k3s.token import bootstrap_token_id


@click.command("delete")
@click.argument("token", nargs=-1, type=TOKEN, required=True, shell_complete=complete_token)
@click.option(
    "--dry-run", is_flag=True, help="Check that each token exists, and print the output without deleting one."
)
@format_option
@output_option(*SHOWN)
@ending_options
def delete(token: Sequence[str], dry_run: bool, token_format: str, output: str, chosen: ChosenCluster) -> None:
    """Delete bootstrap tokens, each given as its id, as a whole, or as a whole K10 token.

    The form of the arguments decides, whatever --format says. Machines that have joined with a token stay members.
    """
    with usage():
        ids = [bootstrap_token_id(text) for text in token]
    with printed_deletions(output, dry_run=dry_run) as report:
        chosen.run(lambda client: _delete_all(client, ids, report, dry_run, chosen))


async def _delete_all(
    client: ClusterClient, ids: Sequence[str], report: Callable[[str, str], None], dry_run: bool, chosen: ChosenCluster
) -> None:
    for token_id in ids:

        async def delete_one(token_id: str = token_id) -> None:
            try:
                if dry_run:
                    await client.get("secrets", secret_name(token_id), NAMESPACE)
                else:
                    await client.delete("secrets", secret_name(token_id), NAMESPACE)
            except NotFoundError:
                raise ConfigError(f'there is no bootstrap token "{token_id}"; see mooring token list') from None
            except ApiError as error:
                if cluster.is_transient(error):
                    raise
                doing = "could not be read" if dry_run else "was not deleted"
                raise ConfigError(f'the bootstrap token "{token_id}" {doing}: {error}') from error

        await chosen.retry(delete_one)
        report(token_id, f'bootstrap token "{token_id}" deleted{" (dry run)" if dry_run else ""}')
