#!/usr/bin/env bash
# The fault set: what is planted in a pipeline is what the diagnosis names.
source "$(dirname "$0")/common.sh"
export LABKIT_FAULTS_KEEP=$logs/faults.jsonl
gpu_tests 480 fault_set
exit "$failed"
