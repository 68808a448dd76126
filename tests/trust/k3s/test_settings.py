"""Settings of k3s's join protocol."""

from __future__ import annotations

from typing import Any

import pytest

from mooring.errors import ConfigError
from mooring.trust.k3s.settings import K3sSettings

TOKEN = "0123456789abcdef"


def test_nothing_is_on_by_default() -> None:
    settings = K3sSettings.read({})
    assert (settings.k3s_supervisor, settings.agent_token, settings.agent_token_file) == (False, None, "")


def test_values_are_read_and_checked() -> None:
    settings = K3sSettings.read(
        {
            "k3s_supervisor": True,
            "agent_token": TOKEN,
            "cluster_cidr": ("10.42.0.0/16,fd00::/56",),
            "cluster_dns": ("10.43.0.10",),
        }
    )
    assert settings.agent_token is not None
    assert settings.agent_token.reveal() == TOKEN.encode()
    assert settings.cluster_cidr == ("10.42.0.0/16", "fd00::/56")
    assert settings.cluster_dns == ("10.43.0.10",)
    assert TOKEN not in repr(settings)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"agent_token": TOKEN, "agent_token_file": "/x", "k3s_supervisor": True}, "not both"),
        ({"agent_token": TOKEN}, "give --k3s-supervisor, too"),
        ({"agent_token_file": "/x"}, "give --k3s-supervisor, too"),
        ({"agent_token": "two words", "k3s_supervisor": True}, "agent-token: an agent token is one line"),
        ({"cluster_cidr": ("10.42.0.1/16",)}, "cluster-cidr: "),
        ({"cluster_dns": ("dns.example",)}, "cluster-dns: "),
    ],
)
def test_a_mistake_names_its_key(values: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        K3sSettings.read(values)
