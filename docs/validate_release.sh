#!/usr/bin/env bash
# Checks a dataset release in CI: a folder (default: the checkout) or a Hub repo, as the first argument; more arguments go to `reasonknee validate`.
# Findings become annotations of the run; the job fails if one is an error. The one-liner for any other CI: reasonknee validate .
set -euo pipefail
target=${1:-.}
shift || true
if ! command -v reasonknee > /dev/null; then
  python3 -m pip install --quiet "${REASONKNEE_PACKAGE:-reasonknee}"
fi
exec reasonknee validate "$target" --github --workers "${REASONKNEE_WORKERS:-2}" "$@"
