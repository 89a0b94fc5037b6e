"""The steps of an atlas run as Prefect tasks, over the workers' Dask collections."""
