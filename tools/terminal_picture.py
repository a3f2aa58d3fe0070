"""Draw the live view of `serve` as docs/pictures/terminal.svg, from plain values."""

import io
import re
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

from pocketserver import __version__
from pocketserver.cli.scene import Fact, Scene, picture
from pocketserver.lan import qr
from pocketserver.telemetry.log_lines import RequestLine

TARGET = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "terminal.svg"
ADDRESS = "http://192.168.1.20:8080/v1"
WIDTH, HEIGHT = 96, 27
NOON = time.mktime((2026, 1, 1, 12, 0, 0, 0, 0, -1))


def request(at: float, status: int, **more: object) -> RequestLine:
    values: dict[str, object] = {"method": "POST", "path": "/v1/chat/completions", "seconds": 2.4, "key_name": "phone"}
    values |= {"peer": "192.168.1.31", "request_id": "r", "at": NOON + at, "status": status}
    return RequestLine(**{**values, **more})  # type: ignore[arg-type]


def main() -> None:
    scene = Scene(
        title=f"pocketserver {__version__}, profile pocketllm, up 12 min",
        facts=(
            Fact(label="Base URL", value=ADDRESS),
            Fact(label="Here", value="http://127.0.0.1:8080/v1"),
            Fact(label="Page", value="http://192.168.1.20:8080/"),
            Fact(label="API key", value="shown by `pocketserver key show`"),
            Fact(label="Model", value="smollm2-135m-instruct"),
        ),
        address=ADDRESS,
        state="busy",
        doing="busy: phone, 57 tokens, 71.3 tokens/s",
        rates=tuple(66.0 + n % 6 if n in range(40, 52) or n in range(60, 68) or n > 74 else 0.0 for n in range(90)),
        requests=(
            request(3, 200, method="GET", path="/v1/models", seconds=0.002, key_name="laptop"),
            request(9, 200, tokens_per_second=71.2),
            request(21, 200, tokens_per_second=69.8, seconds=5.1, key_name="laptop"),
            request(24, 429, error="model_busy", seconds=0.001, key_name="laptop"),
            request(26, 200, tokens_per_second=70.4, seconds=3.3),
        ),
        notes=("12:00:00 Ready: smollm2-135m-instruct, 8192 tokens of context",),
    )
    code = [Text.from_ansi(line) for line in qr.terminal_text(ADDRESS).splitlines()]
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text("\n").join(picture(scene, code, WIDTH, HEIGHT)))
    svg = console.export_svg(title="pocketserver serve", unique_id="live")
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # nothing is loaded from elsewhere
    TARGET.write_text(re.sub(r"<!--.*?-->", "", svg), encoding="utf-8")


if __name__ == "__main__":
    main()
