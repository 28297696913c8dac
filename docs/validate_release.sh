#!/usr/bin/env bash
# Checks a dataset release in CI: a folder (default: the checkout) or a Hub repo, as the first argument; more arguments go to `reasonknee validate`.
# Findings become annotations of the run; the job fails if one is an error. The one-liner for any other CI: reasonknee validate .
# It belongs into .github/ of the dataset's repo, where `validate` knows it by its name: elsewhere it would be an unknown file.
set -euo pipefail
target=${1:-.}
shift || true
if ! command -v reasonknee > /dev/null; then
  package=${REASONKNEE_PACKAGE:-} # nothing is installed by a name that nobody has given: anybody may hold it on an index
  if [ -z "$package" ]; then
    echo "::error::there is no reasonknee: set REASONKNEE_PACKAGE to a version (reasonknee==0.1.0), a wheel, a folder or git+https://..." >&2
    exit 4
  fi
  if ! python3 -m pip install --quiet "$package"; then
    echo "::error::pip cannot install $package: set REASONKNEE_PACKAGE to a version (reasonknee==0.1.0), a wheel, a folder or git+https://..." >&2
    exit 4
  fi
fi
exec reasonknee validate "$target" --github --workers "${REASONKNEE_WORKERS:-2}" "$@"
