"""ID tokens of OpenID Connect providers, and the AuthenticationConfiguration that names them."""
