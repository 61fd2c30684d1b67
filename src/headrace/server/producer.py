"""The producer of a job: the name of its token, whatever name the caller gives."""

from __future__ import annotations

import msgspec

from headrace.errors import BadArguments
from headrace.model.job import NewJob
from headrace.server.auth import LOCAL, Principal
from headrace.task.codec import marked


def signed(job: NewJob, principal: Principal) -> NewJob:
    """The job with the token's name in it. Without tokens, or with unreadable options, it stays unchanged.

    The worker makes such a job dead and says why.
    """
    if principal is LOCAL:
        return job
    try:
        return msgspec.structs.replace(job, options=marked(job.options, by=principal.name))
    except BadArguments:
        return job
