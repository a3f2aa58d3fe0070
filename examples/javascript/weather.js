// The schema and the tool that both chat examples use.

export const schema = {
  type: "object",
  properties: {
    city: { type: "string", maxLength: 30 },
    celsius: { type: "integer", minimum: -90, maximum: 60 },
  },
  required: ["city", "celsius"],
  additionalProperties: false,
};

export const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city, now.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", maxLength: 30 } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};

/** A tool as the model sees it. A real one would look out of the window. */
export function getWeather({ city }) {
  return { city, celsius: 21 };
}
