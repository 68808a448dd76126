"""Settings of the approval of certificate requests."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.settings.signing import ApprovalSettings


def test_another_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match='machine-inventory: "maybe" is not one of optional, required'):
        ApprovalSettings.read({"machine_inventory": "maybe"})


def test_suffixes_of_dns_names() -> None:
    given = {"node_dns_suffixes": (".Nodes.example.com", "nodes.example.com", "internal")}
    assert ApprovalSettings.read(given).node_dns_suffixes == ("nodes.example.com", "internal")


@pytest.mark.parametrize("suffix", ["*.example.com", "a..b", "-a", "a" * 254, "bücher"])
def test_what_is_not_a_suffix_is_refused(suffix: str) -> None:
    with pytest.raises(ConfigError, match=r"node-dns-suffixes: .* is not a DNS suffix"):
        ApprovalSettings.read({"node_dns_suffixes": (suffix,)})


def test_the_number_of_suffixes_is_bounded() -> None:
    with pytest.raises(ConfigError, match="node-dns-suffixes: more than 64 suffixes"):
        ApprovalSettings.read({"node_dns_suffixes": tuple(f"s{n}" for n in range(65))})
