from pathlib import Path

from attnbench.cli.family import family_page

PAGE = Path(__file__).parents[2] / "docs" / "variants.md"


def test_the_page_of_the_variants_is_what_they_declare():
    assert PAGE.read_text() == family_page(), "write it anew: attnbench list --markdown > docs/variants.md"
