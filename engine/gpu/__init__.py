"""The memory of GPUs: how much there is, and what happens when it does not suffice."""
