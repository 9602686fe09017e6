"""What the roles write for several control nodes, judged by the programs that read it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from history import tool
from rendered import HOSTS, REMOTE_WRITE, Rendered, rendered

__all__ = ["rendered"]

HAPROXY = pytest.mark.skipif(
    not shutil.which("haproxy"), reason="haproxy is not installed: apt-get install haproxy"
)
NFT = pytest.mark.skipif(
    not shutil.which("nft") or os.geteuid() != 0,
    reason="rules are checked by nft, as root: apt-get install nftables",
)


def judged(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@HAPROXY
@pytest.mark.parametrize("host", HOSTS)
def test_haproxy_takes_its_configuration(rendered: Rendered, host: str) -> None:
    judged("haproxy", "-c", "-f", rendered.haproxy(host))


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("program", ["promtool", "promtool3"])
def test_promtool_takes_the_configuration(rendered: Rendered, host: str, program: str) -> None:
    try:
        path = tool(program)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    judged(path, "check", "config", rendered.prometheus(host))


def test_each_prometheus_has_a_name_that_no_alertmanager_is_told(rendered: Rendered) -> None:
    for host, files in rendered.files.items():
        config = yaml.safe_load(files["prometheus"])
        assert config["global"]["external_labels"]["replica"] == host
        dropped = {"regex": "replica", "action": "labeldrop"}
        assert config["alerting"]["alert_relabel_configs"] == [dropped]
        assert config.get("remote_write") == (REMOTE_WRITE if host == "control3" else None)


def test_every_control_node_asks_every_balancer_and_the_other_alertmanagers(
    rendered: Rendered,
) -> None:
    for host, files in rendered.files.items():
        asked = {
            job: [target["labels"]["host"] for target in targets]
            for job, targets in files["targets"].items()
        }
        assert asked["haproxy"] == sorted(HOSTS)
        assert asked["alertmanager"] == sorted(set(HOSTS) - {host})
        assert asked["dcgm"] == ["gpu1"]
        # A control node that is in another group too has the bundle's node_exporter alone.
        asked_at = [target["targets"] for target in files["targets"]["node"]]
        assert asked_at == [["cpu1:9200"], ["gpu1:9100"]]


def test_each_alertmanager_is_told_of_the_others(rendered: Rendered) -> None:
    for host, files in rendered.files.items():
        given = files["alertmanager"]
        port = given["AGL_ALERTMANAGER_CLUSTER_PORT"]
        others = [known["agl_address"] for name, known in HOSTS.items() if name != host]
        flags = given["AGL_ALERTMANAGER_PEERS"].split()
        assert flags == [f"--cluster.peer={address}:{port}" for address in others]
        assert given["AGL_ALERTMANAGER_BIND"] == HOSTS[host]["agl_address"]
        assert "\nAGL_OVERLAYS='alertmanagers'\n" in files["site"]
        assert "\nAGL_GRAFANA_ANONYMOUS='true'\n" in files["site"]  # as compose/.env writes it


@NFT
def test_nft_takes_the_rules(rendered: Rendered) -> None:
    path = rendered.folder / "control1.nft"
    path.write_text(rendered.files["control1"]["firewall"])
    judged("nft", "--check", "--file", path)


MONGOSH = """
const [asked, answers] = [[], JSON.parse(process.argv[1])];
const print = (text) => console.log(text);
const sleep = () => {};
const rs = {initiate: () => ({ok: 1})};
const require = () => ({readFileSync: (path) => path.split('/').pop()});
function connect(uri) {
  const user = (/\\/\\/([^:]+):([^@]+)@/.exec(uri) || [, '', ''])[1];
  if (answers.refuses.includes(user)) throw Object.assign(new Error('no'), {code: 18});
  const db = {
    adminCommand: () => { throw new Error('requires authentication'); },
    hello: () => ({isWritablePrimary: true, hosts: answers.hosts}),
    getSiblingDB: () => db,
    getUser: (name) => answers.users.includes(name),
    createUser: ({user}) => {
      if (user === 'root') throw new Error('requires authentication');
      asked.push('create ' + user);
    },
    updateUser: (name, {pwd}) => asked.push('update ' + name + ' ' + pwd),
  };
  return db;
}
process.on('exit', () => console.log(JSON.stringify(asked)));
"""
BOTH = ["agl-store", "agl-exporter"]
MEMBERS = [f"{known['agl_address']}:27017" for known in HOSTS.values()]


@pytest.mark.skipif(not shutil.which("node"), reason="its steps are run by node")
@pytest.mark.parametrize(
    ("users", "refuses", "hosts", "words"),
    [
        (BOTH, [], MEMBERS, "[]"),
        ([], [], MEMBERS, '["create agl-store","create agl-exporter"]'),
        (BOTH, ["agl-store"], MEMBERS, '["update agl-store store"]'),
        (BOTH, ["root"], MEMBERS, "the password of root is not mongodb_passwords.root"),
        (BOTH, [], MEMBERS[:2], f"rs.add('{MEMBERS[2]}'); then apply again"),
    ],
)
def test_users_of_a_replica_set_that_is_there(
    rendered: Rendered, users: list[str], refuses: list[str], hosts: list[str], words: str
) -> None:
    """Passwords that have changed are given to users; what cannot be done by itself is named."""
    program = MONGOSH + rendered.files["control1"]["mongodb"].replace("const fs", "var fs")
    answers = json.dumps({"users": users, "refuses": refuses, "hosts": hosts})
    command = ["node", "-e", f"(() => {{ {program} }})()", answers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert words in done.stdout + done.stderr
    assert (done.returncode == 0) == words.startswith("[")


def test_some_gpus_are_given_as_one_word(rendered: Rendered) -> None:
    """Docker's client reads a list with commas, and ``device=0,1`` as two requests."""
    assert """ --gpus '"device=0,1"' """ in rendered.files["control1"]["dcgm"]
    assert " -c 15000" in rendered.files["control1"]["dcgm"]
