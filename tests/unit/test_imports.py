"""Who may import whom, read from the source; and what an import costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "app" / "agl"

LAYERS = {
    "agl.errors": (),
    "agl.types": ("agl.errors",),
    "agl.config": ("agl.errors",),
    "agl.probe": (),
    "agl.utils": ("agl.types", "agl.errors", "agl.config", "agl.probe"),
    "agl.store.base": ("agl.types", "agl.errors"),
    "agl.store.rules": ("agl.types", "agl.errors"),
    "agl.store.operations": ("agl.types", "agl.errors", "agl.utils"),
    "agl.store.watchdog": ("agl.store.rules", "agl.types", "agl.errors", "agl.utils"),
    "agl.store.collection": ("agl.types", "agl.errors", "agl.utils"),
    "agl.store.collection.instrumented": (
        "agl.store.operations",
        "agl.types",
        "agl.errors",
        "agl.utils",
    ),
    "agl.store.collection_based": (
        "agl.store.base",
        "agl.store.rules",
        "agl.store.operations",
        "agl.store.watchdog",
        "agl.store.collection",
        "agl.types",
        "agl.errors",
        "agl.utils",
    ),
    "agl.store.memory": (
        "agl.store.base",
        "agl.store.collection_based",
        "agl.store.collection",
        "agl.store.watchdog",
        "agl.types",
        "agl.errors",
        "agl.utils",
    ),
    "agl.store.mongo": (
        "agl.store.base",
        "agl.store.rules",
        "agl.store.operations",
        "agl.store.collection_based",
        "agl.store.collection",
        "agl.types",
        "agl.errors",
        "agl.utils",
    ),
    "agl.store.threading": (
        "agl.store.base",
        "agl.store.watchdog",
        "agl.types",
        "agl.errors",
        "agl.utils",
    ),
    "agl.store.mongo_admin": (
        "agl.store.rules",
        "agl.store.collection",
        "agl.config",
        "agl.types",
        "agl.errors",
        "agl.utils",
    ),
    "agl.store.rest": ("agl.store.base", "agl.utils", "agl.types", "agl.errors"),
    "agl.store.client_server": ("agl.store.rest",),
}
"""Layer to the layers it may import; every layer may import its own modules."""

PRIVATE = {
    "_core": "agl.store.collection_based",
    "_lifecycle": "agl.store.collection_based",
    "_plan": "agl.store.collection_based",
    "_queries": "agl.store.collection_based",
    "_spans": "agl.store.collection_based",
    "_state": "agl.store.collection_based",
    "_stuck": "agl.store.collection_based",
    "_waiting": "agl.store.collection_based",
    "_eviction": "agl.store.memory",
}
"""Private modules of the store belong to the layer of the public one that they are parts of."""

UPPER = ("agl.cli", "agl.ops", "agl.bench", "agl.logging")
DRIVERS = {
    "pymongo": (
        "agl.store.mongo",
        "agl.store.collection.mongo",
        "agl.store.collection.mongo_",
        "agl.ops.mongo_admin",
        "agl.ops.mongo_dump",
    ),
    "fastapi": ("agl.store.rest", "agl.cli.prometheus"),
    "docker": ("agl.ops",),
    "grafana_client": ("agl.ops",),
}


def _modules() -> Iterator[tuple[str, Path]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        yield ".".join(parts).removesuffix(".__init__"), path


@cache
def _imports(path: Path) -> list[tuple[str, int]]:
    return list(_read_imports(path))


def _read_imports(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} imports relatively"
            assert node.module is not None
            known = PACKAGE.parent / node.module.replace(".", "/")
            for alias in node.names:
                is_module = (known / f"{alias.name}.py").exists() or (known / alias.name).is_dir()
                yield (f"{node.module}.{alias.name}" if is_module else node.module), node.lineno


def _within(module: str, layer: str) -> bool:
    return module == layer or module.startswith(f"{layer}.")


def _layer(module: str) -> str | None:
    parts = module.split(".")
    if parts[:2] == ["agl", "store"] and len(parts) == 3 and parts[2] in PRIVATE:
        return PRIVATE[parts[2]]
    layers = [layer for layer in LAYERS if _within(module, layer)]
    return max(layers, key=len, default=None)


MODULES = dict(_modules())


@pytest.mark.parametrize("module", [m for m in MODULES if _layer(m) is not None])
def test_a_layer_imports_only_those_below(module: str) -> None:
    layer = _layer(module)
    assert layer is not None
    for name, line in _imports(MODULES[module]):
        if not name.startswith("agl.") or _layer(name) == layer:
            continue
        target = _layer(name)
        assert target is not None, f"{module}:{line} imports {name}, which is above the store"
        allowed = any(_within(target, below) for below in LAYERS[layer])
        # The package of collections offers the memory backend, which is instrumented.
        allowed = allowed or (layer, target) == (
            "agl.store.collection",
            "agl.store.collection.instrumented",
        )
        assert allowed, f"{module}:{line} imports {name}"


@pytest.mark.parametrize("module", MODULES)
def test_drivers_stay_where_they_belong(module: str) -> None:
    for name, line in _imports(MODULES[module]):
        homes = DRIVERS.get(name.split(".")[0])
        if homes is not None:
            assert module.startswith(homes), f"{module}:{line} imports {name}"


@pytest.mark.parametrize("module", [m for m in MODULES if not m.startswith(UPPER) and m != "agl"])
def test_nothing_below_imports_the_top(module: str) -> None:
    for name, line in _imports(MODULES[module]):
        assert not name.startswith(UPPER), f"{module}:{line} imports {name}"


def test_every_private_store_module_has_a_layer() -> None:
    private = {path.stem for path in (PACKAGE / "store").glob("_*.py")} - {"__init__"}
    assert private == set(PRIVATE)


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.split())


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = _loaded_by("import agl")
    assert not loaded & {"pydantic", "fastapi", "aiohttp", "opentelemetry", "prometheus_client"}


def test_importing_the_memory_store_loads_no_web_or_driver() -> None:
    loaded = _loaded_by("from agl.store import InMemoryLightningStore")
    assert not loaded & {"fastapi", "aiohttp", "uvicorn", "pymongo", "opentelemetry.sdk"}


def test_public_names_of_the_store_packages() -> None:
    import agl.store
    import agl.store.collection

    for package in (agl.store, agl.store.collection):
        for name in package.__all__:
            if name not in ("LightningStoreClient", "LightningStoreServer"):
                assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such"):
        agl.store.no_such  # noqa: B018 - the access is what is tested
