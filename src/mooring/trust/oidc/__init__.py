"""OpenID Connect and OAuth 2.0 as a client: provider metadata, the client, and the grants."""
