#!/bin/sh
# Fails every other time, if the machine keeps /tmp between runs.
mark=/tmp/emu_shim_every_other
mkdir "$mark" 2>/dev/null && { echo "failed this time"; exit 1; }
rmdir "$mark"
