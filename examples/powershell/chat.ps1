# What a client of pocketserver does, with PowerShell 7 alone: chat, stream, structured output, tools, errors, trying again.
#   $env:OPENAI_BASE_URL = "http://192.168.1.20:8080/v1"; $env:OPENAI_API_KEY = "sk-..."; pwsh chat.ps1
$ErrorActionPreference = "Stop"
$http = [System.Net.Http.HttpClient]::new()
$http.Timeout = [TimeSpan]::FromMinutes(5)

# Send a body, get the response. While the model is busy with another request (429), wait as long as the server says in
# Retry-After and send it again.
function Send-Request([string] $body) {
    for ($attempt = 1; ; $attempt++) {
        $request = [System.Net.Http.HttpRequestMessage]::new("POST", "$env:OPENAI_BASE_URL/chat/completions")
        $request.Headers.Authorization = [System.Net.Http.Headers.AuthenticationHeaderValue]::new("Bearer", $env:OPENAI_API_KEY)
        $request.Content = [System.Net.Http.StringContent]::new($body, [System.Text.Encoding]::UTF8, "application/json")
        # Headers are enough to go on, so that a stream can be read while it is written.
        $response = $http.SendAsync($request, [System.Net.Http.HttpCompletionOption]::ResponseHeadersRead).Result
        $hint = if ($response.Headers.Contains("Retry-After")) { @($response.Headers.GetValues("Retry-After"))[0] }
        if (($response.StatusCode -ne 429 -and -not $hint) -or $attempt -eq 6) { return $response }
        $seconds = if ($hint) { [double]::Parse($hint, [cultureinfo]::InvariantCulture) } else { $attempt }
        Start-Sleep -Milliseconds ([int](1000 * $seconds))
    }
}

# The whole answer as an object. What the server says is wrong becomes an error that starts with its code.
function Get-Answer([string] $body) {
    $response = Send-Request $body
    $answer = $response.Content.ReadAsStringAsync().Result | ConvertFrom-Json -Depth 32
    if (-not $response.IsSuccessStatusCode) { throw "$($answer.error.code): $($answer.error.message)" }
    return $answer
}

$answer = Get-Answer @'
{"model": "default", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 60}
'@
"chat: " + $answer.choices[0].message.content

[Console]::Write("stream: ")
$response = Send-Request @'
{"model": "default", "messages": [{"role": "user", "content": "Count to three."}], "max_tokens": 60, "stream": true}
'@
if (-not $response.IsSuccessStatusCode) { throw $response.Content.ReadAsStringAsync().Result }
$reader = [System.IO.StreamReader]::new($response.Content.ReadAsStreamAsync().Result)
$whole = $false
while ($null -ne ($line = $reader.ReadLine())) {
    if ($line -eq "data: [DONE]") { $whole = $true; break }
    if (-not $line.StartsWith("data: ")) { continue }
    $chunk = $line.Substring(6) | ConvertFrom-Json -Depth 32
    if ($chunk.error) { throw "$($chunk.error.code): $($chunk.error.message)" }
    foreach ($choice in $chunk.choices) { [Console]::Write($choice.delta.content) }
}
[Console]::WriteLine()
if (-not $whole) { throw "The answer broke off." }

$answer = Get-Answer @'
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
'@
"structured: " + ($answer.choices[0].message.content | ConvertFrom-Json | ConvertTo-Json -Compress)

# The model asks for the tool (it is made to: small models forget), this script runs it, the model words the result.
$tools = @'
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
'@
$message = (Get-Answer $tools).choices[0].message
$tools = $tools | ConvertFrom-Json -Depth 32
$tools.messages += $message
foreach ($call in $message.tool_calls) {
    $arguments = $call.function.arguments | ConvertFrom-Json
    $result = @{ city = $arguments.city; celsius = 21 } | ConvertTo-Json -Compress
    $tools.messages += [pscustomobject]@{ role = "tool"; tool_call_id = $call.id; content = $result }
}
$tools.tool_choice = "none"
$answer = Get-Answer ($tools | ConvertTo-Json -Depth 32)
"tools: " + $answer.choices[0].message.content

try {
    $null = Get-Answer @'
{"model": "no-such-model", "messages": [{"role": "user", "content": "Say hello."}]}
'@
} catch {
    "error: " + ($_.Exception.Message -split ":")[0]
}
