"""Closed lanes on a cluster: every case about jobs that wait, with a lane for each run of them, however small."""

from __future__ import annotations

from stores.redis import test_cluster_gates as cases
from stores.redis.test_closed_lanes import small_lanes
from stores.redis.test_cluster_gates import pytest_generate_tests, store

__all__ = ["pytest_generate_tests", "small_lanes", "store"]

globals().update({name: case for name, case in vars(cases).items() if name.startswith("test_")})
