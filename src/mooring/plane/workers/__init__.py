"""Several processes that serve one port: `serve` starts them, `supervisor` keeps them running, `worker` is one of them."""
