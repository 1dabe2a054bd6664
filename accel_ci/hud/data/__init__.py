"""The data of the HUD's pages on tests, which they load on demand; `update.py` has the design."""
