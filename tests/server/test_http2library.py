"""Names of h2 and hpack that `server/transport/http2.py` overrides: a new version that no longer uses them fails here."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes
from hpack import Decoder, Encoder

from mooring.server.transport.http2stream import H2, MAX_STREAMS

REQUEST = [(":method", "GET"), (":path", "/"), (":scheme", "https"), (":authority", "localhost")]
REQUESTS = 3


@pytest.mark.parametrize(
    ("library", "name"),
    [
        (H2Connection, "MAX_CLOSED_STREAMS"),
        (H2Connection, "DEFAULT_MAX_HEADER_LIST_SIZE"),
        (H2Connection, "open_inbound_streams"),
        (Encoder, "encode"),
        (Encoder, "add"),
        (Decoder, "decode"),
    ],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
def test_the_library_has_the_name(library: type, name: str) -> None:
    assert name in vars(library)


class Counting(H2):
    """Notes which of its overrides h2 uses."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = 0

    @property
    def open_inbound_streams(self) -> int:
        self.counted += 1
        return super().open_inbound_streams


def test_h2_counts_the_open_streams_once_for_each_request_and_takes_the_number_that_it_is_given() -> None:
    client, server = H2Connection(H2Configuration(client_side=True)), Counting()
    client.initiate_connection()
    server.initiate_connection()
    client.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = 2 * MAX_STREAMS  # a client that disregards the limit
    client.remote_settings.acknowledge()
    for number in range(MAX_STREAMS + REQUESTS):
        client.send_headers(2 * number + 1, REQUEST, end_stream=True)
    server.receive_data(client.data_to_send())
    assert server.counted == MAX_STREAMS + REQUESTS


def test_h2_encodes_and_decodes_with_what_it_is_given() -> None:
    server = H2()
    assert type(server.encoder) is not Encoder
    assert type(server.decoder) is not Decoder
    client = H2Connection(
        H2Configuration(client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False)
    )
    client.initiate_connection()
    server.initiate_connection()
    client.send_headers(1, [*REQUEST, ("user-agent", "trailing space ")], end_stream=True)
    (request,) = [event for event in server.receive_data(client.data_to_send()) if hasattr(event, "headers")]
    assert (b"user-agent", b"trailing space") in request.headers


def test_the_next_major_versions_are_not_installed_untested() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    for library in ("h2", "hpack"):
        (declared,) = [one for one in project["dependencies"] if one.startswith(f"{library}>=")]
        assert ",<" in declared
