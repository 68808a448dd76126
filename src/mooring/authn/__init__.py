"""Authentication: from the credential of a request to a user, or a rejection with a reason.

- `table` lists every authenticator in order; one file holds each: its settings and its verdicts.
- `chain` calls them, `verdict` is what they answer, `credentials` is what a request offers.
- `impersonation`, `review`, `authfailures`, `requestheader`: what else the server does with credentials and users.
- `plugin` is public: custom authenticators import it, and nothing else of this room.

Pure: runtimes, which do I/O, stand in `mooring.server.authentication.providers`. Rooms above import any file. An authenticator
imports no other, only the shared files (`claims`, `clientcas`, `tokenfile`) and settings.
"""
