"""The relay's pages: the backends, the pull requests and the level board, as static HTML with the look of the HUD.

`gather` decides what they show, `failures` which tests are new, `write` renders what has changed, and `files` serves them.
"""
