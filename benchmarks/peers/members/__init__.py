"""Producers and workers of each queue. Each file is a program of its own, for an interpreter that may not have headrace."""
