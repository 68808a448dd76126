"""Columns of the table of promises, and the kinds of cells.

A door is a way in. A moment is a time at which the promise could be judged on evidence that no longer holds.

A row names each of its cells, or gives those that differ and one for the rest: `doors(rest, {…})`, `moments(rest, {…})`. The rest
holds for each of the others, by the reason that it gives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Door(StrEnum):
    """A way in: an endpoint, a controller, a command, another server."""

    KUBEADM = "kubeadm's way"
    K3S = "k3s's way"
    SERVING = "CSR for a serving certificate"
    ADMINISTRATOR = "CSR by an administrator"
    PERSON = "approval by a person"
    SIGNER = "own signer"
    RENEWAL = "renewal"
    RECOVERY = "recovery"
    LEAVE = "leave"
    LOGIN = "login exchange"
    SERVICE_ACCOUNT = "service account token"
    REVIEW = "review of a token or a right"
    OTHER_SERVER = "another server"
    OTHER_WORKER = "another worker"
    ELSEWHERE = "controllers at another API server"


class Moment(StrEnum):
    """A time between the judgement of a request and its effect, or a state of the server at that time."""

    AT_REST = "at rest"
    BODY = "body pending"
    QUEUED = "queued"
    WATCH = "watch open"
    RESTART = "after restart"
    RESTORE = "after restore"
    UNREADABLE = "key unreadable"
    LEADER = "leader change"
    CLOCK = "clock moved"


@dataclass(frozen=True, slots=True)
class Proof:
    """A test that fails when the promise is broken in this cell: `tests/<file>.py::<test>`."""

    test: str


@dataclass(frozen=True, slots=True)
class Never:
    """The promise cannot be broken in this cell; the reason is a sentence."""

    why: str


@dataclass(frozen=True, slots=True)
class Documented:
    """An exception that users are told of: what happens, and the page with its heading that says so."""

    what: str
    page: str


Cell = Proof | Never | Documented


def elsewhere(what: str) -> Documented:
    """Return an exception of `mooring controllers` at an API server that is not Mooring."""
    return Documented(what, "docs/controllers-for-any-cluster.md#what-that-api-server-enforces-and-what-it-does-not")


LEAVING = Never(
    "A machine that leaves gets nothing: no certificate, no name, no right. It ends its own membership alone."
)
ITS_OWN = elsewhere("That API server does this in its own way: nothing is promised about it.")


def doors(rest: Cell, cells: Mapping[Door, Cell]) -> dict[Door, Cell]:
    """Return a cell for each door: those of `cells`, and `rest` for all others."""
    return {door: cells.get(door, rest) for door in Door}


def moments(rest: Cell, cells: Mapping[Moment, Cell]) -> dict[Moment, Cell]:
    """Return a cell for each moment: those of `cells`, and `rest` for all others."""
    return {moment: cells.get(moment, rest) for moment in Moment}


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise: a sentence that users read, and a cell for each door and each moment."""

    key: str
    """Anchor of its row on the page of promises: lower-case words with hyphens."""
    sentence: str
    doors: Mapping[Door, Cell]
    moments: Mapping[Moment, Cell]
