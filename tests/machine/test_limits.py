from types import SimpleNamespace

import pytest
from fakeprefix.machine import limits
from fakeprefix.machine.cgroups import cgroup_folders
from planted_machine import plant, version_1, version_2

GROUPS = "sys/fs/cgroup"


def siblings(root, *cores):
    """CPUs that share a core: one list of numbers a core."""
    return plant(
        root,
        {
            f"sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list": ",".join(map(str, core)) + "\n"
            for core in cores
            for number in core
        },
    )


def test_the_folders_lead_from_the_root_to_the_own_group(tmp_path):
    folders = cgroup_folders("cpu", version_2(tmp_path, "/a/b"))
    assert folders == [tmp_path / GROUPS, tmp_path / GROUPS / "a", tmp_path / GROUPS / "a" / "b"]


@pytest.mark.parametrize(
    ("own", "top", "below"),
    [
        # a container sees its own group as the root, or the machine's path to it
        ("/", "/", ()),
        ("/docker/x/job", "/docker/x", ("job",)),
        ("/docker/x", "/docker/x", ()),
        # moved out of what is mounted here
        ("/../other", "/", ()),
        ("/elsewhere", "/docker/x", ()),
    ],
)
def test_a_group_is_looked_for_below_what_is_mounted(tmp_path, own, top, below):
    folders = cgroup_folders("memory", version_2(tmp_path, own, top))
    assert folders[-1] == (tmp_path / GROUPS).joinpath(*below)
    assert len(folders) == 1 + len(below)


def test_a_mount_point_may_have_blanks(tmp_path):
    assert cgroup_folders("cpu", version_2(tmp_path, "/", at="/my groups")) == [tmp_path / "my groups"]


def test_a_machine_without_control_groups_has_no_limits(tmp_path):
    assert cgroup_folders("cpu", tmp_path) == []
    assert (limits.cpu_quota(tmp_path), limits.memory_limit(tmp_path)) == (None, None)
    assert limits.no_limit("cpu", tmp_path) == {"absent": "no control groups are mounted"}


def test_the_smallest_limit_of_version_2_counts_wherever_it_stands(tmp_path):
    version_2(tmp_path, "/a/b")
    plant(tmp_path / GROUPS, {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n", "a/memory.max": "max\n"})
    assert limits.cpu_quota(tmp_path) == 1.5
    assert limits.memory_limit(tmp_path) is None
    assert limits.no_limit("memory", tmp_path) == "unlimited"
    # a parent's 1 GiB under a larger limit of the own group
    plant(tmp_path / GROUPS, {"a/memory.max": f"{2**30}\n", "a/b/memory.max": f"{2**31}\n", "a/b/cpu.max": "1 4\n"})
    assert (limits.memory_limit(tmp_path), limits.cpu_quota(tmp_path)) == (2**30, 0.25)
    plant(tmp_path / GROUPS, {"a/b/memory.high": f"{2**29}\n"})
    assert limits.memory_limit(tmp_path) == 2**29


def test_the_smallest_limit_of_version_1_counts_wherever_it_stands(tmp_path):
    version_1(tmp_path, "/a/b")
    cpu = f"{GROUPS}/cpu,cpuacct"
    files = {
        f"{cpu}/cpu.cfs_quota_us": "-1\n",
        f"{cpu}/cpu.cfs_period_us": "100000\n",
        f"{cpu}/a/cpu.cfs_quota_us": "250000\n",
        f"{cpu}/a/cpu.cfs_period_us": "100000\n",
        f"{GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    plant(tmp_path, files)
    assert (limits.cpu_quota(tmp_path), limits.memory_limit(tmp_path)) == (2.5, None)
    plant(tmp_path, {f"{GROUPS}/memory/a/b/memory.limit_in_bytes": "1048576\n"})
    assert limits.memory_limit(tmp_path) == 2**20


@pytest.mark.parametrize("text", ["", "x y", "1 0", "1 2 3"])
def test_a_quota_that_cannot_be_read_is_none(tmp_path, text):
    plant(version_2(tmp_path, "/"), {f"{GROUPS}/cpu.max": text})
    assert limits.cpu_quota(tmp_path) is None


@pytest.mark.parametrize(("limit", "available"), [("1048576\n", 2**20), ("max\n", 2**30), (f"{2**40}\n", 2**30)])
def test_the_memory_is_the_machines_or_the_limit_if_that_is_less(tmp_path, monkeypatch, limit, available):
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: SimpleNamespace(total=2**30))
    plant(version_2(tmp_path, "/a"), {f"{GROUPS}/memory.max": limit})
    assert limits.available_memory(tmp_path) == available


def test_threads_are_the_physical_cores_of_the_affinity_within_the_quota(tmp_path, monkeypatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    assert limits.usable_cores(tmp_path) == 4
    siblings(tmp_path, (0, 2), (1, 3))
    assert limits.usable_cores(tmp_path) == 2
    assert limits.usable_cores(tmp_path, cpus=(0, 2)) == 1
    version_2(tmp_path, "/a")
    for quota, cores in (("150000 100000", 1), ("20000 100000", 1), ("400000 100000", 2)):
        plant(tmp_path, {f"{GROUPS}/a/cpu.max": quota})
        assert limits.usable_cores(tmp_path) == cores


def test_a_process_that_may_use_one_core_is_given_one_thread(monkeypatch):
    monkeypatch.setattr(limits.os, "sched_getaffinity", lambda pid: {0})
    assert limits.usable_cores() == 1


@pytest.mark.parametrize(("text", "cpus"), [("3", [3]), ("0-3,5\n", [0, 1, 2, 3, 5]), (" 2,1-2", [1, 2])])
def test_a_list_of_cpus_is_read_as_linux_writes_it(text, cpus):
    assert limits.parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "1,,2", "0-"])
def test_what_is_no_list_of_cpus_is_refused(text):
    with pytest.raises(ValueError):
        limits.parse_cpus(text)
