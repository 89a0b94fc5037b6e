"""The label merge: links between tiles, resolution into objects, painting.

``scan`` compares the zones that tiles share, ``resolve`` turns the links into objects with final
ids, ``paint`` draws a tile's core. Each module's docstring states the rules that it implements.
"""

from cytopave.engine.merge.links import LINK, Merge, scan
from cytopave.engine.merge.paint import paint
from cytopave.engine.merge.resolve import Resolution, resolve

__all__ = ["LINK", "Merge", "Resolution", "paint", "resolve", "scan"]
