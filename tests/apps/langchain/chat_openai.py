"""LangChain's standard chat-model tests: `OpenAI`."""

from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from models import OpenAIModel


class TestUnit(OpenAIModel, ChatModelUnitTests):
    pass


class TestIntegration(OpenAIModel, ChatModelIntegrationTests):
    pass
