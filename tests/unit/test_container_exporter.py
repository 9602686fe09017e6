"""Memory, kills and starts of containers, from cgroup files of both versions of the kernel."""

from __future__ import annotations

import shutil
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from agl.errors import EnvironmentFault
from agl.ops import container_exporter
from agl.ops.container_exporter import Collector, Memory, read_memory, server

FIRST, SECOND = "a" * 64, "b" * 64


def version_1(folder: Path, used: int, limit: int = 9223372036854771712, kills: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.stat").write_text(
        "cache 8192\ninactive_file 1\ntotal_cache 8192\ntotal_inactive_file 4096\n"
    )
    (folder / "memory.oom_control").write_text(
        f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n"
    )
    return folder


def version_2(folder: Path, used: int, limit: str = "max", kills: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.stat").write_text("anon 12288\nfile 8192\ninactive_file 4096\n")
    (folder / "memory.events").write_text(
        f"low 0\nhigh 0\nmax 7\noom 2\noom_kill {kills}\noom_group_kill 0\n"
    )
    return folder


def series(text: str) -> dict[str, int]:
    samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: int(value) for name, _, value in samples}


def of(service: str, used: int, limit: int | None, kills: int, starts: int) -> dict[str, int]:
    label = f'{{service="{service}"}}'
    limits = {} if limit is None else {f"agl_container_memory_limit_bytes{label}": limit}
    return {
        f"agl_container_memory_bytes{label}": used,
        **limits,
        f"agl_container_oom_kills_total{label}": kills,
        f"agl_container_starts_total{label}": starts,
    }


def test_one_cgroup_of_each_version(tmp_path: Path) -> None:
    one = version_1(tmp_path / "one", used=20480, limit=65536, kills=3)
    two = version_2(tmp_path / "two", used=20480, limit="65536", kills=3)
    assert read_memory(one) == read_memory(two) == Memory(16384, 65536, 3)


def test_no_limit_in_either_version(tmp_path: Path) -> None:
    assert read_memory(version_1(tmp_path / "one", used=8192)).limit is None
    assert read_memory(version_2(tmp_path / "two", used=8192)).limit is None


def test_a_container_is_found_by_the_slice_above_it_as_cgroupfs_lays_it_out(tmp_path: Path) -> None:
    memory = tmp_path / "memory"
    # A daemon that is in a cgroup itself makes its own below it.
    version_1(memory / "nested" / "agl-app-exporter.slice" / FIRST, 20480, 65536)
    version_1(memory / "docker" / SECOND, 4096)
    version_1(memory / "other-app.slice" / SECOND, 4096)
    found = series(Collector(tmp_path, "agl").render())
    assert found == of("app-exporter", 16384, 65536, 0, 1)


def test_and_as_systemd_nests_it(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    outer = tmp_path / "agl.slice"
    version_2(outer / "agl-app.slice" / f"docker-{FIRST}.scope", 20480, "65536")
    inner = outer / "agl-app.slice" / "agl-app-exporter.slice"
    version_2(inner / f"docker-{SECOND}.scope", 12288)
    found = series(Collector(tmp_path, "agl").render())
    assert found == of("app", 16384, 65536, 0, 1) | of("app-exporter", 8192, None, 0, 1)


def test_starts_and_kills_are_counted_on_when_a_container_comes_back(tmp_path: Path) -> None:
    collector = Collector(tmp_path, "agl")
    place = tmp_path / "memory" / "agl-app.slice" / FIRST
    version_1(place, 20480, 65536, kills=1)
    assert series(collector.render()) == of("app", 16384, 65536, 1, 1)
    version_1(place, 20480, 65536, kills=2)
    assert series(collector.render()) == of("app", 16384, 65536, 2, 1)

    # Moved away rather than removed, so that the new folder cannot have the number of the old.
    place.rename(tmp_path / "gone")
    stopped = series(collector.render())
    assert "agl_container_memory_bytes" not in " ".join(stopped)
    assert stopped['agl_container_oom_kills_total{service="app"}'] == 2
    version_1(place, 20480, 65536, kills=0)
    assert series(collector.render()) == of("app", 16384, 65536, 2, 2)

    shutil.move(place, tmp_path / "gone too")
    version_1(place.with_name(SECOND), 20480, 65536, kills=1)
    assert series(collector.render()) == of("app", 16384, 65536, 3, 3)


def test_a_container_that_ends_while_it_is_looked_at_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "memory" / "agl-app.slice" / FIRST).mkdir(parents=True)
    assert series(Collector(tmp_path, "agl").render()) == {}


def test_it_serves_metrics_and_its_health(tmp_path: Path) -> None:
    version_1(tmp_path / "memory" / "agl-app.slice" / FIRST, 20480, 65536)
    with server(Collector(tmp_path, "agl"), ("127.0.0.1", 0)) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{running.server_address[1]}"
            with urllib.request.urlopen(f"{url}/metrics") as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                assert series(answer.read().decode()) == of("app", 16384, 65536, 0, 1)
            assert urllib.request.urlopen(f"{url}/health").status == 200
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"{url}/other")
        finally:
            running.shutdown()
            thread.join()


def test_without_cgroup_files_it_says_what_to_mount(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="mount the host's /sys/fs/cgroup there"):
        container_exporter.main([f"--cgroup-root={tmp_path}"], "agl stack container-exporter")
