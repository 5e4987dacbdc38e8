#!/usr/bin/env bash
# Everything that the first real GPU is asked, within 25 minutes:
#
#     bash tests/first_gpu.sh [--dry-run] [OUT]        OUT is ./first_gpu where it is left out
#
# Stages: what the machine is, the tests that need a card, the course's records, the notebooks, the
# fault set. Each has a time limit and a log, OUT/<stage>.log. One that fails leaves its log, and
# the next begins. One that passed is not run again: start the script again to go on where it was.
# Exit code: 0 where all have passed, 1 where one has not, 2 where there is no GPU or the call is bad.
# Brings back OUT/records (event logs that fit into labkit/records, and serve tests), OUT/faults.jsonl
# (each run of the fault set and its verdict), OUT/summary.txt and the logs. OUT/home is a cache.
# --dry-run takes a quick version of each stage, on a CPU or a stand-in (tests/standin_site), and
# counts for nothing later. PYTHON is the interpreter: the checkout's .venv/bin/python, or python3,
# where it is not set. TOTAL_S is the time for all, in seconds.
set -u

total_s=${TOTAL_S:-1500} root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 2
dry_run=false mark=passed failed=0
[ "${1:-}" = --dry-run ] && dry_run=true mark=rehearsed && shift
out=${1:-first_gpu}
case $out in -*)
    sed -n 's/^# \{0,1\}//; 2,14p' "$0" >&2
    exit 2
    ;;
esac
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2
cd "$root" || exit 2
[ -x .venv/bin/python ] && python=$root/.venv/bin/python
python=${PYTHON:-${python:-python3}}
export LABKIT_HOME=${LABKIT_HOME:-$out/home} LABKIT_FAULTS_KEEP=$out/faults.jsonl
: >"$out/summary.txt"

stage() { # NAME LIMIT_S COMMAND...: run it unless it has passed before
    local name=$1 limit=$2 log=$out/$1.log left=$((total_s - SECONDS)) start=$SECONDS how=passed
    shift 2
    if [ -e "$out/$name.$mark" ]; then
        how="passed before"
    elif [ "$left" -le 0 ]; then
        how="not begun: the time is up" failed=1
    else
        timeout --foreground -k 10 "$((limit < left ? limit : left))" "$@" >"$log" 2>&1 </dev/null
        case $? in
        0) grep -q "out of time: run" "$log" && how="out of time, run again" ;;
        124 | 137) how="stopped at its limit, $name.log" ;;
        *) how="FAILED, $name.log" ;;
        esac
        [ "$how" = passed ] && touch "$out/$name.$mark" || failed=1
    fi
    printf '%-28s %-34s %5d s\n' "$name" "$how" $((SECONDS - start)) | tee -a "$out/summary.txt"
}

trap 'echo "interrupted: run it again to go on" | tee -a "$out/summary.txt" >&2; exit 1' INT TERM

stage machine 120 "$python" -m labkit machine
cat "$out/machine.log"
if ! $dry_run && ! grep -q "(cuda:" "$out/machine.log"; then
    echo "There is no GPU that torch can use here (see above); --dry-run rehearses without." >&2
    exit 2
fi
command -v nvidia-smi >/dev/null && nvidia-smi -q >"$out/nvidia-smi.log" 2>&1

test=("$python" -m pytest -p no:cacheprovider)
gpu_tests=("${test[@]}" -v -rA -m gpu tests/test_gpu.py)
record=("$python" -m labkit record --out "$out/records")
$dry_run && record+=(--only textbook-5)
stage tests 540 "${gpu_tests[@]}" -k "not fault_set"
stage records 560 "${record[@]}"
for notebook in notebooks/*.ipynb; do
    $dry_run || stage "$(basename "$notebook" .ipynb)" 180 "${test[@]}" -q "$notebook"
done
stage faults 420 "${gpu_tests[@]}" -k fault_set

echo "logs and records are in $out"
exit "$failed"
