"""Interface for programs: bootstrap tokens, the signed cluster-info, pins, and discovery (docs/reference/python.md).

Rules kept here:
* The names in `__all__` are an interface: within one minor version they keep arguments, results and errors. No other module is.
* Nothing of a server is imported.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooring.client.http.requests import drive_fetching
from mooring.clock import SystemClock
from mooring.errors import ConfigError
from mooring.pki.errors import PkiError
from mooring.trust.bootstraptoken.token import BootstrapToken, TokenError, generate_token, parse_token
from mooring.trust.bootstraptoken.tokensecret import TokenRecord, from_secret, new_record, to_secret
from mooring.trust.discovery.clusterinfo import config_map, signed, verify
from mooring.trust.discovery.errors import DiscoveryError
from mooring.trust.discovery.fetch import Polling, discover_by_token
from mooring.trust.discovery.pins import Pin, PinError, parse_pin, pins_of
from mooring.trust.discovery.trustedcluster import TrustedCluster
from mooring.trust.joinconfiguration import check_endpoints, parse_endpoint

__all__ = [
    "BootstrapToken",
    "DiscoveryError",
    "Pin",
    "PinError",
    "PkiError",
    "TokenError",
    "TokenRecord",
    "TrustedCluster",
    "config_map",
    "discover",
    "from_secret",
    "generate_token",
    "new_record",
    "parse_pin",
    "parse_token",
    "pins_of",
    "signed",
    "to_secret",
    "verify",
]


async def discover(
    endpoints: Sequence[str], token: BootstrapToken, pins: Sequence[Pin], *, seconds: float = 300.0
) -> TrustedCluster:
    """Return the cluster that a token and the pins of its CA vouch for. `endpoints` are `host:port` of its servers, tried in turn.

    The token's secret is not sent. Raises DiscoveryError when none passes within `seconds`, ValueError without endpoints or pins,
    and for an endpoint that is none or has a token in it, of which nothing is repeated that may be a token.
    """
    if not endpoints or not pins:
        raise ValueError("discovery needs an endpoint and a pin of the CA at least")
    try:
        places = [parse_endpoint(one) for one in endpoints]
        check_endpoints(places, token)
    except ConfigError as error:
        raise ValueError(str(error)) from None
    found = discover_by_token(places, token, pins, polling=Polling(total=seconds))
    return await drive_fetching(found, SystemClock())
