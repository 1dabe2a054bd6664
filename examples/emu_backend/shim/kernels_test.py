"""Compare the kernel with numbers computed here, in shards that write their own report: a test case for each length."""

import ctypes
import os
import pathlib
import sys
from xml.sax.saxutils import quoteattr

shim = ctypes.CDLL(str(pathlib.Path(__file__).parent / "libemu_shim.so"))


def fault_of(length: int) -> str | None:
    """The fault of the kernel at this length; None if there is none."""
    x = (ctypes.c_float * length)(*range(length))
    y = (ctypes.c_float * length)(*([1.0] * length))
    shim.emu_shim_axpy(ctypes.c_float(2.0), x, y, ctypes.c_size_t(length))
    expected = [2.0 * i + 1.0 for i in range(length)]
    return None if list(y) == expected else f"{length} numbers: {list(y)[:4]} is not {expected[:4]}"


def main() -> int:
    """Run the cases of this shard."""
    shard, shards = int(os.environ.get("TEST_SHARD_INDEX", 0)), int(os.environ.get("TEST_TOTAL_SHARDS", 1))
    if "TEST_SHARD_STATUS_FILE" in os.environ:
        pathlib.Path(os.environ["TEST_SHARD_STATUS_FILE"]).touch()
    found = {length: fault_of(length) for length in (0, 1, 7, 64, 1023)[shard::shards]}
    cases = "".join(
        f'<testcase classname="kernels" name="axpy_{length}" time="0.001">'
        f"{f'<failure message={quoteattr(fault)}/>' if fault else ''}</testcase>"
        for length, fault in found.items()
    )
    if "XML_OUTPUT_FILE" in os.environ:
        report = f'<testsuites><testsuite name="kernels" tests="{len(found)}">{cases}</testsuite></testsuites>'
        pathlib.Path(os.environ["XML_OUTPUT_FILE"]).write_text(report)
    faults = [fault for fault in found.values() if fault]
    print("\n".join(faults) or f"{len(found)} lengths are right")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
