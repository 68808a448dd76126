"""k3s's server token and agent token, as passwords of users `server` and `node`, for requests to the supervisor API only."""
