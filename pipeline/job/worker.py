"""A worker process of Beam's local runner, which ends with the process that started it.

Its standard input is a pipe into which nothing is written. When the job ends, however it ends, the
pipe closes; without this, workers of a killed job would stay for minutes.
"""

import os
import runpy
import sys
import threading
from typing import Final

WORKER: Final = "apache_beam.runners.worker.sdk_worker_main"


def _end_with_the_job() -> None:
    while os.read(0, 1):  # `sys.stdin` has a lock, which a thread must not hold at the end
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.path[0] = ""  # as with `python -m`, and not the folder of this file
    threading.Thread(target=_end_with_the_job, daemon=True).start()
    runpy.run_module(WORKER, run_name="__main__", alter_sys=True)
