"""Servers of a load balancer: order, health, fallback, and the saved form."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from mooring.errors import ConfigError
from mooring.trust.serverlist import MAX_SERVERS, ServerList, new_list, saved_urls, seed_address

URL = "https://seed.example:6443"
SEED = "seed.example:6443"
A, B, C = "10.0.0.1:6443", "10.0.0.2:6443", "10.0.0.3:6443"


def servers(*learned: str, urls: tuple[str, ...] = (URL,), entropy: bytes = b"machine 1") -> ServerList:
    return new_list(urls, entropy).with_learned(learned).servers


# ── URLs of --server ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Url:
    says: str
    url: str
    address: str = ""
    error: str = ""

    def __str__(self) -> str:
        return self.says


URLS = (
    Url("the port of the URL is kept", "https://10.0.0.1:9345", "10.0.0.1:9345"),
    Url("without a port it is 443", "https://10.0.0.1", "10.0.0.1:443"),
    Url("a name is written in lower case", "https://Server.Example:6443", "server.example:6443"),
    Url("an IPv6 address keeps its brackets", "https://[2001:DB8::1]:6443", "[2001:db8::1]:6443"),
    Url("a path does not count", "https://10.0.0.1:6443/k3s/", "10.0.0.1:6443"),
    Url("http is refused", "http://10.0.0.1:6443", error="--server: the scheme must be https"),
    Url("a token is refused", "https://abcdef.0123456789abcdef:6443", error="--server: a bootstrap token stands where"),
    Url("an address without scheme is refused", "10.0.0.1:6443", error="--server: "),
    Url(
        "a password in the URL is refused and not repeated",
        "https://u:secret@10.0.0.1",
        error="user name or a password",
    ),
    Url("a host that is no name is refused", "https://-.example:6443", error="neither a DNS name nor an IP address"),
)


@pytest.mark.parametrize("case", URLS, ids=str)
def test_url_of_a_server(case: Url) -> None:
    if not case.error:
        assert seed_address(case.url) == case.address
        return
    with pytest.raises(ConfigError, match=case.error) as caught:
        seed_address(case.url)
    assert "secret" not in str(caught.value)


def test_not_more_urls_than_the_limit() -> None:
    with pytest.raises(ConfigError, match="at most 64 servers"):
        new_list((URL,) * (MAX_SERVERS + 1), b"")


def test_without_a_seed_there_is_no_server_until_one_is_learned() -> None:
    empty = new_list((), b"")
    assert empty.candidates() == ()
    assert empty.with_learned([A]).servers.candidates() == (A,)


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_seeds_are_the_list_while_nothing_is_learned() -> None:
    found = new_list((URL, "https://10.0.0.9:6443", URL), b"")
    assert found.learned == ("10.0.0.9:6443", SEED)
    assert found.fallback == ()
    assert {*found.candidates()} == {SEED, "10.0.0.9:6443"}


def test_the_order_depends_on_the_entropy_and_spreads_evenly() -> None:
    first = [servers(A, B, C, entropy=bytes([number])).candidates()[0] for number in range(240)]
    assert {first.count(one) > 50 for one in (A, B, C)} == {True}
    assert servers(A, B, C) == servers(C, A, B)


def test_a_server_that_comes_or_goes_moves_no_other() -> None:
    three = servers(A, B, C).known
    for gone in (A, B, C):
        two = servers(*({A, B, C} - {gone})).known
        assert [one for one in three if one != gone] == [*two]


def test_the_seed_is_the_fallback_of_last_resort() -> None:
    found = servers(A, B)
    assert found.candidates()[-1] == SEED
    for one in found.candidates()[:2]:
        found = found.dropped(one)
    assert found.candidates()[0] == SEED, "every learned server failed"
    assert {*found.candidates()} == {A, B, SEED}, "those that failed are tried after it"


def test_a_seed_among_the_learned_ones_is_one_of_them() -> None:
    found = servers(A, SEED)
    assert found.fallback == ()
    assert len(found.candidates()) == 2


def test_the_server_in_use_stays_in_use_until_it_fails() -> None:
    found = servers(A, B, C)
    last = found.candidates()[2]
    found = found.connected(last)
    assert found.candidates()[0] == last
    found = found.dropped(last)
    assert found.candidates()[0] != last
    second = found.candidates()[0]
    found = found.connected(second).checked({last: True}).servers
    assert found.candidates()[0] == second, "a server that is back is not returned to"
    assert found.failed == frozenset()


def test_a_connection_makes_a_failed_server_healthy() -> None:
    assert servers(A, B).dropped(A).connected(A).failed == frozenset()


def test_a_server_that_is_unknown_does_not_fail() -> None:
    assert servers(A).dropped(B) == servers(A)


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_a_check_finds_unhealthy_loses_its_connections() -> None:
    change = servers(A, B, urls=("https://10.0.0.1:6443",)).checked({A: False, B: True})
    assert change.closing == {A}
    assert change.servers.failed == {A}
    assert change.servers.checked({A: True}).servers.failed == frozenset()


def test_a_connection_that_failed_leaves_the_open_ones_to_the_check() -> None:
    found = servers(A, B, urls=("https://10.0.0.1:6443",)).dropped(A)
    assert found.checked({A: False}).closing == {A}
    assert found.checked({A: True}).closing == frozenset()


def test_the_fallback_loses_its_connections_while_a_learned_server_is_healthy() -> None:
    found = servers(A, B)
    assert found.checked({SEED: True}).closing == {SEED}
    assert found.checked({A: False}).closing == {A, SEED}


def test_nothing_is_closed_on_the_fallback_while_no_learned_server_is_healthy() -> None:
    found = servers(A, B).dropped(A).dropped(B).connected(SEED)
    assert found.checked({A: False, B: False, SEED: True}).closing == {A, B}
    back = found.checked({A: False, B: True})
    assert back.closing == {A, SEED}
    assert back.servers.candidates()[0] == B


def test_a_check_of_a_server_that_has_left_changes_nothing() -> None:
    change = servers(A, B, urls=("https://10.0.0.1:6443",)).checked({C: False})
    assert change.closing == frozenset()
    assert change.servers.failed == frozenset()


# ── the learned list ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Learned:
    says: str
    given: tuple[str, ...]
    learned: tuple[str, ...]

    def __str__(self) -> str:
        return self.says


OWN = "127.0.0.1:6444"
LISTS = (
    Learned("addresses are kept once each and sorted", (B, A, B), (A, B)),
    Learned("an IPv6 address is written in its short form", ("[2001:db8:0::1]:6443",), ("[2001:db8::1]:6443",)),
    Learned("an address without port is passed over", (A, "10.0.0.2", "::1"), (A,)),
    Learned("what is no address is passed over", (A, "", "a b:1", "10.0.0.2:0", "10.0.0.2:65536", "[::1"), (A,)),
    Learned("an address that names no machine is passed over", (A, "0.0.0.0:6443", "[::]:6443"), (A,)),
    Learned("the address of the load balancer itself is passed over", (A, OWN), (A,)),
    Learned("an empty list leaves what was known", (), (B,)),
    Learned("a list of nothing usable leaves what was known", ("nonsense", OWN), (B,)),
)


@pytest.mark.parametrize("case", LISTS, ids=str)
def test_learned_list(case: Learned) -> None:
    assert servers(B).with_learned(case.given, OWN).servers.learned == case.learned


def test_a_list_without_end_is_cut_at_the_limit() -> None:
    change = servers().with_learned(f"10.0.{number >> 8}.{number & 255}:6443" for number in range(100_000))
    assert len(change.servers.learned) == MAX_SERVERS


def test_a_server_that_left_the_list_loses_its_connections_and_its_failure() -> None:
    change = servers(A, B).dropped(B).with_learned((A, C))
    assert change.closing == {B}
    assert change.servers.failed == frozenset()


def test_the_list_that_is_known_already_closes_nothing() -> None:
    assert servers(A, B).with_learned((B, A)).closing == frozenset()


def test_the_failure_of_a_seed_outlives_a_new_list() -> None:
    assert servers(A).dropped(SEED).with_learned((B,)).servers.failed == {SEED}


# ── the saved form ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_saved_form_is_the_one_of_k3s() -> None:
    assert json.loads(servers(B, A).encode()) == {"ServerURL": URL, "ServerAddresses": [A, B]}


def test_a_saved_list_is_restored_for_the_same_url() -> None:
    restored = servers().restored(servers(A, B).encode())
    assert restored is not None
    assert restored.learned == (A, B)
    assert restored.candidates()[-1] == SEED


def test_a_file_that_k3s_wrote_is_restored() -> None:
    written = b'{\n  "ServerURL": "https://seed.example:6443",\n  "ServerAddresses": [\n    "10.0.0.1:6443"\n  ]\n}'
    restored = servers().restored(written)
    assert restored is not None
    assert restored.learned == (A,)


@pytest.mark.parametrize("addresses", [b"", b', "ServerAddresses": null', b', "ServerAddresses": []'])
def test_a_file_of_k3s_without_addresses_is_restored(addresses: bytes) -> None:
    restored = servers().restored(b'{"ServerURL": "https://seed.example:6443"' + addresses + b"}")
    assert restored is not None
    assert restored.learned == servers().learned


@dataclass(frozen=True)
class Saved:
    says: str
    data: bytes

    def __str__(self) -> str:
        return self.says


USELESS = (
    Saved("of another URL", servers(A, urls=("https://other.example:6443",)).encode()),
    Saved("empty", b""),
    Saved("cut off", servers(A).encode()[:30]),
    Saved("not UTF-8", b"\xff\xfe\xfa"),
    Saved("no object", b"[]"),
    Saved("with addresses that are a text", b'{"ServerURL": "https://seed.example:6443", "ServerAddresses": ""}'),
    Saved("with an address that is no text", b'{"ServerURL": "https://seed.example:6443", "ServerAddresses": [7]}'),
    Saved("with a value nested without end", b"[" * 60_000),
)


@pytest.mark.parametrize("case", USELESS, ids=str)
def test_a_saved_list_that_does_not_count(case: Saved) -> None:
    assert servers().restored(case.data) is None


@pytest.mark.parametrize(
    ("data", "urls"),
    [
        pytest.param(
            b'{"ServerURL": "https://z:6443", "ServerAddresses": ["b:6443", "z:6443", "a:6443"]}',
            ("https://a:6443", "https://b:6443", "https://z:6443"),
            id="the learned ones, each once",
        ),
        pytest.param(
            b'{"ServerURL": "http://a", "ServerAddresses": ["b:6443"]}', ("https://b:6443",), id="a URL that is none"
        ),
        pytest.param(b'{"ServerURL": 1, "ServerAddresses": ["b:6443"]}', (), id="no URL"),
        pytest.param(b'{"ServerURL": "https://a:6443"}', ("https://a:6443",), id="no addresses"),
        pytest.param(
            b'{"ServerURL": "https://a:6443", "ServerAddresses": null}', ("https://a:6443",), id="addresses of null"
        ),
        pytest.param(b'{"ServerURL": null, "ServerAddresses": null}', (), id="nulls"),
        pytest.param(b"[]", (), id="another document"),
        pytest.param(b"{", (), id="damaged"),
        pytest.param(b"", (), id="no file"),
    ],
)
def test_a_saved_list_names_its_servers(data: bytes, urls: tuple[str, ...]) -> None:
    assert saved_urls(data) == urls
