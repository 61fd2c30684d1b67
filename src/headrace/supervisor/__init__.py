"""The supervisor of `headrace worker`: a small process that starts, watches and replaces the worker processes.

The supervisor lives as long as its workers, so its memory is a cost of every deployment. It therefore imports neither the
app nor a store, a driver or asyncio. `headrace worker` checks the settings, the app and the store, and then becomes the
supervisor (`headrace.cli.supervise`). What needs the store runs in a process that the supervisor starts on demand
(`headrace.worker.errands`).
"""
