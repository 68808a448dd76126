"""Authentication: from the credential of a request to a user, or a rejection with a reason.

- `table` lists every authenticator in order; one folder holds each: settings, authenticator, reasons.
- `chain` calls them, `verdict` is what they answer, `credentials` is what a request offers.
- `impersonation`, `review`, `guesses`, `stripping`: what else the server does with credentials and users.
- `own` is public: custom authenticators import it, and nothing else of this room.

Pure: runtimes, which do I/O, stand in `mooring.server.authentication.providers`. Rooms above import any file; a folder imports no
other folder but the shared ones (`claims`, `clientcas`, `userfile`) and settings.
"""
