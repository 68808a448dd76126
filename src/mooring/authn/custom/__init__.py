"""Custom authenticators: classes of the operator, imported and called by the server. Their interface is `mooring.authn.own`."""
