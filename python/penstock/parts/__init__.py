"""Parts beside the core: each is a folder with everything of one feature, and can be deleted.

The core imports no part. A part adds rows to the tables of `penstock.plugins` by its module `rows`.
"""
