"""Small chat templates, one for each way to write calls, and what a call looks like in it."""

from dataclasses import dataclass

_TURNS = (
    "{{ bos_token }}{% if tools %}<|im_start|>tools\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% if m.tool_calls %}CALLS{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_EACH = "{% for c in m.tool_calls %}{% set f = c.function %}ONE{% endfor %}"


@dataclass(frozen=True)
class Family:
    """`one` is the Jinja of one call (`f` is its function, `c` the call), `around` stands around all of them."""

    one: str
    call: str
    around: tuple[str, str] = ("", "")
    between: str = ""

    @property
    def source(self) -> str:
        each = self.one + ("{% if not loop.last %}" + self.between + "{% endif %}" if self.between else "")
        return _TURNS.replace("CALLS", self.around[0] + _EACH.replace("ONE", each) + self.around[1])


_JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_ARGUMENTS = "{% for k, v in f.arguments.items() %}ONE{% endfor %}"
_RAW = "{{ v if v is string else v | tojson }}"
_TYPE = (
    "{% if v is string %}string{% elif v is boolean %}boolean{% elif v is number %}number{% elif v is none %}null"
    "{% elif v is mapping %}object{% else %}array{% endif %}"
)

FAMILIES = {
    "json in a tag": Family(
        one="\n<tool_call>\n" + _JSON + "\n</tool_call>",
        call='<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}\n</tool_call>',
    ),
    "json list": Family(
        one=_JSON,
        around=("<calls>[", "]</calls>"),
        between=", ",
        call='<calls>[{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}}]</calls>',
    ),
    "list with ids": Family(
        one='{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}',
        around=("[TOOL_CALLS][", "]"),
        between=", ",
        call='[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Oslo", "days": 3}, "id": "abcdefgh0"}]',
    ),
    "name as the key": Family(
        one='{"{{ f.name }}": {{ f.arguments | tojson }}}',
        around=("<|prefix|>[", "]<|suffix|>"),
        between=", ",
        call='<|prefix|>[{"get_weather": {"city": "Oslo", "days": 3}}]<|suffix|>',
    ),
    "name, counter, json": Family(
        one="<|begin|>functions.{{ f.name }}:{{ loop.index0 }}<|arg|>{{ f.arguments | tojson }}<|end_call|>",
        around=("<|section|>", "<|section_end|>"),
        call='<|section|><|begin|>functions.get_weather:0<|arg|>{"city": "Oslo", "days": 3}<|end_call|><|section_end|>',
    ),
    "name, json in a tag": Family(
        one="<function={{ f.name }}>{{ f.arguments | tojson }}</function>",
        call='<function=get_weather>{"city": "Oslo", "days": 3}</function>',
    ),
    "tagged arguments": Family(
        one="<tool_call>\n<function={{ f.name }}>\n"
        + _ARGUMENTS.replace("ONE", "<parameter={{ k }}>\n" + _RAW + "\n</parameter>\n")
        + "</function>\n</tool_call>",
        call="<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>",
    ),
    "keys and values": Family(
        one="<tool_call>{{ f.name }}"
        + _ARGUMENTS.replace("ONE", "<arg_key>{{ k }}</arg_key><arg_value>" + _RAW + "</arg_value>")
        + "</tool_call>",
        call="<tool_call>get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value><arg_key>days</arg_key>"
        "<arg_value>3</arg_value></tool_call>",
    ),
    "typed arguments": Family(
        one='<invoke name="{{ f.name }}" index="{{ loop.index }}">'
        + _ARGUMENTS.replace("ONE", '<arg name="{{ k }}" type="' + _TYPE + '">' + _RAW + "</arg>")
        + "</invoke>",
        around=("<calls>", "</calls>"),
        call='<calls><invoke name="get_weather" index="1"><arg name="city" type="string">Oslo</arg>'
        '<arg name="days" type="number">3</arg></invoke></calls>',
    ),
    "python": Family(
        one="{{ f.name }}("
        + _ARGUMENTS.replace(
            "ONE",
            "{{ k }}={% if v is string %}'{{ v }}'{% else %}{{ v }}{% endif %}{% if not loop.last %}, {% endif %}",
        )
        + ")",
        around=("<|calls|>[", "]<|calls_end|>"),
        between=", ",
        call="<|calls|>[get_weather(city='Oslo', days=3)]<|calls_end|>",
    ),
    "bare json": Family(
        one="{% if m.tool_calls | length > 1 %}{{ raise_exception('one call a turn') }}{% endif %}"
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}',
        call='{"name": "get_weather", "parameters": {"city": "Oslo", "days": 3}}',
    ),
}
SPECIAL_TOKENS = (
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "[TOOL_CALLS]",
    "<|calls|>",
    "<|section|>",
)
END_TOKENS = ("<|im_end|>",)
