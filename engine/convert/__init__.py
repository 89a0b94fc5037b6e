"""Conversion: images in microscopes' formats become OME-Zarr, a part at a time."""
