"""The generator of the analysis tests, which is a sibling and not a package that could be imported by name."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

_spec = spec_from_file_location("attnbench_tests_synthetic", Path(__file__).parents[1] / "analysis" / "synthetic.py")
assert _spec is not None
assert _spec.loader is not None
_module = module_from_spec(_spec)
_spec.loader.exec_module(_module)
NAMES, Synthetic, sweep = _module.NAMES, _module.Synthetic, _module.sweep
