"""Why a job does not run, and when it will."""
