"""Jobs of 2, 8 and 64 ranks without the ranks: what each keeps, and what it asks of the others.

Whether the numbers are right is shown by two real processes (`test_distributed.py`).
"""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from clozeline.model.config import preset
from clozeline.model.heads import BertForPretraining
from clozeline.train.engine.gpus import GPUS
from clozeline.train.pretraining.estimate import Estimate
from tests.support.step_forms import FORMS
from tests.support.training_configs import training_config

ROOT = Path(__file__).parent.parent
BASE = preset("bert-base", vocab_size=30_522)
#: form, parallel, number of ranks, which of them
FAST = ["nano,ddp,8,0,7", "sampled untied,fsdp,2,0,1", "nano,fsdp,8,0,7"]
ALL_OF_8, ALL_OF_64 = (",".join(map(str, range(size))) for size in (8, 64))
SLOW = [
    *(f"{form},{kind},2,0,1" for form in ("padded", "modern") for kind in ("ddp", "fsdp")),
    *(f"{form},{kind},8,0,7" for form in ("accumulation", "fp32") for kind in ("ddp", "fsdp")),
    *(f"modern unpadded,{kind},8,{ALL_OF_8}" for kind in ("ddp", "fsdp")),
    *(f"modern unpadded,{kind},64,{ALL_OF_64}" for kind in ("ddp", "fsdp")),
    *(f"{form},fsdp,2,0" for form in ("checkpointed", "bf16 residual")),
    *(f"bert-base,fsdp,{size},0" for size in (8, 64)),
]
JOBS = [*FAST, *(pytest.param(job, marks=pytest.mark.slow) for job in SLOW)]


def job_name(job):
    return job if isinstance(job, str) else job.values[0]


#: FSDP2 keeps a slice of the first dimension.
PLACEMENTS = {"ddp": [], "fsdp": ["S(0)"]}


@pytest.fixture(scope="module")
def ranks(request):
    """The last steps of all jobs that are tested now, from one process."""
    items = [item for item in request.session.items if item.path == request.path]
    specs = [spec for item in items if (spec := getattr(item, "callspec", None))]
    jobs = {spec.params["job"] for spec in specs if "job" in spec.params}
    line = [sys.executable, "tests/support/fake_ranks.py", *sorted(jobs & {*FAST, *SLOW})]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def parts_of(job):
    """The form's name, DDP or FSDP2, and the number of ranks."""
    name, parallel, size, *_ = job.split(",")
    return name, parallel, int(size)


def config_of(name):
    return BASE if name == "bert-base" else FORMS[name].config


def model_of(name):
    with torch.device("meta"):
        return BertForPretraining(config_of(name))


def precision_of(name):
    return "fp32" if name == "fp32" else "bf16"


def passes_of(name):
    return FORMS[name].accumulation if name in FORMS else 1


def gathered_numbers(module, size, *, without=()):
    """Numbers of a unit's weights: each is padded to slices of one size, a slice for each rank."""
    left_out = {id(p) for other in without for p in other.parameters()}
    weights = [p for p in module.parameters() if id(p) not in left_out]
    return sum(-(-len(p) // size) * size * p[:1].numel() for p in weights)


@pytest.mark.parametrize("job", [job for job in JOBS if len(job_name(job).split(",")) > 4])
def test_all_ranks_ask_for_the_same_in_the_same_order(job, ranks):
    """Otherwise they would wait for each other."""
    first, *others = (rank["collectives"] for rank in ranks[job])
    assert all(other == first for other in others)


@pytest.mark.parametrize("job", JOBS)
def test_what_ranks_keep_is_the_whole_once_or_a_copy_each(job, ranks):
    name, parallel, size = parts_of(job)
    wanted = {n: list(p.shape) for n, p in model_of(name).named_parameters()}
    for rank in ranks[job]:
        kept = rank["parameters"]
        assert {n: whole for n, (whole, *_) in kept.items()} == wanted
        assert all(x[2:] == [PLACEMENTS[parallel], "float32"] for x in kept.values())
        assert rank["gradients"] == rank["moments"] == rank["squares"] == kept
    for n, whole in wanted.items():
        rows = [rank["parameters"][n][1][0] for rank in ranks[job]]
        if parallel == "ddp":
            assert rows == [whole[0]] * len(rows)
        else:
            slice_ = -(-whole[0] // size)
            numbers = [int(number) for number in job.split(",")[3:]]
            assert rows == [min(max(whole[0] - r * slice_, 0), slice_) for r in numbers]


@pytest.mark.parametrize("job", JOBS)
def test_layers_compute_in_the_precision_of_the_run(job, ranks):
    """FSDP2 rounds weights before it gathers them; with DDP, autocast does at each product.

    The angles of rotary positions are float32, or far tokens would have the same.
    """
    name, parallel, _ = parts_of(job)
    is_rounded = parallel == "fsdp" and precision_of(name) == "bf16"
    wanted = {"weight": "bfloat16" if is_rounded else "float32"}
    wanted |= {"rotation": "float32"} if "modern" in name else {}
    assert all(rank["computed"] == wanted for rank in ranks[job])


@pytest.mark.parametrize("job", [job for job in JOBS if ",ddp," in str(job)])
def test_ddp_adds_up_every_gradient_once_a_step(job, ranks):
    name, *_ = parts_of(job)
    counts, *buckets = ranks[job][0]["collectives"]
    assert counts == ["allreduce", "float32", 8]
    assert {(kind, dtype) for kind, dtype, _ in buckets} == {("allreduce", "float32")}
    assert sum(size for *_, size in buckets) == 4 * sum(
        p.numel() for p in model_of(name).parameters()
    )


@pytest.mark.parametrize("job", [job for job in JOBS if ",fsdp," in str(job)])
def test_fsdp_gathers_layers_twice_a_pass_and_the_rest_once(job, ranks):
    """And adds up every gradient once a step, in float32, with one sum more for their norm."""
    name, _, size = parts_of(job)
    model, passes = model_of(name), passes_of(name)
    is_untied = model.mlm_head.decoder is not None
    units = [*model.encoder.layers, *([model.mlm_head] if is_untied else [])]
    layers = [gathered_numbers(layer, size) for layer in model.encoder.layers]
    kept = [gathered_numbers(model, size, without=units)]
    kept += [gathered_numbers(model.mlm_head, size)] if is_untied else []
    dtype, width = ("bfloat16", 2) if precision_of(name) == "bf16" else ("float32", 4)
    assert Counter(map(tuple, ranks[job][0]["collectives"])) == Counter(
        [
            ("allreduce", "float32", 8),
            *(("allgather", dtype, width * n) for n in (*layers, *layers, *kept) * passes),
            *(("reduce_scatter", "float32", 4 * n) for n in (*layers, *kept)),
            ("allreduce", "float32", 4 * len(list(model.parameters()))),
        ]
    )


@pytest.mark.parametrize("job", JOBS)
def test_an_estimate_counts_the_bytes_that_the_step_sends(job, ranks):
    """But for padding: slices of one size, and the sums of a few numbers for counts and norms."""
    name, parallel, size = parts_of(job)
    rows = size * passes_of(name)
    training = training_config(
        parallel=parallel, precision=precision_of(name), batch_size=rows, micro_batch_size=1
    )
    estimate = Estimate(
        gpu=GPUS[0],
        gpus=size,
        model=config_of(name),
        training=training,
        manifest=None,
        phases=(),
    )
    times = {"ddp": {"allreduce": 2}, "fsdp": {"allgather": 1, "reduce_scatter": 1}}[parallel]
    asked = ranks[job][0]["collectives"]
    sent = sum(times.get(kind, 0) * n for kind, _, n in asked) * (size - 1) / size
    # Vectors of these small models have fewer numbers than 64 ranks have slices.
    limit = 1.001 if name == "bert-base" or size == 2 or parallel == "ddp" else 1.3
    assert 1 <= sent / estimate.sent < limit


def test_a_checkpoint_gathers_one_tensor_at_a_time():
    """Beside what is kept, no rank has more than the largest one, padded for all ranks."""
    line = [sys.executable, "tests/support/fake_gathering.py", "2", "3", "8"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for keeps, others in zip(*[iter(json.loads(done.stdout))] * 2, strict=True):
        beyond, left, largest, kept = keeps
        assert (beyond, left) == (largest, kept)
        assert kept > 15 * largest
        assert others == [largest, 0, largest, 0]
