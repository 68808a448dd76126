"""The etcd driver: many servers on one store. `driver.EtcdStorage` is imported by the table of drivers; the rest is its own."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # errors come back from the calls; gRPC would also write them to stderr
