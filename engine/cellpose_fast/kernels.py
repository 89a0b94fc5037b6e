"""What plain torch does too slowly on a GPU, in Triton."""
