"""`--client-crl-file` in a whole server: open connections, watches, changed files, CAs with their CRL, nextUpdate, starts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.identity import MASTERS
from mooring.pki import pem
from tests.support.manualclock import EPOCH, settle
from tests.support.refused import SECRETS
from tests.support.serverroom import Server, connection, open_server
from tests.support.testca import ThrowawayCA

WATCH = f"{SECRETS}?watch=1"
DAY = timedelta(days=1)
OTHER, NEW = ThrowawayCA("other", EPOCH), ThrowawayCA("new", EPOCH)
JANE, JOE, ANN = OTHER.client("jane", MASTERS), OTHER.client("joe", MASTERS), NEW.client("ann", MASTERS)


class Files:
    """The bundle of CAs and the CRLs of a server."""

    def __init__(self, directory: Path) -> None:
        self.cas, self.crls = directory / "cas.crt", directory / "crls.pem"

    async def change(self, server: Server, *, cas: bytes = b"", crls: bytes = b"") -> None:
        if cas:
            self.cas.write_bytes(cas)
        if crls:
            self.crls.write_bytes(crls)
        await server.files_changed()
        await settle()


def in_server(directory: Path, test: Callable[[Server, Files], Awaitable[None]], **flags: Any) -> None:
    files = Files(directory)
    files.cas.write_bytes(OTHER.certificate_pem)
    files.crls.write_bytes(OTHER.crl())

    async def run() -> None:
        options = {"client_ca_file": str(files.cas), "client_crl_file": (str(files.crls),), **flags}
        async with open_server(**options) as server:
            await test(server, files)

    asyncio.run(run())


def test_a_new_crl_refuses_an_open_connection_and_ends_its_watches_and_no_others(tmp_path: Path) -> None:
    async def test(server: Server, files: Files) -> None:
        jane, joe = connection([JANE.der]), connection([JOE.der])
        watches = [await server.follow(WATCH, via=via) for via in (jane, joe)]
        assert (await server.get(SECRETS, via=jane)).status == 200
        await files.change(server, crls=OTHER.crl(JANE, begin=EPOCH + DAY))
        assert [(await server.get(SECRETS, via=via)).status for via in (jane, joe)] == [401, 200]
        assert [watch.ended for watch in watches] == [True, False]
        await watches[1].end()

    in_server(tmp_path, test)


def test_crls_in_der_and_in_several_files(tmp_path: Path) -> None:
    (block,) = pem.blocks(OTHER.crl(JANE))
    (tmp_path / "other.crl").write_bytes(block.der)

    async def test(server: Server, files: Files) -> None:
        assert (await server.get(SECRETS, via=connection([JANE.der]))).status == 401
        assert (await server.get(SECRETS, via=connection([JOE.der]))).status == 200

    (tmp_path / "new.crl").write_bytes(NEW.crl())
    (tmp_path / "all.crt").write_bytes(OTHER.certificate_pem + NEW.certificate_pem)
    names = (str(tmp_path / "other.crl"), str(tmp_path / "new.crl"))
    in_server(tmp_path, test, client_crl_file=names, client_ca_file=str(tmp_path / "all.crt"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"junk", "neither DER nor", id="junk"),
        pytest.param(NEW.crl(), "CN=new, the issuer of a CRL, is none of the CAs", id="of an unknown CA"),
        pytest.param(OTHER.crl(begin=EPOCH - DAY), "is older than the one in force", id="an older one"),
    ],
)
def test_content_that_cannot_be_used_leaves_the_last_good_crl_in_force(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, said: str
) -> None:
    async def test(server: Server, files: Files) -> None:
        await files.change(server, crls=OTHER.crl(JANE, begin=EPOCH))
        await files.change(server, crls=content)
        assert (await server.get(SECRETS, via=connection([JANE.der]))).status == 401
        files.crls.unlink()
        await files.change(server)
        assert (await server.get(SECRETS, via=connection([JANE.der]))).status == 401

    in_server(tmp_path, test)
    assert said in caplog.text
    assert "the last good content stays in force" in caplog.text


def test_a_ca_and_its_crl_come_together_and_the_crl_is_in_force_first(tmp_path: Path) -> None:
    async def test(server: Server, files: Files) -> None:
        via, seen = connection([ANN.der]), list[int]()

        async def notice() -> None:
            seen.append((await server.get(SECRETS, via=via)).status)

        tasks: list[asyncio.Task[None]] = []
        cas = server.assembly.trust.authentication.client_cas
        cas.subscribe(lambda: tasks.append(asyncio.ensure_future(notice())))
        await files.change(
            server,
            cas=OTHER.certificate_pem + NEW.certificate_pem,
            crls=OTHER.crl() + NEW.crl(ANN),
        )
        await asyncio.gather(*tasks)
        assert seen
        assert set(seen) == {401}
        assert (await server.get(SECRETS, via=connection([NEW.client("bob", MASTERS).der]))).status == 200

    in_server(tmp_path, test)


def test_a_revoked_intermediate_refuses_the_leaf_also_as_a_member_of_the_bundle(tmp_path: Path) -> None:
    below = OTHER.intermediate("below")
    leaf = OTHER.custom("jane", issuer=below, not_after=EPOCH + 30 * DAY)

    async def test(server: Server, files: Files) -> None:
        chains = (connection([leaf.der, below.der]), connection([leaf.der]))

        async def statuses() -> list[int]:
            return [(await server.get("/api", via=via)).status for via in chains]

        assert await statuses() == [200, 401], "without the intermediate there is no path"
        both = OTHER.certificate_pem + below.certificate_pem
        await files.change(server, cas=both)
        assert await statuses() == [200, 200]
        await files.change(server, crls=OTHER.crl(below, begin=EPOCH + DAY))
        assert await statuses() == [401, 401]
        await files.change(server, cas=OTHER.certificate_pem)
        assert await statuses() == [401, 401]

    in_server(tmp_path, test)


def test_past_next_update_a_required_crl_answers_503_and_ends_watches(tmp_path: Path) -> None:
    async def test(server: Server, files: Files) -> None:
        via = connection([JANE.der])
        watch = await server.follow(WATCH, via=via)
        expiry = server.assembly.upkeep.expiry_watch
        await expiry.look()
        await settle()
        assert (expiry.passes, watch.ended) == (True, False)
        await server.clock.advance(6 * DAY / timedelta(seconds=1))
        await expiry.look()
        assert not expiry.passes, "a warning before the end"
        assert (await server.get(SECRETS, via=via)).status == 200
        await server.clock.advance(2 * DAY / timedelta(seconds=1))
        refused = await server.get(SECRETS, via=via)
        assert (refused.status, int(refused.headers["retry-after"]) > 0) == (503, True)
        await expiry.look()
        await settle()
        assert watch.ended
        await files.change(server, crls=OTHER.crl(begin=server.clock.now()))
        assert (await server.get(SECRETS, via=via)).status == 200

    in_server(tmp_path, test, client_crl_strict=True)


def test_past_next_update_a_crl_that_is_not_required_still_counts_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(server: Server, files: Files) -> None:
        await files.change(server, crls=OTHER.crl(JANE, begin=EPOCH))
        await server.clock.advance(8 * DAY / timedelta(seconds=1))
        assert (await server.get(SECRETS, via=connection([JANE.der]))).status == 401
        assert (await server.get(SECRETS, via=connection([JOE.der]))).status == 200
        with caplog.at_level(logging.WARNING):
            await server.assembly.upkeep.expiry_watch.look()

    in_server(tmp_path, test)
    assert "a CRL of client-crl-file expired" in caplog.text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        pytest.param({"client_crl_strict": True}, "client-crl-strict: it needs client-crl-file", id="without a file"),
        pytest.param({"client_crl_file": ("/nowhere/crl",)}, "/nowhere/crl cannot be read", id="a missing file"),
        pytest.param({"client_crl_file": (__file__,)}, "client-crl-file: .*test_clientcrls.py: the text is neither", id="no CRL"),
    ],
)  # fmt: skip
def test_a_start_with_crls_that_cannot_be_used_fails(flags: dict[str, Any], said: str) -> None:
    async def run() -> None:
        async with open_server(**flags):
            pass

    with pytest.raises(ConfigError, match=said):
        asyncio.run(run())
