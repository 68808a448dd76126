"""Several processes that serve one port: `serve` starts them, `parent` keeps them running, `pipe` carries their messages."""
