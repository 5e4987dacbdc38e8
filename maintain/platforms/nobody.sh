#!/usr/bin/env bash
# check.py by a user id without a name or a home, on one core: as in many containers. Linux, by root
# or with sudo; the arguments are check.py's.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-$(command -v python)}
as_root=()
[ "$(id -u)" = 0 ] || as_root=(sudo)
copy=$(mktemp -d) # the repository may lie in somebody's home, which nobody else may enter
trap 'rm -rf "$copy"' EXIT
cp -r "$root/labkit" "$root/maintain" "$copy"
chmod -R a+rX "$copy"
cd "$copy"
# The capability lets it read a Python that lies in such a home
"${as_root[@]}" setpriv --reuid=54321 --regid=54321 --clear-groups \
    --inh-caps=+dac_read_search --ambient-caps=+dac_read_search \
    env -u USER -u LOGNAME -u USERNAME HOME=/nonexistent TMPDIR=/tmp PYTHONPATH="$copy" \
    taskset -c 0 "$python" maintain/platforms/check.py "$@"
