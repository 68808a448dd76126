"""`mooring kubeconfig refresh`: bring a kubeconfig up to date with what its cluster publishes.

Rules kept here (docs/keep-a-kubeconfig-fresh.md):
* cluster-info is read anonymously under the CAs that the entry has, or under a pin. What it names replaces address, CA, proxy and
  TLS name of the entry (`mooring.trust.discovery.refresh`). Users and contexts stay.
* An entry remembers what was published. So the next refresh tells what was set by hand, which stays, and finds the cluster by its
  other addresses.
* The network is asked first. The file is then changed under kubectl's lock, whole or not at all, if the entry is still as it was.
* A server that the known CAs do not verify changes nothing: the error says what a person compares.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from mooring.apimachinery.schema import Obj
from mooring.cli.login.following import SECONDS, carry_over, follow, place_of
from mooring.cli.login.kubeconfigentries import kubeconfig_files, kubeconfig_target, locked, plugin_login
from mooring.cli.options.flags import DURATION, REPORTED, check_timeout, not_empty, output_option, usage
from mooring.cli.printing import clean, echo, print_document, redacted
from mooring.client import kubeconfigfiles
from mooring.client.files import read_limited, real_path, replace_content
from mooring.client.login.loginfiles import LoginFiles, directory
from mooring.clock import SystemClock
from mooring.duration import format_duration
from mooring.errors import ConfigError, PeerError
from mooring.pki.errors import PkiError
from mooring.pki.x509 import bundles
from mooring.settings.declaration import split_commas
from mooring.trust.discovery.pins import Pin, parse_pin, pin_of, pins_of
from mooring.trust.discovery.refresh import BASE, Refreshed, merge_base
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.httpsurl import is_https
from mooring.trust.kubeconfig import (
    Cluster,
    Kubeconfig,
    KubeconfigContext,
    KubeconfigUser,
    address_of,
    flatten_cluster,
    flatten_user,
    merge_kubeconfigs,
    other_addresses,
)
from mooring.trust.kubeconfigtext import add_entries, parse_kubeconfig, remove_entries, set_fields

_CHANGED = "the cluster {} of {} was changed by another program meanwhile; run this again"


@dataclass(slots=True)
class FollowedCluster:
    """A cluster of a kubeconfig, and what became of it. Without a name: a kubeconfig that cannot be used, and the problem."""

    path: Path
    name: str = ""
    server: str = ""
    changes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problem: str = ""

    def document(self) -> dict[str, Any]:
        """Return it for JSON and YAML."""
        return {
            "file": str(self.path),
            "cluster": self.name,
            "server": redacted(self.server),
            "changes": [redacted(one) for one in self.changes],
            "warnings": self.warnings,
            "problem": self.problem,
        }

    def lines(self, *, dry_run: bool) -> list[str]:
        """Return it for the screen."""
        if not self.changes:
            return [f"{self.path}: cluster {self.name} is as the cluster publishes it"]
        return [
            f"{self.path}: cluster {self.name}{' would get' if dry_run else ''}: {redacted(one)}"
            for one in self.changes
        ]


@click.command("refresh")
@click.option(
    "--kubeconfig",
    default="",
    callback=not_empty,
    metavar="FILE",
    help="Kubeconfig to bring up to date. [default: $KUBECONFIG, ~/.kube/config]",
)
@click.option(
    "--context",
    "context_name",
    default="",
    callback=not_empty,
    metavar="NAME",
    help="Context of the cluster. [default: the current one]",
)
@click.option("--all", "is_all", is_flag=True, help="Every cluster of the kubeconfig that publishes itself.")
@click.option(
    "--discovery-token-ca-cert-hash",
    "pins",
    multiple=True,
    callback=not_empty,
    metavar="sha256:HEX",
    help="Pin of the present CA, for a cluster whose CA was replaced without the former one; repeatable.",
)
@click.option(
    "--timeout",
    type=DURATION,
    default=format_duration(timedelta(seconds=SECONDS)),
    show_default=True,
    help="Time limit of the requests to a cluster, which its addresses share.",
)
@click.option("--dry-run", is_flag=True, help="Say what would change, and write nothing.")
@output_option(*REPORTED)
def refresh(
    kubeconfig: str,
    context_name: str,
    is_all: bool,
    pins: Sequence[str],
    timeout: timedelta,
    dry_run: bool,
    output: str,
) -> None:
    """Bring addresses, CAs, proxy and TLS name of a kubeconfig up to date with its cluster.

    The cluster is verified by the CAs that the kubeconfig has. Credentials stay, and none is sent.
    """
    if is_all and (context_name or pins):
        raise click.UsageError("--all cannot be combined with --context and --discovery-token-ca-cert-hash")
    with usage():
        pinned = {parse_pin(text) for text in split_commas(pins)}
    check_timeout(timeout)
    found, contexts = _chosen(kubeconfig, context_name, is_all=is_all)
    for one in found:
        if not one.problem:
            _refresh(one, contexts, pinned, timeout.total_seconds(), dry_run=dry_run)
    if output != "text":
        print_document(
            {"kind": "KubeconfigRefresh", "dryRun": dry_run, "clusters": [one.document() for one in found]}, output
        )
    else:
        for one in found:
            if not one.problem:
                echo(*map(clean, one.lines(dry_run=dry_run)))
            for warning in one.warnings:
                echo(clean(f"Warning: {warning}"), err=True)
    problems = [one for one in found if one.problem]
    if problems:
        raise PeerError(
            "; ".join(f"cluster {one.name}: {one.problem}" if one.name else one.problem for one in problems)
        )


def _chosen(
    kubeconfig: str, context_name: str, *, is_all: bool
) -> tuple[list[FollowedCluster], tuple[KubeconfigContext, ...]]:
    """Return the clusters to bring up to date with the files that cannot be used, and the contexts of all files.

    A further address of a cluster is brought up to date with it. Without `is_all` a file that cannot be read stops the command: it
    may be the one that chooses the context.
    """
    configs: dict[Path, Kubeconfig] = {}
    unusable = []
    for path in dict.fromkeys(kubeconfig_files(kubeconfig)):
        try:
            config = kubeconfigfiles.read(path)
            # It is read once more before it is changed, and a pipe is empty then. A here-document of a shell may be a removed file.
            if not real_path(path).is_file():
                raise ConfigError(
                    f"{path} is a pipe or a removed file, which cannot be brought up to date; name the file"
                )
            configs[path] = config
        except ConfigError as error:
            unusable.append(FollowedCluster(path, problem=redacted(str(error))))
    config, target = merge_kubeconfigs(configs.values()), kubeconfig_target(kubeconfig)
    if unusable and not (is_all and config.clusters):
        return unusable, config.contexts
    try:
        if not config.clusters:
            raise ConfigError(f"no cluster found in {target}: the file does not exist, or has none")
        names = [one.name for one in config.clusters] if is_all else [_cluster_name(config, context_name)]
    except ConfigError as error:
        return [*unusable, FollowedCluster(target, problem=str(error))], config.contexts
    owners = {one.name: path for path, each in reversed(configs.items()) for one in each.clusters}
    if unusable:
        # Their contexts may name any cluster, which is then no further address.
        config = replace(config, contexts=(*config.contexts, *(KubeconfigContext("", name) for name in names)))
    named = {context.cluster for context in config.contexts}
    further = {
        other.name
        for one in config.clusters
        for other in other_addresses(config, one)
        if one.name in named and owners[other.name] == owners[one.name]
    }
    return [*(FollowedCluster(owners[name], name) for name in names if name not in further), *unusable], config.contexts


def _cluster_name(config: Kubeconfig, context_name: str) -> str:
    """Return the cluster of a context. Raises ConfigError."""
    name = context_name or config.current_context
    context = config.context(name)
    if context is None or config.cluster(context.cluster) is None:
        raise ConfigError(
            f'the kubeconfig has no context "{name}" with a cluster'
            if name
            else "the kubeconfig has no current context: name one with --context, or give --all"
        )
    return context.cluster


def _refresh(
    done: FollowedCluster,
    contexts: tuple[KubeconfigContext, ...],
    pins: Collection[Pin],
    seconds: float,
    *,
    dry_run: bool,
) -> None:
    """Bring one cluster of a file up to date. `contexts`: those of all files, since another one may use a cluster of this one."""
    path, name = done.path, done.name
    try:
        config = replace(kubeconfigfiles.read(path), contexts=contexts)
        entry = config.cluster(name)
        if entry is None:
            raise ConfigError(_CHANGED.format(name, path))
        done.server = entry.server
        if not is_https(entry.server):
            raise ConfigError(f"the server {entry.server} is not https: nothing proves what its cluster publishes")
        flat, others = flatten_cluster(entry, _read), other_addresses(config, entry)
        found = asyncio.run(follow((flat, *others), merge_base(entry), pins, SystemClock(), seconds))
        done.changes, done.server = described(flat, others, found), found.clusters[0].server
        done.warnings = [
            text for user in _users_of(config, name) if (text := _warning(user, flat.ca_pem, found.published))
        ]
        if not dry_run:
            write(path, entry, others, found)
            _move_logins(path, config, flat, found)
    except (ConfigError, PeerError, PkiError) as error:
        done.problem = redacted(str(error))


def described(before: Cluster, others: Sequence[Cluster], found: Refreshed) -> list[str]:
    """Return what changes, in words: pins of CAs, addresses, and the rest of the way."""
    after = found.clusters[0]
    old, new = (dict.fromkeys(map(str, pins_of(one.ca_pem))) if one.ca_pem else {} for one in (before, after))
    changes = [f"CA {pin} is added" for pin in new if pin not in old]
    changes += [f"CA {pin} is removed" for pin in old if pin not in new]
    if not changes and before.ca_pem.strip() != after.ca_pem.strip():
        changes.append("the certificates of its CAs are renewed")
    words = {"server": "server", "tls_server_name": "TLS name", "proxy_url": "proxy"}
    for name, word in words.items():
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            # The URL of a proxy may have a password.
            changes.append(
                f"another {word}"
                if name == "proxy_url"
                else f"{word} {now or 'of the address'} in place of {was or 'none'}"
            )
    known, now_known = ({one.server for one in each} for each in (others, found.clusters[1:]))
    if others and known != now_known:
        changes.append(f"further addresses {', '.join(sorted(now_known)) or 'none'}")
    return changes


def _move_logins(path: Path, config: Kubeconfig, before: Cluster, found: Refreshed) -> None:
    """Let the logins whose entry it is follow as well: their records name the cluster that gets the credential."""
    logins = LoginFiles(directory())
    for user in _users_of(config, before.name):
        login = logins.readable(login_id) if (login_id := plugin_login(user.exec)) else None
        if login is None or (login.place.server, login.place.ca_pem.strip()) != (
            before.server.rstrip("/"),
            before.ca_pem.strip(),
        ):
            continue
        with logins.locked(login.id):
            after = replace(login, place=place_of(found))
            logins.write(after)
        carry_over(logins, login, after, str(path))


def _users_of(config: Kubeconfig, cluster: str) -> Sequence[KubeconfigUser]:
    names = dict.fromkeys(one.user for one in config.contexts if one.cluster == cluster)
    return [user for name in names if (user := config.user(name)) is not None]


def _warning(user: KubeconfigUser, known: bytes, published: TrustedCluster) -> str:
    """Return the sentence about a client certificate whose CA the cluster gives up or has given up; "" without one.

    `known`: the CAs that the entry had. Only one of those can have been given up: others may sign for the servers, too.
    """
    try:
        flat = flatten_user(user, _read)
        leaf = bundles.certificates(flat.certificate_pem)[0] if flat.certificate_pem else None
        now, before = (bundles.certificates_among(pem) if pem else () for pem in (published.client_ca_pem, known))
    except (ConfigError, PkiError):
        return ""
    if leaf is None or not now:
        return ""
    issuer = next((ca for ca in now if leaf.is_issued_by(ca)), None)
    if issuer is not None and str(pin_of(issuer)) in published.superseded:
        state = "that the cluster is about to retire"
    elif issuer is None and any(map(leaf.is_issued_by, before)):
        state = "that the cluster accepts no more"
    else:
        return ""
    return (
        f"the client certificate of {user.name} is of a CA {state}: ask an administrator for another file (mooring kubeconfig user "
        f"{user.name})"
    )


def write(path: Path, before: Cluster, others: Sequence[Cluster], found: Refreshed) -> bool:
    """Write what changes into a kubeconfig, and return whether anything does. `before`: the entry as it was read, `others` those
    of its further addresses. Raises ConfigError for an entry that was changed meanwhile.
    """
    with locked(path) as (real, text):
        config = parse_kubeconfig(text)
        present = config.cluster(before.name)
        if present is None or (present.server, present.ca_pem) != (before.server, before.ca_pem):
            raise ConfigError(_CHANGED.format(before.name, path))
        changed = set_fields(text, "clusters", before.name, _fields(before, found)).encode()
        wanted = {address_of(one.server): one for one in found.clusters[1:]} if others else {}
        there = {one.name for one in others}
        for name in there & wanted.keys():
            changed = set_fields(changed, "clusters", name, _way_fields(wanted[name])).encode()
        # A stale one would keep a CA that was retired.
        changed = remove_entries(changed, {"clusters": there - wanted.keys(), "users": (), "contexts": ()}).encode()
        free = {name for name in wanted if config.cluster(name) is None}
        added = tuple(replace(wanted[name], name=name, extensions=()) for name in wanted if name in free)
        changed = add_entries(changed, Kubeconfig(added)).encode() if added else changed
        if parse_kubeconfig(changed) == config:
            return False
        replace_content(real, changed)
        return True


def _fields(before: Cluster, found: Refreshed) -> Mapping[str, Any]:
    way = found.clusters[0]
    fields = _way_fields(way)
    if before.ca_file and _read(before.ca_file) == way.ca_pem:
        del fields["certificate-authority"], fields["certificate-authority-data"]
    others: list[Obj] = [one for one in before.extensions if one.get("name") != BASE]
    return {**fields, "extensions": [*others, *([found.base.extension()] if found.base is not None else [])] or None}


def _way_fields(way: Cluster) -> dict[str, Any]:
    return {
        "server": way.server,
        "certificate-authority": None,
        "certificate-authority-data": base64.b64encode(way.ca_pem).decode() or None,
        "tls-server-name": way.tls_server_name or None,
        "proxy-url": way.proxy_url or None,
        "disable-compression": way.disable_compression or None,
    }


def _read(path: str) -> bytes:
    return read_limited(Path(path))
