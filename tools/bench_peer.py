"""The peer as a process: llama.cpp's own server out of the prebuilt `xllamacpp` package, until standard input ends.

    python tools/bench_peer.py MODEL --context 8192 --threads 2

Prints one JSON line when it serves: {"base_url", "pid", "settings"}. Everything not named here is the peer's default.
"""

import argparse
import importlib.metadata
import json
import os
import sys
from pathlib import Path

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--alias", help="the model's id; the path of its file without")
    parser.add_argument("--chat-template", type=Path, help="a Jinja template in place of the file's own")
    parser.add_argument("--embeddings", action="store_true", help="make vectors, and nothing else")
    arguments = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints where it likes; standard output is for the line alone
    params = peer_params(arguments.model, arguments.context, arguments.threads)
    if arguments.alias is not None:
        params.model_alias = {arguments.alias}
    if arguments.chat_template is not None:
        params.chat_template = arguments.chat_template.read_text(encoding="utf-8")
    if arguments.embeddings:
        params.embedding = True
        params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    server = xllamacpp.Server(params)
    ready = {"base_url": f"{server.listening_address}/v1", "pid": os.getpid(), "settings": shown(params)}
    print(json.dumps(ready), file=out, flush=True)
    sys.stdin.buffer.read()
    os._exit(0)  # the library's threads would hold up an ordinary exit


def peer_params(model: Path, context: int, threads: int) -> xllamacpp.CommonParams:
    """The peer's own defaults but for what both servers must share."""
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx = context
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.verbosity = 1
    params.no_extra_bufts = reports_amx()
    return params


def reports_amx() -> bool:
    """Where a virtual machine reports AMX, executing it may be a fault that ends the process: do without there."""
    try:
        return " amx_int8" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def shown(params: xllamacpp.CommonParams) -> dict[str, object]:
    return {
        "package": f"xllamacpp {importlib.metadata.version('xllamacpp')}",
        "build": str(xllamacpp.get_system_info()).strip(),
        "context": params.n_ctx,
        "threads": params.cpuparams.n_threads,
        "slots": params.n_parallel,
        "extra_buffers": not params.no_extra_bufts,
    }


if __name__ == "__main__":
    main()
