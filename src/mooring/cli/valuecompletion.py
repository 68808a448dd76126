"""Completion of values in a shell: names that the cluster has, and the snapshots of a server.

Rules kept here:
* The cluster is the one that the command would use: that of the flags before, else of the default kubeconfig.
* A completion has one second, then the process ends. Whatever fails completes nothing and prints nothing.
* A user whose credential comes from a program completes nothing: the program could ask for a password.
* The client is imported when a value is completed, and by no other completion.
"""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

LIMIT_SECONDS = 1.0
_NAME = re.compile(r"[A-Za-z0-9._:-]+")
"""Names that a shell takes as one word."""

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete_token(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the id of a bootstrap token."""
    from mooring.trust.bootstraptoken.tokensecret import NAME_PREFIX, NAMESPACE, SECRET_TYPE

    found = _names(ctx, "secrets", NAMESPACE, field_selector=f"type={SECRET_TYPE}")
    return _items(ctx, parameter, incomplete, [one.removeprefix(NAME_PREFIX) for one in found])


def complete_request(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a certificate signing request."""
    return _items(ctx, parameter, incomplete, _names(ctx, "certificatesigningrequests"))


def complete_waiting_request(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a certificate signing request that is not decided."""
    from mooring.api.certificates.requeststate import is_undecided

    return _items(ctx, parameter, incomplete, _names(ctx, "certificatesigningrequests", wanted=is_undecided))


def complete_node(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a Node."""
    return _items(ctx, parameter, incomplete, _names(ctx, "nodes"))


def complete_machine(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of an authorized machine."""
    from mooring.api.mooring.authorizedmachine import PLURAL

    return _items(ctx, parameter, incomplete, _names(ctx, PLURAL))


def complete_join_rule(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the name of a join rule."""
    from mooring.api.mooring.joinrule import PLURAL

    return _items(ctx, parameter, incomplete, _names(ctx, PLURAL))


def complete_snapshot(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the path of a snapshot of the server on this machine, and any other path."""
    from mooring.cli.options.flags import default_data_dir
    from mooring.controlplane.snapshots import SUFFIX

    data_dir = ctx.params.get("data_dir") or os.environ.get("MOORING_DATA_DIR") or default_data_dir()
    directory = Path(ctx.params.get("snapshot_dir") or Path(data_dir) / "snapshots")
    try:
        paths = sorted(str(one) for one in directory.iterdir() if one.name.endswith(SUFFIX))
    except OSError:
        paths = []
    any_path = CompletionItem(incomplete, type="file")
    return [any_path, *(CompletionItem(one) for one in paths if one.startswith(incomplete) or not incomplete)]


def _items(ctx: click.Context, parameter: click.Parameter, incomplete: str, names: list[str]) -> list[CompletionItem]:
    given = ctx.params.get(str(parameter.name))
    before = given if isinstance(given, tuple) else ()
    return [
        CompletionItem(one)
        for one in names
        if one.startswith(incomplete) and one not in before and _NAME.fullmatch(one)
    ]


def _names(
    ctx: click.Context,
    kind: Any,
    namespace: str = "",
    *,
    field_selector: str = "",
    wanted: Callable[[Any], bool] | None = None,
) -> list[str]:
    """Return the names of the objects of a kind; none when the cluster does not tell them at once."""
    with _ended_in_time():
        try:
            from mooring.cli.cluster import run, selected
            from mooring.clock import SystemClock

            data_dir = ctx.params.get("data_dir")
            kubeconfig = ctx.params.get("kubeconfig") or (str(Path(data_dir) / "admin.conf") if data_dir else "")
            chosen = selected(kubeconfig, ctx.params.get("context_name") or "")
            if chosen.user.exec is not None:
                return []
            listed = run(
                chosen, SystemClock(), lambda client: client.list(kind, namespace, field_selector=field_selector)
            )
            return sorted(one["metadata"]["name"] for one in listed.items if wanted is None or wanted(one))
        except Exception:
            # A completion has nobody to tell.
            return []


@contextmanager
def _ended_in_time() -> Iterator[None]:
    """End the process without output when the time is over: a name server or a server may not answer."""
    before = signal.signal(signal.SIGALRM, lambda number, frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
