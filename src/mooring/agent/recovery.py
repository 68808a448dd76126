"""Recovery of a machine whose certificate expired, and the way on of a member that has one."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from mooring.agent import clusterfiles, machineid, steps
from mooring.agent.certificaterequest import RequestEndedError, lasting_reason
from mooring.agent.join import Joined, JoinOptions, record_choices
from mooring.agent.member import Member, register, silence
from mooring.agent.oneshot import OneShotRequest, PendingKeyFiles
from mooring.agent.pairfiles import Pair
from mooring.agent.registration import MembershipEndedError, check_membership
from mooring.agent.renewal import DECISIONS, DENIED_SECONDS, decision_pauses, random_draw, retry_pauses
from mooring.agent.steps import JoinError, Report, Steps
from mooring.clock import Clock, rfc3339
from mooring.errors import ConfigError, ForbiddenError, PeerError, UnauthorizedError
from mooring.identity import NODE_PREFIX
from mooring.pki.x509 import names
from mooring.reminders import LastingProblem
from mooring.trust.answertext import explained_by
from mooring.trust.discovery.errors import AnotherClusterError, DiscoveryError
from mooring.trust.nodename import choose_node_name

# The way back: a machine whose certificate expired gets another one, without a token, in whichever way it joined.
#
# Rules kept here (docs/come-back-after-expiry.md):
# * The expired certificate proves the old key: TLS is opened with it, and `Authorization: Mooring-Recovery` asks the server to
#   judge it as of its end. Such a request may only create and read certificate requests.
# * The certificate request has a new key, which is on disk before it is used. A request that is held for a person is continued by
#   the next run.
# * A certificate whose CA a rollover has retired while the machine was off is used in the same way before it expires.
# * 401 means that the machine may not come back: its certificate was revoked, its Node was deleted, or the server does not offer
#   this. Then only a token helps.

log = logging.getLogger("mooring.agent")

RECOVERY_HEADER = ("Authorization", "Mooring-Recovery")
REFUSED_SECONDS = 300.0
"""Seconds before the way back is tried again after 401: an administrator may have allowed it meanwhile."""


class RecoveryRefusedError(PeerError):
    """The server does not let this machine come back with its expired certificate."""


async def recover(
    member: Member,
    pending: PendingKeyFiles,
    progress: Steps,
    clock: Clock,
    *,
    with_token: str,
    seconds: float,
    expiration_seconds: int = 0,
) -> tuple[Pair, str]:
    """Return a certificate for the pending key, and the name of its request. It is not placed yet. Raises JoinError.

    `with_token` is the advice to join again with a token. `seconds` limits the wait for an approval.
    """
    request = OneShotRequest(
        pending, progress, clock, member.node_name, seconds=seconds, expiration_seconds=expiration_seconds
    )
    with progress.within(steps.EXISTING):
        await member.check_cluster(clock)
    async with member.client(clock, [RECOVERY_HEADER]) as client:

        async def check(issued: Pair) -> None:
            await check_membership(issued, member.node_name, "", client.clusters, clock)

        return await request.obtain(client, check, lambda: _explain_refusal(with_token))


@contextmanager
def _explain_refusal(with_token: str) -> Iterator[None]:
    """Replace refusals of the expired certificate by errors that name the remedy."""
    try:
        yield
    except (UnauthorizedError, ForbiddenError) as error:
        raise RecoveryRefusedError(
            "the server does not let this machine come back with its expired certificate: the certificate was revoked, the Node "
            f"was deleted, or the server does not offer the way back; {with_token}{explained_by(error.audit_id)}"
        ) from None


class Attempts:
    """Attempts to become a member, however often it takes. Each reason of a failure is logged once."""

    def __init__(self) -> None:
        self._pauses, self._after_decisions = retry_pauses(random_draw), decision_pauses(random_draw)
        self._problem = LastingProblem(log.error)

    def pause_after(self, error: JoinError) -> float:
        """Log why an attempt failed, and return the seconds before the next one."""
        self._problem.note(lasting_reason(error), str(error))
        if isinstance(error.__cause__, RequestEndedError):
            return DENIED_SECONDS
        if isinstance(error.__cause__, DECISIONS):
            # A supervisor says no more than that it refuses the node: the cause may end at any moment.
            return next(self._after_decisions)
        return REFUSED_SECONDS if isinstance(error.__cause__, RecoveryRefusedError) else next(self._pauses)


# A member that joined kubeadm's way continues without a token: it is refreshed, or comes back (`mooring.agent.recovery`).

_WITH_TOKEN = "join again with a token: `mooring join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH`"  # noqa: S105 - advice


def read_member(options: JoinOptions) -> Joined | None:
    """Return the membership on disk, with a certificate that may have expired; None when there is none."""
    state = options.state
    clusters, pair = state.read_clusters(), state.client.read_pair()
    if not clusters or pair is None:
        return None
    name = names.common_name(pair.leaf.subject).removeprefix(NODE_PREFIX)
    return Joined(name, clusters, state, options.node, pair)


def check_machine(options: JoinOptions) -> None:
    """Raise CopiedFilesError when the membership on disk is that of another machine, unless `options.adopts` it.

    The agent records this machine once it is a member: a run that fails adopts nothing.
    """
    found = read_member(options)
    if found is None or options.adopts:
        return
    record, machine = found.files.record, options.machine
    root = "" if options.settings.root == "/" else f" --root {shlex.quote(options.settings.root)}"
    machineid.check(
        record,
        machine,
        found.node_name,
        f"join as a new machine with `mooring join ADDRESS --token TOKEN --discovery-token-ca-cert-hash HASH{root}`; or, after a "
        f"replaced board or a restored disk, let this machine have the membership with `mooring agent --adopt{root}`",
    )


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
    with progress.within(steps.EXISTING):
        # Before the certificate is used for anything.
        check_machine(options)
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
        cluster_id = found.files.read_cluster_id()
        await check_membership(pair, found.node_name, uid, found.clusters, clock, cluster_id=cluster_id)
    except MembershipEndedError as error:
        raise MembershipEndedError(f"{error}{silence(found.files, clock.now())}; {_WITH_TOKEN}") from error


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
    # Addresses and CAs first: both may have changed while the machine was off.
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
        # Last: a crash before the certificate is in place leaves the key, with which the next run continues.
        state.drop_pending_key()
        summary.append(f"wrote {path}")
    return replace(found, pair=issued, request_name=name)


async def _refresh(found: Joined, clock: Clock, progress: Steps) -> Joined:
    """Bring addresses and CAs up to date. A server that does not answer changes nothing."""
    assert found.pair is not None  # a membership has a certificate
    with progress.step(steps.FILES) as summary:
        try:
            refreshed = await clusterfiles.refresh(found.files, found.pair, clock)
        except AnotherClusterError:
            raise
        except DiscoveryError as error:
            summary.append(f"left as they are, as cluster-info could not be read again: {error}")
            return found
        summary.append(
            f"wrote {clusterfiles.listed(refreshed.written)}"
            if refreshed.written
            else "addresses and CAs are up to date"
        )
    return replace(found, clusters=refreshed.clusters)
