#!/bin/sh
# Measure a commit on a kernelwatch server and exit with the code of the verdict: the gate of a CI job (docs/ci.md).
#
# The arguments are variables; docs/ci.md explains them:
#   KERNELWATCH_SERVER, KERNELWATCH_KEY, KERNELWATCH_TARGET                    required
#   KERNELWATCH_REVISION, KERNELWATCH_DEVICE, KERNELWATCH_SUITE                what to measure
#   KERNELWATCH_FAIL_ON, KERNELWATCH_TIMEOUT, KERNELWATCH_AGAIN                as the options of `run start --wait`
#   KERNELWATCH_FORK, KERNELWATCH_NO_KEY                                       jobs of forks, which get no secrets
#   KERNELWATCH_REPORT                                                         folder for the results
#   KERNELWATCH_COMMAND                                                        the command, if it is installed already
# shellcheck enable=all disable=SC2250,SC2310,SC2312
set -u

# A secret often ends with a line break, with which it would not be masked.
key=$(printf '%s' "${KERNELWATCH_KEY:-}" | tr -d '[:space:]')
target=${KERNELWATCH_TARGET:-} fork=${KERNELWATCH_FORK:-}
report=${KERNELWATCH_REPORT:-kernelwatch-report}
command=${KERNELWATCH_COMMAND:-}
output=${GITHUB_OUTPUT:-/dev/null} summary=${GITHUB_STEP_SUMMARY:-/dev/null}

on_github() { [ "${GITHUB_ACTIONS:-}" = true ]; }

# Print a line as it is.  `echo` of some shells makes a line break of a backslash and an n, with which a text of the
# repository could give a command to the runner.
print_line() { printf '%s\n' "$1"; }

# Print a sentence where the CI system shows it first.
annotate() { # LEVEL SENTENCE
  if on_github; then
    print_line "::$1 title=kernelwatch::$(printf '%s' "$2" | sed 's/%/%25/g' | tr '\r\n' '  ')"
  else
    printf 'kernelwatch: %s\n' "$2"
  fi
}

# The value of a name in result.env.
value() { sed -n "s/^$1=//p" "$report/result.env"; }

# Pass the values on to later steps, and end.
finish() { # CODE
  cat "$report/result.env" >> "$output"
  print_line "report=$report" >> "$output"
  exit "$1"
}

# End without a result.
stop() { # OUTCOME CODE SENTENCE
  printf 'runs=\noutcome=%s\nexit_code=%s\nurl=\nheadline=%s\n' "$1" "$2" "$3" > "$report/result.env"
  if [ "$2" = 0 ]; then annotate notice "$3"; else annotate error "$3"; fi
  printf '**kernelwatch**: %s\n' "$3" >> "$summary"
  finish "$2"
}

revision() {
  for found in "${KERNELWATCH_REVISION:-}" "${CI_MERGE_REQUEST_SOURCE_BRANCH_SHA:-}" "${CI_COMMIT_SHA:-}" \
    "${GIT_COMMIT:-}"; do
    if [ -n "$found" ]; then print_line "$found" && return; fi
  done
  git rev-parse HEAD
}

# This job, such as `github-712-1-gate`: a job that is started again by a person is another one.
job() {
  if [ -n "${GITHUB_RUN_ID:-}" ]; then
    print_line "github-$GITHUB_RUN_ID-${GITHUB_RUN_ATTEMPT:-1}-${GITHUB_JOB:-}"
  elif [ -n "${CI_JOB_ID:-}" ]; then
    print_line "gitlab-$CI_JOB_ID"
  else
    print_line "${BUILDKITE_JOB_ID:-${BUILD_TAG:-}}"
  fi
}

# Install the command with the versions of ci/requirements.txt from the checkout that this script is in.
install() {
  for python in python3 python3.13 python3.12 python3.11; do
    "$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2> /dev/null &&
      break
    python=
  done
  [ -n "$python" ] || { echo "There is no Python 3.11, 3.12 or 3.13 with venv." >&2 && return 1; }
  home=$(cd "$(dirname "$0")/.." && pwd) && environment=$(mktemp -d) && "$python" -m venv "$environment" || return 1
  pip="$environment/bin/python -m pip --disable-pip-version-check install --quiet"
  $pip --require-hashes -r "$home/ci/requirements.txt" && $pip --no-deps --no-build-isolation "$home" &&
    command=$environment/bin/kernelwatch
}

mkdir -p "$report" || exit 2
for name in result.env report.json report.md report.xml report.sarif; do rm -f "$report/$name" || exit 2; done
if [ -n "$key" ] && on_github; then print_line "::add-mask::$key"; fi
[ "${CI_MERGE_REQUEST_SOURCE_PROJECT_ID:-}" = "${CI_MERGE_REQUEST_PROJECT_ID:-}" ] || fork=true
if [ -z "$key" ] && [ "$fork" = true ]; then
  why="Not measured: jobs of a fork get no secrets, so there is no key."
  [ "${KERNELWATCH_NO_KEY:-skip}" = skip ] || stop no-key 2 "$why"
  stop no-key 0 "$why"
fi
[ -n "${KERNELWATCH_SERVER:-}" ] || stop error 2 "No server: set KERNELWATCH_SERVER to its address."
[ -n "$target" ] || stop error 2 "No target: set KERNELWATCH_TARGET to its name."
[ -n "$key" ] || stop error 2 "No key: add one with the scope run:$target to the secrets of this job."
revision=$(revision) || stop error 2 "No revision: set KERNELWATCH_REVISION to a commit."

if [ -z "$command" ]; then
  ! on_github || echo "::group::Install kernelwatch"
  install
  installed=$?
  ! on_github || echo "::endgroup::"
  [ "$installed" = 0 ] || stop error 2 "kernelwatch could not be installed: see the log."
fi

set -- --wait --save "$report" --timeout "${KERNELWATCH_TIMEOUT:-3600}"
[ -z "${KERNELWATCH_DEVICE:-}" ] || set -- "$@" --device "$KERNELWATCH_DEVICE"
[ -z "${KERNELWATCH_SUITE:-}" ] || set -- "$@" --suite "$KERNELWATCH_SUITE"
[ -z "${KERNELWATCH_FAIL_ON:-}" ] || set -- "$@" --fail-on "$KERNELWATCH_FAIL_ON"
[ "${KERNELWATCH_AGAIN:-}" != true ] || set -- "$@" --again
if [ -n "$(job)" ]; then
  # Jobs of a matrix differ in what they measure.
  request=$(printf '%s\n' "$revision" "$target" "$*" | cksum | tr ' ' '-')
  set -- "$@" --idempotency-key "$(job | tr -cd '[:alnum:]._-' | cut -c 1-150)-$request"
fi

# Results quote the repository, whose author must not give commands to the runner: it obeys lines that begin with `::`.
token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
! on_github || echo "::stop-commands::$token"
{
  "$command" run start "$@" -- "$target" "$revision" 2>&1
  echo $? > "$report/code"
} | tee "$report/log.txt"
! on_github || echo "::$token::"
code=$(cat "$report/code")
rm "$report/code"

if [ ! -f "$report/result.env" ]; then
  sentence=$(sed -n 's/^kernelwatch: //p' "$report/log.txt" | tail -n 1)
  stop error "$code" "${sentence:-The command ended with $code: see the log.}"
fi
if [ -f "$report/report.md" ]; then
  cat "$report/report.md" >> "$summary"
else # the wait took too long
  printf '**kernelwatch**: %s: %s\n' "$(value headline)" "$(value url)" >> "$summary"
fi
if [ "$code" != 0 ]; then
  annotate error "$(value headline): $(value url)"
elif [ "$(value outcome)" != pass ]; then
  annotate warning "$(value headline): $(value url)"
fi
finish "$code"
