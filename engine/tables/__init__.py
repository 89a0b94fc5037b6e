"""From labels to a table of cells: one row an object, out of core.

``moments`` takes partial sums of a block, ``combine`` joins those of one object, ``columns`` turns
them into what the table holds, ``layout`` and ``target`` write and publish it as AnnData on Zarr,
``read`` opens it again, ``export`` copies it into other formats. ``measurement`` decides about a
whole run, whose ``stages`` can be spread over workers. ``tile_sums`` takes the sums of labels that
a run is just making, from what ``core_pixels`` keeps.
"""
