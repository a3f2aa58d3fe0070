"""The whole page in a real browser: from a scanned code to the real model, the owner's panel, access, foreign pages."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio
from aiohttp import web

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions
from pocketserver.engines.sim.engine import SimEngine, SimOptions
from pocketserver.listening import listen
from tests.page.browsing import DESKTOP, LOOKS, PHONE, Tab, complaints, decoded, tab
from tests.serving import Running, running
from tests.waiting import until

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHORT = "What is the capital of France, and what is it known for?"
LONG = "Write a very long story about a ship, with many chapters."
"""Some 60 tokens, and more than anybody waits for."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def real(tmp_path_factory: pytest.TempPathFactory, default_model_path: Path) -> AsyncIterator[Running]:
    home = tmp_path_factory.mktemp("real")
    options = LlamaOptions(
        model_id="smollm2-135m-instruct", path=default_model_path, state_folder=home / "llama", tuning=False
    )
    async with running(home, LlamaEngine(options), default_max_tokens=2000, default_temperature=0.0) as server:
        await until(lambda: server.server.engine.status.model is not None, limit=120)
        yield server


@pytest_asyncio.fixture(loop_scope="module")
async def sim(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path, SimEngine(SimOptions(tokens_per_second=100.0))) as server:
        yield server


def owner_link(server: Running) -> str:
    assert server.server.page is not None
    return server.server.page.owner_url()


async def paired(browser: "Browser", server: Running, folder: Path) -> str:
    """The address in the QR code that the owner's button shows, read from a picture of the screen."""
    async with tab(browser, owner_link(server)) as owner:
        await owner.page.click("#pair")
        await owner.shows("#pairing-qr")
        await owner.page.locator("#pairing-qr").screenshot(path=folder / "code.png")
        return decoded(folder / "code.png")


WATCH_GROWING = """window.lengths = new Set();
new MutationObserver(() => window.lengths.add(document.querySelector(".assistant .body")?.textContent.length))
  .observe(document.getElementById("messages"), {childList: true, characterData: true, subtree: true})"""


@pytest.mark.real_model
@pytest.mark.parametrize("look", LOOKS)
async def test_a_scanned_code_leads_to_a_chat_with_the_real_model(
    browser: "Browser", real: Running, look: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    address = await paired(browser, real, tmp_path)
    assert address.startswith(f"{real.origin}/#pair=")

    async with tab(browser, address, look) as phone:
        await phone.shows("#connect", visible=False)
        await phone.said("#model", "smollm2")
        await phone.page.evaluate(WATCH_GROWING)
        await phone.ask(SHORT)
        await phone.shows(".assistant .cost")
        grew = await phone.page.evaluate("window.lengths.size")
        await phone.page.click("#new-chat")
        await phone.ask(LONG)
        await phone.shows(".assistant .waiting", visible=False)
        await phone.page.click("#stop")
        await phone.said(".assistant .problem", "Stopped")
        await until(lambda: not real.server.door.busy)
        key = await phone.page.evaluate("sessionStorage.getItem('pocketserver.key')")
        where = await phone.page.evaluate("[location.href, document.referrer, JSON.stringify(history.state)]")
        kept = await phone.page.evaluate("[localStorage.length, document.cookie]")

    assert grew >= 4
    assert key.startswith("sk-")
    assert where == [f"{real.origin}/", "", "null"]
    assert kept == [0, ""]
    secrets = [key, real.key, address.partition("#pair=")[2]]
    said = capfd.readouterr().err
    for secret in secrets:
        assert not any(secret in url for url in phone.addresses if "#" not in url)
        assert secret not in said


async def test_no_secret_of_a_link_stays_or_travels(browser: "Browser", sim: Running) -> None:
    token = owner_link(sim).partition("#owner=")[2]
    for fragment, secret in ((f"key={sim.key}", sim.key), (f"owner={token}", token)):
        async with tab(browser, f"{sim.origin}/#{fragment}") as opened:
            await opened.said("#sentence", "Ready")
            assert opened.page.url == f"{sim.origin}/"
            assert await opened.page.evaluate("history.length") == 2  # the blank page before, and ours
            lines = [url for url in opened.addresses if not url.endswith(f"#{fragment}")]
            assert len(lines) > 5
            assert not any(secret in line for line in lines)
    assert not any(secret in exchange.path for exchange in sim.exchanges for secret in (sim.key, token))


async def test_a_link_opened_in_a_tab_that_is_open_already_is_taken_too(browser: "Browser", sim: Running) -> None:
    async with tab(browser, sim.origin + "/") as opened:
        await opened.shows("#connect")
        await opened.page.evaluate(f"location.hash = 'key={sim.key}'")
        await opened.shows("#connect", visible=False)

        assert opened.page.url == f"{sim.origin}/"


async def test_the_base_url_in_a_camera_leads_to_the_page(browser: "Browser", sim: Running, tmp_path: Path) -> None:
    async with tab(browser, sim.origin + "/v1", PHONE) as opened:
        await opened.page.click("#view-server")
        await opened.page.click("#qr-toggle")
        await opened.shows("#qr")
        await until_drawn(opened, "#qr")
        await opened.page.locator("#qr").screenshot(path=tmp_path / "code.png")

        assert opened.page.url == f"{sim.origin}/"
        assert decoded(tmp_path / "code.png") == f"{sim.origin}/v1"


async def until_drawn(opened: Tab, selector: str) -> None:
    await opened.page.wait_for_function(f"document.querySelector('{selector}').naturalWidth > 0")


async def test_it_can_be_read_without_scripts(browser: "Browser", sim: Running) -> None:
    async with tab(browser, sim.origin, java_script_enabled=False) as opened:
        text = await opened.page.inner_text("body")
        chat = await opened.page.is_visible("#chat")

    assert "Ready" in text
    assert "sim-1b" in text
    assert f"{sim.origin}/v1" in text
    assert "SIMULATED" in text
    assert not chat


async def test_the_owner_sees_the_key_stops_an_answer_and_takes_keys_back(browser: "Browser", sim: Running) -> None:
    sim.server.simulator.add_rule({"tokens": ["word "] * 100_000})  # type: ignore[union-attr]
    async with tab(browser, owner_link(sim)) as opened:
        assert sim.key not in await opened.page.inner_text("body")
        await opened.page.click("#reveal")
        await opened.said("#main-key", sim.key)
        await opened.page.fill("#key-name", "tablet")
        await opened.page.press("#key-name", "Enter")
        await opened.said("#keys", "tablet")
        await opened.said("#made-key", "sk-")
        await opened.ask("Go on")
        await opened.said("#requests", r"main \(127.0.0.1\) \d+ tokens in")
        await opened.page.click("#owner-stop")
        await opened.said("#owner-said", "stopped")
        await opened.said(".assistant .problem", "cancelled on the server")
        opened.page.on("dialog", lambda dialog: dialog.accept())
        await opened.page.click("text=Revoke >> nth=1")
        await opened.said("#owner-said", "tablet is revoked")
        await opened.page.reload()
        await opened.shows("#owner")
        await opened.page.click("#leave")
        await opened.shows("#owner", visible=False)

    assert sim.server.keys is not None
    assert [key.name for key in sim.server.keys.list()] == ["main"]


async def test_a_used_owners_link_says_so(browser: "Browser", sim: Running) -> None:
    link = owner_link(sim)
    async with tab(browser, link) as first:
        await first.shows("#owner")
    async with tab(browser, link) as second:
        await second.said("#connect-problem", "used before")

        assert not await second.page.is_visible("#owner")


@pytest.mark.parametrize("look", LOOKS)
async def test_axe_finds_nothing(browser: "Browser", sim: Running, look: dict[str, Any]) -> None:
    sim.server.simulator.add_rule({"text": "# Hi\n\n1. one\n\n```py\nprint()\n```\n", "reasoning": "Hm."})  # type: ignore[union-attr]
    found = []
    async with tab(browser, sim.origin, look) as stranger:
        await stranger.shows("#connect")
        found += await complaints(stranger.page)
    async with tab(browser, owner_link(sim), look) as owner:
        await owner.shows("#owner")
        await owner.page.click("#pair")
        await owner.page.click("#qr-toggle")
        await owner.page.click("#snippets summary >> nth=0")
        found += await complaints(owner.page)
        if await owner.page.is_visible("#view-chat"):
            await owner.page.click("#view-chat")
        await owner.page.click("#options-toggle")
        await owner.ask("Hello")
        await owner.shows(".assistant .cost")
        found += await complaints(owner.page)

    assert found == []


@pytest.mark.parametrize("size", [{"width": 320, "height": 640}, {"width": 390, "height": 400}])
async def test_nothing_sticks_out_on_a_small_screen(browser: "Browser", sim: Running, size: dict[str, int]) -> None:
    async with tab(browser, owner_link(sim), {**PHONE, "viewport": size}) as opened:
        await opened.shows("#owner")
        await opened.page.click("#pair")
        wide = await opened.page.evaluate("document.documentElement.scrollWidth")
        await opened.page.click("#view-chat")
        await opened.shows("#message")
        also = await opened.page.evaluate("document.documentElement.scrollWidth")
        box = await opened.page.locator("#message").bounding_box()
        small = await opened.page.evaluate(
            "[...document.querySelectorAll('button, select, input:not([type=checkbox]), summary')]"
            ".filter((e) => e.checkVisibility() && e.getBoundingClientRect().height < 43.5).map((e) => e.id || e.textContent)"
        )

    assert (wide, also) == (size["width"], size["width"])
    assert box is not None
    assert box["y"] + box["height"] <= size["height"]
    assert small == []


ATTEMPTS = """async (target) => {
  const tried = {};
  for (const [name, path, options] of [
    ["root", "/", {}], ["state", "/page/state", {}], ["health", "/health", {}], ["models", "/v1/models", {}],
    ["pair", "/page/pair", {method: "POST", body: "{}"}],
    ["credentials", "/page/state", {credentials: "include"}],
  ]) tried[name] = await fetch(target + path, options).then((r) => r.text(), () => "kept away");
  tried.opaque = await fetch(target + "/page/state", {mode: "no-cors"}).then((r) => r.text(), () => "kept away");
  tried.script = await new Promise((done) => {
    const script = document.createElement("script");
    script.src = target + "/page/state"; script.onload = () => done("ran"); script.onerror = () => done("kept away");
    document.head.append(script);
  });
  tried.frame = await new Promise((done) => {
    const frame = document.createElement("iframe");
    frame.src = target + "/";
    frame.onload = () => {
      let seen = "kept away";
      try { seen = frame.contentDocument?.body?.textContent || "kept away"; } catch { /* another origin */ }
      done(seen);
    };
    document.body.append(frame);
  });
  return tried;
}"""


async def test_a_page_of_another_origin_reads_nothing(browser: "Browser", sim: Running) -> None:
    async def empty(_request: web.Request) -> web.Response:
        return web.Response(text="<!doctype html><body>", content_type="text/html")

    app = web.Application()
    app.add_routes([web.get("/", empty)])
    runner = web.AppRunner(app)
    await runner.setup()
    listener = listen("127.0.0.1", 0)[0]
    await web.SockSite(runner, listener).start()
    try:
        context = await browser.new_context(**DESKTOP)
        page = await context.new_page()
        await page.goto(f"http://127.0.0.1:{listener.getsockname()[1]}/")
        tried = await page.evaluate(ATTEMPTS, sim.origin)
        await context.close()
    finally:
        await runner.cleanup()
        listener.close()

    assert set(tried.values()) <= {"kept away", ""}, json.dumps(tried, indent=1)


async def test_a_name_that_was_bound_to_our_address_reads_nothing(browser: "Browser", sim: Running) -> None:
    context = await browser.new_context(**DESKTOP)
    page = await context.new_page()
    response = await page.goto(f"{sim.origin.replace('127.0.0.1', 'evil.test')}/")
    state = await page.evaluate("fetch('/page/state').then((r) => r.status)")
    await context.close()

    assert response is not None
    assert response.status == 403
    assert state == 403
