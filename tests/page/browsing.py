"""A real browser for the page's tests: Debian's Chromium, phones and desktops, light and dark."""

import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.tools import install_packages, needs

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

PACKAGES = Path(__file__).parent.parent / "clients" / "javascript"
AXE = PACKAGES / "node_modules" / "axe-core" / "axe.min.js"
LIMIT_MS = 60_000
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP pocket.test 127.0.0.1,MAP evil.test 127.0.0.1,MAP * ~NOTFOUND,EXCLUDE 127.0.0.1",
]
PHONE: dict[str, Any] = {
    "viewport": {"width": 390, "height": 844},
    "device_scale_factor": 2,
    "is_mobile": True,
    "has_touch": True,
    "user_agent": "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) AppleWebKit/605.1.15 Mobile/15E148 Safari/604.1",
}
DESKTOP: dict[str, Any] = {"viewport": {"width": 1280, "height": 860}}
LOOKS = [
    pytest.param({**size, "color_scheme": scheme}, id=f"{name}-{scheme}")
    for name, size in (("phone", PHONE), ("desktop", DESKTOP))
    for scheme in ("light", "dark")
]


@dataclass
class Tab:
    """One page in a context of its own, and everything about it that must not be: addresses asked, errors said."""

    page: "Page"
    addresses: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def watch(self) -> None:
        self.page.on("request", lambda request: self.addresses.append(request.url))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("console", lambda message: self._said(message.type, message.text))

    def _said(self, kind: str, text: str) -> None:
        if kind == "error" and "Failed to load resource" not in text:
            self.faults.append(text)

    async def said(self, selector: str, words: str) -> None:
        """Wait until an element says so."""
        from playwright.async_api import expect

        await expect(self.page.locator(selector)).to_contain_text(re.compile(words), timeout=LIMIT_MS)

    async def ask(self, text: str) -> None:
        await self.page.fill("#message", text)
        await self.page.press("#message", "Enter")

    async def shows(self, selector: str, *, visible: bool = True) -> None:
        await self.page.wait_for_selector(selector, state="visible" if visible else "hidden", timeout=LIMIT_MS)


@asynccontextmanager
async def chromium() -> AsyncIterator["Browser"]:
    """The browser. Skips the test where Playwright or Chromium is absent, fails it in CI."""
    needs("chromium")
    try:
        from playwright.async_api import async_playwright
    except ImportError:
        reason = "playwright is not installed"
        pytest.fail(reason) if os.environ.get("CI") else pytest.skip(reason)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def tab(browser: "Browser", url: str, look: dict[str, Any] | None = None, **options: Any) -> AsyncIterator[Tab]:
    """A page of its own, opened there; ends with a check that nothing went wrong inside it."""
    context = await browser.new_context(**{**(look or DESKTOP), **options})
    context.set_default_timeout(LIMIT_MS)
    try:
        opened = Tab(await context.new_page())
        opened.watch()
        await opened.page.goto(url)
        yield opened
        assert opened.faults == []
    finally:
        await context.close()


def decoded(picture: Path) -> str:
    """What a QR code in a picture says."""
    needs("zbarimg")
    done = subprocess.run(["zbarimg", "--quiet", "--raw", picture], capture_output=True, text=True, check=False)
    return done.stdout.strip()


async def complaints(page: "Page") -> list[str]:
    """What axe finds wrong with a page for people who see, hear or move otherwise."""
    install_packages(PACKAGES)
    await page.evaluate(AXE.read_text(encoding="utf-8") + "; undefined")
    found = await page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {node['target']} {node['failureSummary']}"
        for one in found["violations"]
        for node in one["nodes"]
    ]
