"""Config files: what misleads or could hurt is refused in one sentence that names the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from byol.config import Config, apply
from byol.config_file import read_yaml
from byol.errors import UsageError


def written(folder: Path, text: str | bytes) -> Path:
    path = folder / "run.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def refused_file(path: Path, *phrases: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_yaml(path)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    for phrase in phrases:
        assert phrase in message, message


def test_yaml_nested_and_dotted(tmp_path: Path) -> None:
    """Breaks if sections nest in one way only."""
    path = written(tmp_path, "optim:\n  lr: 0.3\nviews.t:\n  blur: 0.5\nviews: {t_prime.blur: 0.25}\nrun.seed: 7\n")
    assert read_yaml(path) == {"optim.lr": 0.3, "views.t.blur": 0.5, "views.t_prime.blur": 0.25, "run.seed": 7}


def test_yaml_exponent_is_a_number(tmp_path: Path) -> None:
    """Breaks if 1e-4, which YAML 1.1 reads as text, does not become a float."""
    values = read_yaml(written(tmp_path, "optim: {lr: 1e-4, batch: 1e3}\n"))
    config = apply(Config(), values)
    assert (config.optim.lr, config.optim.batch) == (0.0001, 1000)
    assert isinstance(config.optim.lr, float)


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_yaml_empty(tmp_path: Path, text: str) -> None:
    """Breaks if an empty file is an error."""
    assert read_yaml(written(tmp_path, text)) == {}


@pytest.mark.parametrize(
    ("text", "line", "phrase"),
    [
        ("optim:\n  lr: 0.1\n  lr: 0.2\n", 3, "duplicate key 'lr'"),
        ("run: {seed: 1}\noptim: {lr: 1}\nrun: {seed: 2}\n", 3, "duplicate key 'run'"),
        ("optim: &a {lr: 0.1}\nrun: *a\n", 2, "aliases are not allowed"),
        ("optim:\n  lr: [0.1\nrun: 3\n", 3, "not valid YAML"),
        ("optim:\n\tlr: 1\n", 2, "not valid YAML"),
        ("a: 1\nb: !!python/object/apply:os.mkdir [marker]\n", 2, "python/object"),
        ("a: !!python/name:os.system\n", 1, "python/name"),
        ("a: 1\n---\nb: 2\n", 2, "not valid YAML"),
    ],
)
def test_yaml_refused_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, phrase: str
) -> None:
    """Breaks if the loader is not the strict, safe one, or the place of the mistake is lost."""
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, text)
    refused_file(path, f"{path}:{line}: ", phrase)
    assert not (tmp_path / "marker").exists()


def test_yaml_missing(tmp_path: Path) -> None:
    """Breaks if a file that cannot be read is a traceback."""
    refused_file(tmp_path / "absent.yaml", "No such file")
    refused_file(tmp_path, "Is a directory")


@pytest.mark.parametrize("text", ["- optim\n- lr\n", "hello\n", "3\n"])
def test_yaml_not_a_mapping(tmp_path: Path, text: str) -> None:
    """Breaks if a list or a word is accepted, or the right form is not shown."""
    refused_file(written(tmp_path, text), "mapping such as 'optim: {lr: 0.3}'")


@pytest.mark.parametrize("text", ["1: 2\n", "optim: {true: 1}\n", "null: 3\n"])
def test_yaml_keys_are_text(tmp_path: Path, text: str) -> None:
    """Breaks if a key that is a number, a truth value or nothing fails elsewhere, without its file."""
    refused_file(written(tmp_path, text), "is not text")


def test_yaml_too_large(tmp_path: Path) -> None:
    """Breaks if a data set given by mistake is parsed: the limit is 100 kB, itself allowed."""
    refused_file(written(tmp_path, b"#" * 100_001), "larger than 100 kB")
    assert read_yaml(written(tmp_path, b"#" * 100_000)) == {}


def test_yaml_not_utf8(tmp_path: Path) -> None:
    """Breaks if an image given by mistake is a traceback."""
    refused_file(written(tmp_path, b"optim: \xff\xfe\n"), "not UTF-8")


@pytest.mark.parametrize(
    "text",
    [
        "? [a, b]\n: 1\n",
        "{{a: 1}: 2}\n",
        "a: 2020-13-45\n",
        "a: 0x_\n",
        "a: !!int x\n",
        "a: !!bool maybe\n",
        "a: !!timestamp x\n",
        "a: " + "9" * 5000,
    ],
    ids=lambda text: text[:16],
)
def test_yaml_values_that_break_the_parser(tmp_path: Path, text: str) -> None:
    """Breaks if a value that YAML's resolver chokes on is a traceback instead of a sentence."""
    refused_file(written(tmp_path, text), "not valid YAML")


@pytest.mark.parametrize("text", ["optim: {lr: 1}\noptim.lr: 2\n", "views.t: {blur: 0}\nviews: {t: {blur: 1}}\n"])
def test_yaml_duplicate_across_spellings(tmp_path: Path, text: str) -> None:
    """Breaks if a field may be given twice when it is spelled differently."""
    refused_file(written(tmp_path, text), "duplicate key")


def test_yaml_control_character(tmp_path: Path) -> None:
    """Breaks if a binary file that happens to be UTF-8 is called nested."""
    with pytest.raises(UsageError, match="special characters are not allowed"):
        read_yaml(written(tmp_path, b"a: \x00\n"))


def test_yaml_deeply_nested(tmp_path: Path) -> None:
    """Breaks if a bomb of brackets is a traceback."""
    refused_file(written(tmp_path, "a: " + "[" * 20_000), "not valid YAML")
