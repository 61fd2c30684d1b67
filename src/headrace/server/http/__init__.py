"""The HTTP side of the server: listener, boundary, routes, problems and the OpenAPI document."""
