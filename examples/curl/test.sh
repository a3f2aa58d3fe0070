#!/bin/sh
# A client test with nothing but a shell and curl: start a simulated phone, ask it, let it fail, end it.
set -eu

folder=$(mktemp -d)
mkfifo "$folder/rope"
trap 'exec 3>&-; wait; rm -rf "$folder"' EXIT

# The phone lives as long as file descriptor 3 is open, so it ends with this script whatever happens.
"${POCKETSERVER:-pocketserver}" sim serve --host 127.0.0.1 --port 0 --no-mdns --speed max --home "$folder/home" \
    --ready-json "$folder/ready.json" --exit-on-stdin-close <"$folder/rope" 2>"$folder/log" &
exec 3>"$folder/rope"
for _ in $(seq 200); do [ -s "$folder/ready.json" ] && break; sleep 0.1; done

field() { sed -n "s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" "$folder/ready.json"; }
base_url=$(field base_url) api_key=$(field api_key) control_url=$(field control_url) control_token=$(field control_token)

# ask BODY: the answer goes to $folder/answer, the status to standard output
ask() {
    curl --silent --no-buffer --output "$folder/answer" --write-out '%{http_code}' \
        --header "Authorization: Bearer $api_key" --json "$1" "$base_url/chat/completions" || true
}
# phone METHOD PATH BODY: change the phone
phone() {
    curl --silent --fail --output /dev/null --request "$1" --header "Authorization: Bearer $control_token" \
        --json "$3" "$control_url$2"
}
expect() {
    [ "$2" = "$3" ] || { echo "not ok: $1: expected $3, got $2"; exit 1; }
    echo "ok: $1"
}

phone POST /rules '{"reply": {"text": "Hello from the pocket."}}'
expect "a chat is answered" "$(ask '{"messages": [{"role": "user", "content": "hi"}]}')" 200
grep --quiet '"Hello from the pocket."' "$folder/answer"

expect "a stream is answered" "$(ask '{"stream": true, "messages": [{"role": "user", "content": "hi"}]}')" 200
expect "a whole stream ends with its mark" "$(grep --count '^data: \[DONE\]' "$folder/answer")" 1

phone POST /faults '{"fault": "model_busy"}'
expect "a busy phone says so" "$(ask '{"messages": [{"role": "user", "content": "hi"}]}')" 429

phone POST /faults '{"fault": "drop_after_tokens", "after_tokens": 2}'
ask '{"stream": true, "messages": [{"role": "user", "content": "hi"}]}' >/dev/null
expect "a broken stream has no mark" "$(grep --count '^data: \[DONE\]' "$folder/answer" || true)" 0

phone PATCH /state '{"model": null}'
expect "without a model it is unavailable" "$(ask '{"messages": [{"role": "user", "content": "hi"}]}')" 503
