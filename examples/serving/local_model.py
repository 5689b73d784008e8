"""One GGUF model behind llama.cpp's own OpenAI-compatible server, on the CPU.

Run it with: python examples/serving/local_model.py model.gguf --name small --port 8081
Needs: pip install xllamacpp
"""

import argparse
import contextlib
import sys
import threading

import xllamacpp


def serve(
    model: str, name: str, port: int, threads: int, *, reuse_prompts: bool = False
) -> xllamacpp.Server:
    """Load a model, and serve it on loopback; port 0 is any that is free."""
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.model_alias = {name}
    params.hostnames = ["127.0.0.1"]
    params.port = port
    params.n_ctx = 2048
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.cache_prompt = reuse_prompts  # else the same request gives the same bits
    params.cache_ram_mib = 0  # of earlier prompts, only the last is kept
    params.verbosity = 0
    return xllamacpp.Server(params)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--name", default="model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--reuse-prompts", action="store_true", help="faster, not to the bit")
    parser.add_argument("--until-stdin-closes", action="store_true", help="else: until Ctrl-C")
    args = parser.parse_args()
    server = serve(args.model, args.name, args.port, args.threads, reuse_prompts=args.reuse_prompts)
    print(f"{server.listening_address}/v1", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.read() if args.until_stdin_closes else threading.Event().wait()
