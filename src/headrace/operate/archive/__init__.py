"""Moves ended jobs from a store into Parquet files."""
