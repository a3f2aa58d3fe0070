"""The verdict on a client: each mistake is found, and good manners are not mistaken for one."""

from pathlib import Path

import openai
import pytest

from pocketserver.simulator.verdict import Mistake
from tests.simulator.driving import HI, Device, device


def mistakes(phone: Device) -> list[Mistake]:
    return [finding.mistake for finding in phone.simulator.verdict().findings]


async def test_coming_back_before_retry_after_is_found(phone: Device) -> None:
    phone.simulator.add_fault("model_busy", retry_after=5)
    await phone.ask()
    await phone.ask()

    assert mistakes(phone) == [Mistake.IGNORED_RETRY_AFTER]
    shown = await phone.control("GET", "/verdict")
    assert shown["resilient"] is False
    assert "5 s" in shown["findings"][0]["sentence"]


async def test_repeating_what_cannot_succeed_is_found(phone: Device) -> None:
    await phone.ask(temperature=9)
    await phone.ask(temperature=9)

    assert mistakes(phone) == [Mistake.RETRIED_HOPELESS]


async def test_going_on_with_half_an_answer_is_found(phone: Device) -> None:
    phone.simulator.add_fault("drop_after_tokens", after_tokens=2)
    await phone.raw(stream=True)
    await phone.ask(
        messages=[*HI["messages"], {"role": "assistant", "content": "Remem"}, {"role": "user", "content": "?"}]
    )

    assert mistakes(phone) == [Mistake.TRUSTED_TRUNCATED]


async def test_asking_again_without_leaving_is_found(phone: Device) -> None:
    phone.simulator.add_fault("stall")
    async with phone.http.post("/v1/chat/completions", json={**HI, "stream": True}):
        async with phone.http.post("/v1/chat/completions", json={**HI, "stream": True}) as second:
            assert second.status == 429

    assert mistakes(phone) == [Mistake.LEFT_RUNNING]


async def test_the_official_sdk_is_resilient(tmp_path: Path) -> None:
    async with device(tmp_path) as phone, phone.served.openai(max_retries=2) as sdk:
        phone.simulator.add_fault("model_busy", retry_after=0.05)
        await _ask(sdk, "one")
        phone.simulator.add_fault("insufficient_memory")
        with pytest.raises(openai.InternalServerError, match="memory"):
            await _ask(sdk, "two")
        await _ask(sdk, "three")

    assert phone.simulator.verdict().faulty == 2
    assert phone.simulator.verdict().resilient


async def _ask(sdk: openai.AsyncOpenAI, text: str) -> None:
    await sdk.chat.completions.create(model="default", messages=[{"role": "user", "content": text}])
