"""A planted ``/proc`` and ``/sys`` with control groups, for tests of what is read of them."""

from collections.abc import Mapping
from pathlib import Path


def plant(root: Path, files: Mapping[str, str]) -> Path:
    """Write files below `root` by their path, and give it back."""
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def version_2(root: Path, own: str = "/a/b", top: str = "/", at: str = "/sys/fs/cgroup") -> Path:
    """Only version 2 is mounted at `at`, from its group `top` on; the own group is `own`."""
    place = at.replace(" ", "\\040")
    mounts = f"30 23 0:26 / /sys rw - sysfs sysfs rw\n31 23 0:28 {top} {place} rw shared:4 - cgroup2 cgroup2 rw\n"
    return plant(root, {"proc/self/mountinfo": mounts, "proc/self/cgroup": f"0::{own}\n"})


def version_1(root: Path, own: str = "/a/b", top: str = "/") -> Path:
    """CPU and memory have hierarchies of version 1, and an empty one of version 2 is mounted beside them."""
    mounts = (
        f"32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    )
    own_groups = f"4:memory:{own}\n2:cpu,cpuacct:{own}\n1:name=systemd:/init\n0::/\n"
    return plant(root, {"proc/self/mountinfo": mounts, "proc/self/cgroup": own_groups})
