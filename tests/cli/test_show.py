def test_show_describes_a_variant_and_draws_its_pattern(cli):
    outcome = cli("show", "full", "--causal", "--length", 8)
    assert outcome.code == 0
    assert "softmax(q k^T" in outcome.out
    assert "causal" in outcome.out
    picture = outcome.out.partition("who sees whom")[2].splitlines()[1:]
    assert len(picture) == 8
    # Row i of a causal picture has marks at i + 1 columns: the triangle can be read off the text.
    assert [len(row.rstrip()) - 2 for row in picture] == list(range(1, 9))


def test_show_takes_options(cli):
    outcome = cli("show", "local", "-o", "window=2", "--length", 6)
    assert outcome.code == 0
    assert "window=2" in outcome.out


def test_an_unknown_option_says_what_is_valid(cli):
    outcome = cli("show", "full", "-o", "windw=2")
    assert outcome.code == 2
    assert "unknown option 'windw'" in outcome.err
    assert "valid options: heads" in outcome.err


def test_a_picture_is_written(cli, tmp_path):
    outcome = cli("show", "full", "--length", 8, "--picture", tmp_path / "full.png")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "full.png").read_bytes()[:4] == b"\x89PNG"
