"""No models: headrace has tables of its own. Django tells only apps with this module that it has migrated."""
