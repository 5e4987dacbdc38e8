#!/usr/bin/env bash
# Traces, the data path, inference.
source "$(dirname "$0")/common.sh"
notebooks 185 10 11 12
exit "$failed"
