"""Walk every stage of a load balanced connection with every event: the stage after it, and what the load balancer hears of it.

Rules kept here: the two transports are simulated; they record what is done to them.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Any, cast

import pytest

from mooring.agent.tunnel import Connection, Dialogue, Side


class Transport:
    """One end, without a network."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.closed = ""

    def get_extra_info(self, name: str) -> socket.socket:
        return self.sock

    def is_closing(self) -> bool:
        return bool(self.closed)

    def close(self) -> None:
        self.closed = self.closed or "closed"

    def abort(self) -> None:
        self.closed = "aborted"

    def done(self, *values: object) -> None:
        """Stand for methods that change nothing here."""

    set_write_buffer_limits = write = write_eof = pause_reading = resume_reading = done


class Walk:
    """A connection with both sides."""

    def __init__(self, sock: socket.socket) -> None:
        self.heard: list[str] = []
        self.connection = Connection(
            lambda connection: None,
            lambda connection: self.heard.append("?"),
            lambda connection: self.heard.append("."),
        )
        self.client, self.server = self.connection.client_side(), self.connection.server_side("192.0.2.1:6443")
        self.transports = [Transport(sock), Transport(sock)]
        for side, transport in zip((self.client, self.server), self.transports, strict=True):
            side.connection_made(cast(Any, transport))

    def side(self, name: str) -> Side:
        return self.client if name == "client" else self.server

    def do(self, step: str) -> None:
        name, _, event = step.partition("-")
        if event == "sends":
            self.side(name).buffer_updated(1)
        elif event == "finishes":
            self.side(name).eof_received()
        elif event == "goes":
            self.side(name).connection_lost(None)
        elif event == "breaks":
            self.side(name).connection_lost(ConnectionResetError())
        else:
            self.connection.abort()


STEPS = {
    Dialogue.SILENT: "",
    Dialogue.ASKED: "client-sends",
    Dialogue.ANSWERED: "client-sends server-sends",
    Dialogue.ENDED: "abort",
}

TABLE = """
stage    client-sends server-sends client-finishes server-finishes client-goes client-breaks server-goes abort
silent   asked        answered     silent          silent          ended.      ended.        ended.      ended.
asked    asked        answered     asked?          asked           ended?.     ended?.       ended.      ended.
answered answered     answered     answered        answered        ended.      ended.        ended.      ended.
ended    ended        ended        ended           ended           ended       ended         ended       ended
"""
"""Stage after each event. `?`: the load balancer hears that the client got no answer. `.`: it hears of the end."""
HEAD, *ROWS = [line.split() for line in TABLE.strip().splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_each_event_in_each_stage_has_one_outcome(row: list[str]) -> None:
    outcomes = []
    for event in HEAD[1:]:
        with contextlib.closing(socket.socket()) as sock:
            walk = Walk(sock)
            for step in STEPS[Dialogue[row[0].upper()]].split():
                walk.do(step)
            walk.heard.clear()
            walk.do(event)
            outcomes.append("".join([walk.connection.dialogue.name.lower(), *walk.heard]))
            assert all(transport.closed for transport in walk.transports) == (
                walk.connection.dialogue is Dialogue.ENDED
            )
    assert outcomes == row[1:]


def test_the_walk_has_a_row_for_each_stage() -> None:
    assert [Dialogue[row[0].upper()] for row in ROWS] == list(Dialogue)
