#!/usr/bin/env bash
# Everything that the first real GPU is asked, within 25 minutes:
#
#     bash tests/first_gpu.sh [--dry-run] [OUT]        OUT is ./first_gpu where it is left out
#
# Stages: what the machine is, the tests that need a card, the course's records, the notebooks, the
# fault set. Each has a time limit and a log, OUT/<stage>.log. One that fails leaves its log, and
# the next begins. One that passed is not run again: start the script again to go on where it was.
# Exit code: 0 where all have passed, 1 where one has not, 2 where there is no GPU or the call is bad.
#
# Brings back OUT/records (event logs that fit into labkit/records, and serve tests), OUT/faults.jsonl
# (each run of the fault set and its verdict), OUT/summary.txt and the logs. OUT/home is a cache.
#
# --dry-run takes a quick version of each stage, on a CPU or a stand-in (tests/standin_site), and
# counts for nothing later. PYTHON is the interpreter: the checkout's .venv/bin/python, or python3,
# where it is not set. TOTAL_S is the time for all, in seconds.
set -u

total_s=${TOTAL_S:-1500}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd) || exit 2
dry_run=false mark=passed
if [ "${1:-}" = --dry-run ]; then
    dry_run=true mark=rehearsed
    shift
fi
out=${1:-first_gpu}
case $out in -*)
    sed -n 's/^# \{0,1\}//; 2,17p' "$0" >&2
    exit 2
    ;;
esac
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 2

python=${PYTHON:-}
if [ -z "$python" ]; then
    python=python3
    [ -x "$root/.venv/bin/python" ] && python=$root/.venv/bin/python
fi
case $python in */*) python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python") ;; esac
cd "$root" || exit 2
export LABKIT_HOME=${LABKIT_HOME:-$out/home} LABKIT_FAULTS_KEEP=$out/faults.jsonl
summary=$out/summary.txt
failed=0
: >"$summary"

say() { # STAGE RESULT SECONDS: one line of the summary
    printf '%-28s %-34s %5d s\n' "$1" "$2" "$3" | tee -a "$summary"
}

stage() { # NAME LIMIT_S COMMAND...: run it unless it has passed before
    local name=$1 limit=$2 log=$out/$1.log left=$((total_s - SECONDS)) start=$SECONDS code
    shift 2
    if [ -e "$out/$name.$mark" ]; then
        say "$name" "passed before" 0
        return 0
    fi
    if [ "$left" -le 0 ]; then
        say "$name" "not begun: the time is up" 0
        failed=1
        return 1
    fi
    timeout --foreground -k 10 "$((limit < left ? limit : left))" "$@" >"$log" 2>&1 </dev/null
    code=$?
    if [ "$code" -eq 0 ] && ! grep -q "out of time: run" "$log"; then
        touch "$out/$name.$mark"
        say "$name" "passed" $((SECONDS - start))
        return 0
    fi
    case $code in
    0) say "$name" "out of time, run again" $((SECONDS - start)) ;;
    124 | 137) say "$name" "stopped at its limit, $name.log" $((SECONDS - start)) ;;
    *) say "$name" "FAILED ($code), $name.log" $((SECONDS - start)) ;;
    esac
    failed=1
    return 1
}

trap 'echo "interrupted: run it again to go on" | tee -a "$summary" >&2; exit 1' INT TERM

stage machine 120 "$python" -m labkit machine
cat "$out/machine.log"
if ! $dry_run && ! grep -q "(cuda:" "$out/machine.log"; then
    echo "There is no GPU that torch can use here (see above); --dry-run rehearses without." >&2
    exit 2
fi
if command -v nvidia-smi >/dev/null; then
    nvidia-smi -q >"$out/nvidia-smi.log" 2>&1
fi

gpu_tests=("$python" -m pytest -v -rA -p no:cacheprovider -m gpu tests/test_gpu.py)
only=()
notebooks=(notebooks/*.ipynb)
if $dry_run; then
    only=(--only textbook-5)
    notebooks=("${notebooks[0]}" --collect-only)
fi
stage tests 540 "${gpu_tests[@]}" -k "not fault_set"
stage records 560 "$python" -m labkit record --out "$out/records" ${only[@]+"${only[@]}"}
if $dry_run; then
    stage notebooks 60 "$python" -m pytest -q -p no:cacheprovider "${notebooks[@]}"
else
    for notebook in "${notebooks[@]}"; do
        stage "$(basename "$notebook" .ipynb)" 180 \
            "$python" -m pytest -q -p no:cacheprovider "$notebook"
    done
fi
stage faults 420 "${gpu_tests[@]}" -k fault_set

echo "logs and records are in $out"
exit "$failed"
