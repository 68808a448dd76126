"""OpenID Connect and OAuth 2.0 as a client: provider metadata, and one file for each grant."""
