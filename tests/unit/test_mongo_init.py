"""Access to MongoDB is set up, against a model of mongod; the stand-in's turn is in tests/stack."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from model_mongod import ModelMongod

from agl.cli import main as agl
from agl.errors import EnvironmentFault
from agl.ops import mongo_init
from agl.ops.mongo_data import Source, check_mongo_data
from agl.ops.mongo_init import Setup, User, Wanted, main
from agl.store.mongo_admin.diagnosis import OLDEST_SERVER

ROOT = Path(__file__).resolve().parents[2]
MONGO_FILE = "compose.prometheus-mongo-store.yml"
HOST = "mongo:27017"
STORE = User("agl-store", "s", (("readWrite", "agentlightning"),))
EXPORTER = User("agl-exporter", "e", (("clusterMonitor", "admin"), ("read", "local")))
WANTED = Wanted(
    replica_set="rs0",
    host=HOST,
    root=User("root", "r", (("root", "admin"),)),
    users=(STORE, EXPORTER),
    key="key",
)
USERS = {
    "root": {"pwd": "r", "roles": [{"role": "root", "db": "admin"}]},
    "agl-store": {"pwd": "s", "roles": [{"role": "readWrite", "db": "agentlightning"}]},
    "agl-exporter": {
        "pwd": "e",
        "roles": [{"role": "read", "db": "local"}, {"role": "clusterMonitor", "db": "admin"}],
    },
}


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo_init, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(mongo_init, "WITHOUT_PRIMARY_SECONDS", 0.05)


def config(*hosts: str) -> dict[str, object]:
    members = [{"_id": number, "host": host, "priority": 1} for number, host in enumerate(hosts)]
    return {"_id": "rs0", "version": 4, "members": members, "settings": {"a": 1}}


def set_up(server: ModelMongod, wanted: Wanted = WANTED, timeout: float = 10) -> list[str]:
    work = Setup(server, wanted)
    work.run(timeout)
    assert server.hosts == [wanted.host]
    for user in (wanted.root, *wanted.users):
        assert server.users[user.name]["pwd"] == user.password
    return work.done


def test_a_new_server_is_initiated_and_gets_its_users() -> None:
    server = ModelMongod(starting=3)
    assert set_up(server) == [
        "initiated replica set rs0",
        "created user root (the data had no users)",
        "created user agl-store",
        "created user agl-exporter",
    ]
    assert server.log == ["replSetInitiate", "createUser", "createUser", "createUser"]
    assert server.users["agl-store"]["roles"] == [{"role": "readWrite", "db": "agentlightning"}]


def test_again_changes_nothing() -> None:
    server = ModelMongod()
    set_up(server)
    server.log.clear()
    assert set_up(server) == []
    assert server.log == []


def test_an_old_volume_without_users_is_let_in_by_the_localhost_exception() -> None:
    server = ModelMongod(config=config("localhost:27017"))
    done = set_up(server)
    assert done[0] == "created user root (the data had no users)"
    assert done[1] == f"address of the member corrected from localhost:27017 to {HOST}"
    assert server.config is not None
    assert server.config["members"] == [{"_id": 0, "host": HOST, "priority": 1}]
    assert (server.config["version"], server.config["settings"]) == (5, {"a": 1})


@pytest.mark.parametrize("users", [{}, USERS], ids=["without users", "with users"])
def test_a_server_that_does_not_find_itself_is_put_right(users: dict[str, dict]) -> None:  # type: ignore[type-arg]
    """Upstream's members of other host names: no primary, so nobody could be created."""
    server = ModelMongod(config=config("old-host:27017"), users=dict(users))
    done = set_up(server)
    assert f"address of the member corrected from old-host:27017 to {HOST}" in done
    assert server.primary


def test_a_set_of_several_members_is_left_alone() -> None:
    server = ModelMongod(config=config("localhost:27017", "b:27017"), users=dict(USERS))
    before = server.config
    with pytest.raises(EnvironmentFault, match="has 2 members, not one"):
        set_up(server)
    assert server.config is before
    assert server.log == []


def test_a_standalone_server_is_named() -> None:
    with pytest.raises(EnvironmentFault, match="no member of a replica set"):
        set_up(ModelMongod(standalone=True))


def test_another_set_name_is_named_with_the_remedy() -> None:
    server = ModelMongod(config={**config(HOST), "_id": "other"})
    with pytest.raises(EnvironmentFault, match="AGL_MONGO_REPLICA_SET=other"):
        set_up(server)


def test_a_root_of_another_password_is_not_got_round() -> None:
    server = ModelMongod(config=config(HOST), users={"root": {"pwd": "another", "roles": []}})
    with pytest.raises(EnvironmentFault, match="compose/secrets/mongo-root-password") as caught:
        set_up(server)
    assert "another" not in str(caught.value)
    assert server.users["root"]["pwd"] == "another"


def test_roles_and_passwords_follow_what_is_asked_for() -> None:
    users = {name: dict(user) for name, user in USERS.items()}
    users["agl-store"]["roles"] = [{"role": "root", "db": "admin"}]
    users["agl-exporter"]["pwd"] = "old"
    server = ModelMongod(config=config(HOST), users=users)
    assert set_up(server) == [
        "updated roles of user agl-store",
        "updated pwd of user agl-exporter",
    ]
    assert server.users["agl-store"]["roles"] == [{"role": "readWrite", "db": "agentlightning"}]


def test_a_server_that_never_answers_is_given_up_with_a_remedy() -> None:
    with pytest.raises(EnvironmentFault, match=r"does not answer .* docker compose logs mongo"):
        set_up(ModelMongod(starting=10**9), timeout=0.2)


def test_a_missing_secret_is_named(tmp_path: Path) -> None:
    arguments = ["--replica-set=rs0", "--host=h:1", "--database=d", "--store-user=a"]
    with pytest.raises(EnvironmentFault, match="secret mongo-root-password: No such file"):
        main([*arguments, "--exporter-user=b", f"--secrets-dir={tmp_path}"], "agl stack mongo-init")


class TestDataFolder:
    """Of MongoDB, which newer ones write; `tests/stack_mongo` types what the refusal says."""

    def turtle(self, folder: Path, version: str) -> Path:
        text = f"WiredTiger version string\nWiredTiger x\nWiredTiger version\n{version}\nfile:x\n"
        (folder / "WiredTiger.turtle").write_text(text)
        return folder

    def test_an_empty_one_and_one_of_this_line_pass(self, tmp_path: Path) -> None:
        check_mongo_data(tmp_path, Source())
        check_mongo_data(self.turtle(tmp_path, "major=11,minor=3,patch=1"), Source())

    @pytest.mark.parametrize("service", [MONGO_FILE, "compose.mongo.yml"])
    def test_init_refuses_one_of_8_2_with_the_commands_that_help(
        self, service: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """As the compose file calls it, with the folder and names of the bundle."""
        self.turtle(tmp_path, "major=12,minor=0,patch=0")
        init = yaml.safe_load((ROOT / "compose" / service).read_text("utf-8"))["services"]["init"]
        values = {
            "/run/agl/mongo-data": str(tmp_path),
            "${AGL_MONGO_DATA}": "/data/of 0.3",
            "${COMPOSE_PROJECT_NAME}": "mine",
        }
        wanted = ("--mongo-data", "--mongo-volume", "--project")
        arguments = [one for one in init["command"] if one.startswith(wanted)]
        for name, value in values.items():
            arguments = [argument.replace(name, value) for argument in arguments]
        assert agl(["stack", "init", *arguments, f"--secrets-dir={tmp_path}/s"]) == 1
        line = capsys.readouterr().err
        assert "AGL_MONGO_DATA=/data/of 0.3 was written by a MongoDB newer than 8.0" in line
        assert "set AGL_MONGO_DATA=mongo-data, then" in line
        assert line.endswith(" && ".join(Source("/data/of 0.3", "mine").commands) + "\n")
        assert "--network mine_default" in line
        assert "-v '/data/of 0.3:/data/db' mongo:8.2" in line
        assert "docker exec mine-app-1 agl store migrate --from" in line
        assert not (tmp_path / "s").exists()

    def test_data_in_the_bundles_own_volume_is_left_there(self) -> None:
        source = Source()
        assert "AGL_MONGO_DATA=/srv/agl-mongo" in source.fresh
        assert " -v agl_mongo-data:/data/db " in source.commands[1]

    def test_the_handbook_has_the_same_commands(self) -> None:
        text = (ROOT / "docs" / "operating.md").read_text("utf-8").replace(" \\\n  ", " ")
        commands = Source("/path/to/docker/data/mongo-container").commands
        assert "```sh\n" + "\n".join(commands) + "\n```" in text


def test_every_text_names_the_same_oldest_mongodb() -> None:
    known = re.compile(r"MongoDB (?:of your own \()?(\d+\.\d+) or newer")
    files = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "compose" / ".env"]
    said = [version for file in files for version in known.findall(file.read_text("utf-8"))]
    assert len(said) >= 3
    assert set(said) == {OLDEST_SERVER}
