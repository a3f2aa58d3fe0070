"""LangChain's standard embedding tests through `langchain-openai` and `langchain-ollama`."""

from typing import Any, ClassVar

from langchain_ollama import OllamaEmbeddings
from langchain_openai import OpenAIEmbeddings
from langchain_tests.integration_tests import EmbeddingsIntegrationTests
from server_process import ServerProcess


class TestOpenAI(EmbeddingsIntegrationTests):
    """Text is sent as text: the package would fetch OpenAI's tokenizer to send tokens, and those are no others' tokens."""

    server: ClassVar[ServerProcess]
    embeddings_class = OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        address = {"base_url": self.server.base_url, "api_key": self.server.api_key}
        return {"model": self.server.model, "check_embedding_ctx_length": False, **address}


class TestOllama(EmbeddingsIntegrationTests):
    server: ClassVar[ServerProcess]
    embeddings_class = OllamaEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.server.api_key}"}
        return {"model": self.server.model, "base_url": self.server.origin, "client_kwargs": {"headers": headers}}
