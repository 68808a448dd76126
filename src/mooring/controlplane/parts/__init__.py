"""Parts of one server, each built from the settings."""
