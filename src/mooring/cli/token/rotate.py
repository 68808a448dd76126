"""`mooring token rotate`: replace the server token or the agent token, through a server or on the data directory of one.

Rules kept here (docs/protocol/k3s.md#server-level, docs/adr/0054-rotation-of-the-server-token.md):
* With a URL the command asks the supervisor API of that server, as `k3s token rotate` does. Without one it changes the row in the
  store itself, beside running servers or without any. Servers follow either way, without a restart.
* The new token is checked before anything is asked. No output has a token: the new one stands in the data directory of each server.
* `--status` prints identifiers and times. Those of server tokens are public in the row; of agent tokens they need the server token.
* `--agent` takes the server token as well: an agent token cannot replace anything.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from mooring.cli.options import flags
from mooring.cli.options.flags import DURATION, REPORTED, output_option, usage
from mooring.cli.options.server import storage_options, storage_settings
from mooring.cli.printing import echo, print_document, print_table
from mooring.client.files import read_limited
from mooring.client.http.requests import drive_fetching
from mooring.clock import Clock, SystemClock, rfc3339
from mooring.controlplane.configuration import ServerConfig, server_config
from mooring.controlplane.sharedkeys.share import FOLLOW_SECONDS, SharedKeys
from mooring.controlplane.sharedkeys.tokenfile import AGENT_FILE, MAX_FILE, AgentTokenFile, ServerTokenFile
from mooring.duration import format_duration
from mooring.errors import ConfigError
from mooring.secret import Secret
from mooring.settings.storage import StorageSettings
from mooring.storage import drivers
from mooring.storage.copying import refuse_incomplete
from mooring.storage.formatlevel import refuse_unsupported
from mooring.trust.k3s.acceptedtokens import parse_agent_token
from mooring.trust.k3s.token import parse_token as parse_k3s_token
from mooring.trust.sharedkeys.envelope import SharedKeysRow, Wrap
from mooring.trust.sharedkeys.serverjoin import (
    DEFAULT_GRACE,
    ONCE,
    ServerAccess,
    StoreNotSharedError,
    check_grace,
    parse_server_token,
    server_access,
)
from mooring.trust.sharedkeys.servertoken import ANY_LENGTH, AgentTerm, AgentTokens, parse_token

T = TypeVar("T")
_NEW = "new-token"
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
@click.option(
    "--agent", is_flag=True, help="Replace the agent token, with which machines join, and not the server token."
)
@click.option("--new-token", default="", metavar="TOKEN", help="New token. [default: the server makes one]")
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
@output_option(*REPORTED)
@storage_options()
def rotate(
    server: str,
    token: str,
    agent: bool,
    new_token: str,
    new_token_file: str,
    grace: timedelta,
    status: bool,
    output: str,
    **values: Any,
) -> None:
    """Replace the server token or, with --agent, the agent token of a cluster.

    The present token works until the end of the grace: change what starts servers and joins agents meanwhile. Every server learns
    the new token and writes it to server/token in its data directory. Nothing has to be restarted. With --grace 0 other servers
    cannot learn it: write it to that file on each of them.

    With --agent every server learns the new agent token, without a grace as well, and writes it to server/agent-token. From then on
    --agent-token and --agent-token-file of a server are not used.
    """
    clock = SystemClock()
    with usage():
        # Everything that needs no server is checked first: a rotation is not taken back.
        check_grace(grace)
        new = _new_token(new_token, new_token_file, agent=agent)
        if status and (new is not None):
            raise ConfigError("--status changes nothing; give no new token")
    if server:
        access = server_access(server, parse_server_token(_present_token(token, values), ANY_LENGTH), ONCE)
        if status:
            try:
                if agent:
                    _print_agents(_drive(access, clock, lambda one: one.fetch_agent_tokens()), clock.now(), output)
                else:
                    _print_status(_drive(access, clock, lambda one: one.fetch_sealed_row()), clock.now(), output)
            except StoreNotSharedError:
                raise ConfigError(
                    f"{access.url} does not send the store of its cluster, because it is in a file of that server: run the command "
                    "on its machine, with --data-dir and without --server"
                ) from None
            return
        _drive(access, clock, lambda one: one.rotate(new, grace, agent=agent))
        # Until then a worker that has not looked yet refuses the new token.
        asyncio.run(clock.sleep(SETTLE_SECONDS))
        name = AGENT_FILE if agent else "token"
        place = f"server/{name} in the data directory of each server"
        _print_done(clock.now() + grace if grace else None, output, place, agent=agent)
        return
    config = _local(values)
    if token:
        _check_present(config, token)
    if status:
        if agent:
            _print_agents(_with_keys(config, clock, SharedKeys.agent_tokens), clock.now(), output)
        else:
            _print_status(_with_keys(config, clock, SharedKeys.row), clock.now(), output)
        return
    rotated = _with_keys(config, clock, lambda one: (one.rotate_agent if agent else one.rotate)(new, grace))
    file = AgentTokenFile(config).path if agent else ServerTokenFile(config).path
    _print_done(rotated.grace_ends, output, str(file), agent=agent)


def _new_token(text: str, file: str, *, agent: bool) -> Secret | None:
    if text and file:
        raise ConfigError("give --new-token or --new-token-file, not both")
    try:
        data = read_limited(Path(file), MAX_FILE) if file else text.encode("utf-8", "surrogateescape")
        if agent and (file or text):
            return parse_agent_token(data, _NEW)
        return parse_token(data) if file or text else None
    except ConfigError as error:
        raise ConfigError(f"{_NEW}: {str(error).removeprefix(f'{_NEW}: ')}") from None


def _present_token(text: str, values: dict[str, Any]) -> str | bytes:
    if text:
        return text
    data_dir = Path(values["data_dir"] or flags.default_data_dir())
    try:
        return read_limited(data_dir / "server" / "token", MAX_FILE)
    except ConfigError as error:
        raise ConfigError(f"{error}; or give the present server token with --token") from None


def _drive(access: ServerAccess, clock: Clock, exchange: Callable[[ServerAccess], Any]) -> Any:
    return asyncio.run(drive_fetching(exchange(access), clock))


def _local(values: dict[str, Any]) -> ServerConfig:
    """Return the configuration of the server whose data directory this is. Raises ConfigError."""
    settings = storage_settings(values)
    drivers.check_existence(settings.storage_url)
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
        storage = drivers.open_storage(settings.storage_url, clock, settings=settings)
        await storage.open()
        try:
            # Both before anything is changed: a copy that is not finished, and a format of later programs, stay.
            await refuse_incomplete(storage)
            await refuse_unsupported(storage)
            return await work(SharedKeys(config, storage, secrets.token_bytes, clock))
        finally:
            await storage.close()

    return asyncio.run(session())


def _print_done(ends: datetime | None, output: str, place: str, *, agent: bool) -> None:
    if output != "text":
        kind = "AgentTokenRotation" if agent else "ServerTokenRotation"
        document = {"kind": kind, "graceEnds": rfc3339(ends) if ends else None, "newTokenFile": place}
        print_document(document, output)
    else:
        echo(
            f"The {'agent' if agent else 'server'} token was replaced. The new one stands in {place}.",
            f"The former one works until {rfc3339(ends)}."
            if ends
            else f"Every server refuses the former one within {FOLLOW_SECONDS:.0f} seconds.",
        )
    if agent:
        return
    echo(
        "Keep the former one with the backups of the store that were made until now: it opens the keys in them.",
        err=True,
    )


def _print_status(row: SharedKeysRow | None, now: datetime, output: str) -> None:
    if row is None:
        raise ConfigError("this store has no keys of a cluster yet: start its server first")
    if output != "text":
        print_document({"kind": "ServerTokenStatus", "cluster": row.cluster, "tokens": _listed(row.wraps, now)}, output)
        return
    if not row.wraps:
        echo("The keys of this cluster are not sealed in its store: no server token opens it.")
        return
    _print_terms(row.wraps, now)


def _print_agents(tokens: AgentTokens | None, now: datetime, output: str) -> None:
    terms = tokens.terms if tokens is not None else ()
    if output != "text":
        print_document({"kind": "AgentTokenStatus", "tokens": _listed(terms, now)}, output)
        return
    if not terms:
        echo(
            "The agent token of this cluster was never rotated: --agent-token-file of each server gives it, or agents join with "
            "the server token."
        )
        return
    _print_terms(terms, now)


def _listed(terms: Sequence[Wrap | AgentTerm], now: datetime) -> list[dict[str, object]]:
    return [
        {
            "id": one.id,
            "state": "former" if one.until else "present",
            "created": _time(one.created),
            "graceEnds": _time(one.until),
            "expired": one.is_over(now.timestamp()),
        }
        for one in terms
    ]


def _print_terms(terms: Sequence[Wrap | AgentTerm], now: datetime) -> None:
    rows = [
        (one.id, "former" if one.until else "present", _age(one.created, now), _left(one.until, now)) for one in terms
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
