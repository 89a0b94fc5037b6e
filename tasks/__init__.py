"""Prefect tasks, one file a family."""

from cytopave.blocks import images

# Also on the workers, which import the tasks and nothing above them.
images.register()
