"""`mooring logout`: remove a login and its kubeconfig entries.

Rules kept here: the credential is removed from this machine first. It stays valid at the cluster until its end, which is printed.
Running the command twice is allowed. Entries are removed that run the login, whatever their names are, and no others. Entries
whose record is gone are a login, too: without --name and --all, when there is no record at all.
"""

from __future__ import annotations

from contextlib import suppress

import click

from mooring.cli.login.kubeconfigentries import KubeconfigFiles
from mooring.cli.printing import echo
from mooring.client.login.loginfiles import LoginFiles, directory
from mooring.clock import rfc3339
from mooring.errors import ConfigError


@click.command("logout")
@click.option("--name", default="", metavar="NAME", help="Name of the login. [default: the only one]")
@click.option("--all", "every", is_flag=True, help="Remove every login of this user.")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="Kubeconfig to clean. [default: the one that kubectl config changes]",
)
def logout(name: str, every: bool, kubeconfig: str) -> None:
    """Remove the credential of a login, and its kubeconfig entries."""
    if name and every:
        raise click.UsageError("--name and --all exclude each other")
    logins, files = LoginFiles(directory()), KubeconfigFiles(kubeconfig)
    entries: dict[str, str] = {}
    # Records go first; removing the entries below says what is wrong with the kubeconfig.
    with suppress(ConfigError):
        entries = files.logins()
    stored = logins.every()
    labels: dict[str, str] = {}
    until = {}
    for login_id in dict.fromkeys([*stored, *entries]) if name or every else stored or entries:
        login = logins.readable(login_id)
        labels[login_id] = login.name if login else entries.get(login_id, login_id)
        if login and login.credential:
            until[login_id] = rfc3339(login.credential.expires)
    login_ids = [login_id for login_id, label in labels.items() if every or name in (label, login_id) or not name]
    if not name and not every and len(labels) > 1:
        raise click.UsageError(f"there are several logins; give --name or --all: {', '.join(sorted(labels.values()))}")
    if name and not login_ids:
        raise ConfigError(f'there is no login "{name}"')
    for login_id in login_ids:
        end = f"; the credential would have been valid until {until[login_id]}" if login_id in until else ""
        if not logins.remove(login_id):
            end = ", whose record was gone"
        echo(f"Forgot the login {labels[login_id]}{end}.", err=True)
    files.remove(login_ids, {labels[login_id] for login_id in login_ids})
    if not login_ids:
        echo("There is no login on this machine.", err=True)
