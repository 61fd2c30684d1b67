"""Webhooks: how an app declares them, and how the worker delivers them."""
