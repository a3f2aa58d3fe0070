"""LangChain's standard chat-model tests: `Anthropic`."""

from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from models import AnthropicModel


class TestUnit(AnthropicModel, ChatModelUnitTests):
    pass


class TestIntegration(AnthropicModel, ChatModelIntegrationTests):
    pass
