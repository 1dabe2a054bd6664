"""The shim and the Python package agree on the visible cards. Needs no torch: the package's own `__init__` is skipped."""

import ctypes
import pathlib
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).parent.parent
package = types.ModuleType("torch_emu")
package.__path__ = [str(ROOT / "src" / "torch_emu")]
sys.modules["torch_emu"] = package

from torch_emu import cards  # noqa: E402

shim = ctypes.CDLL(str(ROOT / "shim" / "libemu_shim.so"))


def of_shim(text: str | None, present: int) -> tuple[int, ...] | None:
    """The visible cards according to the shim; None if it calls the value invalid."""
    ids = (ctypes.c_int * 8)()
    count = shim.emu_shim_visible(None if text is None else text.encode(), present, ids, ctypes.c_size_t(8))
    return None if count < 0 else tuple(ids[:count])


def of_package(text: str | None, present: int) -> tuple[int, ...] | None:
    """The visible cards according to the package; None if it calls the value invalid."""
    try:
        return cards.visible_from(text, range(present))
    except cards.CardsError:
        return None


class Parity(unittest.TestCase):
    def test_both_see_the_same_cards(self) -> None:
        for text in (None, "", " ", "0", "1,0", " 1 , 0", "7", "0,7,1", "-1", "0,0", "x", "0,,1", ","):
            with self.subTest(text):
                self.assertEqual(of_shim(text, 2), of_package(text, 2))


if __name__ == "__main__":
    unittest.main()
