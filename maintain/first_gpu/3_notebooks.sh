#!/usr/bin/env bash
# Kernels, number formats, the loader.
source "$(dirname "$0")/common.sh"
notebooks 185 07 05 03
exit "$failed"
