"""`mooring token rotate`: replace the server token, through a server or on the data directory of one.

Rules kept here (docs/protocol/k3s.md#server-level, docs/adr/0054-rotation-of-the-server-token.md):
* With a URL the command asks the supervisor API of that server, as `k3s token rotate` does. Without one it changes the row in the
  store itself, beside running servers or without any. Servers follow either way, without a restart.
* The new token is checked before anything is asked. No output has a token: the new one stands in the data directory of each server.
* `--status` reads the row, which is public but for the keys, and prints identifiers and times.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from mooring.cli.options import machine
from mooring.cli.options.client import output_option
from mooring.cli.options.flags import DURATION, usage
from mooring.cli.options.storage import storage_options, storage_settings
from mooring.cli.printing.output import echo, print_document, print_table
from mooring.client.files import read_limited
from mooring.client.http.requests import drive_fetching
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.plane.configuration import ServerConfig, server_config
from mooring.plane.sharedkeys.share import SharedKeys
from mooring.plane.sharedkeys.tokenfile import MAX_FILE, ServerTokenFile
from mooring.secret import Secret
from mooring.settings.storage import StorageSettings
from mooring.storage import presence, table
from mooring.storage.copying import refuse_incomplete
from mooring.storage.formatlevel import refuse_unsupported
from mooring.trust.k3s.token import parse_token as parse_k3s_token
from mooring.trust.sharedkeys.envelope import Row
from mooring.trust.sharedkeys.rotation import DEFAULT_GRACE, check_grace
from mooring.trust.sharedkeys.serverjoin import ONCE, ServerAccess, parse_server_token, server_access
from mooring.trust.sharedkeys.servertoken import ANY_LENGTH, parse_token

T = TypeVar("T")
SETTLE_SECONDS = 2.0
"""Time in which every worker of the server has read the new token: they look once a second. k3s waits one second."""


@click.command("rotate")
@click.option(
    "-s",
    "--server",
    default="",
    metavar="URL",
    envvar=["MOORING_SERVER", "K3S_URL"],
    show_envvar=True,
    help="Server to ask, with --k3s-supervisor. [default: none: the store of this data directory is changed]",
)
@click.option(
    "-t",
    "--token",
    default="",
    metavar="TOKEN",
    envvar=["MOORING_SERVER_TOKEN", "K3S_TOKEN"],
    show_envvar=True,
    help="Present server token. [default: server/token in the data directory]",
)
@click.option("--new-token", default="", metavar="TOKEN", help="New server token. [default: the server makes one]")
@click.option(
    "--new-token-file", default="", metavar="FILE", help="File with the new one: other users see a command line."
)
@click.option(
    "--grace",
    type=DURATION,
    default=format_duration(DEFAULT_GRACE),
    show_default=True,
    help="Time for which the present token still works; 0 ends it at once, for a token that leaked.",
)
@click.option(
    "--status", is_flag=True, help="Change nothing; show the tokens that work, by identifier, and their ends."
)
@output_option("text", "json", "yaml")
@storage_options()
def rotate(
    server: str,
    token: str,
    new_token: str,
    new_token_file: str,
    grace: timedelta,
    status: bool,
    output: str,
    **values: Any,
) -> None:
    """Replace the server token of a cluster.

    The present token works until the end of the grace: change what starts servers and joins agents meanwhile. Every server learns
    the new token and writes it to server/token in its data directory. Nothing has to be restarted. With --grace 0 other servers
    cannot learn it: write it to that file on each of them.
    """
    clock = SystemClock()
    with usage():
        check_grace(grace)
        new = _new_token(new_token, new_token_file)
        if status and (new is not None):
            raise ConfigError("--status changes nothing; give no new token")
    if server:
        access = server_access(server, parse_server_token(_present_token(token, values), ANY_LENGTH), ONCE)
        if status:
            _print_status(_drive(access, clock, lambda one: one.fetch_sealed_row()), clock.now(), output)
            return
        _drive(access, clock, lambda one: one.rotate(new, grace))
        asyncio.run(clock.sleep(SETTLE_SECONDS))
        _print_done(clock.now() + grace if grace else None, output, "server/token in the data directory of each server")
        return
    config = _local(values)
    if token:
        _check_present(config, token)
    if status:
        _print_status(_with_keys(config, clock, SharedKeys.row), clock.now(), output)
        return
    rotated = _with_keys(config, clock, lambda shared: shared.rotate(new, grace))
    _print_done(rotated.grace_ends, output, str(ServerTokenFile(config).path))


def _new_token(text: str, file: str) -> Secret | None:
    if text and file:
        raise ConfigError("give --new-token or --new-token-file, not both")
    try:
        if file:
            return parse_token(read_limited(Path(file), MAX_FILE))
        return parse_token(text.encode("utf-8", "surrogateescape")) if text else None
    except ConfigError as error:
        raise ConfigError(f"new-token: {error}") from None


def _present_token(text: str, values: dict[str, Any]) -> str | bytes:
    if text:
        return text
    data_dir = Path(values["data_dir"] or machine.default_data_dir())
    try:
        return read_limited(data_dir / "server" / "token", MAX_FILE)
    except ConfigError as error:
        raise ConfigError(f"{error}; or give the present server token with --token") from None


def _drive(access: ServerAccess, clock: Clock, exchange: Callable[[ServerAccess], Any]) -> Any:
    return asyncio.run(drive_fetching(exchange(access), clock))


def _local(values: dict[str, Any]) -> ServerConfig:
    """Return the configuration of the server whose data directory this is. Raises ConfigError."""
    settings = storage_settings(values)
    presence.check_existence(settings.storage_url)
    return server_config(data_dir=settings.data_dir).with_settings(settings)


def _check_present(config: ServerConfig, text: str) -> None:
    """Raise ConfigError unless the given token is that of the data directory."""
    given, kept = parse_k3s_token(text.strip()).password, ServerTokenFile(config).kept()
    if kept is not None and given != kept:
        raise ConfigError(
            "token: it is not the present server token of this data directory; give --server to ask a server"
        )


def _with_keys(config: ServerConfig, clock: Clock, work: Callable[[SharedKeys], Awaitable[T]]) -> T:
    """Run `work` on the shared keys in the store of a data directory."""
    settings = config[StorageSettings]

    async def session() -> T:
        storage = table.open_storage(settings.storage_url, clock, settings=settings)
        await storage.open()
        try:
            await refuse_incomplete(storage)
            await refuse_unsupported(storage)
            return await work(SharedKeys(config, storage, secrets.token_bytes, clock))
        finally:
            await storage.close()

    return asyncio.run(session())


def _print_done(ends: datetime | None, output: str, place: str) -> None:
    if output != "text":
        document = {"kind": "ServerTokenRotation", "graceEnds": rfc3339(ends) if ends else None, "newTokenFile": place}
        print_document(document, output)
    else:
        echo(
            f"The server token was replaced. The new one stands in {place}.",
            f"The former one works until {rfc3339(ends)}." if ends else "The former one works no more.",
        )
    echo(
        "Keep the former one with the backups of the store that were made until now: it opens the keys in them.",
        err=True,
    )


def _print_status(row: Row | None, now: datetime, output: str) -> None:
    if row is None:
        raise ConfigError("this store has no keys of a cluster yet: start its server first")
    tokens = [
        {
            "id": one.id,
            "state": "former" if one.until else "present",
            "created": _time(one.created),
            "graceEnds": _time(one.until),
            "expired": one.is_over(now.timestamp()),
        }
        for one in row.wraps
    ]
    if output != "text":
        print_document({"kind": "ServerTokenStatus", "cluster": row.cluster, "tokens": tokens}, output)
        return
    if not tokens:
        echo("The keys of this cluster are not sealed in its store: no server token opens it.")
        return
    rows = [
        (one.id, "former" if one.until else "present", _age(one.created, now), _left(one.until, now))
        for one in row.wraps
    ]
    print_table(("ID", "TOKEN", "AGE", "GRACE ENDS"), rows)


def _time(seconds: int) -> str | None:
    return rfc3339(datetime.fromtimestamp(seconds, UTC)) if seconds else None


def _age(created: int, now: datetime) -> str:
    return format_duration(timedelta(seconds=max(0, int(now.timestamp()) - created))) if created else "<unknown>"


def _left(until: int, now: datetime) -> str:
    if not until:
        return "<never>"
    left = until - int(now.timestamp())
    return f"{_time(until)} (in {format_duration(timedelta(seconds=left))})" if left > 0 else f"{_time(until)} (over)"
