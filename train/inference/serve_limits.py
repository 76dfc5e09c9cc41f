"""The limits of `clozeline serve`; free of torch, so that `--help` answers at once."""

from dataclasses import dataclass

from clozeline.pipeline.commandline.config_options import option
from clozeline.pipeline.common.config_checks import check_between


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a request may cost, and how many texts are classified together."""

    max_batch: int = option(32, "Maximum texts that are classified together.", group="Server")
    max_texts: int = option(64, "Maximum texts of a request.", group="Limits")
    max_body_bytes: int = option(1_000_000, "Maximum bytes of a request.", group="Limits")
    max_waiting: int = option(
        1024, "Maximum texts that wait; further requests get status 503.", group="Limits"
    )
    max_connections: int = option(
        1024,
        "Maximum open connections, and no more than half of `ulimit -n`; one more closes the one "
        "that has waited longest for a request.",
        group="Limits",
    )
    max_seconds: float = option(
        30.0, "Maximum seconds to send a request, and to answer it (status 504).", group="Limits"
    )

    def __post_init__(self) -> None:
        check_between("max_batch", self.max_batch, 1, 65_536)
        check_between("max_texts", self.max_texts, 1, 1 << 20)
        check_between("max_body_bytes", self.max_body_bytes, 100, 1 << 30)
        check_between("max_waiting", self.max_waiting, self.max_texts, 1 << 20)
        check_between("max_connections", self.max_connections, 1, 1 << 20)
        check_between("max_seconds", self.max_seconds, 0.01, 3600)
