"""The chat in a real browser, on the simulator: busy, gone, broken off, wrong keys, keys of the keyboard, hostile text."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from pocketserver.engines.sim.engine import SimEngine, SimOptions
from tests.page.browsing import PHONE, Tab, tab
from tests.serving import Running, running
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.asyncio(loop_scope="module")
QUESTION = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest_asyncio.fixture(loop_scope="module")
async def server(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SimEngine(SimOptions(tokens_per_second=100.0))) as served:
        yield served


@pytest_asyncio.fixture(loop_scope="module")
async def chat(server: Running, browser: "Browser") -> AsyncIterator[Tab]:
    """A phone that was opened by a link with the key."""
    async with tab(browser, f"{server.origin}/#key={server.key}", PHONE) as opened:
        await opened.shows("#connect", visible=False)
        yield opened


def script(server: Running, text: str, tokens: int = 0) -> None:
    """What the device says from now on; cut into as many words, or as they come."""
    assert server.server.simulator is not None
    server.server.simulator.remove_rule()
    words = [f"word{number} " for number in range(tokens)] if tokens else list(text)
    server.server.simulator.add_rule({"tokens": words})


async def test_a_busy_model_is_waited_for_by_itself(server: Running, chat: Tab) -> None:
    script(server, "", tokens=100_000)
    async with server.session() as other, other.post("/v1/chat/completions", json=QUESTION):
        await until(lambda: server.server.door.busy)
        await chat.ask("Are you there?")
        await chat.said("#notice", "busy with another request. Trying again in 1 s")
        script(server, "Here I am.")
    await chat.said(".assistant .body", "Here I am.")

    await chat.said(".assistant .cost", "10 tokens")
    assert await chat.page.text_content("#notice") == ""
    assert await chat.page.locator(".user").count() == 1


async def test_a_server_that_leaves_keeps_the_message_and_answers_when_it_is_back(server: Running, chat: Tab) -> None:
    script(server, "Back again.")
    server.server.simulator.set_state(network="gone")  # type: ignore[union-attr]
    await chat.ask("Do not lose me")
    await chat.said("#notice", "cannot be reached")
    await chat.said("#sentence", "Not reachable")
    await chat.said("#gone", "same Wi-Fi")
    server.server.simulator.set_state(network="up")  # type: ignore[union-attr]
    await chat.said(".assistant .body", "Back again.")

    await chat.shows("#gone", visible=False)
    await chat.said("#sentence", "Ready")


async def test_stopping_while_the_server_is_gone_gives_the_message_back(server: Running, chat: Tab) -> None:
    server.server.simulator.set_state(network="gone")  # type: ignore[union-attr]
    await chat.ask("Keep this draft")
    await chat.said("#notice", "cannot be reached")
    await chat.page.click("#stop")
    await chat.shows("#send")

    assert await chat.page.input_value("#message") == "Keep this draft"
    assert await chat.page.locator(".message").count() == 0


async def test_an_answer_that_breaks_off_stays_and_can_be_asked_again(server: Running, chat: Tab) -> None:
    script(server, "", tokens=40)
    server.server.simulator.add_fault("drop_after_tokens", after_tokens=10, when={"next": 1})  # type: ignore[union-attr]
    await chat.ask("Tell me")
    await chat.said(".assistant .problem", "broke off")
    await chat.said(".assistant .body", "word5")
    await chat.page.click("text=Try again")
    await chat.said(".assistant .body", "word39")

    assert await chat.page.locator(".assistant").count() == 1


async def test_an_error_in_mid_stream_is_said(server: Running, chat: Tab) -> None:
    server.server.simulator.add_fault("error_chunk", code="worker_lost", after_tokens=3, when={"next": 1})  # type: ignore[union-attr]
    await chat.ask("Tell me")

    await chat.said(".assistant .problem", "model process ended")


async def test_stop_ends_the_work_on_the_server(server: Running, chat: Tab) -> None:
    script(server, "", tokens=100_000)
    await chat.ask("Go on for ever")
    await chat.said(".assistant .body", "word5")
    await chat.page.click("#stop")
    await until(lambda: not server.server.door.busy)

    await chat.said(".assistant .problem", "Stopped")
    await chat.shows("#send")


async def test_leaving_the_page_ends_the_work_on_the_server(server: Running, chat: Tab) -> None:
    script(server, "", tokens=100_000)
    await chat.ask("Go on for ever")
    await chat.said(".assistant .body", "word5")
    await chat.page.goto("about:blank")

    await until(lambda: not server.server.door.busy)


async def test_no_memory_is_explained_and_the_message_kept(server: Running, chat: Tab) -> None:
    server.server.simulator.add_fault("insufficient_memory", when={"next": 1})  # type: ignore[union-attr]
    await chat.ask("Anybody?")
    await chat.said("#notice", "Not enough memory")

    assert await chat.page.input_value("#message") == "Anybody?"


async def test_a_wrong_key_asks_for_another_and_digits_do(server: Running, browser: "Browser") -> None:
    assert server.server.page is not None
    async with tab(browser, f"{server.origin}/#key=sk-wrong-wrong-wrong", PHONE) as opened:
        await opened.said("#connect-problem", "not good here")
        await opened.page.fill("#message", "My draft")
        await opened.page.press("#message", "Enter")
        await opened.said("#connect-problem", "your message is kept")
        await opened.page.fill("#secret", "000 000")
        await opened.page.press("#secret", "Enter")
        await opened.said("#connect-problem", "pairing code is wrong")
        code = server.server.page.pairing.offer()
        await opened.page.fill("#secret", f"{code[:3]} {code[3:]}")
        await opened.page.click("#connect button")
        await opened.shows("#connect", visible=False)
        await opened.page.press("#message", "Enter")
        await opened.said(".assistant .cost", "40 tokens")

    assert server.server.keys is not None
    assert [key.name for key in server.server.keys.list()] == ["main", "iPhone"]


async def test_a_key_that_is_revoked_under_way_is_asked_for_again(server: Running, browser: "Browser") -> None:
    assert server.server.keys is not None
    key = server.server.keys.new("guest")
    async with tab(browser, f"{server.origin}/#key={key}") as opened:
        await opened.shows("#connect", visible=False)
        server.server.keys.revoke("guest")
        await opened.said("#connect-problem", "not good here")


async def test_shift_enter_and_composing_do_not_send(chat: Tab) -> None:
    await chat.page.fill("#message", "one")
    await chat.page.press("#message", "Shift+Enter")
    await chat.page.type("#message", "two")
    await chat.page.evaluate(
        """document.getElementById("message").dispatchEvent(new KeyboardEvent("keydown",
            {key: "Enter", isComposing: true, bubbles: true, cancelable: true}))"""
    )

    assert await chat.page.input_value("#message") == "one\ntwo"
    assert await chat.page.locator(".message").count() == 0
    await chat.page.press("#message", "Enter")
    await chat.said(".user", "one\ntwo")


async def test_a_draft_outlives_reloading(chat: Tab) -> None:
    await chat.page.fill("#message", "not yet sent")
    await chat.page.reload()

    assert await chat.page.input_value("#message") == "not yet sent"
    await chat.shows("#connect", visible=False)


async def test_what_a_model_writes_is_text_and_never_markup(server: Running, chat: Tab) -> None:
    hostile = (
        "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\n\n"
        "[a](javascript:alert(1)) [b](https://example.org/?q=1) **bold <b>x</b>**\n\n"
        "# Title <i>\n\n- one\n- two `<code>`\n\n```html\n<script>alert(1)</script>\n```\n"
    )
    script(server, hostile)
    await chat.ask("Attack")
    await chat.shows(".assistant .cost")
    body = chat.page.locator(".assistant .body")

    assert await body.locator("img, script, i, b").count() == 0
    assert await chat.page.title() == "pocketserver"
    assert await body.locator("a").evaluate_all("links => links.map((a) => [a.href, a.rel])") == [
        ["https://example.org/?q=1", "noopener noreferrer"]
    ]
    assert "<img src=x onerror" in (await body.text_content() or "")
    assert await body.locator("strong").text_content() == "bold <b>x</b>"
    assert await body.locator("li").all_text_contents() == ["one", "two <code>"]
    assert await body.locator("pre code").text_content() == "<script>alert(1)</script>"


async def test_code_is_copied_over_plain_http_too(tmp_path: Path, browser: "Browser") -> None:
    async with running(tmp_path, allowed_hosts=("pocket.test",)) as server:
        script(server, "```sh\necho hello\n```")
        origin = server.origin.replace("127.0.0.1", "pocket.test")
        async with tab(browser, f"{origin}/#key={server.key}") as opened:
            assert await opened.page.evaluate("[isSecureContext, typeof navigator.clipboard]") == [False, "undefined"]
            await opened.ask("Code, please")
            await opened.page.click(".code-bar button")
            await opened.said(".code-bar button", "Copied")
            await opened.page.focus("#message")
            await opened.page.keyboard.press("Control+V")

            assert await opened.page.input_value("#message") == "echo hello"


async def test_options_reach_the_model_and_a_new_chat_forgets_the_old(server: Running, chat: Tab) -> None:
    await chat.page.click("#options-toggle")
    await chat.page.fill("#system", "Answer in rhymes.")
    await chat.page.fill("#temperature", "0.2")
    await chat.ask("first")
    await chat.shows(".assistant .cost")
    await chat.ask("second")
    await until(lambda: len(asked(server)) == 2)
    await chat.page.click("#new-chat")
    await chat.ask("third")
    await until(lambda: len(asked(server)) == 3)

    first, second, third = asked(server)
    assert [turn["role"] for turn in first["messages"]] == ["system", "user"]
    assert (first["messages"][0]["content"], first["temperature"], first["model"]) == (
        "Answer in rhymes.", 0.2, "sim-1b",
    )  # fmt: skip
    assert [turn["role"] for turn in second["messages"]] == ["system", "user", "assistant", "user"]
    assert [turn["role"] for turn in third["messages"]] == ["system", "user"]


def asked(server: Running) -> list[dict[str, object]]:
    assert server.server.simulator is not None
    return [request.json for request in server.server.simulator.requests if request.method == "POST" and request.status]


async def test_thoughts_are_folded_away(server: Running, chat: Tab) -> None:
    server.server.simulator.add_rule({"text": "Four.", "reasoning": "Two and two."})  # type: ignore[union-attr]
    await chat.ask("2 + 2?")
    await chat.said(".assistant .body", "Four.")

    assert await chat.page.locator(".reasoning").evaluate("fold => fold.open") is False
    await chat.page.click(".reasoning summary")
    await chat.said(".reasoning p", "Two and two.")


async def test_a_long_answer_is_read_out_in_pieces(server: Running, chat: Tab) -> None:
    script(server, "", tokens=100)
    await chat.page.evaluate(
        """window.heard = []; new MutationObserver(() => window.heard.push(document.getElementById("live").textContent))
            .observe(document.getElementById("live"), {childList: true, characterData: true, subtree: true})"""
    )
    await chat.ask("Hello")
    await chat.said("#live", "End of the answer")

    heard = await chat.page.evaluate("window.heard")
    assert 1 <= len(heard) <= 5
    assert "word99" in heard[-1]
