"""Logins on this machine: their files, the request for a credential, and the connection to an OpenID provider."""
