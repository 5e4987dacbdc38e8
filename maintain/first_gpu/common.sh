# Sourced by the slices beside it: what a first real GPU is asked, in calls of at most ten minutes.
#
#     bash maintain/first_gpu/1_ground.sh [--dry-run] [OUT]
#
# OUT ($OUT, or ./first_gpu) gets one archive, named as the slice: a log of each stage, and what the
# stages wrote. A stage that fails or runs into its limit leaves its log, and the next one begins.
# Exit code: 0 where all have passed, 1 where one has not, 2 where there is no GPU.
# Carry beside the repository's files: wheels/ (see wheels.txt) and traces/ (public traces), as far
# as the machine has neither. --dry-run takes the quick form of every stage and needs no GPU.
# PYTHON is the interpreter (.venv/bin/python or python3); TOTAL_S the seconds for all stages.
set -u

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd) || exit 2
slice=$(basename "$0" .sh) dry_run=false failed=0
[ "${1:-}" = --dry-run ] && dry_run=true && shift
total_s=${TOTAL_S:-570} out=${1:-${OUT:-first_gpu}}
mkdir -p "$out" && out=$(cd "$out" && pwd) && cd "$root" || exit 2
[ -x .venv/bin/python ] && python=$root/.venv/bin/python
python=${PYTHON:-${python:-python3}}
export LABKIT_HOME=${LABKIT_HOME:-/tmp/lk} HF_HUB_OFFLINE=1 PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
[ -d traces ] && export LABKIT_TRACES=$root/traces
logs=$LABKIT_HOME/first_gpu/$slice # stays: a later call goes on where records are missing
mkdir -p "$logs"
: >"$logs/summary.txt"
trap 'tar czf "$out/$slice.tgz" -C "$logs" .' EXIT

stage() { # NAME LIMIT_S COMMAND...
    local name=$1 limit=$2 left=$((total_s - SECONDS)) start=$SECONDS how=passed
    shift 2
    if [ "$left" -le 0 ]; then
        how="not begun: the time is up"
    else
        timeout --foreground -k 10 "$((limit < left ? limit : left))" "$@" >"$logs/$name.log" 2>&1 </dev/null
        case $? in
        0) ;;
        124 | 137) how="stopped at its limit" ;;
        *) how=FAILED ;;
        esac
    fi
    [ "$how" = passed ] || failed=1
    printf '%-28s %-26s %5d s\n' "$name" "$how" $((SECONDS - start)) | tee -a "$logs/summary.txt"
}

notebooks() { # LIMIT_S NUMBER...: execute them; a cell that fails shows its error, and it goes on
    local limit=$1 number quick=()
    shift
    $dry_run && quick=(--quick)
    for number in "$@"; do
        stage "notebook-$number" "$limit" "$python" maintain/execute.py --into "$logs" \
            ${quick[@]+"${quick[@]}"} notebooks/"$number"_*.ipynb
    done
}

gpu_tests() { # LIMIT_S EXPRESSION
    stage tests "$1" "$python" -m pytest -o addopts= -p no:cacheprovider -rA -m gpu \
        tests/test_gpu.py -k "$2"
}

[ -d wheels ] && stage wheels 60 "$python" -m pip install -q --no-index --no-deps wheels/*.whl
stage machine 90 "$python" -m labkit machine
cat "$logs/machine.log"
if ! $dry_run && ! grep -q "(cuda:" "$logs/machine.log"; then
    echo "There is no GPU that torch can use here (see above); --dry-run rehearses without." >&2
    exit 2
fi
