"""How one loaded model is spoken to: what its template was found to be, its prompts, and readers for its replies."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pocketserver.chat import GenerationRequest, ToolMode
from pocketserver.engines.llama.answer import FormatReply, PlainReply, Reply
from pocketserver.engines.llama.constraint import Compiler, TokenConstraint
from pocketserver.engines.llama.explaining import Explainer
from pocketserver.engines.llama.format_memory import Examined, examination_key, remembered
from pocketserver.engines.llama.model import Vocabulary
from pocketserver.engines.llama.prompting import Prompt, Prompter
from pocketserver.engines.llama.reply import ReplyReader
from pocketserver.engines.llama.reply_constraint import ReplyConstraints, may_call
from pocketserver.engines.llama.reply_format import derive_reply_format
from pocketserver.engines.llama.template import ChatTemplate
from pocketserver.engines.llama.tool_grammar import Thinking
from pocketserver.engines.llama.tool_syntax import THINK
from pocketserver.engines.llama.traits import answer_opening
from pocketserver.engines.llama.typed_marks import TypedMarks


class Dialogue:
    """A template and a vocabulary, examined once. `folder` keeps what was found for the next start."""

    def __init__(self, source: str, vocabulary: Vocabulary, folder: Path | None) -> None:
        self._source = source
        self._vocabulary = vocabulary
        self._marks = vocabulary.marks()
        self._ends = [text for token in vocabulary.end_tokens if (text := vocabulary.text(token))]
        fixed = (vocabulary.text(vocabulary.bos), vocabulary.text(vocabulary.eos))
        key = examination_key(source, fixed, self._marks, self._ends)
        self._examined = remembered(folder, key, self._examine)
        self._special = {text: token for text, token in self._marks.items() if vocabulary.is_special(token)}
        self._reader_marks = self._used_marks()
        self._typed_marks = TypedMarks(vocabulary.control_texts())
        self._constraints = self._new_constraints()

    @property
    def supports_tools(self) -> bool:
        return self._examined.reply_format.syntax is not None

    @property
    def supports_thinking(self) -> bool:
        return self._examined.reply_format.reasoning_known

    def prompter(self, context_size: int) -> Prompter:
        """A prompter for one thread."""
        template = self._template()
        template.traits = self._examined.traits
        return Prompter(
            vocabulary=self._vocabulary,
            template=template,
            reply_format=self._examined.reply_format,
            context_size=context_size,
            typed_marks=self._typed_marks,
        )

    def explainer(
        self,
        context_size: int,
        cached: Callable[[GenerationRequest, Sequence[int]], int] = lambda _request, _prompt: 0,
    ) -> Explainer:
        """An explainer for one thread."""
        return Explainer(self._vocabulary, self.prompter(context_size), self._new_constraints(), cached)

    def answer_opening(self) -> list[int]:
        """The tokens between a question and its answer; none where the template does not show them."""
        return self._vocabulary.split(answer_opening(self._template().render_probe))

    def constraint(self, request: GenerationRequest, prompt: Prompt) -> TokenConstraint | None:
        """What holds the reply to this request. Raises Refusal(INVALID_PARAMETER)."""
        return self._constraints.compile(request, prompt.thinking)

    def reply(self, request: GenerationRequest, prompt: Prompt, *, held: bool) -> Reply:
        """What reads the reply. `held`: a constraint holds it to the format."""
        if request.prompt is not None:
            return PlainReply(request.stop)
        calls = may_call(request)
        reader = ReplyReader(
            self._examined.reply_format,
            tools=request.tools if calls else (),
            special_tokens=self._reader_marks,
            opened=prompt.thinking is Thinking.OPENED,
            trusted=held,
            must_call=held and calls and request.tool_choice.mode is ToolMode.REQUIRED,
            stops=request.stop,
        )
        return FormatReply(reader)

    def _new_constraints(self) -> ReplyConstraints:
        """For one thread."""
        return ReplyConstraints(Compiler(self._vocabulary), self._examined.reply_format, self._special.get)

    def _examine(self) -> Examined:
        template = self._template()
        found = derive_reply_format(template, special_tokens=self._marks, end_tokens=self._ends)
        return Examined(traits=template.traits, reply_format=found)

    def _template(self) -> ChatTemplate:
        vocabulary = self._vocabulary
        bos, eos = vocabulary.text(vocabulary.bos), vocabulary.text(vocabulary.eos)
        return ChatTemplate(self._source, bos_token=bos, eos_token=eos)

    def _used_marks(self) -> dict[str, int]:
        """The special tokens that occur in the format; a vocabulary may have thousands."""
        literals = [*self._examined.reply_format.literals(), THINK.open, THINK.close]
        return {text: token for text, token in self._special.items() if any(text in literal for literal in literals)}
