// What a client of pocketserver does, with OkHttp: chat, stream, structured output, tools, errors, trying again.
// Not compiled or run by this project's tests: its requests are those of ../curl/chat.sh, which are.
// Needs com.squareup.okhttp3:okhttp 4 or 5 and org.json:json (part of Android). Call from a background thread; on Android,
// plain http needs a network security configuration that permits it for the server's address.

import okhttp3.MediaType.Companion.toMediaType
import okhttp3.OkHttpClient
import okhttp3.Request
import okhttp3.RequestBody.Companion.toRequestBody
import okhttp3.Response
import org.json.JSONArray
import org.json.JSONObject
import java.util.concurrent.TimeUnit

class ServerError(val code: String, message: String) : Exception(message)

class Client(private val baseUrl: String, private val apiKey: String) {
    private val http = OkHttpClient.Builder().readTimeout(120, TimeUnit.SECONDS).build()
    private val json = "application/json".toMediaType()

    /** Send a body; while the model is busy with another request, wait as long as the server says and send it again. */
    private fun post(body: JSONObject): Response {
        for (attempt in 1..TRIES) {
            val request = Request.Builder()
                .url("$baseUrl/chat/completions")
                .header("Authorization", "Bearer $apiKey")
                .post(body.toString().toRequestBody(json))
                .build()
            val response = http.newCall(request).execute()
            if (response.isSuccessful) return response
            val hint = response.header("Retry-After")
            val error = response.use { serverError(JSONObject(it.body!!.string())) }
            if (attempt == TRIES || (response.code != 429 && hint == null)) throw error
            Thread.sleep(((hint?.toDouble() ?: attempt.toDouble()) * 1000).toLong())
        }
        error("unreachable")
    }

    /** The assistant's message. */
    fun ask(body: JSONObject): JSONObject = post(body).use {
        JSONObject(it.body!!.string()).getJSONArray("choices").getJSONObject(0).getJSONObject("message")
    }

    /** The answer, piece by piece. One without `[DONE]` at its end has broken off, whatever it looks like. */
    fun stream(body: JSONObject, show: (String) -> Unit) = post(body.put("stream", true)).use { response ->
        val source = response.body!!.source()
        while (true) {
            val line = source.readUtf8Line() ?: throw ServerError("incomplete", "The answer broke off.")
            if (line == "data: [DONE]") return@use
            if (!line.startsWith("data: ")) continue
            val chunk = JSONObject(line.removePrefix("data: "))
            if (chunk.has("error")) throw serverError(chunk)
            val choices = chunk.getJSONArray("choices")
            for (index in 0 until choices.length()) {
                val delta = choices.getJSONObject(index).getJSONObject("delta")
                if (!delta.isNull("content")) show(delta.getString("content"))
            }
        }
    }

    private fun serverError(answer: JSONObject) =
        answer.getJSONObject("error").let { ServerError(it.optString("code"), it.optString("message")) }

    private companion object {
        const val TRIES = 6
    }
}

val SCHEMA = """
    {
      "type": "object",
      "properties": {
        "city": {"type": "string", "maxLength": 30},
        "celsius": {"type": "integer", "minimum": -90, "maximum": 60}
      },
      "required": ["city", "celsius"],
      "additionalProperties": false
    }
"""
val WEATHER = """
    {"type": "function", "function": {
      "name": "get_weather",
      "description": "The weather in a city, now.",
      "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 30}},
        "required": ["city"],
        "additionalProperties": false
      }
    }}
"""

fun question(text: String, maxTokens: Int = 60): JSONObject = JSONObject()
    .put("model", "default")
    .put("max_tokens", maxTokens)
    .put("messages", JSONArray().put(JSONObject().put("role", "user").put("content", text)))

/** Ask, run what the model wants run, tell it the results, and so on until it answers in words. */
fun withTools(client: Client, text: String): String {
    val body = question(text, 100)
        .put("tools", JSONArray().put(JSONObject(WEATHER)))
        .put("tool_choice", "required") // small models forget to call when they may choose; then they are to answer
        .put("parallel_tool_calls", false)
    while (true) {
        val message = client.ask(body)
        val calls = message.optJSONArray("tool_calls") ?: return message.optString("content")
        val messages = body.getJSONArray("messages").put(message)
        for (index in 0 until calls.length()) {
            val call = calls.getJSONObject(index)
            val city = JSONObject(call.getJSONObject("function").getString("arguments")).getString("city")
            val result = JSONObject().put("city", city).put("celsius", 21).toString()
            messages.put(
                JSONObject().put("role", "tool").put("tool_call_id", call.getString("id")).put("content", result),
            )
        }
        body.put("tool_choice", "none")
    }
}

fun main() {
    val client = Client(System.getenv("OPENAI_BASE_URL"), System.getenv("OPENAI_API_KEY"))
    println("chat: " + client.ask(question("Say hello.")).getString("content"))

    print("stream: ")
    client.stream(question("Count to three.")) { print(it) }
    println()

    val form = JSONObject("""{"type": "json_schema", "json_schema": {"name": "weather", "schema": $SCHEMA}}""")
    val structured = question("The weather of a city, made up.", 100).put("response_format", form)
    println("structured: " + client.ask(structured).getString("content"))

    println("tools: " + withTools(client, "How warm is it in Oslo?"))

    try {
        client.ask(question("Say hello.").put("model", "no-such-model"))
    } catch (error: ServerError) {
        println("error: " + error.code)
    }
}
