"""The bare decode loop as a process: the engine's own context and sampler, without pipes, events, text or HTTP.

    python tools/bench_bare_loop.py MODEL --context 8192 --threads 2

Reads JSON lines {"messages", "tokens", "seed"}, answers each with {"tokens_per_second", "prompt_tokens"}.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketserver.chat import Sampling
from pocketserver.engines.llama import native
from pocketserver.engines.llama.decoder import Decoder
from pocketserver.engines.llama.frames import Load
from pocketserver.engines.llama.model import Model
from pocketserver.engines.llama.sampler import Sampler
from pocketserver.engines.llama.session import runtime_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    native.quiet()
    load = Load(path=str(arguments.model), context_size=arguments.context, threads=arguments.threads)
    model = Model(load, native.progress_callback(lambda _fraction: None))
    decoder = Decoder(model, load, runtime_of(load))
    print(json.dumps({"build": native.build()}), file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(measured(model, decoder, json.loads(line))), file=out, flush=True)


def measured(model: Model, decoder: Decoder, question: Mapping[str, Any]) -> dict[str, float]:
    """Tokens a second behind the first, as a client counts them: each is chosen and decoded, the last only chosen."""
    tokens = model.vocabulary.tokenize(chatml(question["messages"]))
    kept = decoder.reuse(tokens)
    decoder.prefill(tokens[kept:], lambda _count: None)
    sampler = Sampler(Sampling(seed=question["seed"]), tokens)
    token = sampler.choose(decoder.logits())
    started = time.perf_counter()
    for _ in range(question["tokens"] - 1):
        sampler.accept(token)
        decoder.decode([token])
        token = sampler.choose(decoder.logits())
    elapsed = time.perf_counter() - started
    return {"tokens_per_second": (question["tokens"] - 1) / elapsed, "prompt_tokens": len(tokens)}


def chatml(messages: list[Mapping[str, str]]) -> str:
    """The default model's form; the few tokens of its system prompt do not matter for a rate."""
    turns = "".join(f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n" for message in messages)
    return f"{turns}<|im_start|>assistant\n"


if __name__ == "__main__":
    main()
