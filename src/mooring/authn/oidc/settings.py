"""Settings of OpenID Connect: one provider by flags, or an AuthenticationConfiguration file.

Rules kept here (docs/protocol/openid-connect.md#flags): the flags and the file exclude each other. The flags belong to
`--oidc-issuer-url` and `--oidc-client-id`, which need each other. The reader of the file checks its content.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mooring.errors import ConfigError
from mooring.settings.declaration import COMMA_SEPARATED, TEXT, TEXTS, Settings, file_setting, https_url, setting

SIGNING_ALGORITHMS = ("RS256", "RS384", "RS512", "ES256", "ES384", "ES512", "PS256", "PS384", "PS512")
DEFAULT_ALGORITHMS = ("RS256",)
USERNAME_CLAIM = "sub"


@dataclass(frozen=True, slots=True, kw_only=True)
class OidcSettings(Settings):
    """OpenID Connect providers."""

    heading: ClassVar[str] = "OpenID Connect"

    oidc_issuer_url: str = setting(
        TEXT,
        default="",
        meaning="https URL of the OpenID Connect provider.",
        metavar="URL",
    )
    oidc_client_id: str = setting(
        TEXT,
        default="",
        meaning="Audience that its tokens must be for.",
        metavar="ID",
    )
    oidc_ca_file: str = file_setting("CAs to verify the provider with.", default_note="the machine's")
    oidc_username_claim: str = setting(
        TEXT,
        default=USERNAME_CLAIM,
        meaning="Claim that names the user.",
        metavar="CLAIM",
    )
    oidc_username_prefix: str = setting(
        TEXT,
        default="",
        meaning="Put before every user name; - puts nothing.",
        default_note="the issuer and #, unless the claim is email",
        metavar="PREFIX",
    )
    oidc_groups_claim: str = setting(
        TEXT,
        default="",
        meaning="Claim that holds the groups.",
        metavar="CLAIM",
    )
    oidc_groups_prefix: str = setting(
        TEXT,
        default="",
        meaning="Put before every group.",
        metavar="PREFIX",
    )
    oidc_signing_algs: tuple[str, ...] = setting(
        COMMA_SEPARATED,
        default=DEFAULT_ALGORITHMS,
        meaning=f"Algorithms the provider may sign with, of {', '.join(SIGNING_ALGORITHMS)}.",
        metavar="ALG,...",
    )
    oidc_required_claim: tuple[str, ...] = setting(
        TEXTS,
        default=(),
        meaning="Claim and value that a token must have; repeatable.",
        metavar="CLAIM=VALUE",
    )
    authentication_config: str = file_setting(
        "AuthenticationConfiguration (apiserver.config.k8s.io): JWT issuers and anonymous access; read again when it "
        "changes."
    )

    def __post_init__(self) -> None:
        """Raise ConfigError for settings that lack others or exclude each other."""
        if not self.oidc_issuer_url and not self.oidc_client_id:
            for key, given in (
                ("ca-file", self.oidc_ca_file),
                ("groups-claim", self.oidc_groups_claim),
                ("username-prefix", self.oidc_username_prefix),
                ("groups-prefix", self.oidc_groups_prefix),
                ("required-claim", self.oidc_required_claim),
                ("username-claim", self.oidc_username_claim != USERNAME_CLAIM),
                ("signing-algs", self.oidc_signing_algs != DEFAULT_ALGORITHMS),
            ):
                if given:
                    raise ConfigError(f"oidc-issuer-url: it is needed with oidc-{key}, and so is oidc-client-id")
            return
        if not self.oidc_issuer_url or not self.oidc_client_id:
            missing, present = ("issuer-url", "client-id") if self.oidc_client_id else ("client-id", "issuer-url")
            raise ConfigError(f"oidc-{missing}: it is needed with oidc-{present}")
        if not self.oidc_username_claim:
            raise ConfigError("oidc-username-claim: give the name of a claim")
        for algorithm in self.oidc_signing_algs:
            if algorithm not in SIGNING_ALGORITHMS:
                raise ConfigError(f'oidc-signing-algs: "{algorithm}" is not one of {", ".join(SIGNING_ALGORITHMS)}')
        if not self.oidc_signing_algs:
            raise ConfigError(f"oidc-signing-algs: give at least one of {', '.join(SIGNING_ALGORITHMS)}")
        https_url(self.oidc_issuer_url, "oidc-issuer-url")
        for text in self.oidc_required_claim:
            name, equals, _ = text.partition("=")
            if not name or not equals:
                raise ConfigError(f'oidc-required-claim: "{text}" is not claim=value')
        if self.authentication_config:
            raise ConfigError(
                "authentication-config: it cannot be combined with oidc- flags; say everything in the file"
            )

    @property
    def required_claims(self) -> dict[str, str]:
        """Claims that a token must have, with their values."""
        pairs = (text.partition("=") for text in self.oidc_required_claim)
        return {name: value for name, _, value in pairs}
