"""The ramp: how much of PyTorch's own tests is enabled on the backend, and which tests to enable next.

Pure rules are apart from what reads the stores (`current.py`, `evidence.py`) and from what writes files (`enabled_file.py`).
"""
