"""The server's transport: TLS, the listener, HTTP/1.1, HTTP/2 and WebSocket frames, with their limits.

Handlers import `http` (Request, Response) and `responsewriter` (streaming replies); the control plane starts `listener`, whose
connections are `tlsconnection`. Nothing here imports authentication, the registry or any other part of the server.
"""
