"""`mooring credential`: the exec plugin that kubectl calls (KEP-541, client.authentication.k8s.io).

Rules kept here:
* Nothing is imported, and nobody asked, while the kept credential is fresh: kubectl waits for this at every command.
* Renewal is done by one process at a time; the others find what it brought. When it fails and the old credential is still good,
  that is handed out.
* Who cannot be asked gets one line on stderr that says to run mooring login. stdout is the ExecCredential and nothing else.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from mooring.cli.printing.output import echo
from mooring.client.login.loginfiles import Logins, directory
from mooring.clock import Clock, SystemClock
from mooring.errors import ConfigError, MooringError
from mooring.trust.login import loginrecord

if TYPE_CHECKING:
    from mooring.trust.login.loginrecord import Credential


@click.command("credential")
@click.option("--login", "login_id", required=True, metavar="ID", help="The login, as the kubeconfig names it.")
def credential(login_id: str) -> None:
    """Print the credential of a login, renewed when that is due, for kubectl (an exec credential plugin).

    `mooring login` writes this command into the kubeconfig; nobody has to type it.
    """
    asked = loginrecord.read_asked(os.environ.get("KUBERNETES_EXEC_INFO", ""))
    interactive = sys.stdin.isatty() if asked.interactive is None else asked.interactive
    found = _current(Logins(directory()), login_id, asked, SystemClock(), interactive)
    echo(loginrecord.exec_credential(found, asked.api_version).decode())


def _current(logins: Logins, login_id: str, asked: loginrecord.Asked, clock: Clock, interactive: bool) -> Credential:
    login = _known(logins, login_id)
    loginrecord.check_cluster(asked, login.place)
    if login.credential is not None and login.credential.fresh(clock.now()):
        return login.credential
    with logins.locked(login_id):
        login = _known(logins, login_id)  # another process may have renewed it, or forgotten it
        loginrecord.check_cluster(asked, login.place)
        kept = login.credential
        if kept is not None and kept.fresh(clock.now()):
            return kept
        usable = kept is not None and kept.usable(clock.now())
        try:
            from mooring.cli.login.renewal import renewed

            login = renewed(login, clock, logins.write, ask=interactive and not usable)
        except MooringError:
            if kept is not None and usable:
                return kept
            raise
        logins.write(login)
    assert login.credential is not None  # a renewal brings one
    return login.credential


def _known(logins: Logins, login_id: str) -> loginrecord.Login:
    login = logins.read(login_id)
    if login is None:
        raise ConfigError("there is no such login on this machine any more; run mooring login")
    return login
