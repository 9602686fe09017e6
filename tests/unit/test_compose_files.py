"""The compose files keep the bundle's promises: hardened, limited, pinned, documented services."""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
import tomllib
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from agl.ops.init_bundle import SECRETS

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = ROOT / "compose"
FULL = "compose.prometheus-memory-store.yml"
ALONE = "compose.store.yml"
MONGO_FULL = "compose.prometheus-mongo-store.yml"
MONGO_ALONE = "compose.mongo.yml"
VIEWER = "compose.grafana.yml"
ONE_SHOTS = {
    "samples": [],
    "alertmanager-init": ["CHOWN", "DAC_READ_SEARCH"],
    "init": ["CHOWN", "DAC_READ_SEARCH"],
    "mongo-init": ["DAC_READ_SEARCH"],
    "rules-check": ["DAC_READ_SEARCH"],
}
ENV_TEXT = (COMPOSE / ".env").read_text(encoding="utf-8")
ENV = dict(re.findall(r"^([A-Z_]+)=(.*)$", ENV_TEXT, re.MULTILINE))

# Compose reads these itself, or scripts that make images do.
NOT_IN_COMPOSE_FILES = {"COMPOSE_PROFILES", "AGL_OVERLAYS"}
REFERENCE = re.compile(r"\$\{(\w+)(?::?([-+])((?:[^{}]|\$\{\w+\})*))?\}")


def substitute(text: str) -> str:
    def value(found: re.Match[str]) -> str:
        name, operator, word = found.groups()
        known = ENV.get(name)
        if operator == "+":
            return substitute(word) if known else ""
        return known or substitute(word or "")

    return REFERENCE.sub(value, text)


@cache
def load(name: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(substitute((COMPOSE / name).read_text("utf-8")))
    return document


def merge(below: Any, above: Any) -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        merged = deepcopy(below)
        for key, value in above.items():
            replaced = key not in merged or key in {"command", "entrypoint"}
            merged[key] = value if replaced else merge(merged[key], value)
        return merged
    if isinstance(below, list) and isinstance(above, list):
        return below + above
    return above


@cache
def resolved(file: str, name: str) -> dict[str, Any]:
    own = dict(load(file)["services"][name])
    pattern = own.pop("extends", None)
    if pattern is None:
        return own
    merged: dict[str, Any] = merge(resolved(pattern.get("file", file), pattern["service"]), own)
    return merged


def services(file: str) -> dict[str, dict[str, Any]]:
    return {name: resolved(file, name) for name in load(file)["services"]}


EVERY = [
    pytest.param(file, name, service, id=f"{file}-{name}")
    for file in (ALONE, FULL, MONGO_ALONE, MONGO_FULL, VIEWER)
    for name, service in services(file).items()
]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Target -> source of each volume, whichever way it is written."""
    found = {}
    for volume in service.get("volumes", []):
        if isinstance(volume, str):
            source, target = volume.split(":")[:2]
        else:
            source, target = volume["source"], volume["target"]
        found[target] = source
    return found


def size(text: str) -> int:
    return int(text[:-1]) * {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[text[-1].lower()]


class TestEnvFile:
    def test_compose_files_use_only_variables_of_the_env_file_and_all_of_them(self) -> None:
        text = "".join(path.read_text("utf-8") for path in COMPOSE.glob("compose*.yml"))
        # Compose sets it by itself.
        used = set(re.findall(r"\$\{(\w+)", text)) - {"COMPOSE_PROJECT_NAME"}
        assert used <= ENV.keys()
        assert ENV.keys() - used == NOT_IN_COMPOSE_FILES

    def test_each_line_is_explained_by_a_comment_above_it(self) -> None:
        previous = ""
        for line in ENV_TEXT.splitlines():
            if line and not line.startswith("#"):
                assert previous, f"no comment above {line}"
            previous = line

    def test_images_are_pinned_to_a_version(self) -> None:
        images = {key: value for key, value in ENV.items() if key.endswith("_IMAGE")}
        assert len(images) == 9
        for image in images.values():
            name, _, tag = image.partition(":")
            assert name
            assert tag not in {"", "latest"}, image

    def test_our_image_has_the_version_of_the_project(self) -> None:
        version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
        assert ENV["AGL_STORE_IMAGE"].endswith(f":{version}")
        dockerfile = (ROOT / "images/store/Dockerfile").read_text("utf-8")
        assert f"\nARG VERSION={version}\n" in dockerfile

    def test_everything_is_on_loopback_unless_asked_otherwise(self) -> None:
        assert ENV["AGL_BIND"] == ENV["AGL_GRAFANA_BIND"] == "127.0.0.1"
        assert ENV["AGL_GRAFANA_ANONYMOUS"] == "false"

    def test_the_default_certificate_file_is_there_and_empty(self) -> None:
        assert (COMPOSE / ENV["AGL_CA_BUNDLE"]).read_bytes() == b""


@pytest.mark.parametrize(("file", "name", "service"), EVERY)
class TestEveryService:
    def test_is_hardened(self, file: str, name: str, service: dict[str, Any]) -> None:
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "privileged" not in service
        assert service.get("cap_add", []) == ONE_SHOTS.get(name, [])
        uid = str(service["user"]).split(":")[0]
        assert (uid == "0") == (name in ONE_SHOTS and name != "samples")

    def test_is_limited(self, file: str, name: str, service: dict[str, Any]) -> None:
        assert size(service["mem_limit"]) >= 1 << 27
        assert 0 < int(service["pids_limit"]) <= 4096
        assert service["ulimits"]["nofile"] == {"soft": 65535, "hard": 65535}
        assert service["logging"]["options"] == {"max-size": "10m", "max-file": 3}

    def test_stops_and_restarts_as_said(
        self, file: str, name: str, service: dict[str, Any]
    ) -> None:
        assert service["restart"] == ("no" if name in ONE_SHOTS else "unless-stopped")
        assert re.fullmatch(r"\d+s", service["stop_grace_period"])

    def test_waits_with_conditions_that_can_come_true(
        self, file: str, name: str, service: dict[str, Any]
    ) -> None:
        every = services(file)
        for other, how in service.get("depends_on", {}).items():
            if how["condition"] == "service_healthy":
                assert "healthcheck" in every[other], f"{name} waits for {other} for ever"
            elif how["condition"] == "service_started":
                assert (name, other) == ("mongo-init", "mongo")
            else:
                assert how["condition"] == "service_completed_successfully"
                assert every[other]["restart"] == "no"

    def test_probes_with_what_its_image_has(
        self, file: str, name: str, service: dict[str, Any]
    ) -> None:
        if name in {*ONE_SHOTS, "node-exporter", "grafana", "mongodb-exporter"}:
            assert "healthcheck" not in service
            return
        probe = service["healthcheck"]["test"]
        assert probe[0] == "CMD"
        expected = {
            "prometheus": "/bin/promtool",
            "alertmanager": "/bin/amtool",
            "mongo": "mongosh",
        }
        assert probe[1] == expected.get(name, "/opt/agl/bin/python")

    def test_publishes_only_what_it_may(
        self, file: str, name: str, service: dict[str, Any]
    ) -> None:
        published = {"app", "prometheus", "alertmanager", "grafana", "panels", "runbooks"}
        assert "ports" in service or name not in published
        for port in service.get("ports", []):
            assert name in published
            assert port["host_ip"] == "127.0.0.1"

    def test_mounts_no_socket_and_writes_no_folder_of_the_host(
        self, file: str, name: str, service: dict[str, Any]
    ) -> None:
        for volume in service.get("volumes", []):
            source = volume.split(":")[0] if isinstance(volume, str) else volume["source"]
            if source.startswith((".", "/")):
                writable = (
                    not volume.endswith(":ro")
                    if isinstance(volume, str)
                    else not volume["read_only"]
                )
                assert not writable, volume
            assert "docker.sock" not in source


@pytest.mark.parametrize("name", ["PROMETHEUS", "ALERTMANAGER"])
def test_it_is_on_loopback_whatever_the_variables_say(name: str) -> None:
    text = (COMPOSE / FULL).read_text("utf-8")
    pattern = rf"host_ip: 127\.0\.0\.1\n\s+published: \$\{{AGL_{name}_PORT\}}"
    assert re.search(pattern, text)


def test_an_unset_bind_variable_does_not_publish_to_everybody() -> None:
    for file in (ALONE, FULL, MONGO_FULL):
        text = (COMPOSE / file).read_text("utf-8")
        for variable in re.findall(r"\$\{(AGL_\w*BIND)[^}]*\}", text):
            assert f"${{{variable}}}" not in text
            assert f"${{{variable}:-127.0.0.1}}" in text


def test_the_files_agree_on_what_they_share() -> None:
    full, mongo = load(FULL), load(MONGO_FULL)
    for file in (ALONE, FULL, MONGO_ALONE, MONGO_FULL):
        other = load(file)
        assert other["name"] == "agl"
        assert other["networks"] == full["networks"]
        assert other["secrets"] == full["secrets"]
        assert other["volumes"].items() <= mongo["volumes"].items()


def test_the_bundle_on_mongodb_has_everything_of_the_other() -> None:
    memory, mongo = services(FULL), services(MONGO_FULL)
    assert mongo.keys() - memory.keys() == {"mongo", "mongo-init", "mongodb-exporter"}
    for name in (
        *("app-exporter", "node-exporter", "container-exporter", "alertmanager", "grafana"),
        *("panels", "runbooks"),
    ):
        assert mongo[name] == memory[name]
    differs = {
        key for key in memory["prometheus"] if mongo["prometheus"][key] != memory["prometheus"][key]
    }
    assert differs == {"command"}
    config, *rest = memory["prometheus"]["command"]
    assert mongo["prometheus"]["command"] == [config.replace("base", "mongo"), *rest]
    assert mongo["init"]["command"][-6:] == memory["init"]["command"][-6:]
    assert mongo["app"]["ports"] == memory["app"]["ports"]


class TestMongo:
    def test_it_asks_for_passwords_and_is_a_replica_set(self) -> None:
        command = services(MONGO_FULL)["mongo"]["command"]
        assert f"--replSet={ENV['AGL_MONGO_REPLICA_SET']}" in command
        assert "--keyFile=/run/agl/secrets/mongo-keyfile" in command
        assert not any("--profile" in word or "--slowms" in word for word in command)

    def test_its_cache_fits_into_its_memory(self) -> None:
        """MongoDB's own rule: half of the memory above 1 GB."""
        limit = size(ENV["AGL_MONGO_MEMORY"]) / 2**30
        assert float(ENV["AGL_MONGO_CACHE_GB"]) <= (limit - 1) / 2

    def test_the_app_waits_for_a_writable_primary_and_for_its_user(self) -> None:
        waits = services(MONGO_FULL)["app"]["depends_on"]
        assert waits["mongo"] == {"condition": "service_healthy", "required": False}
        done = {"condition": "service_completed_successfully", "required": False}
        assert waits["mongo-init"] == done
        assert "isWritablePrimary" in services(MONGO_FULL)["mongo"]["healthcheck"]["test"][-1]

    def test_an_address_of_ones_own_reaches_store_and_exporter(self) -> None:
        text = (COMPOSE / MONGO_FULL).read_text("utf-8")
        assert len(re.findall(r"(AGL_MONGO_URI|MONGODB_URI): \$\{AGL_MONGO_URI:-", text)) == 2

    def test_no_password_is_in_a_command_line_or_in_the_environment(self) -> None:
        for service in services(MONGO_FULL).values():
            for word in service.get("command", []):
                assert "password" not in word or word.startswith(("--secret=", "--auth-file=/run/"))
            for name, value in service.get("environment", {}).items():
                assert "PASSWORD" not in name or name.endswith("FILE")
                assert "PASSWORD" not in name or str(value).startswith("/run/agl/secrets/")

    def test_the_exporter_has_chosen_collectors(self) -> None:
        command = services(MONGO_FULL)["mongodb-exporter"]["command"]
        assert {word for word in command if "collector" in word} == {
            "--collector.diagnosticdata",
            "--collector.replicasetstatus",
            "--collector.dbstats",
        }
        assert "--collect-all" not in command

    def test_the_exporter_tells_version_and_oplog_which_alerts_need(self) -> None:
        assert "--compatible-mode" in services(MONGO_FULL)["mongodb-exporter"]["command"]

    def test_the_image_of_the_exporter_is_built_around_the_pinned_one(self) -> None:
        arguments = services(MONGO_FULL)["mongodb-exporter"]["build"]["args"]
        assert arguments["EXPORTER_IMAGE"] == ENV["MONGODB_EXPORTER_IMAGE"]
        version = ENV["MONGODB_EXPORTER_IMAGE"].partition(":")[2]
        assert ENV["AGL_MONGODB_EXPORTER_IMAGE"].endswith(f":{version}")
        dockerfile = (ROOT / "images/mongodb-exporter/Dockerfile").read_text("utf-8")
        assert f"\nARG EXPORTER_IMAGE={ENV['MONGODB_EXPORTER_IMAGE']}\n" in dockerfile

    def test_prometheus_scrapes_what_it_does_without_mongodb_and_the_exporter_less_often(
        self,
    ) -> None:
        base, mongo = (
            yaml.safe_load((ROOT / f"prometheus/prometheus.{name}.yml").read_text())
            for name in ("base", "mongo")
        )
        jobs = {job["job_name"]: job for job in mongo["scrape_configs"]}
        exporter = jobs.pop("mongodb")
        assert list(jobs.values()) == base["scrape_configs"]
        assert {**mongo, "scrape_configs": []} == {**base, "scrape_configs": []}
        assert exporter["static_configs"][0]["targets"] == ["mongodb-exporter:9216"]
        assert exporter["static_configs"][0]["labels"]["host"] == "__AGL_HOST__"
        assert int(exporter["scrape_interval"].rstrip("s")) >= 15


@pytest.mark.parametrize("file", [FULL, MONGO_FULL])
def test_each_lasting_service_is_named_by_its_slice(file: str) -> None:
    """A container's cgroup is called by its id; container-exporter reads the name above it."""
    for name, service in services(file).items():
        if service["restart"] != "no":
            assert service["cgroup_parent"] == f"-{name}.slice"  # after the project's name


def test_metrics_go_to_prometheus_alone() -> None:
    """A console tracker in a container would bury the warnings in its log."""
    app = services(FULL)["app"]["command"]
    assert app[:2] == ["agl-stack", "store"]
    assert "--tracker=prometheus" in app
    assert "console" not in app
    assert not any("--tracker" in part for part in services(ALONE)["app"]["command"])


def test_app_and_exporter_share_the_metrics_folder() -> None:
    every = services(FULL)
    folder = every["app"]["environment"]["PROMETHEUS_MULTIPROC_DIR"]
    for name in ("app", "app-exporter"):
        assert every[name]["environment"]["PROMETHEUS_MULTIPROC_DIR"] == folder
        assert mounts(every[name])[folder] == "multiproc"
        assert every[name]["user"] == "10001:10001"
    options = load(FULL)["volumes"]["multiproc"]["driver_opts"]
    assert options["type"] == "tmpfs"
    wanted = {"uid=10001", "gid=10001", "mode=0750", f"size={ENV['AGL_MULTIPROC_SIZE']}"}
    assert wanted <= set(options["o"].split(","))
    assert size(ENV["AGL_MULTIPROC_SIZE"]) * 4 <= size(ENV["AGL_APP_MEMORY"])


@pytest.mark.parametrize("file", [FULL, MONGO_FULL])
def test_the_exporter_asks_the_store_and_is_well_without_it(file: str) -> None:
    exporter = services(file)["app-exporter"]
    app = services(file)["app"]
    port = next(word for word in app["command"] if word.startswith("--port=")).partition("=")[2]
    assert exporter["environment"]["AGL_STORE_URL"] == f"http://app:{port}"
    assert not exporter["environment"]["AGL_STORE_CERT"]
    assert "app" not in exporter["depends_on"]
    assert "/health" in exporter["healthcheck"]["test"][-1]
    text = (COMPOSE / FULL).read_text("utf-8")
    assert "AGL_STORE_URL: http${AGL_TLS_CERT:+s}://app:" in text
    assert "AGL_STORE_CERT: ${AGL_TLS_CERT:+/run/agl/secrets/tls-cert}" in text


def test_secrets_belong_to_the_user_of_the_service_that_reads_them() -> None:
    every = services(MONGO_FULL)
    made = {word.partition("=")[2] for word in every["init"]["command"] if "--secret" in word}
    assert made == SECRETS.keys()
    exporter, token = every["app-exporter"], SECRETS["api-token"]
    assert exporter["user"] == f"{token.uid}:{token.gid}"
    assert exporter["environment"]["AGL_STORE_TOKEN_FILE"] == "/run/agl/secrets/api-token"
    assert mounts(exporter)["/run/agl/secrets"] == "secrets"
    readers = {
        "api-token": "app",
        "grafana-admin-password": "grafana",
        "mongo-keyfile": "mongo",
        "mongo-store-password": "app",
        "mongo-exporter-password": "mongodb-exporter",
    }
    # MongoDB's own tools use the root password, in its container.
    assert SECRETS.keys() - readers.keys() == {"mongo-root-password"}
    assert f"{SECRETS['mongo-root-password'].uid}:999" == every["mongo"]["user"]
    for name, service in readers.items():
        secret, reader = SECRETS[name], every[service]
        assert reader["user"] == f"{secret.uid}:{secret.gid}"
        assert mounts(reader)["/run/agl/secrets"] == "secrets"
        assert f"/run/agl/secrets/{name}" in str(reader)


def test_grafana_fetches_and_tells_nothing() -> None:
    environment = services(FULL)["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_PLUGINS_PREINSTALL_DISABLED"] == "true"
    for name in ("REPORTING_ENABLED", "CHECK_FOR_UPDATES", "CHECK_FOR_PLUGIN_UPDATES"):
        assert environment[f"GF_ANALYTICS_{name}"] == "false"
    assert not [name for name in environment if "INSTALL_PLUGINS" in name]
    assert services(FULL)["grafana"]["profiles"] == ["grafana"]
    profiles = {p for s in services(MONGO_FULL).values() for p in s.get("profiles", [])}
    assert {*ENV["COMPOSE_PROFILES"].split(","), "panels"} == profiles  # in Grafana's place


def test_panels_take_the_place_of_grafana() -> None:
    every = services(FULL)
    panels, grafana = every["panels"], every["grafana"]
    assert panels["profiles"] == ["panels"]
    assert panels["ports"] == grafana["ports"]
    assert panels["user"] == grafana["user"], "it reads the same secret"
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert "--dashboards=/etc/agl/panels/dashboards" in panels["command"]
    assert f"--home={Path(home).stem}" in panels["command"]
    assert "--auth-file=/run/agl/secrets/grafana-admin-password" in panels["command"]


@pytest.mark.parametrize("file", [FULL, MONGO_FULL])
def test_runbooks_are_served_where_links_lead_in_every_profile(file: str) -> None:
    every = services(file)
    runbooks = every["runbooks"]
    assert "profiles" not in runbooks
    assert runbooks["command"] == every["panels"]["command"]
    assert runbooks["user"] == every["panels"]["user"], "it reads the same secret"
    assert list(runbooks["depends_on"]) == ["init"], "they are read when Prometheus is down"
    (port,) = runbooks["ports"]
    assert f"--runbooks-url=http://localhost:{port['published']}" in every["init"]["command"]
    text = (COMPOSE / FULL).read_text("utf-8")
    bound = r"host_ip: \$\{AGL_GRAFANA_BIND:-127\.0\.0\.1\}\n\s+published: \$\{AGL_RUNBOOKS_PORT\}"
    assert re.search(bound, text)


def test_node_exporter_listens_where_prometheus_looks() -> None:
    every = services(FULL)
    gateway = load(FULL)["networks"]["default"]["ipam"]["config"][0]["gateway"]
    assert every["node-exporter"]["network_mode"] == "host"
    port = ENV["AGL_NODE_EXPORTER_PORT"]
    assert f"--web.listen-address={gateway}:{port}" in every["node-exporter"]["command"]
    assert every["prometheus"]["extra_hosts"] == [f"node-exporter:{gateway}"]
    assert f"--node-exporter-port={port}" in every["init"]["command"]


class TestPrometheusAndGrafana:
    config: dict[str, Any] = yaml.safe_load((ROOT / "prometheus/prometheus.base.yml").read_text())

    def test_every_target_carries_host_and_instance(self) -> None:
        jobs = {job["job_name"]: job for job in self.config["scrape_configs"]}
        assert list(jobs) == ["app", "node", "prometheus", "alertmanager", "containers"]
        for job in jobs.values():
            (static,) = job["static_configs"]
            assert static["labels"]["host"] == "__AGL_HOST__"
            assert static["labels"]["deployment"] == "__AGL_DEPLOYMENT__"
        assert jobs["app"]["static_configs"][0]["targets"] == ["app-exporter:4748"]
        assert jobs["app"]["metrics_path"] == "/v1/prometheus/"

    def test_the_compose_file_reads_a_file_that_is_rendered(self) -> None:
        command = services(FULL)["prometheus"]["command"]
        assert "--config.file=/etc/agl/prometheus/prometheus.base.yml" in command
        assert not [word for word in command if "admin-api" in word or "lifecycle" in word]

    def test_grafana_knows_the_scrape_interval(self) -> None:
        path = ROOT / "grafana/provisioning/datasources/prometheus.yml"
        (source,) = yaml.safe_load(path.read_text())["datasources"]
        assert source["uid"] == "agl-prometheus"
        assert source["jsonData"]["timeInterval"] == self.config["global"]["scrape_interval"]

    def test_a_data_source_of_another_uid_gives_way(self) -> None:
        path = ROOT / "grafana/provisioning/datasources/prometheus.yml"
        content = yaml.safe_load(path.read_text())
        made = [(source["name"], source.get("orgId", 1)) for source in content["datasources"]]
        deleted = [(source["name"], source["orgId"]) for source in content["deleteDatasources"]]
        assert deleted == made

    def test_dashboards_are_where_grafana_looks(self) -> None:
        path = ROOT / "grafana/provisioning/dashboards/default.yml"
        (provider,) = yaml.safe_load(path.read_text())["providers"]
        folder = provider["options"]["path"]
        home = services(FULL)["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
        assert home.rpartition("/")[0] == folder
        assert (ROOT / home.removeprefix("/etc/agl/")).is_file()


class TestDockerfiles:
    FILES = sorted((ROOT / "images").glob("*/Dockerfile"))

    @pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
    def test_builds_without_a_frontend_from_outside_and_runs_without_root(self, path: Path) -> None:
        text = path.read_text("utf-8")
        assert not re.search(r"^#\s*syntax", text, re.MULTILINE | re.IGNORECASE)
        (user,) = re.findall(r"^USER (\d+):\d+$", text, re.MULTILINE)
        assert int(user) >= 10001
        assert "ARG BASE_IMAGE=debian:trixie-slim" in text
        assert "id=ca_bundle" in text

    @pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
    def test_the_build_context_has_what_it_takes(self, path: Path) -> None:
        ignore = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        allowed = [line[1:] for line in ignore if line.startswith("!")]
        text = path.read_text("utf-8")
        wanted = re.findall(r"type=bind,source=([^,\s]+)", text)
        for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
            wanted += [word for word in shlex.split(line)[:-1] if not word.startswith("--")]
        assert wanted
        for source in wanted:
            assert (ROOT / source).exists(), source
            held = [entry for entry in allowed if fnmatch.fnmatch(entry, f"{source}*")]
            inside = [entry for entry in allowed if f"{source}/".startswith(f"{entry}/")]
            assert held or inside, f"{source} is not in the build context"

    def test_secrets_never_reach_the_daemon(self) -> None:
        lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
        rules = [line for line in lines if line and not line.startswith("#")]
        assert rules[0] == "*"
        assert not [rule for rule in rules if rule.startswith(("!compose", "!.", "!**"))]


class TestViewer:
    def test_it_scrapes_nothing_and_keeps_what_is_old(self) -> None:
        command = services(VIEWER)["prometheus"]["command"]
        assert "--storage.tsdb.retention.time=100y" in command
        assert "--config.file=/run/agl/archive/prometheus.yml" in command
        assert not any("admin-api" in word for word in command)

    def test_the_archive_is_only_read_and_prometheus_has_a_copy(self) -> None:
        text = (COMPOSE / VIEWER).read_text("utf-8")
        assert text.count("AGL_VIEW_ARCHIVE") == text.count(
            "${AGL_VIEW_ARCHIVE}:/run/agl/archive:ro"
        )
        for name in ("samples", "prometheus"):
            assert mounts(services(VIEWER)[name])["/prometheus"] == "scratch"

    def test_its_ports_are_on_loopback_beside_those_of_the_bundle(self) -> None:
        for name, service in services(VIEWER).items():
            for port in service.get("ports", []):
                assert port["host_ip"] == "127.0.0.1", name
        ports = [value for key, value in ENV.items() if key.endswith("_PORT")]
        assert len(set(ports)) == len(ports)

    def test_nobody_can_log_in(self) -> None:
        environment = services(VIEWER)["grafana"]["environment"]
        assert environment["GF_AUTH_BASIC_ENABLED"] == "false"
        assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
        assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
        bundle = services(FULL)["grafana"]["environment"]
        assert {name for name in bundle if "ANALYTICS" in name or "PLUGIN" in name} <= {
            *environment
        }


def test_the_admin_api_is_in_its_overlay_alone() -> None:
    for path in COMPOSE.glob("compose*.yml"):
        found = "admin-api" in "".join(
            line
            for line in path.read_text("utf-8").splitlines()
            if not line.lstrip().startswith("#")
        )
        assert found == (path.name == "compose.admin-api.yml"), path.name
    overlay = load("compose.admin-api.yml")["services"]
    assert overlay == {"prometheus": {"entrypoint": ["/bin/prometheus", "--web.enable-admin-api"]}}


@pytest.mark.parametrize(
    ("file", "config"), [(FULL, "prometheus.base.yml"), (MONGO_FULL, "prometheus.mongo.yml")]
)
def test_the_push_overlay_adds_its_section_to_the_file_of_the_mode(
    file: str, config: str, tmp_path: Path
) -> None:
    def here(text: str) -> str:
        return re.sub(r"(?<![\w/])/(tmp|etc|run)/", rf"{tmp_path}/\1/", text)

    below, above = resolved(file, "prometheus"), load("compose.push.yml")["services"]["prometheus"]
    shell, flags, script, name = merge(below, above)["entrypoint"]
    bundle, section = Path(here("/etc/agl/prometheus")), Path(here("/run/agl/remote-write.yml"))
    for folder in (bundle, section.parent, tmp_path / "tmp"):
        folder.mkdir(parents=True)
    (bundle / config).write_text("scrape_configs: []\n")
    section.write_text("remote_write: []\n")
    script = here(script.replace("$$", "$")).replace("exec /bin/prometheus", "exec printf '%s\\n'")
    command = [here(part) for part in below["command"]]
    done = subprocess.run([shell, flags, script, name, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    copy = tmp_path / "tmp" / "prometheus" / config
    assert done.stdout.splitlines() == [f"--config.file={copy}", *command[1:]]
    assert copy.read_text() == "scrape_configs: []\nremote_write: []\n"
    assert (bundle / config).read_text() == "scrape_configs: []\n", "the bundle's own stays"
