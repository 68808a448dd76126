"""A member that joined kubeadm's way continues without a token: it is refreshed, or comes back (`mooring.agent.comeback`)."""

from __future__ import annotations

from dataclasses import replace

from mooring.agent import clusterfiles, steps
from mooring.agent.acceptance import check_membership
from mooring.agent.certificates.pairfiles import Pair
from mooring.agent.comeback import recover
from mooring.agent.join import Joined, JoinOptions, record_choices
from mooring.agent.member import register
from mooring.agent.registration import MembershipEndedError
from mooring.agent.steps import Report, Steps
from mooring.clock import Clock, rfc3339
from mooring.errors import ConfigError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509 import names
from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.nodename import choose_node_name

_WITH_TOKEN = "join again with a token: `mooring join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH`"  # noqa: S105 - advice


def read_member(options: JoinOptions) -> Joined | None:
    """Return the membership on disk, with a certificate that may have expired; None when there is none."""
    state = options.state
    clusters, pair = state.read_clusters(), state.client.read_pair()
    if not clusters or pair is None:
        return None
    name = names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX)
    return Joined(name, clusters, state, options.node, pair)


def not_a_member(options: JoinOptions, advice: str) -> ConfigError:
    """Return the error for a machine without a membership that can be used. It names files that are there all the same."""
    if problems := options.state.problems():
        return ConfigError(f"the files of this membership cannot be used: {'; '.join(problems)}; {_WITH_TOKEN}")
    return ConfigError(f"this machine is not a member of a cluster: {advice}")


async def rejoin(
    options: JoinOptions, clock: Clock, report: Report = lambda progress: None, *, is_retired: bool = False
) -> Joined:
    """Bring the membership on disk up to date without a token: a valid one is refreshed, an expired one gets a new certificate.

    `is_retired`: the CA of the certificate was retired, so that a valid one is replaced, too. Raises JoinError, and ConfigError
    when there is no membership.
    """
    found = read_member(options)
    pair = found.pair if found is not None else None
    if found is None or pair is None:
        raise not_a_member(options, "give the address of a server and a token")
    progress, ends = Steps(clock, report), pair.leaf.not_valid_after_utc
    if is_retired or ends <= clock.now():
        found = await _recover(found, options, clock, progress)
    else:
        with progress.step(steps.EXISTING) as summary:
            await _check_not_ended(found, pair, options, clock)
            summary.append(f"already a member until {rfc3339(ends)}")
        if not options.dry_run:
            record_choices(found.files, options)
            found = await _refresh(found, clock, progress)
    if not options.dry_run:
        await register(found, progress, clock)
    return found


def check_name(name: str, options: JoinOptions) -> None:
    """Raise ConfigError when the settings want another name than that of the membership."""
    settings = options.settings
    if not settings.node_name:
        return
    wanted = choose_node_name(settings.node_name, "", settings.register_node)
    if wanted != name:
        raise ConfigError(
            f'this machine is a member under the name "{name}", not "{wanted}": leave --node-name out, or end the membership '
            "with mooring leave first"
        )


async def _check_not_ended(found: Joined, pair: Pair, options: JoinOptions, clock: Clock) -> None:
    """Raise MembershipEndedError when the server rejects the certificate, or the Node was deleted."""
    try:
        uid = found.known_uid()
        await check_membership(pair, found.node_name, uid, found.clusters, clock)
    except MembershipEndedError as error:
        raise MembershipEndedError(f"{error}; {_WITH_TOKEN}") from error


async def _recover(found: Joined, options: JoinOptions, clock: Clock, progress: Steps) -> Joined:
    """Return the membership with a new certificate. Raises JoinError."""
    state, pair = found.files, found.pair
    assert pair is not None  # the caller found it
    with progress.step(steps.EXISTING) as summary:
        summary.append(
            f"the certificate of system:node:{found.node_name}, valid until {rfc3339(pair.leaf.not_valid_after_utc)}, is used to "
            "ask for another"
        )
    if options.dry_run:
        return found
    found = await _refresh(found, clock, progress)
    issued, name = await recover(
        found,
        state,
        progress,
        clock,
        with_token=_WITH_TOKEN,
        seconds=options.certificate_timeout,
        expiration_seconds=options.expiration_seconds or state.record.read().expiration_seconds,
    )
    with progress.step(steps.FILES) as summary:
        record_choices(state, options)
        path = state.client.write_pair(issued, clock.now())
        state.client.prune()
        state.drop_pending_key()
        summary.append(f"wrote {path}")
    return replace(found, pair=issued, request_name=name)


async def _refresh(found: Joined, clock: Clock, progress: Steps) -> Joined:
    """Bring addresses and CAs up to date. A server that does not answer changes nothing."""
    assert found.pair is not None  # a membership has a certificate
    with progress.step(steps.FILES) as summary:
        try:
            refreshed = await clusterfiles.refresh(found.files, found.pair, clock)
        except DiscoveryError as error:
            summary.append(f"left as they are, as cluster-info could not be read again: {error}")
            return found
        summary.append(
            f"wrote {clusterfiles.listed(refreshed.written)}"
            if refreshed.written
            else "addresses and CAs are up to date"
        )
    return replace(found, clusters=refreshed.clusters)
