"""The client: how the store reaches its servers, and how it asks them."""
