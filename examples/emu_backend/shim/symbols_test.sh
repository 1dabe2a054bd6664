#!/bin/sh
# The C names that Python loads are there.
for symbol in emu_shim_visible emu_shim_axpy emu_shim_all_reduce; do
  grep -q "$symbol" "$1" || { echo "$symbol is not in $1"; exit 1; }
done
