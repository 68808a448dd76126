"""Commands that start a server or check its configuration: `init`, `up`, `server`, `config check`."""
