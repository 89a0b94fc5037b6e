"""Lets ``import rapids_singlecell`` work without RAPIDS: Python imports this when it starts.

With this folder on ``PYTHONPATH``, worker processes have it too. See `rapids_stubs`.
"""

from __future__ import annotations

import rapids_stubs

rapids_stubs.install()
