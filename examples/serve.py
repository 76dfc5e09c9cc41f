"""A classifier over HTTP and JSON, on Starlette and uvicorn: a start for a server of your own.

    pip install starlette uvicorn
    python examples/serve.py work/classifier --port 8000

    POST /classify {"texts": ["What a lovely lamp."]}
    ->  {"predictions": [{"label": "positive", "probability": 0.98,
                          "probabilities": {"negative": 0.02, "positive": 0.98}}]}

A classifier of pairs takes [first, second] for each text. One request is classified at a time.
There is no authentication and no TLS: put a proxy that has both in front of it.
"""

import argparse
from itertools import chain
from threading import Lock

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from clozeline import InputError, load_classifier
from clozeline.train.finetuning.classifier import Classifier

MOST_BYTES = 1_000_000  # of a request


def app(classifier: Classifier) -> Starlette:
    """The application: `POST /classify`, and `GET /health` for those who start and watch it."""
    lock = Lock()

    def predictions(texts: list) -> list[dict]:
        with lock:
            found = classifier.classify(texts).tolist()
        by_name = [dict(zip(classifier.names, row, strict=True)) for row in found]
        labels = [max(row, key=row.get) for row in by_name]
        return [
            {"label": label, "probability": row[label], "probabilities": row}
            for label, row in zip(labels, by_name, strict=True)
        ]

    async def classify(request: Request) -> JSONResponse:
        if int(request.headers.get("content-length", MOST_BYTES + 1)) > MOST_BYTES:
            return JSONResponse({"error": f"send at most {MOST_BYTES:,} bytes"}, 413)
        try:
            texts = (await request.json())["texts"]
            parts = [[text] if isinstance(text, str) else list(text) for text in texts]
            if isinstance(texts, str) or not all(isinstance(x, str) for x in chain(*parts)):
                raise TypeError
            return JSONResponse({"predictions": await run_in_threadpool(predictions, texts)})
        except (InputError, LookupError, TypeError, ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, InputError) else ""
            reason = reason or 'send JSON of the form {"texts": ["...", ...]}'
            return JSONResponse({"error": reason}, 400)

    async def health(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    routes = [Route("/classify", classify, methods=["POST"]), Route("/health", health)]
    return Starlette(routes=routes)


def main(classifier: str, host: str, port: int) -> None:
    """Load the classifier, a folder or a URL, and serve it until Ctrl-C or SIGTERM."""
    uvicorn.run(app(load_classifier(classifier)), host=host, port=port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("classifier")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    main(**vars(parser.parse_args()))
