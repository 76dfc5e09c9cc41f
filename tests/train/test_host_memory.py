"""Free memory of the machine, and of the container or job that the process runs in."""

import pytest

from clozeline.train.engine.host_memory import free_memory

GIB = 1 << 30
STAT = {
    "v1": "inactive_file 5\ntotal_inactive_file {0}\ntotal_active_file {0}\n",
    "v2": "anon 9\ninactive_file {0}\nactive_file {0}\n",
}
NAMES = {
    "v1": ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    "v2": ("sys/fs/cgroup", "memory.max", "memory.current"),
}
LINES = {"v1": "9:cpu,cpuacct:/other\n4:hugetlb,memory:{}\n", "v2": "0::{}\n"}


def machine(root, version, group, **limits):
    """20 GiB free; each group uses 3 GiB, 1 GiB of them pages of files; `limits` by folder."""
    (root / "proc/self").mkdir(parents=True)
    available = 20 * GIB >> 10
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:   {available} kB\n")
    (root / "proc/self/cgroup").write_text(LINES[version].format(group))
    mount, limit, used = NAMES[version]
    for name, value in limits.items():
        folder = root / mount / name.replace("_", "/").strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / limit).write_text(f"{value}\n")
        (folder / used).write_text(f"{3 * GIB}\n")
        (folder / "memory.stat").write_text(STAT[version].format(GIB // 2))
    return root


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_narrowest_limit_around_the_process_counts(tmp_path, version):
    limits = {"job": 12 * GIB, "job_step": 8 * GIB, "job_step_task": 30 * GIB, "job_other": GIB}
    root = machine(tmp_path, version, "/job/step/task", **limits)
    assert free_memory(root) == (8 - 3 + 1) * GIB


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_in_a_container_the_limit_is_that_of_the_mounted_group(tmp_path, version):
    """Docker mounts the container's group as the root, and may show the name outside of it."""
    root = machine(tmp_path, version, "/docker/4f1e", _=4 * GIB)
    assert free_memory(root) == 2 * GIB


@pytest.mark.parametrize(("version", "unlimited"), [("v1", 9223372036854771712), ("v2", "max")])
def test_without_a_limit_the_machine_counts(tmp_path, version, unlimited):
    assert free_memory(machine(tmp_path, version, "/job", job=unlimited)) == 20 * GIB


def test_a_group_that_is_full_has_nothing_left(tmp_path):
    assert free_memory(machine(tmp_path, "v2", "/job", job=GIB)) == 0


def test_a_system_without_these_files_is_unknown(tmp_path):
    assert free_memory(tmp_path) is None
