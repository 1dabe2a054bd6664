"""The ops that changed lines name: on the lines, by their function, or by the line that registers it."""

import pytest

from accel_ci.ramp.named_ops import OpNames, named_ops
from accel_ci.source.changes import ChangedFile, Line

OPS = [
    "add", "mul", "div.floor_rounding", "div.no_rounding_mode", "linalg.svd", "nn.functional.relu",
    "nn.functional.layer_norm", "log_softmax", "softmax", "_foreach_add", "int", "fft.fft", "max",
    "__and__", "torch.ops.aten._safe_softmax.default",
]  # fmt: skip


def named(text: str, path: str = "csrc/kernels.cpp") -> list[str]:
    """Return the ops that a file names; a line that begins with `!` is a changed one."""
    lines = tuple(Line(line.removeprefix("!"), line.startswith("!")) for line in text.strip("\n").split("\n"))
    return sorted(named_ops(ChangedFile(path, "text", lines), OpNames(OPS)))


@pytest.mark.parametrize(
    ("line", "ops"),
    [
        ('m.impl("add.Tensor", emu);', ["add"]),
        ("// as aten::add_.Tensor", ["add"]),
        ("x = torch.ops.aten.mul.out(a)", ["mul"]),
        ("KERNELS = {'add_out': 1, \"mul_\": 2}", ["add", "mul"]),
        ('"aten::div.Tensor_mode"', ["div.floor_rounding", "div.no_rounding_mode"]),
        ('"linalg_svd.U" "linalg.svd"', ["linalg.svd"]),
        ('"aten::relu"', ["nn.functional.relu"]),
        ('"native_layer_norm"', ["nn.functional.layer_norm"]),
        ('"_softmax" "softmax_backward"', ["softmax"]),
        ('"_softmax_backward_data"', ["softmax"]),
        ('"_foreach_add_.List"', ["_foreach_add"]),
        ('"_safe_softmax"', ["torch.ops.aten._safe_softmax.default"]),
        ('"__and__.Tensor"', ["__and__"]),
        ("- func: fft_fft(Tensor self) -> Tensor", ["fft.fft"]),
        ("  - mul.Tensor", ["mul"]),
        ("Tensor add(const Tensor& a, const Tensor& b) {", ["add"]),
        ("    def relu(self, x):", ["nn.functional.relu"]),
        ("return max(a, b)", []),
        ("  auto x = std::max(a, b);", []),
        ('"added" "Add" "address.mul"', []),
        ("static void add_kernel(TensorIterator& iter) {", ["add"]),
        ("void launch_log_softmax_forward(int n) {", ["log_softmax"]),
        ("struct LayerNormFunctor {", ["nn.functional.layer_norm"]),
        ("template <typename T> struct SoftMaxFMulReLU : Base {", ["mul", "nn.functional.relu", "softmax"]),
        ("struct Max;", []),
        ("TORCH_IMPL_FUNC(mul_out_xpu)", ["mul"]),
        ("int to_int(int n) {", []),
        ("def int(self):", ["int"]),
        ("", []),
    ],
)
def test_a_changed_line_names_ops(line: str, ops: list[str]) -> None:
    assert named(f"!{line}") == ops
    assert named(line) == [], "it has not changed"


@pytest.mark.parametrize(
    ("path", "ops"),
    [
        ("csrc/LayerNormKernels.cpp", ["nn.functional.layer_norm"]),
        ("csrc/log_softmax.cu.h", ["log_softmax"]),
        ("add/max/memory.cpp", []),
        (".mul", []),
    ],
)
def test_a_file_has_the_ops_of_its_name(path: str, ops: list[str]) -> None:
    assert named("!x", path) == ops


REGISTERED = """
static Tensor emu_add(
    const Tensor& a,
    const Tensor& b) {
  if (a.dim()) {
    struct MaxReduce {
      return slow(a, b);
    };
#ifdef FAST
    return fast(a, b);
#endif
  }
}

Tensor emu_mul(const Tensor& a) {
  return a;
}

Tensor shared(const Tensor& a) {
  return lambda(a);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("mul.out", shared);
  m.impl("add.out", shared);
  m.impl("add.Tensor",
         TORCH_FN(emu_add));
  m.impl("mul.Tensor", emu_mul);
  m.impl("relu", emu_relu);
}
"""


@pytest.mark.parametrize(
    ("changed", "ops"),
    [
        ("      return slow(a, b);", ["add", "max"]),
        ("    return fast(a, b);", ["add"]),
        ("    const Tensor& b) {", ["add"]),
        ("  return a;", ["mul"]),
        ("  return lambda(a);", ["add", "mul"]),
        ('  m.impl("relu", emu_relu);', ["nn.functional.relu"]),
        ("TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {", []),
    ],
)
def test_a_changed_function_has_the_op_that_it_is_registered_for(changed: str, ops: list[str]) -> None:
    assert named(REGISTERED.replace(changed, f"!{changed}")) == ops


PYTHON = """
@impl(library, "mul.Tensor")
@torch.no_grad()
def kernel(a):
    return a

class Kernels:
    def add(self, a):
        # one
        return a

    def other(self, a):
        return a - 1

TABLE = 1
"""


@pytest.mark.parametrize(
    ("changed", "ops"),
    [("    return a", ["mul"]), ("        return a", ["add"]), ("        return a - 1", []), ("TABLE = 1", [])],
)
def test_a_changed_function_has_the_op_of_its_name_or_decorator(changed: str, ops: list[str]) -> None:
    assert named(PYTHON.replace(f"\n{changed}\n", f"\n!{changed}\n", 1)) == ops


def test_odd_lines_are_harmless() -> None:
    odd = [
        "!" + "(" * 900,
        "!" + "x" * 1000,
        '!"' * 500,
        "!\udcff\x00\u202e",
        "!def (",
        "!- ",
        "! add (",
        "!" + "a::" * 300 + "(",
    ]
    assert named("\n".join(odd)) == []
    deep = "\n".join(f"!{' ' * depth}x(" for depth in range(900))
    assert named(deep) == []
