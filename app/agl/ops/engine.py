"""The Docker daemon through the Docker SDK: the few questions and actions the bundle needs.

The SDK is imported when the daemon is first talked to, so the rest works where it is absent.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, cast

from agl.errors import EnvironmentFault
from agl.ops import dockercli
from agl.ops.layout import Layout
from agl.ops.shapes import items, mapping, texts

PROJECT_LABEL = "com.docker.compose.project"
SERVICE_LABEL = "com.docker.compose.service"
ONEOFF_LABEL = "com.docker.compose.oneoff"
CONFIG_HASH_LABEL = "com.docker.compose.config-hash"
CONFIG_FILES_LABEL = "com.docker.compose.project.config_files"
ANSWER_SECONDS = 60
SILENT_PULL_SECONDS = 45
SILENT_LOAD_SECONDS = 900


@dataclass(frozen=True)
class Container:
    """One container of the bundle, as the daemon sees it now.

    Attributes:
        memory_limit: Bytes; 0 for none.
        config_hash: Compose's own digest of the settings it was made from.
        out_of_memory: Its last end was that of a process which wanted more than that.
        published: (host address, host port) by container port, such as ``4747/tcp``.
        compose_file: Name of the compose file it was made from; overlays left out.
    """

    id: str
    name: str
    service: str
    state: str
    health: str
    exit_code: int
    restarts: int
    started_at: str
    image: str
    image_id: str
    memory_limit: int
    error: str
    config_hash: str = ""
    out_of_memory: bool = False
    command: tuple[str, ...] = ()
    published: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    compose_file: str = ""

    @property
    def running(self) -> bool:
        return self.state == "running"


@dataclass(frozen=True)
class Image:
    """One local image; ``size`` in bytes."""

    id: str
    size: int
    layers: tuple[str, ...]
    labels: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Leftovers:
    """Names of what is left of a project when its containers are gone.

    Attributes:
        volumes: They hold data.
        in_memory: Volumes that are a tmpfs, and empty when no container runs.
    """

    volumes: list[str]
    in_memory: list[str]
    networks: list[str]


class PullError(Exception):
    """An image could not be pulled; ``answered`` tells whether a registry said no."""

    def __init__(self, message: str, *, answered: bool) -> None:
        super().__init__(message)
        self.answered = answered


class Engine:
    """A connection to the daemon that the ``docker`` command uses, for one Compose project.

    Every method raises EnvironmentFault when the daemon does not do what is asked.
    """

    def __init__(self, api: Any, project: str) -> None:
        self._api = api
        self.project = project

    @classmethod
    def connect(cls, layout: Layout) -> Engine:
        """Connect in the context in force. Raises EnvironmentFault with one clear line."""
        try:
            from docker import APIClient
            from docker.errors import DockerException
            from docker.utils import kwargs_from_env
        except ModuleNotFoundError as error:
            raise EnvironmentFault(
                f"the Python module {error.name!r} is not installed",
                remedy="use scripts/up, or install agl-stack[ops]",
            ) from error

        environ = dict(layout.environ)
        options: dict[str, Any] = {**kwargs_from_env(environment=environ)}
        options.setdefault("base_url", dockercli.endpoint(environ) or None)
        try:
            api: Any = APIClient(version="auto", timeout=ANSWER_SECONDS, **options)
        except DockerException as error:
            raise _unreachable(str(error), str(options["base_url"])) from error
        return cls(api, layout.project)

    def containers(self) -> list[Container]:
        """Every container of the project, running or not, in the order of their services."""
        with _translated():
            filters = {"label": [f"{PROJECT_LABEL}={self.project}", f"{ONEOFF_LABEL}=False"]}
            found = cast("list[dict[str, Any]]", self._api.containers(all=True, filters=filters))
        seen = [self._inspect(item["Id"]) for item in found]
        return sorted((item for item in seen if item), key=lambda item: item.service)

    def _inspect(self, container_id: str) -> Container | None:
        from docker.errors import NotFound

        try:
            with _translated():
                data = cast("dict[str, Any]", self._api.inspect_container(container_id))
        except NotFound:
            return None
        state, host, config = data["State"], data["HostConfig"], data["Config"]
        return Container(
            id=data["Id"],
            name=str(data["Name"]).lstrip("/"),
            service=config["Labels"].get(SERVICE_LABEL, ""),
            state=state["Status"],
            health=mapping(state.get("Health")).get("Status", ""),
            exit_code=state["ExitCode"],
            restarts=data["RestartCount"],
            started_at=state["StartedAt"],
            image=config["Image"],
            image_id=data["Image"],
            memory_limit=host.get("Memory") or 0,
            error=state.get("Error", ""),
            config_hash=config["Labels"].get(CONFIG_HASH_LABEL, ""),
            out_of_memory=bool(state.get("OOMKilled")),
            command=tuple(texts(config.get("Cmd"))),
            compose_file=_first_file(config["Labels"].get(CONFIG_FILES_LABEL, "")),
            published={
                port: (str(bound[0]["HostIp"]), str(bound[0]["HostPort"]))
                for port, bindings in mapping(host.get("PortBindings")).items()
                if (bound := items(bindings))
            },
        )

    def memory_used(self, container_id: str) -> int:
        """Bytes in use without the page cache that can be given back; 0 when not running."""
        stats: dict[str, Any] = {}
        with _gone_is_fine(), _translated():
            stats = self._api.stats(container_id, stream=False, one_shot=True)
        memory = cast("dict[str, Any]", stats.get("memory_stats") or {})
        details = cast("dict[str, int]", memory.get("stats") or {})
        reclaimable = details.get("total_inactive_file", details.get("inactive_file", 0))
        return max(0, int(memory.get("usage") or 0) - int(reclaimable))

    def logs(self, container_id: str, lines: int) -> list[str]:
        """The last lines a container wrote; none when there is no log of it to be had."""
        raw = b""
        with suppress(EnvironmentFault), _gone_is_fine(), _translated():
            raw = cast("bytes", self._api.logs(container_id, tail=lines))
        return raw.decode(errors="replace").splitlines()

    def read_file(self, container_id: str, path: str) -> bytes | None:
        """A file as the container sees it, volumes included; None when it is not there."""
        from docker.errors import NotFound

        try:
            with _translated():
                chunks, _ = self._api.get_archive(container_id, path)
                data = b"".join(cast("Iterable[bytes]", chunks))
        except NotFound:
            return None
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            member = archive.extractfile(archive.getmembers()[0])
            return member.read() if member else None

    def stop(self, container_ids: Iterable[str]) -> None:
        """Stop and remove containers; those that are gone already are passed over."""
        for container_id in container_ids:
            with _gone_is_fine(), _translated():
                self._api.stop(container_id)
                self._api.remove_container(container_id, force=True, v=True)

    def hang_up(self, container_id: str) -> None:
        """Have a container's process read its files anew: SIGHUP, from inside.

        Docker takes every signal of its own API for a stop by hand, and no longer starts a
        container anew that dies afterwards.
        """
        with _gone_is_fine():
            code, said = self.execute(container_id, ["/bin/sh", "-c", "kill -HUP 1"])
            if code:
                raise EnvironmentFault(
                    f"container {container_id[:12]} was not told to read its files anew: "
                    f"{said.strip()}",
                    remedy=f"type: docker restart {container_id[:12]}",
                )

    def pause(self, container_id: str) -> None:
        """Freeze a container's processes: they keep their memory and connections."""
        with _translated():
            self._api.pause(container_id)

    def unpause(self, container_id: str) -> None:
        """Let a frozen container go on; one that is gone or not frozen is passed over."""
        state = self._inspect(container_id)
        if state and state.state == "paused":
            with _gone_is_fine(), _translated():
                self._api.unpause(container_id)

    def restart(self, container_id: str) -> None:
        """Stop a container and start it again."""
        with _translated():
            self._api.restart(container_id)

    def execute(self, container_id: str, command: list[str], user: str = "") -> tuple[int, str]:
        """Run a command in a container: its exit code and what it printed."""
        with _translated():
            made = self._api.exec_create(container_id, command, user=user)
            said = cast("bytes", self._api.exec_start(made["Id"]))
            code = self._api.exec_inspect(made["Id"])["ExitCode"]
        return int(code or 0), said.decode(errors="replace")

    def image(self, name: str) -> Image | None:
        """The local image of that name or id, or None."""
        from docker.errors import NotFound

        try:
            with _translated():
                data = cast("dict[str, Any]", self._api.inspect_image(name))
        except NotFound:
            return None
        return Image(
            id=data["Id"],
            size=data["Size"],
            layers=tuple(texts(mapping(data.get("RootFS")).get("Layers"))),
            labels=mapping(mapping(data.get("Config")).get("Labels")),
        )

    def tag(self, image_id: str, name: str) -> None:
        """Give a local image one more name."""
        repository, tag = split_name(name)
        with _translated():
            self._api.tag(image_id, repository, tag, force=True)

    def pull(self, name: str, progress: Callable[[str], None]) -> None:
        """Pull an image, telling how many layers are there. Raises PullError."""
        import requests
        from docker.errors import DockerException

        repository, tag = split_name(name)
        layers: dict[str, bool] = {}
        try:
            for event in self._pull_events(repository, tag):
                if "error" in event:
                    raise _pull_error(str(event["error"]))
                _count_layer(layers, event)
                if layers:
                    progress(f"{name}: {sum(layers.values())} of {len(layers)} layers")
        except DockerException as error:
            raise _pull_error(str(getattr(error, "explanation", None) or error)) from error
        except requests.RequestException as error:
            silent = f"nothing heard for {SILENT_PULL_SECONDS} s"
            half = f"{sum(layers.values())} of {len(layers)} layers pulled, then " if layers else ""
            raise PullError(f"{half}{silent}", answered=bool(layers)) from error
        image = self.image(name)
        if image is None or not image.layers:
            message = f"half pulled: {sum(layers.values())} of {len(layers)} layers are there"
            raise PullError(message, answered=True)

    def _pull_events(self, repository: str, tag: str) -> Iterator[dict[str, Any]]:
        with self._waiting(SILENT_PULL_SECONDS):
            yield from self._api.pull(repository, tag=tag, stream=True, decode=True)

    @contextmanager
    def _waiting(self, seconds: int) -> Generator[None]:
        """Let the daemon be silent for that long."""
        usual, self._api.timeout = self._api.timeout, seconds
        try:
            yield
        finally:
            self._api.timeout = usual

    def load(self, stream: Iterator[bytes]) -> None:
        """Load images from the chunks of a ``docker save`` stream."""
        with _translated(), self._waiting(SILENT_LOAD_SECONDS):
            for event in cast("Iterable[dict[str, Any]]", self._api.load_image(stream)):
                if "error" in event:
                    raise EnvironmentFault(f"Docker refused the images: {event['error']}")

    def leftovers(self) -> Leftovers:
        """The project's volumes and networks."""
        filters = {"label": [f"{PROJECT_LABEL}={self.project}"]}
        with _translated():
            volumes = cast("dict[str, Any]", self._api.volumes(filters=filters))
            networks = cast("list[dict[str, Any]]", self._api.networks(filters=filters))
        found = items(volumes.get("Volumes"))
        in_memory = [item for item in found if mapping(item.get("Options")).get("type") == "tmpfs"]
        return Leftovers(
            volumes=[str(item["Name"]) for item in found if item not in in_memory],
            in_memory=[str(item["Name"]) for item in in_memory],
            networks=[str(item["Name"]) for item in networks],
        )

    def remove_volume(self, name: str) -> None:
        """Delete a volume; one that is gone already is passed over."""
        with _gone_is_fine(), _translated():
            self._api.remove_volume(name)

    def remove_network(self, name: str) -> None:
        """Delete a network; one that is gone already is passed over."""
        with _gone_is_fine(), _translated():
            self._api.remove_network(name)


def split_name(name: str) -> tuple[str, str]:
    """(repository, tag or digest) of an image name; the tag is ``latest`` when none is given."""
    if "@" in name:
        repository, digest = name.split("@", 1)
        return repository, digest
    repository, colon, tag = name.rpartition(":")
    if not colon or "/" in tag:
        return name, "latest"
    return repository, tag


def _count_layer(layers: dict[str, bool], event: dict[str, Any]) -> None:
    status = str(event.get("status", ""))
    if "id" not in event or status.startswith("Pulling from"):
        return
    if status in {"Pull complete", "Already exists"}:
        layers[str(event["id"])] = True
    else:
        layers.setdefault(str(event["id"]), False)


_ANSWERS = (
    "manifest unknown",
    "not found",
    "unauthorized",
    "denied",
    "toomanyrequests",
    "no match",
)


def _pull_error(message: str) -> PullError:
    answered = any(word in message.lower() for word in _ANSWERS)
    no_host = any(word in message.lower() for word in ("no such host", "dial tcp", "lookup "))
    return PullError(message.strip(), answered=answered and not no_host)


def _unreachable(reason: str, where: str) -> EnvironmentFault:
    if "Permission denied" in reason:
        return EnvironmentFault(
            f"no permission to use Docker at {where}",
            remedy="type: sudo usermod -aG docker $USER && newgrp docker, or run this with sudo",
        )
    return EnvironmentFault(
        f"the Docker daemon does not answer at {where}",
        remedy="start it (sudo systemctl start docker), or check DOCKER_HOST",
    )


@contextmanager
def _gone_is_fine() -> Generator[None]:
    """Somebody else may have removed it between a look and the deed."""
    from docker.errors import NotFound

    with suppress(NotFound):
        yield


@contextmanager
def _translated() -> Generator[None]:
    """Turn what the SDK raises into one line; NotFound passes, since callers expect it."""
    import requests
    from docker.errors import DockerException, NotFound

    try:
        yield
    except NotFound:
        raise
    except DockerException as error:
        reason = getattr(error, "explanation", None) or str(error)
        raise EnvironmentFault(f"Docker: {str(reason).strip().splitlines()[-1]}") from error
    except requests.RequestException as error:
        raise EnvironmentFault(
            f"the Docker daemon stopped answering: {error}",
            remedy="look at its log: journalctl -u docker --since -5min",
        ) from error


def _first_file(paths: str) -> str:
    """Name of the first compose file of a project; those after it were put on top of it."""
    return PurePath(paths.partition(",")[0]).name
