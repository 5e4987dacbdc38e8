#!/usr/bin/env bash
# What the machine is, the default starved and fed, and the GPU's tests.
source "$(dirname "$0")/common.sh"
$dry_run || stage nvidia-smi 30 nvidia-smi -q
stage compiler 30 "$python" -c 'import shutil, sysconfig; from pathlib import Path
print(shutil.which("gcc"), Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists())'
short=() workers="0 6 12"
$dry_run && short=(--set steps=20) workers=0
for count in $workers; do
    stage "workers-$count" 50 "$python" -m labkit run --set num_workers="$count" ${short[@]+"${short[@]}"}
done
gpu_tests 330 "not fault_set"
exit "$failed"
