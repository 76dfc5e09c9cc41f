"""Jobs of 2, 8 and 64 ranks without the ranks: what each keeps, and what it asks of the others.

Whether the numbers are right is shown by two real processes (`test_distributed.py`).
"""

from collections import Counter
from functools import cache

import pytest
import torch

from clozeline.model.heads import BertForPretraining
from clozeline.train.engine.flops import GPUS
from clozeline.train.estimate.estimate import Estimate
from tests.support.fake_gathering import gathered
from tests.support.fake_ranks import FORMS_AND_PRESETS, run
from tests.support.training_configs import training_config

#: form, parallel, number of ranks, which of them
FAST = ["nano,ddp,8,0,7", "sampled untied,fsdp,2,0,1", "nano,fsdp,8,0,7"]
ALL_OF_8, ALL_OF_64 = (",".join(map(str, range(size))) for size in (8, 64))
SLOW = [
    *(f"{form},{kind},2,0,1" for form in ("padded", "modern") for kind in ("ddp", "fsdp")),
    *(f"{form},{kind},8,0,7" for form in ("accumulation", "fp32") for kind in ("ddp", "fsdp")),
    *(f"modern unpadded,{kind},8,{ALL_OF_8}" for kind in ("ddp", "fsdp")),
    *(f"modern unpadded,{kind},64,{ALL_OF_64}" for kind in ("ddp", "fsdp")),
    "checkpointed,fsdp,2,0",
    *(f"bert-base,fsdp,{size},0" for size in (8, 64)),
]
JOBS = [*FAST, *(pytest.param(job, marks=pytest.mark.slow) for job in SLOW)]


def job_name(job):
    return job if isinstance(job, str) else job.values[0]


#: FSDP2 keeps a slice of the first dimension.
PLACEMENTS = {"ddp": [], "fsdp": ["S(0)"]}
#: The last step of each of a job's ranks.
ranks_of = cache(run)


def parts_of(job):
    """The form, DDP or FSDP2, and the number of ranks."""
    name, parallel, size, *_ = job.split(",")
    return FORMS_AND_PRESETS[name], parallel, int(size)


def model_of(form):
    with torch.device("meta"):
        return BertForPretraining(form.config)


def gathered_numbers(module, size, *, without=()):
    """Numbers of a unit's weights: each is padded to slices of one size, a slice for each rank."""
    left_out = {id(p) for other in without for p in other.parameters()}
    weights = [p for p in module.parameters() if id(p) not in left_out]
    return sum(-(-len(p) // size) * size * p[:1].numel() for p in weights)


@pytest.mark.parametrize("job", [job for job in JOBS if len(job_name(job).split(",")) > 4])
def test_all_ranks_ask_for_the_same_in_the_same_order(job):
    """Otherwise they would wait for each other."""
    first, *others = (rank["collectives"] for rank in ranks_of(job))
    assert all(other == first for other in others)


@pytest.mark.parametrize("job", JOBS)
def test_what_ranks_keep_is_the_whole_once_or_a_copy_each(job):
    form, parallel, size = parts_of(job)
    wanted = {n: list(p.shape) for n, p in model_of(form).named_parameters()}
    for rank in ranks_of(job):
        kept = rank["parameters"]
        assert {n: whole for n, (whole, *_) in kept.items()} == wanted
        assert all(x[2:] == [PLACEMENTS[parallel], "float32"] for x in kept.values())
        assert rank["gradients"] == rank["moments"] == rank["squares"] == kept
    for n, whole in wanted.items():
        rows = [rank["parameters"][n][1][0] for rank in ranks_of(job)]
        if parallel == "ddp":
            assert rows == [whole[0]] * len(rows)
        else:
            slice_ = -(-whole[0] // size)
            numbers = [int(number) for number in job.split(",")[3:]]
            assert rows == [min(max(whole[0] - r * slice_, 0), slice_) for r in numbers]


@pytest.mark.parametrize("job", JOBS)
def test_layers_compute_in_the_precision_of_the_run(job):
    """FSDP2 rounds weights before it gathers them; with DDP, autocast does at each product.

    The angles of rotary positions are float32, or far tokens would have the same.
    """
    form, parallel, _ = parts_of(job)
    is_rounded = parallel == "fsdp" and form.precision == "bf16"
    wanted = {"weight": "bfloat16" if is_rounded else "float32"}
    wanted |= {"rotation": "float32"} if "modern" in job else {}
    assert all(rank["computed"] == wanted for rank in ranks_of(job))


@pytest.mark.parametrize("job", [job for job in JOBS if ",ddp," in str(job)])
def test_ddp_adds_up_every_gradient_once_a_step(job):
    form, *_ = parts_of(job)
    counts, *buckets = ranks_of(job)[0]["collectives"]
    assert counts == ("allreduce", "float32", 8)
    assert {(kind, dtype) for kind, dtype, _ in buckets} == {("allreduce", "float32")}
    assert sum(size for *_, size in buckets) == sum(p.nbytes for p in model_of(form).parameters())


@pytest.mark.parametrize("job", [job for job in JOBS if ",fsdp," in str(job)])
def test_fsdp_gathers_layers_twice_a_pass_and_the_rest_once(job):
    """And adds up every gradient once a step, in float32, with one sum more for their norm."""
    form, _, size = parts_of(job)
    model, passes = model_of(form), form.accumulation
    is_untied = model.mlm_head.decoder is not None
    units = [*model.encoder.layers, *([model.mlm_head] if is_untied else [])]
    layers = [gathered_numbers(layer, size) for layer in model.encoder.layers]
    kept = [gathered_numbers(model, size, without=units)]
    kept += [gathered_numbers(model.mlm_head, size)] if is_untied else []
    dtype, width = ("bfloat16", 2) if form.precision == "bf16" else ("float32", 4)
    assert Counter(ranks_of(job)[0]["collectives"]) == Counter(
        [
            ("allreduce", "float32", 8),
            *(("allgather", dtype, width * n) for n in (*layers, *layers, *kept) * passes),
            *(("reduce_scatter", "float32", 4 * n) for n in (*layers, *kept)),
            ("allreduce", "float32", 4 * len(list(model.parameters()))),
        ]
    )


@pytest.mark.parametrize("job", JOBS)
def test_an_estimate_counts_the_bytes_that_the_step_sends(job):
    """But for padding: slices of one size, and the sums of a few numbers for counts and norms."""
    form, parallel, size = parts_of(job)
    sizes = {"batch_size": size * form.accumulation, "micro_batch_size": 1}
    training = training_config(parallel=parallel, precision=form.precision, **sizes)
    how = {"gpu": GPUS[0], "gpus": size, "data": None}
    estimate = Estimate(model=form.config, training=training, **how)
    times = {"ddp": {"allreduce": 2}, "fsdp": {"allgather": 1, "reduce_scatter": 1}}[parallel]
    asked = ranks_of(job)[0]["collectives"]
    sent = sum(times.get(kind, 0) * n for kind, _, n in asked) * (size - 1) / size
    # Vectors of these small models have fewer numbers than 64 ranks have slices.
    limit = 1.001 if job.startswith("bert-base") or size == 2 or parallel == "ddp" else 1.3
    assert 1 <= sent / estimate.sent < limit


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_checkpoint_gathers_one_tensor_at_a_time(size):
    """Beside what is kept, no rank has more than the largest one, padded for all ranks."""
    beyond, left, largest, kept = gathered(size, 0)
    assert (beyond, left) == (largest, kept)
    assert kept > 15 * largest
    assert gathered(size, 1) == [largest, 0, largest, 0]
