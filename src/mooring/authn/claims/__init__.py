"""From the claims of a verified token to a user, shared by issuers of tokens: mapping, expressions and their reasons. Pure."""
