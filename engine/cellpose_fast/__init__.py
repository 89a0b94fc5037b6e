"""Cellpose 4 in which nobody can find the tiles: one evaluation in torch for CPU and GPU.

Each step depends on places in the whole image and never on the tile: the patches that the network
sees and the mean of its answers (`engine.patchwise`), the steps along the flows (`dynamics`), and
the check of the flows (`flow_error`). `attention`, `fused` and `network` make the network fast
without changing what it computes, `kernels` holds what plain torch does too slowly on a GPU.
`volume` evaluates stacks in three dimensions, by what `passes`, `slabs`, `dynamics3d`, `smooth` and
`voids` add for them.
"""
