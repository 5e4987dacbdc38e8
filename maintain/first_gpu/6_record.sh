#!/usr/bin/env bash
# The recorded runs of the course; called again on the same machine it goes on where it was.
source "$(dirname "$0")/common.sh"
only=()
$dry_run && only=(--only textbook-5)
stage record 540 "$python" maintain/recordings.py --out "$logs/records" ${only[@]+"${only[@]}"}
exit "$failed"
