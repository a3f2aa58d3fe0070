// What a client of pocketserver does, with URLSession alone: chat, stream, structured output, tools, errors, trying again.
// Not compiled or run by this project's tests: its requests are those of ../curl/chat.sh, which are.
//   OPENAI_BASE_URL=http://192.168.1.20:8080/v1 OPENAI_API_KEY=sk-... swift Chat.swift
// In an app, plain http on the local network needs NSAllowsLocalNetworking and NSLocalNetworkUsageDescription in Info.plist.

import Foundation

struct ServerError: Error {
    let code: String
    let message: String
}

struct Client {
    let baseURL: URL
    let apiKey: String
    let tries = 6

    /// Send a body; while the model is busy with another request, wait as long as the server says and send it again.
    func post(_ body: [String: Any]) async throws -> URLSession.AsyncBytes {
        var request = URLRequest(url: baseURL.appendingPathComponent("chat/completions"), timeoutInterval: 120)
        request.httpMethod = "POST"
        request.setValue("Bearer \(apiKey)", forHTTPHeaderField: "Authorization")
        request.setValue("application/json", forHTTPHeaderField: "Content-Type")
        request.httpBody = try JSONSerialization.data(withJSONObject: body)
        for attempt in 1... {
            let (bytes, response) = try await URLSession.shared.bytes(for: request)
            guard let answer = response as? HTTPURLResponse else { throw URLError(.badServerResponse) }
            if answer.statusCode == 200 { return bytes }
            let hint = answer.value(forHTTPHeaderField: "Retry-After")
            if attempt == tries || (answer.statusCode != 429 && hint == nil) {
                throw serverError(try await object(bytes))
            }
            let seconds = hint.flatMap(Double.init) ?? Double(attempt)
            try await Task.sleep(nanoseconds: UInt64(seconds * 1_000_000_000))
        }
        fatalError("unreachable")
    }

    /// The assistant's message.
    func ask(_ body: [String: Any]) async throws -> [String: Any] {
        let answer = try await object(try await post(body))
        let choices = answer["choices"] as? [[String: Any]]
        return choices?.first?["message"] as? [String: Any] ?? [:]
    }

    /// The answer, piece by piece. One without `[DONE]` at its end has broken off, whatever it looks like.
    func stream(_ body: [String: Any], show: (String) -> Void) async throws {
        let bytes = try await post(body.merging(["stream": true]) { _, new in new })
        for try await line in bytes.lines where line.hasPrefix("data: ") {
            if line == "data: [DONE]" { return }
            let json = try JSONSerialization.jsonObject(with: Data(line.dropFirst(6).utf8)) as? [String: Any] ?? [:]
            if json["error"] != nil { throw serverError(json) }
            for choice in json["choices"] as? [[String: Any]] ?? [] {
                show((choice["delta"] as? [String: Any])?["content"] as? String ?? "")
            }
        }
        throw ServerError(code: "incomplete", message: "The answer broke off.")
    }

    private func object(_ bytes: URLSession.AsyncBytes) async throws -> [String: Any] {
        var data = Data()
        for try await byte in bytes { data.append(byte) }
        return try JSONSerialization.jsonObject(with: data) as? [String: Any] ?? [:]
    }

    private func serverError(_ json: [String: Any]) -> ServerError {
        let error = json["error"] as? [String: Any]
        return ServerError(code: error?["code"] as? String ?? "", message: error?["message"] as? String ?? "")
    }
}

let schema: [String: Any] = [
    "type": "object",
    "properties": [
        "city": ["type": "string", "maxLength": 30],
        "celsius": ["type": "integer", "minimum": -90, "maximum": 60],
    ],
    "required": ["city", "celsius"],
    "additionalProperties": false,
]

let weather: [String: Any] = [
    "type": "function",
    "function": [
        "name": "get_weather",
        "description": "The weather in a city, now.",
        "parameters": [
            "type": "object",
            "properties": ["city": ["type": "string", "maxLength": 30]],
            "required": ["city"],
            "additionalProperties": false,
        ],
    ],
]

/// Ask, run what the model wants run, tell it the results, and so on until it answers in words.
func withTools(_ client: Client, _ question: String) async throws -> String {
    var messages: [[String: Any]] = [["role": "user", "content": question]]
    var choice = "required"  // small models forget to call when they may choose; afterwards they are to answer
    while true {
        let message = try await client.ask([
            "model": "default", "messages": messages, "max_tokens": 100,
            "tools": [weather], "tool_choice": choice, "parallel_tool_calls": false,
        ])
        guard let calls = message["tool_calls"] as? [[String: Any]], !calls.isEmpty else {
            return message["content"] as? String ?? ""
        }
        messages.append(message)
        for call in calls {
            let arguments = (call["function"] as? [String: Any])?["arguments"] as? String ?? "{}"
            let wanted = try JSONSerialization.jsonObject(with: Data(arguments.utf8)) as? [String: Any]
            let result: [String: Any] = ["city": wanted?["city"] ?? "", "celsius": 21]
            let content = String(decoding: try JSONSerialization.data(withJSONObject: result), as: UTF8.self)
            messages.append(["role": "tool", "tool_call_id": call["id"] ?? "", "content": content])
        }
        choice = "none"
    }
}

let environment = ProcessInfo.processInfo.environment
guard let address = environment["OPENAI_BASE_URL"].flatMap(URL.init), let key = environment["OPENAI_API_KEY"] else {
    fatalError("Set OPENAI_BASE_URL and OPENAI_API_KEY.")
}
let client = Client(baseURL: address, apiKey: key)
let hello: [[String: Any]] = [["role": "user", "content": "Say hello."]]

print("chat:", try await client.ask(["model": "default", "messages": hello, "max_tokens": 60])["content"] ?? "")

print("stream: ", terminator: "")
let count: [[String: Any]] = [["role": "user", "content": "Count to three."]]
try await client.stream(["model": "default", "messages": count, "max_tokens": 60]) { print($0, terminator: "") }
print()

let form: [String: Any] = ["type": "json_schema", "json_schema": ["name": "weather", "schema": schema]]
let question: [[String: Any]] = [["role": "user", "content": "The weather of a city, made up."]]
let structured = try await client.ask(
    ["model": "default", "messages": question, "max_tokens": 100, "response_format": form])
print("structured:", structured["content"] ?? "")

print("tools:", try await withTools(client, "How warm is it in Oslo?"))

do {
    _ = try await client.ask(["model": "no-such-model", "messages": hello])
} catch let error as ServerError {
    print("error:", error.code)
}
