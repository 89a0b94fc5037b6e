"""Segmentation methods, one a file."""
