"""What the standard classes are told of the models of one API each, and what is switched off."""

import functools
import operator
import os
from typing import Any, ClassVar

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import AIMessage
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from server_process import ServerProcess

ON_A_REAL_MODEL = "POCKETSERVER_TEST_MODEL" in os.environ


class Common:
    """The server reads text only: images, audio, video and PDF stay off, as the standard classes have it."""

    server: ClassVar[ServerProcess]
    details: ClassVar[list[str]] = []
    model_override_value = None if ON_A_REAL_MODEL else "sim-3b"
    """The simulated device's other model, which is loaded on request; a real server here has one model."""

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"temperature": 0, "max_tokens": 60, "timeout": 120, "max_retries": 0}

    @property
    def supported_usage_metadata_details(self) -> dict[str, list[str]]:
        return {"invoke": self.details, "stream": self.details}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        return self._asked("Think.", stream=stream, reasoning_effort="low")

    def invoke_with_cache_read_input(self, *, stream: bool = False) -> AIMessage:
        return self._asked("Write. " * 100, stream=stream)

    invoke_with_cache_creation_input = invoke_with_cache_read_input

    def _asked(self, words: str, *, stream: bool, **fields: Any) -> AIMessage:
        model = self.chat_model_class(**self.standard_chat_model_params, **self.chat_model_params, **fields)
        return functools.reduce(operator.add, model.stream(words)) if stream else model.invoke(words)


class OpenAIModel(Common):
    """Without `stream_usage` the package asks for no usage from servers that are not OpenAI's."""

    chat_model_class = ChatOpenAI
    details: ClassVar = ["cache_read_input"] if ON_A_REAL_MODEL else ["reasoning_output", "cache_read_input"]
    supports_json_mode = True
    supports_anthropic_inputs = False

    @property
    def chat_model_params(self) -> dict[str, Any]:
        address = {"base_url": self.server.base_url, "api_key": self.server.api_key}
        return {"model": self.server.model, "stream_usage": True, **address}


class ResponsesModel(OpenAIModel):
    """The same package over `/v1/responses`, which has no field for stop words."""

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {**super().chat_model_params, "use_responses_api": True}


class AnthropicModel(Common):
    chat_model_class = ChatAnthropic
    details: ClassVar = ["cache_read_input", "cache_creation_input"]
    supports_anthropic_inputs = True
    supports_json_mode = False  # the package has none

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": self.server.model, "base_url": self.server.origin, "api_key": self.server.api_key}


class OllamaModel(Common):
    chat_model_class = ChatOllama
    has_tool_choice = False  # Ollama's API has no field for it
    supports_json_mode = True
    supports_anthropic_inputs = False

    @property
    def chat_model_params(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.server.api_key}"}
        return {"model": self.server.model, "base_url": self.server.origin, "client_kwargs": {"headers": headers}}

    @property
    def standard_chat_model_params(self) -> dict[str, Any]:
        return {"temperature": 0, "num_predict": 60}
