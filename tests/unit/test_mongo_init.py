"""Access to MongoDB is set up, against a model of mongod; the stand-in's turn is in tests/stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_mongod import ModelMongod

from agl.errors import EnvironmentFault
from agl.ops import mongo_init
from agl.ops.mongo_data import check_mongo_data
from agl.ops.mongo_init import Setup, User, Wanted, main

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
    def turtle(self, folder: Path, version: str) -> Path:
        text = f"WiredTiger version string\nWiredTiger x\nWiredTiger version\n{version}\nfile:x\n"
        (folder / "WiredTiger.turtle").write_text(text)
        return folder

    def test_an_empty_one_and_one_of_this_line_pass(self, tmp_path: Path) -> None:
        check_mongo_data(tmp_path)
        check_mongo_data(self.turtle(tmp_path, "major=11,minor=3,patch=1"))

    def test_one_of_8_2_is_refused_with_the_command_that_helps(self, tmp_path: Path) -> None:
        folder = self.turtle(tmp_path, "major=12,minor=0,patch=0")
        with pytest.raises(EnvironmentFault, match="agl store migrate --from"):
            check_mongo_data(folder)
