#!/usr/bin/env bash
# The fault set: what is planted in a pipeline is what the diagnosis names.
source "$(dirname "$0")/common.sh"
gpu_tests 480 fault_set
exit "$failed"
