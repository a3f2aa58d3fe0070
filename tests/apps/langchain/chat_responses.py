"""LangChain's standard chat-model tests: `Responses`."""

from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests
from models import ResponsesModel


class TestUnit(ResponsesModel, ChatModelUnitTests):
    pass


class TestIntegration(ResponsesModel, ChatModelIntegrationTests):
    pass
