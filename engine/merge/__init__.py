"""Links between tiles, resolution into objects, painting."""
