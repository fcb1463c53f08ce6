import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import attnbench
from attnbench import registry
from attnbench.capabilities import Supports
from attnbench.contract import Variant
from attnbench.errors import UserError

Plugin = Callable[..., str]

GOOD = """
import attnbench

@attnbench.register("{name}", attnbench.Supports(causal=True, small={{"window": 4}}))
class Mine(attnbench.Variant):
    '''A stranger's method.

    More about it.
    '''

    def __init__(self, *, window=8, **common):
        super().__init__(**common)
"""


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers or loads is gone after it."""
    registry.list_variants()
    monkeypatch.setattr(registry, "_variants", dict(registry._variants))
    monkeypatch.setattr(registry, "_failures", {})


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Plugin]:
    """Installs a plugin's module and its metadata, as pip would, and makes the registry look for plugins again."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = set(sys.modules)

    def install(module: str, source: str, **points: str) -> str:
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in (points or {module: module}).items()]
        (info / "entry_points.txt").write_text("[attnbench.variants]\n" + "\n".join(lines) + "\n")
        importlib.invalidate_caches()
        monkeypatch.setattr(registry, "_loaded", False)
        return module

    yield install
    for name in set(sys.modules) - modules:
        if name.startswith("stranger"):
            del sys.modules[name]


def define(name: str, qualname: str = "Mine", supports: Any = None) -> type[Variant]:
    return registry.register(name, supports)(type(qualname, (Variant,), {"__doc__": "First line.\n\nMore."}))


# -- look up and list --------------------------------------------------------------------------------------------------------


def test_names_are_listed_sorted_and_by_pattern() -> None:
    names = attnbench.list_variants()
    assert names == sorted(names)
    assert {"full", "full-naive"} <= set(names)
    assert attnbench.list_variants("full*") == ["full", "full-naive"]
    assert attnbench.list_variants("*former") == sorted(name for name in names if name.endswith("former"))
    assert attnbench.list_variants("nothing-like-it") == []


def test_info_needs_no_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: Any, **__: Any) -> None:
        raise AssertionError("constructed")

    cls = define("mine", supports=Supports(causal=True))
    monkeypatch.setattr(cls, "__init__", explode)
    info = attnbench.variant_info("mine")
    assert info.summary == "First line."
    assert info.supports.causal
    assert info.cls is cls
    assert "test_registry" in info.origin


def test_info_resolves_options_and_the_capabilities_that_hang_on_them() -> None:
    info = attnbench.variant_info("full-naive", top_k=3)
    assert info.options["top_k"] == 3
    assert info.options["score"] == "scaled-dot"
    assert attnbench.variant_info("full-naive", score="additive").supports.memory.formula == "n^2 d"
    assert attnbench.variant_info("full-naive").supports.memory.formula == "n^2"
    with pytest.raises(UserError, match=r"full-naive: unknown option 'topk' \(did you mean 'top_k'\?\)"):
        attnbench.variant_info("full-naive", topk=3)


def test_an_unknown_name_suggests_the_nearest_and_lists_the_valid() -> None:
    for call in (attnbench.variant_info, lambda name: attnbench.create_variant(name, heads=1, head_dim=4)):
        with pytest.raises(
            UserError, match=r"unknown variant 'ful' \(did you mean 'full'\?\); valid variants: .*uniform"
        ) as error:
            call("ful")
        assert "\n" not in str(error.value)


def test_the_code_hash_follows_the_source(plugin: Plugin, tmp_path: Path) -> None:
    module = plugin("stranger_hash", GOOD.format(name="hashed"))
    before = attnbench.variant_info("hashed").code
    assert before == attnbench.variant_info("hashed", window=3).code
    source = tmp_path / f"{module}.py"
    source.write_text(source.read_text() + "\n# another thought\n")
    importlib.reload(sys.modules[module])
    assert attnbench.variant_info("hashed").code != before


def test_the_code_hash_covers_every_kernel_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = importlib.import_module("attnbench.kernels.pieces")
    source_of = registry.inspect.getsource
    users = [
        name
        for name in attnbench.list_variants()
        if "attnbench.kernels" in source_of(sys.modules[registry._find(name).__module__])
    ]
    assert users
    before = {name: attnbench.variant_info(name).code for name in (*users, "none")}
    monkeypatch.setattr(
        registry.inspect, "getsource", lambda thing: source_of(thing) + ("#" if thing is pieces else "")
    )
    after = {name: attnbench.variant_info(name).code for name in before}
    assert after["none"] == before["none"]
    changed = {name for name in users if after[name] != before[name]}
    assert "local" not in users or "local" in changed


def test_a_class_without_source_has_a_hash() -> None:
    space: dict[str, Any] = {"__name__": "typed_by_hand"}
    exec("from attnbench.contract import Variant\nclass Typed(Variant): pass", space)
    registry.register("typed")(space["Typed"])
    assert len(attnbench.variant_info("typed").code) == 12
    assert attnbench.variant_info("typed").origin == "typed_by_hand.Typed"


# -- register ----------------------------------------------------------------------------------------------------------------


def test_a_variant_registered_by_hand_is_there() -> None:
    cls = define("mine", supports=lambda options: Supports(causal=options["heads"] > 1))
    assert "mine" in attnbench.list_variants()
    assert type(attnbench.create_variant("mine", heads=2, head_dim=4, causal=True)) is cls
    with pytest.raises(attnbench.Unsupported, match="mine has no causal form"):
        attnbench.create_variant("mine", heads=1, head_dim=4, causal=True)


def test_a_name_taken_by_another_class_names_both_origins() -> None:
    define("mine", "First")
    with pytest.raises(ValueError, match=r"'mine' is registered twice: by .*First.* and by .*Second"):
        define("mine", "Second")
    assert registry._variants["mine"].__qualname__ == "First"


def test_the_same_class_again_is_fine_and_the_newer_counts() -> None:
    define("mine")
    newer = define("mine")
    assert attnbench.variant_info("mine").cls is newer


@pytest.mark.parametrize("thing", [object, 3, lambda: None, Supports()])
def test_only_a_variant_can_be_registered(thing: Any) -> None:
    with pytest.raises(TypeError, match=r"register\('mine'\) decorates a subclass of attnbench.Variant, received"):
        registry.register("mine")(thing)
    assert "mine" not in attnbench.list_variants()


# -- plugins -----------------------------------------------------------------------------------------------------------------


def test_a_plugin_is_found_by_its_entry_point(plugin: Plugin) -> None:
    plugin("stranger_good", GOOD.format(name="strange"))
    assert "strange" in attnbench.list_variants()
    info = attnbench.variant_info("strange")
    assert info.summary == "A stranger's method."
    assert info.supports.small == {"window": 4}
    assert info.options["window"] == 8
    assert attnbench.plugin_failures() == {}


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("import a_module_that_is_not_there", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def broken(:", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
    ],
)
def test_a_plugin_that_fails_to_import_costs_only_itself(plugin: Plugin, source: str, says: str) -> None:
    plugin("stranger_bad", source)
    plugin("stranger_good", GOOD.format(name="strange"))
    assert {"strange", "full"} <= set(attnbench.list_variants())
    failures = attnbench.plugin_failures()
    assert list(failures) == ["stranger_bad"]
    assert failures["stranger_bad"].startswith(f"stranger_bad: {says}")
    assert ":" in failures["stranger_bad"].rpartition("[")[2]  # the file and the line
    with pytest.raises(UserError, match=r"plugins that failed to import: stranger_bad \(stranger_bad: "):
        attnbench.variant_info("nonsense")


def test_a_plugin_that_takes_a_taken_name_is_reported(plugin: Plugin) -> None:
    plugin("stranger_thief", GOOD.format(name="full"))
    assert attnbench.variant_info("full").cls.__module__ == "variants.full"
    assert "variant 'full' is registered twice: by variants.full.Full" in attnbench.plugin_failures()["stranger_thief"]


def test_an_entry_point_to_nowhere_is_reported(plugin: Plugin) -> None:
    plugin("stranger_lost", "", lost="stranger_lost.missing:Thing")
    assert "full" in attnbench.list_variants()
    assert "ModuleNotFoundError" in attnbench.plugin_failures()["lost"]


def test_a_package_of_the_same_name_that_shadows_a_plugin_is_reported(plugin: Plugin) -> None:
    plugin("stranger_shadow", "# another package's module, which knows nothing of attention\n")
    assert "full" in attnbench.list_variants()
    reported = attnbench.plugin_failures()["stranger_shadow"]
    assert "registers no variant" in reported
    assert "shadows the one that stranger_shadow 1.0 ships" in reported
    assert "stranger_shadow.py" in reported


def test_reloading_a_plugin_is_fine(plugin: Plugin) -> None:
    module = plugin("stranger_good", GOOD.format(name="strange"))
    before = attnbench.variant_info("strange").cls
    importlib.reload(sys.modules[module])
    assert attnbench.variant_info("strange").cls is not before


def test_a_plugin_may_look_up_variants_while_it_is_imported(plugin: Plugin) -> None:
    plugin("stranger_curious", GOOD.format(name="strange") + "\nassert 'full' in attnbench.list_variants()\n")
    assert "strange" in attnbench.list_variants()
    assert attnbench.plugin_failures() == {}


def test_plugins_load_once_whoever_asks_first(plugin: Plugin) -> None:
    plugin("stranger_slow", "import time; time.sleep(0.05)\n" + GOOD.format(name="strange"))
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append("strange" in attnbench.list_variants())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
