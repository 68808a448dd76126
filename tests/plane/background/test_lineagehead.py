"""The file `lineage.head`: the end of the lineage outside the store, and evidence of records that are missing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.plane.background.lineagehead import LineageHead, read_heads
from mooring.trust.lineage.chain import Checkpoint

ONE, TWO, THREE = (Checkpoint(number, "sha256:" + f"{number}" * 64) for number in (1, 2, 3))
OTHER = Checkpoint(2, "sha256:" + "f" * 64)


def kept(path: Path, *heads: Checkpoint, stored: Checkpoint | None = None) -> None:
    """Run until the heads are noted, and stop."""

    async def scenario() -> None:
        hashes = {stored.sequence: stored.hash} if stored else {}
        head = LineageHead(path, lambda sequence: hashes.get(sequence, ""), SystemClock())
        running = asyncio.create_task(head.run())
        for one in heads:
            head.note(one)
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_the_file_has_the_newest_record(tmp_path: Path) -> None:
    path = tmp_path / "lineage.head"
    assert read_heads(path) == []
    kept(path)
    assert not path.exists()
    kept(path, ONE, TWO)
    assert read_heads(path) == [TWO]
    assert path.stat().st_mode & 0o777 == 0o600
    kept(path, THREE, stored=TWO)
    assert read_heads(path) == [THREE]


def test_a_record_that_the_store_does_not_have_stays_as_evidence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lineage.head"
    kept(path, TWO)
    kept(path, OTHER, stored=OTHER)
    assert read_heads(path) == [TWO, OTHER]
    assert "lineage records are missing or were changed" in caplog.text
    kept(path, THREE, stored=OTHER)
    assert read_heads(path) == [TWO, THREE]


def test_a_file_that_cannot_be_read_or_written_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "lineage.head"
    path.write_text("junk\n")
    path.chmod(0o600)
    kept(path, TWO)
    assert "is not kept outside the store" in caplog.text
    assert path.read_text() == "junk\n"
    with pytest.raises(ConfigError, match="not a checkpoint"):
        read_heads(path)
