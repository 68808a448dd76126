"""`mooring logout`: forget a login, and take its entries out of the kubeconfig.

Rules kept here: the credential is removed from this machine first; it stays valid at the cluster until its end, which is told.
Running it twice is no error.
"""

from __future__ import annotations

from pathlib import Path

import click

from mooring.cli.login.kubeconfig import changing, kubeconfig_target
from mooring.cli.printing.output import echo
from mooring.client.files import write_atomic
from mooring.client.login.loginfiles import Logins, directory
from mooring.clock import rfc3339
from mooring.errors import ConfigError
from mooring.trust.kubeconfig.edit import remove_entries
from mooring.trust.login.loginrecord import LoginRecordError


@click.command("logout")
@click.option("--name", default="", metavar="NAME", help="The login. [default: the only one]")
@click.option("--all", "every", is_flag=True, help="Every login of this user.")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="Kubeconfig to clean. [default: the one that kubectl config changes]",
)
def logout(name: str, every: bool, kubeconfig: str) -> None:
    """Forget the credential of a login, and remove it from the kubeconfig."""
    if name and every:
        raise click.UsageError("--name and --all exclude each other")
    logins = Logins(directory())
    found: dict[str, str] = {}
    until = {}
    for login_id in logins.every():
        try:
            login = logins.read(login_id)
        except LoginRecordError:
            login = None
        known = login.name if login else login_id
        found[login_id] = known
        if login and login.credential:
            until[login_id] = rfc3339(login.credential.expires)
    chosen = [login_id for login_id, known in found.items() if every or name in (known, login_id) or not name]
    if not name and not every and len(found) > 1:
        raise click.UsageError(f"there are several logins; give --name or --all: {', '.join(sorted(found.values()))}")
    if name and not chosen:
        raise ConfigError(f'there is no login "{name}"')
    for login_id in chosen:
        logins.remove(login_id)
        end = f"; the credential would have been valid until {until[login_id]}" if login_id in until else ""
        echo(f"Forgot the login {found[login_id]}{end}.", err=True)
    _clean(kubeconfig_target(kubeconfig), [found[login_id] for login_id in chosen])


def _clean(target: Path, names: list[str]) -> None:
    if names and target.exists():
        with changing(target) as (path, text):
            write_atomic(path, remove_entries(text, names).encode())
