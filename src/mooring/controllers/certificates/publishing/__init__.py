"""Publishers of the CAs that verify the API server."""
