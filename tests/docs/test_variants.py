from pathlib import Path

from attnbench import list_variants, variant_info
from attnbench.cli.family import family_page

PAGE = Path(__file__).parents[2] / "docs" / "variants.md"


def test_the_page_of_the_variants_is_what_they_declare():
    # Other tests register variants of their own as they are imported.
    family = [name for name in list_variants() if variant_info(name).cls.__module__.startswith("variants.")]
    assert PAGE.read_text() == family_page(family), "write it anew: attnbench list --markdown > docs/variants.md"
