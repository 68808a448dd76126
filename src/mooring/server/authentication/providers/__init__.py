"""Runtimes of the authenticators: what each reads, asks and follows, one module for each row of `mooring.authn.table`."""
