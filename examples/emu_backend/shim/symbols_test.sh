#!/bin/sh
# The library has the C names that Python loads.
for symbol in emu_shim_visible emu_shim_axpy emu_shim_all_reduce; do
  grep -q "$symbol" "$1" || { echo "$1 has no $symbol"; exit 1; }
done
