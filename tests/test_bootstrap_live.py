"""The interface for programs: its page, its promise, and a discovery as a program would make it."""

from __future__ import annotations

import asyncio
import inspect
import re
import secrets
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mooring import bootstrap
from tests.support.liveserver import LiveServer, live_server

__all__ = ["live_server"]
PAGE = (Path(__file__).parents[1] / "docs/reference/python.md").read_text()
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def names_of(function: Callable[..., object]) -> str:
    """Return the names of the arguments as the page writes them."""
    words = []
    for one in inspect.signature(function).parameters.values():
        if one.kind is one.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        words.append(one.name)
    return ", ".join(words)


def test_the_page_has_every_name_with_its_arguments() -> None:
    """A change of an argument is a change of the interface: its page, and the changelog, have to say so."""
    missing = []
    for name in bootstrap.__all__:
        found = getattr(bootstrap, name)
        shown = f"`{name}({names_of(found)})`" if inspect.isfunction(found) else f"`{name}`"
        missing += [shown] if shown not in PAGE else []
    assert missing == []


def test_the_program_of_the_page_reads_its_tokens_and_pins() -> None:
    token, pin = (re.search(pattern, PAGE) for pattern in (r'parse_token\("([^"]+)"\)', r'parse_pin\("([^"]+)"\)'))
    assert token is not None
    assert pin is not None
    assert str(bootstrap.parse_pin(pin[1])) == pin[1]
    assert "0123456789abcdef" not in repr(bootstrap.parse_token(token[1]))


@pytest.mark.parametrize(
    "endpoints",
    [
        [],
        ["a b"],
        ["abcdef.0123456789abcdef"],
        ["https://abcdef.0123456789abcdef:6443"],
        ["192.0.2.1", "x.ABCDEF.0123456789ABCDEF:6443"],
        ["ABCDEF.0123456789ABCDEF.example.com"],
        ["K10::abcdef.0123456789abcdef"],
    ],
)
@pytest.mark.parametrize("pins", [[], ["sha256:" + "0" * 64]])
def test_arguments_of_discovery_that_cannot_be_used(endpoints: list[str], pins: list[str]) -> None:
    token = bootstrap.parse_token("abcdef.0123456789abcdef")
    with pytest.raises(ValueError, match=r"discovery needs|stands where the address|must be host") as refused:
        asyncio.run(bootstrap.discover(endpoints, token, [bootstrap.parse_pin(one) for one in pins]))
    assert "0123456789abcdef" not in str(refused.value).lower()


def test_a_bundle_without_certificates_has_no_pins() -> None:
    with pytest.raises(bootstrap.PkiError):
        bootstrap.pins_of(b"junk")


def test_a_program_discovers_a_cluster(live_server: LiveServer) -> None:
    token, pins = live_server.create_token(), [bootstrap.parse_pin(live_server.pin)]
    found = asyncio.run(bootstrap.discover([live_server.endpoint], token, pins, seconds=30))
    assert (found.server, found.ca_pem) == (live_server.url, live_server.ca_pem)
    wrong = bootstrap.parse_token(f"{token.id}.{'0' * 16}")
    with pytest.raises(bootstrap.DiscoveryError) as refused:
        asyncio.run(bootstrap.discover([live_server.endpoint], wrong, pins, seconds=30))
    assert refused.value.final


def test_a_program_makes_a_token_and_signs_a_cluster_info_by_it() -> None:
    token = bootstrap.generate_token(secrets.token_bytes)
    secret = bootstrap.to_secret(bootstrap.new_record(token, NOW))
    assert bootstrap.from_secret(secret).token == token
    info = bootstrap.signed(bootstrap.config_map("https://192.0.2.1:6443", b""), [secret], NOW)
    assert info is not None
    assert "https://192.0.2.1:6443" in bootstrap.verify(info["data"], token)
    assert bootstrap.signed(info, [secret], NOW) is None


def test_nothing_of_a_server_is_imported() -> None:
    program = (
        "import sys, mooring.bootstrap; print([name for name in sys.modules if name.split('.')[0] in "
        "('grpc', 'uvloop', 'sqlite3', 'click', 'rich', 'prometheus_client') or name.startswith(('mooring.server', 'mooring.api.', "
        "'mooring.cli.', 'mooring.storage', 'mooring.controllers'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
