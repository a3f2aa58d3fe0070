"""LangChain's standard tests of chat models and embeddings, against the simulator and the real small model."""

from pathlib import Path

import pytest

from tests.apps.environments import FOLDER, python_of
from tests.apps.suites import run_pytest

LANGCHAIN = FOLDER / "langchain"
TEMPLATE = FOLDER.parent / "templates" / "tags.jinja"
SUITES = ["chat_openai", "chat_responses", "chat_anthropic", "chat_ollama", "embeddings"]
REAL = "test_invoke or test_stream or tool_choice or histories or few_shot or error_status or usage or anthropic_inputs"
"""What a model of 135 million parameters can do: it may be forced to call, but not be trusted to find the answer."""

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("suite", SUITES)
def test_the_simulator_passes(pytestconfig: pytest.Config, suite: str) -> None:
    run_pytest(pytestconfig, "LangChain", python_of(LANGCHAIN), LANGCHAIN, f"{suite}.py")


@pytest.mark.real_model
@pytest.mark.parametrize("suite", ["chat_openai", "chat_anthropic"])
def test_the_real_model_passes(pytestconfig: pytest.Config, suite: str, default_model_path: Path) -> None:
    variables = {"POCKETSERVER_TEST_MODEL": str(default_model_path), "POCKETSERVER_TEST_TEMPLATE": str(TEMPLATE)}
    words = (f"{suite}.py", "-k", f"TestIntegration and ({REAL})")
    run_pytest(pytestconfig, "LangChain on the real model", python_of(LANGCHAIN), LANGCHAIN, *words, **variables)
