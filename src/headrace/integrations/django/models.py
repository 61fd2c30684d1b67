"""No models: headrace has tables of its own. Django signals the end of a migration only to apps with this module."""
