"""Commands that start a server, install it as a service, or check its configuration."""
