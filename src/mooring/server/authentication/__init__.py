"""The second stage of authentication, and its connections to remote services. The pipeline and the control plane import it."""
