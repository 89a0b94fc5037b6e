"""Networks that see patches, evaluated so that nobody can find the tiles: for Cellpose and others.

One grid of patches for the whole image (`grid`), what a window needs of it (`window`), the mean of
what overlapping patches say (`average`), and an evaluator (`evaluator`) that fills batches over the
windows' borders, keeps what neighbours share, and never has a CUDA device wait (`streams`).
`network` makes one of any function of torch.
"""
