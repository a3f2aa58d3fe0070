#!/bin/sh
# What a client of pocketserver does, with curl and jq: chat, stream, structured output, tools, errors, trying again.
#   OPENAI_BASE_URL=http://192.168.1.20:8080/v1 OPENAI_API_KEY=sk-... sh chat.sh
set -eu

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# ask BODY: the answer on standard output. While the model is busy with another request (429), wait as long as the server
# says in Retry-After and ask again. Anything but an answer ends with 1.
ask() {
    for attempt in 1 2 3 4 5 6; do
        status=$(curl --silent --output "$folder/answer" --dump-header "$folder/headers" --write-out '%{http_code}' \
            --header "Authorization: Bearer $OPENAI_API_KEY" --json "$1" "$OPENAI_BASE_URL/chat/completions")
        seconds=$(tr -d '\r' <"$folder/headers" | sed -n 's/^[Rr]etry-[Aa]fter: *//p')
        if [ "$status" != 429 ] && [ -z "$seconds" ]; then break; fi
        [ "$attempt" = 6 ] || sleep "${seconds:-$attempt}"
    done
    cat "$folder/answer"
    [ "$status" = 200 ]
}

chat=$(cat <<'JSON'
{"model": "default", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 60}
JSON
)
answer=$(ask "$chat")
echo "chat: $(echo "$answer" | jq -r '.choices[0].message.content')"

# With --fail the body of a 429 is not taken for an answer; --retry obeys Retry-After.
stream=$(cat <<'JSON'
{"model": "default", "messages": [{"role": "user", "content": "Count to three."}], "max_tokens": 60, "stream": true}
JSON
)
printf 'stream: '
curl --silent --no-buffer --fail --retry 5 --header "Authorization: Bearer $OPENAI_API_KEY" --json "$stream" \
    "$OPENAI_BASE_URL/chat/completions" | tee "$folder/stream" |
    sed -un '/\[DONE\]/!s/^data: //p' | jq --unbuffered -j '.choices[0].delta.content // ""'
echo
grep --quiet '^data: \[DONE\]' "$folder/stream" # without it the answer has broken off, whatever it looks like

structured=$(cat <<'JSON'
{
  "model": "default",
  "messages": [{"role": "user", "content": "The weather of a city, made up."}],
  "max_tokens": 100,
  "response_format": {"type": "json_schema", "json_schema": {"name": "weather", "schema": {
    "type": "object",
    "properties": {
      "city": {"type": "string", "maxLength": 30},
      "celsius": {"type": "integer", "minimum": -90, "maximum": 60}
    },
    "required": ["city", "celsius"],
    "additionalProperties": false
  }}}
}
JSON
)
answer=$(ask "$structured")
echo "structured: $(echo "$answer" | jq -c '.choices[0].message.content | fromjson')"

# The model asks for the tool (it is made to: small models forget), this script runs it, the model words the result.
tools=$(cat <<'JSON'
{
  "model": "default",
  "messages": [{"role": "user", "content": "How warm is it in Oslo?"}],
  "max_tokens": 100,
  "tools": [{"type": "function", "function": {
    "name": "get_weather",
    "description": "The weather in a city, now.",
    "parameters": {
      "type": "object",
      "properties": {"city": {"type": "string", "maxLength": 30}},
      "required": ["city"],
      "additionalProperties": false
    }
  }}],
  "tool_choice": "required",
  "parallel_tool_calls": false
}
JSON
)
message=$(ask "$tools" | jq '.choices[0].message')
results=$(echo "$message" | jq '[.tool_calls[] | {role: "tool", tool_call_id: .id,
    content: (.function.arguments | fromjson | {city, celsius: 21} | tojson)}]')
tools=$(echo "$tools" | jq --argjson message "$message" --argjson results "$results" \
    '.messages += [$message] + $results | .tool_choice = "none"')
answer=$(ask "$tools")
echo "tools: $(echo "$answer" | jq -r '.choices[0].message.content')"

wrong=$(cat <<'JSON'
{"model": "no-such-model", "messages": [{"role": "user", "content": "Say hello."}]}
JSON
)
answer=$(ask "$wrong") || echo "error: $(echo "$answer" | jq -r '.error.code')"
