"""Draws docs/pictures: the page on a phone, light, and on a desktop, dark, with the default model answering.

Run it from the project's folder after the page has changed: `.venv/bin/python tools/page_pictures.py`.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from pocketserver.engines.llama.process import LlamaEngine, LlamaOptions  # noqa: E402
from pocketserver.models.pull import ensure_default_model  # noqa: E402
from tests.page.browsing import DESKTOP, PHONE, Tab, chromium, tab  # noqa: E402
from tests.serving import Running, running  # noqa: E402
from tests.waiting import until  # noqa: E402

QUESTION = "What is the capital of France, and what is it known for?"
SHOWN_ADDRESS = "192.168.1.20"
"""Stands for the address of this machine, which is nobody's business."""


async def main(folder: Path) -> None:
    model = await ensure_default_model(ROOT / ".test-home" / "models")
    home = Path(tempfile.mkdtemp())
    options = LlamaOptions(model_id="smollm2-135m-instruct", path=model, state_folder=home / "llama", tuning=False)
    async with (
        running(home, LlamaEngine(options), default_max_tokens=200, default_temperature=0.0) as server,
        chromium() as browser,
    ):
        await until(lambda: server.server.engine.status.context_size is not None, limit=120)
        phone = {**PHONE, "color_scheme": "light", "device_scale_factor": 1}
        async with tab(browser, f"{server.origin}/#key={server.key}", phone) as opened:
            await _ask(opened)
            await _picture(opened, server, folder / "page-phone.png")
        async with tab(browser, _owner_url(server), {**DESKTOP, "color_scheme": "dark"}) as opened:
            await opened.page.click("#pair")
            await _ask(opened)
            await opened.page.evaluate("document.getElementById('server').scrollTop = 0")
            await _picture(opened, server, folder / "page-desktop.png")


def _owner_url(server: Running) -> str:
    assert server.server.page is not None
    return server.server.page.owner_url()


async def _ask(opened: Tab) -> None:
    await opened.shows("#connect", visible=False)
    await opened.said("#model", "smollm2")
    await opened.ask(QUESTION)
    await opened.shows(".assistant .cost")
    await opened.said("#sentence", "Ready")
    await opened.page.evaluate("document.activeElement.blur()")


async def _picture(opened: Tab, server: Running, file: Path) -> None:
    address = f"{SHOWN_ADDRESS}:8080"
    await opened.page.evaluate(
        f"""document.querySelectorAll("code, strong, dd").forEach((e) => {{
          if (!e.children.length) e.textContent = e.textContent
            .replaceAll("127.0.0.1:{server.server.port}", "{address}").replaceAll("127.0.0.1", "{SHOWN_ADDRESS}");
        }})"""
    )
    await opened.page.screenshot(path=file)


if __name__ == "__main__":
    pictures = ROOT / "docs" / "pictures"
    pictures.mkdir(exist_ok=True)
    asyncio.run(main(pictures))
