// The interface of a runtime in C++: the visible cards, and a kernel. Python loads the C names.
#ifndef EMU_SHIM_H_
#define EMU_SHIM_H_

#include <cstddef>

extern "C" {

// Writes the physical ids of the visible cards, given the value of EMU_VISIBLE_CARDS and `present` cards, to `ids`.
// Returns their number, or -1 if the value is invalid. `text` may be null: then all cards are visible.
int emu_shim_visible(const char* text, int present, int* ids, size_t capacity);

// y = a * x + y over `count` numbers.
void emu_shim_axpy(float a, const float* x, float* y, size_t count);

// Writes the sums of the first `count` numbers of `cards` buffers to all of them. Returns -1 for fewer than two cards.
int emu_shim_all_reduce(float* const* buffers, int cards, size_t count);

}  // extern "C"

#endif  // EMU_SHIM_H_
