"""`mooring credential`: the exec plugin that kubectl calls (KEP-541, client.authentication.k8s.io).

Rules kept here:
* While the stored credential is fresh, no heavy module is imported and no request is sent: kubectl waits for this command.
* One process at a time renews a login; the others use its result. When a renewal fails, or takes another process long, and the
  old credential is still usable, the old one is printed, unless another cluster answers in place of the login's.
* Where a person is needed and there is none, one line on stderr says to run mooring login. stdout holds only the ExecCredential.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from mooring.cli.printing import echo
from mooring.client.login.loginfiles import LoginFiles, LostLoginError, directory
from mooring.clock import Clock, SystemClock
from mooring.errors import ConfigError, MooringError
from mooring.trust.loginrecord import ExecInfo, check_cluster, exec_credential, read_exec_info

if TYPE_CHECKING:
    from mooring.trust.loginrecord import Credential, Login


@click.command("credential")
@click.option("--login", "login_id", required=True, metavar="ID", help="Id of the login, as in the kubeconfig.")
def credential(login_id: str) -> None:
    """Print the credential of a login, renewed if needed, for kubectl (an exec credential plugin).

    `mooring login` writes this command into the kubeconfig.
    """
    info = read_exec_info(os.environ.get("KUBERNETES_EXEC_INFO", ""))
    interactive = sys.stdin.isatty() if info.interactive is None else info.interactive
    found = current_credential(LoginFiles(directory()), login_id, info, SystemClock(), interactive)
    echo(exec_credential(found, info.api_version).decode())


def current_credential(
    logins: LoginFiles, login_id: str, info: ExecInfo, clock: Clock, interactive: bool
) -> Credential:
    login = _read_login(logins, login_id)
    check_cluster(info, login)
    if (
        not info.cluster
    ):  # a kubeconfig is slow to read, and says less than the client: for clients that pass no cluster alone
        from mooring.cli.login.kubeconfigentries import check_kubeconfig

        check_kubeconfig(login)
    if login.credential is not None and login.credential.fresh(clock.now()):
        return login.credential
    from mooring.cli.login.following import carry_over, followed
    from mooring.cli.login.renewal import LoginNeededError, log_in, renew
    from mooring.trust.discovery.errors import AnotherClusterError

    kept, before = login.credential, login
    try:
        with logins.locked(login_id):
            # Until it is read again: a login that was forgotten meanwhile gives no old credential.
            kept = None
            # Another process may have renewed it, or forgotten it.
            before = login = _read_login(logins, login_id)
            check_cluster(info, login)
            kept = login.credential
            if kept is not None and kept.fresh(clock.now()):
                return kept
            login = renew(replace(login, place=followed(login.place, clock)), clock, logins.write)
            logins.write(login)
    except MooringError as error:
        # It would be sent to the other cluster.
        if kept is not None and kept.usable(clock.now()) and not isinstance(error, AnotherClusterError):
            return kept
        if not interactive or not isinstance(error, LoginNeededError):
            raise
        found = log_in(error, clock)
        # A login that was forgotten meanwhile stays so.
        with logins.locked(login_id):
            before = _read_login(logins, login_id)
            login = replace(before, place=found.place, source=found.source, credential=found.credential)
            logins.write(login)
    carry_over(logins, before, login)
    # A renewal sets one.
    assert login.credential is not None
    return login.credential


def _read_login(logins: LoginFiles, login_id: str) -> Login:
    try:
        return logins.existing(login_id)
    except LostLoginError as error:
        from mooring.cli.login.kubeconfigentries import new_login_command

        raise ConfigError(f"{error}; run: {new_login_command(login_id)}") from None
