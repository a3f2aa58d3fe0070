"""Makes hostile chat templates, and renders them in a process of its own that a test can end.

Run as a program: `count seed render_seconds`; one JSON line for each template, then one with the peak memory.
"""

import json
import random
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from pocketserver.chat import Message, Role
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.errors import Refusal

HUGE = ("10**9", "999999999", "99999", "2**62", "10**6", "-10**9")
SECRETS = ("__class__", "__globals__", "__init__", "__mro__", "__subclasses__", "__builtins__", "__code__", "f_globals")
OBJECTS = (
    "''",
    "messages",
    "raise_exception",
    "strftime_now",
    "cycler",
    "namespace",
    "joiner",
    "range",
    "self",
    "loop",
)


def loops(draw: random.Random) -> str:
    depth = draw.randint(1, 5)
    opening = "".join(f"{{% for i{at} in range({draw.choice((9, 9999, 99999))}) %}}" for at in range(depth))
    body = draw.choice(("x", "{{ i0 }}", "", "{% set a = i0 * i0 %}", "{{ 'abc' * 1000 }}"))
    return opening + body + "{% endfor %}" * depth


def growth(draw: random.Random) -> str:
    step = draw.choice(
        ("n.s ~ n.s", "n.s + n.s", "n.s * 2", "n.s | replace('a', n.s)", "[n.s, n.s] | join", "n.s % n.s")
    )
    start = draw.choice(("'a'", "'a' * 1000", "[1]", "7", "'%s%s'"))
    return (
        f"{{% set n = namespace(s={start}) %}}{{% for i in range({draw.choice((40, 9000))}) %}}"
        f"{{% set n.s = {step} %}}{{% endfor %}}{{{{ n.s }}}}"
    )


def sizes(draw: random.Random) -> str:
    size = draw.choice(HUGE)
    return draw.choice(
        (
            f"{{{{ 'a' * {size} }}}}",
            f"{{{{ [1] * {size} }}}}",
            f"{{{{ 'a'.ljust({size}) }}}}",
            f"{{{{ 'a'.zfill({size}) }}}}",
            f"{{{{ 'a' | center({size}) }}}}",
            f"{{{{ 'a\nb' | indent({size}) }}}}",
            f"{{{{ [1] | batch({size}, 'x') | list }}}}",
            f"{{{{ range({size}) | list | tojson }}}}",
            f"{{{{ messages | tojson(indent={size}) }}}}",
            f"{{{{ '%{draw.randint(1, 10**12)}d' % 3 }}}}",
            f"{{{{ '{{:>{draw.randint(1, 10**12)}}}'.format(3) }}}}",
            f"{{{{ 7 ** {size} }}}}",
            f"{{{{ (10**6) ** (10**6) % {size} }}}}",
            f"{{{{ strftime_now('%{draw.randint(1, 10**10)}Y') }}}}",
            "{{ ('a' * 4000000).replace('', 'b' * 4000000) }}",
            "{{ ('a' * 4000000) | upper | list | join(',' * 1000) }}",
            "{{ 'x'.join(['a' * 1000000] * 1000) }}",
            "{{ ('\t' * 100000).expandtabs(100000) }}",
        )
    )


def attributes(draw: random.Random) -> str:
    chain = "".join(
        draw.choice((f".{name}", f"['{name}']", f" | attr('{name}')"))
        for name in draw.choices(SECRETS, k=draw.randint(1, 4))
    )
    return draw.choice(
        (
            f"{{{{ ({draw.choice(OBJECTS)}{chain}) }}}}",
            f"{{{{ ({draw.choice(OBJECTS)}{chain})() }}}}",
            "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
            "{{ messages | map(attribute='__class__') | list }}",
            "{{ messages | map('attr', '__class__') | list }}",
            "{% include '/etc/passwd' %}",
            "{% import 'os' as os %}{{ os.system('id') }}",
            "{% extends 'base' %}",
            "{{ lipsum.__globals__['os'].popen('id').read() }}",
            "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
            "{{ self.__init__.__globals__ }}",
            "{{ messages.__setitem__(0, 1) }}{{ messages.clear() }}",
        )
    )


def recursion(draw: random.Random) -> str:
    calls = "{{ f(n + 1) }}" * draw.randint(1, 3)
    return draw.choice(
        (
            f"{{% macro f(n) %}}{calls}{{% endmacro %}}{{{{ f(1) }}}}",
            "{% set _ = messages.append(messages) %}{{ messages | tojson }}",
            "{% set _ = messages.append(messages) %}{{ messages }}",
            "{% for m in messages recursive %}{{ loop(messages) }}{% endfor %}",
            "{% for m in messages %}{% set _ = messages.append(m) %}{% endfor %}",
            "{% set d = {} %}{% set _ = d.update({'d': d}) %}{{ d | tojson }}{{ d }}",
            "{% for m in messages %}{{ caller() }}{% endfor %}{% call f() %}x{% endcall %}",
        )
    )


def syntax(draw: random.Random) -> str:
    depth = draw.choice((10, 300, 5000, 40000))
    return draw.choice(
        (
            "{{ " + "(" * depth + "1" + ")" * depth + " }}",
            "{{ " + "[" * depth + "]" * depth + " }}",
            "{{ " + "not " * depth + "1 }}",
            "{{ 1" + " + 1" * depth + " }}",
            "{{ a" + ".b" * depth + " }}",
            "{% if 1 %}" * depth,
            "{% if 1 %}" * min(depth, 300) + "x" + "{% endif %}" * min(depth, 300),
            "{% raw %}" + "{{" * depth,
            "{#" * depth,
            "".join(draw.choice("{}%#-| '\"\\()[]ab0\n\x00é") for _ in range(draw.randint(1, 400))),
            "x" * 300_000,
            "{{ raise_exception('x' * 1000000) }}",
            "{{ raise_exception(messages) }}{{ nothing.at.all }}",
            "{% generation %}{{ messages[99].content }}",
            "{{ '" + "a" * depth + "' | from_json }}",
            "{{ ('[' * " + str(depth) + ") | from_json }}",
        )
    )


KINDS: tuple[Callable[[random.Random], str], ...] = (loops, growth, sizes, attributes, recursion, syntax)


def templates(count: int, seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    for at in range(count):
        made = KINDS[at % len(KINDS)](draw)
        yield made if draw.random() < 0.8 else made + draw.choice(KINDS)(draw)


def outcome(source: str, render_seconds: float) -> dict[str, object]:
    message = Message(role=Role.USER, content="hello")
    try:
        prompt = ChatTemplate(source, render_seconds=render_seconds).render((message,))
    except Refusal as refusal:
        return {"code": refusal.code.value, "message": refusal.message}
    return {"length": len(prompt), "leak": "<module" in prompt or "root:" in prompt or "uid=" in prompt}


def main() -> None:
    count, seed, render_seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    for source in templates(count, seed):
        print(json.dumps({"source": source[:120], **outcome(source, render_seconds)}), flush=True)
    print(json.dumps({"peak_kib": peak_kib()}), flush=True)


def peak_kib() -> int:
    """The most memory this program held. Linux counts the process that started it into `ru_maxrss`."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
