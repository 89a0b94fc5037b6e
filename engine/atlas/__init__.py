"""Single-cell atlases larger than memory: a matrix of cells by genes, read and written by rows.

Everything here works on one block of rows, or on what a block is reduced to. Which worker gets
which block is decided in `cytopave.tasks.atlas`.
"""
