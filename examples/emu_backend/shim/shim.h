// What a runtime in C++ would offer: the visible cards, and a kernel. The C names are what Python loads.
#ifndef EMU_SHIM_H_
#define EMU_SHIM_H_

#include <cstddef>

extern "C" {

// Writes the physical ids that the value of EMU_VISIBLE_CARDS shows of `present` cards to `ids`, and returns how many
// there are; -1 for a value that means nothing. `text` may be null: then all cards are visible.
int emu_shim_visible(const char* text, int present, int* ids, size_t capacity);

// y = a * x + y over `count` numbers.
void emu_shim_axpy(float a, const float* x, float* y, size_t count);

// Sums `count` numbers of each of `cards` buffers into all of them. Returns -1 unless there are two cards or more.
int emu_shim_all_reduce(float* const* buffers, int cards, size_t count);

}  // extern "C"

#endif  // EMU_SHIM_H_
