#!/usr/bin/env bash
# The notebooks that depend most on the card: the first contact, the sawtooth, the capstone.
source "$(dirname "$0")/common.sh"
notebooks 185 00 02 08
exit "$failed"
