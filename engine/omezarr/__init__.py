"""OME-Zarr: images are read, label images written and published."""
