#!/usr/bin/env bash
# The notebooks that are left.
source "$(dirname "$0")/common.sh"
notebooks 140 01 04 06 09
exit "$failed"
