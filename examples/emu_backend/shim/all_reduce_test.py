"""A test that needs two cards at once; a CI runs it where there are two."""

import ctypes
import os
import pathlib
import unittest

shim = ctypes.CDLL(str(pathlib.Path(__file__).parent / "libemu_shim.so"))


class AllReduce(unittest.TestCase):
    def test_every_card_has_the_sum(self) -> None:
        cards = len(os.environ["EMU_VISIBLE_CARDS"].split(","))
        self.assertGreaterEqual(cards, 2)
        buffers = [(ctypes.c_float * 3)(card, 1, 2) for card in range(cards)]
        pointers = (ctypes.POINTER(ctypes.c_float) * cards)(*(ctypes.cast(b, ctypes.POINTER(ctypes.c_float)) for b in buffers))
        self.assertEqual(shim.emu_shim_all_reduce(pointers, cards, ctypes.c_size_t(3)), 0)
        for buffer in buffers:
            self.assertEqual(list(buffer), [sum(range(cards)), cards, 2 * cards])


if __name__ == "__main__":
    unittest.main()
