"""Several processes that serve one port: `serve` starts them, `parent` keeps them running, `worker` is one of them."""
