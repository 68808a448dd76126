"""Runtimes of authenticators: deferred verdicts, the recheck of a credential, and connections to remote services.

The pipeline and the control plane import it.
"""
