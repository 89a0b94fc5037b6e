"""Prefect tasks, one file a family."""
