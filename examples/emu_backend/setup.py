"""Add what pyproject.toml cannot express: a version with a local label from the environment."""

import os
import re
from email import message_from_string
from pathlib import Path

from setuptools import setup

BASE_VERSION = "0.1.0"
LABEL_VARIABLE = "TORCH_EMU_LOCAL_VERSION"
LABEL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", re.IGNORECASE)


def version() -> str:
    """Return the version of this build, with the local label from the environment, if any."""
    label = os.environ.get(LABEL_VARIABLE, "")
    if label:
        if not LABEL.fullmatch(label):
            raise SystemExit(
                f"{LABEL_VARIABLE}={label!r} is not a local version label of PEP 440: "
                "letters and digits in parts separated by dots, such as g0123456789ab.d0123456789ab"
            )
        return f"{BASE_VERSION}+{label}"
    recorded = Path(__file__).with_name("PKG-INFO")
    # In an unpacked sdist, the version was set when the sdist was made.
    return message_from_string(recorded.read_text("utf-8"))["Version"] if recorded.exists() else BASE_VERSION


setup(version=version())
