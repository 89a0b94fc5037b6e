"""Networks that ship with cytopave, for demos and tests."""
