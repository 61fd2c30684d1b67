#!/bin/sh
# A producer with curl: enqueue a job, wait for its result, print it.
#
#     examples/produce.sh http://127.0.0.1:8200 images image.resize '[640, 480]'
#
# HEADRACE_TOKEN, if it is set, is a token with the scopes `enqueue` and `read`.
set -eu

base=${1:-http://127.0.0.1:8200}
queue=${2:-foreign}
task=${3:-image.resize}
args=${4:-'[640, 480]'}

# The token is passed in a file that only curl reads, because every user of this machine can see arguments.
call() {
    printf 'header = "Authorization: Bearer %s"\n' "${HEADRACE_TOKEN:-none}" |
        curl --silent --show-error --fail-with-body --config - --header 'Content-Type: application/json' "$@"
}

created=$(call --data "{\"task\": \"$task\", \"args\": $args, \"queue\": \"$queue\"}" "$base/v1/jobs") || {
    echo "$created" >&2 # a problem document, which says what to do
    exit 1
}
id=$(printf '%s' "$created" | sed 's/.*"id" *: *"\([^"]*\)".*/\1/')
echo "job $id"

# Answers as soon as the job ends, or after 30 seconds.
call "$base/v1/jobs/$id/result?wait=30s"
echo
