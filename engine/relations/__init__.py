"""Relations between two label images: which nucleus lies in which cell, and how many a cell has.

``overlap`` counts common pixels block by block and finds each object's parent, ``columns`` gives
existing tables the result. A ``relation`` decides about a whole run, whose ``stages`` can be spread
over workers.
"""
