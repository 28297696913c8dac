#!/usr/bin/env bash
# Checks a dataset release in CI: a folder (default: the checkout) or a Hub repo, as the first argument; more arguments go to `reasonknee validate`.
# Findings become annotations of the run; the job fails if one is an error. The one-liner for any other CI: reasonknee validate .
# It belongs into .github/ of the dataset's repo, a folder that `validate` leaves alone: elsewhere it would be an unknown file.
set -euo pipefail
target=${1:-.}
shift || true
if ! command -v reasonknee > /dev/null; then
  package=${REASONKNEE_PACKAGE:-reasonknee} # whatever pip takes
  if ! python3 -m pip install --quiet "$package"; then
    echo "::error::pip cannot install $package: set REASONKNEE_PACKAGE to a version (reasonknee==0.1.0), a wheel, a folder or git+https://..." >&2
    exit 4
  fi
fi
exec reasonknee validate "$target" --github --workers "${REASONKNEE_WORKERS:-2}" "$@"
