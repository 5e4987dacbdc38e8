#!/usr/bin/env bash
# What the course wants to know of a card, in the order of what that is worth. Called again on the same
# machine it makes what is missing; ONLY="decode edges" makes these.
source "$(dirname "$0")/common.sh"
options=(--out "$logs/records")
$dry_run && options=(--out "$logs/tried" --dry-run)
for name in ${ONLY:-}; do options+=(--only "$name"); done
stage records 560 "$python" maintain/first_gpu/quarter_hour.py "${options[@]}"
cat "$logs/records.log"
exit "$failed"
