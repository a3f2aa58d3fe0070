"""LangChain's standard chat-model tests: `Ollama`."""

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from models import OllamaModel


class TestUnit(OllamaModel, ChatModelUnitTests):
    @pytest.mark.xfail(reason="langchain-ollama 1.1.0 traces the constructor's model")
    def test_standard_params_model_override(self, model: BaseChatModel) -> None:
        super().test_standard_params_model_override(model)


class TestIntegration(OllamaModel, ChatModelIntegrationTests):
    pass
