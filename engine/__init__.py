"""Everything that computes: usable and tested without Prefect, Dask or a server."""
