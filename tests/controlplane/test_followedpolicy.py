"""The signing policy follows its file: whole, or not at all."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from mooring.controllers.certificates.signing.signingpolicy import NO_POLICY
from mooring.controlplane.datadirectory import Reloading
from mooring.controlplane.signingkeys import FollowedPolicy
from mooring.errors import ConfigError

TEXT = "apiVersion: mooring.dev/v1alpha1\nkind: SigningPolicy\nsigners: [{name: a.b/NAME, rules: []}]\n"


def test_a_changed_policy_comes_into_force_and_a_wrong_one_does_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, reloading = tmp_path / "policy.yaml", Reloading()
    file.write_text(TEXT.replace("NAME", "first"))
    policy = FollowedPolicy(str(file), reloading)
    told: list[list[str]] = []
    policy.subscribe(lambda: told.append(list(policy.current().signers)))
    assert list(policy.current().signers) == ["a.b/first"]

    async def look() -> None:
        await reloading.look()
        await reloading.look()

    file.write_text(TEXT.replace("rules", "rule"))
    with caplog.at_level(logging.ERROR):
        asyncio.run(look())
    assert "the last good content stays in force: cluster-signing-policy-file: " in caplog.text
    assert list(policy.current().signers) == ["a.b/first"]
    file.write_text(TEXT.replace("NAME", "second-one"))
    asyncio.run(look())
    assert list(policy.current().signers) == ["a.b/second-one"]
    assert told == [["a.b/second-one"]]


def test_a_start_needs_a_good_file_or_none(tmp_path: Path) -> None:
    assert FollowedPolicy("", Reloading()).current() is NO_POLICY
    with pytest.raises(ConfigError, match=r"^cluster-signing-policy-file: .*gone"):
        FollowedPolicy(f"{tmp_path}/gone", Reloading())
    (tmp_path / "policy").write_text("kind: Policy")
    with pytest.raises(ConfigError, match=r"^cluster-signing-policy-file: .*one SigningPolicy of"):
        FollowedPolicy(f"{tmp_path}/policy", Reloading())
