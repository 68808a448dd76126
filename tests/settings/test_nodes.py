"""Settings of nodes."""

from __future__ import annotations

import pytest

from mooring.errors import ConfigError
from mooring.settings.nodes import NodeSettings


@pytest.mark.parametrize(
    ("value", "ends"),
    [
        pytest.param({}, True, id="by default the membership ends"),
        pytest.param({"node_deletion": "ends-membership"}, True, id="the membership ends"),
        pytest.param({"node_deletion": "reregisters"}, False, id="the machine creates its Node again"),
    ],
)
def test_deletion_of_a_node(value: dict[str, str], ends: bool) -> None:
    assert NodeSettings.read(value).deletion_ends_membership is ends


def test_another_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match='node-deletion: "maybe" is neither ends-membership nor reregisters'):
        NodeSettings.read({"node_deletion": "maybe"})
