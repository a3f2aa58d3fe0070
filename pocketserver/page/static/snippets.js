// Examples that work as they stand: the real address and model, and the key once its owner has shown it.
import { $, copy, el } from "./dom.js";

const PLACEHOLDER = "YOUR_API_KEY";

const LANGUAGES = {
  curl: ({ url, model, key }) => `curl ${url}/chat/completions \\
  -H "Authorization: Bearer ${key}" \\
  -H "Content-Type: application/json" \\
  -d '{"model": "${model}", "messages": [{"role": "user", "content": "Say hello."}]}'`,
  Python: ({ url, model, key }) => `from openai import OpenAI  # pip install openai

client = OpenAI(base_url="${url}", api_key="${key}")
stream = client.chat.completions.create(
    model="${model}",
    messages=[{"role": "user", "content": "Say hello."}],
    stream=True,
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)`,
  JavaScript: ({ url, model, key }) => `const response = await fetch("${url}/chat/completions", {
  method: "POST",
  headers: { "Authorization": "Bearer ${key}", "Content-Type": "application/json" },
  body: JSON.stringify({ model: "${model}", messages: [{ role: "user", content: "Say hello." }] }),
});
console.log((await response.json()).choices[0].message.content);`,
  PowerShell: ({ url, model, key }) => `$body = @{
  model = "${model}"
  messages = @(@{ role = "user"; content = "Say hello." })
} | ConvertTo-Json -Depth 5
$answer = Invoke-RestMethod -Method Post -Uri "${url}/chat/completions" \`
  -Headers @{ Authorization = "Bearer ${key}" } -ContentType "application/json; charset=utf-8" -Body $body
$answer.choices[0].message.content`,
};

const blocks = new Map();

export function showSnippets(state, key) {
  const values = { url: state.base_url, model: state.model ?? "default", key: key ?? PLACEHOLDER };
  for (const [language, write] of Object.entries(LANGUAGES)) {
    const code = block(language);
    const text = write(values);
    if (code.textContent !== text) code.textContent = text;
  }
}

function block(language) {
  if (!blocks.has(language)) {
    const code = el("code");
    const button = el("button", { type: "button" }, "Copy");
    button.addEventListener("click", () => copy(code.textContent, button));
    const label = `Example for ${language}`;
    const pre = el("pre", { tabindex: "0", role: "region", "aria-label": label }, code);
    $("snippets").append(el("details", {}, el("summary", {}, language), pre, el("p", {}, button)));
    blocks.set(language, code);
  }
  return blocks.get(language);
}
