#!/usr/bin/env bash
# What the machine is, how well a depth is found, the default fed and starved, and the GPU's tests.
source "$(dirname "$0")/common.sh"
$dry_run || stage nvidia-smi 30 nvidia-smi -q
stage compiler 30 "$python" -c 'import shutil, sysconfig; from pathlib import Path
print(shutil.which("gcc"), Path(sysconfig.get_path("include", "posix_prefix"), "Python.h").exists())'
quick=()
$dry_run && quick=(--quick)
stage ground 220 "$python" maintain/first_gpu/ground.py ${quick[@]+"${quick[@]}"}
gpu_tests 330 "not fault_set"
exit "$failed"
