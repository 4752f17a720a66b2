"""Every verb meets every kind of fault: it ends in time with a code of the page, in a few words, and harms nothing."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import matrix
from tests.chaos.cases import Case, cases, tried
from tests.chaos.ground import ALLOWED, VERBS, Ground, attempt, build, changed_json, command, prepare
from tests.zygote import Zygote

pytestmark = pytest.mark.timeout(3600)

Tried = dict[tuple[str, str], set[int]]


class Field:
    """The good files that all cases of this process share, and how the cases ended that were tried so far."""

    def __init__(self, place: Path) -> None:
        self.place, self.zygote, self.count = place, Zygote(place), 0
        self.tried: Tried = {}
        (place / "base").mkdir()
        build(place / "base", self.zygote)

    def ground(self) -> Ground:
        self.count += 1
        return prepare(self.place / "base", self.place / str(self.count))

    def judge(self, case: Case) -> None:
        end = tried(case, self.zygote, self.ground())
        self.tried.setdefault((case.fault, case.verb), set()).add(end.code)
        assert not end.wrong, end.wrong


@pytest.fixture(scope="module")
def field(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    place = tmp_path_factory.mktemp("matrix")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place / "xdg"))
        made = Field(place)
    yield made
    made.zygote.close()


def of(family: str) -> Any:
    return pytest.mark.parametrize("case", cases(family), ids=lambda case: case.name)


@of("good")
def test_every_verb_works_with_good_files(case: Case, field: Field) -> None:
    """Breaks if a command of the matrix is wrong in itself, so that its faults would prove nothing."""
    field.judge(case)
    full = case.stream == "full stdout"  # results that were to be printed are lost, and that is said
    assert field.tried[case.fault, case.verb] <= ({0, 74} if full else {0})


@of("outputs")
def test_a_bad_output_is_refused(case: Case, field: Field) -> None:
    """Breaks if an output that cannot be written is a traceback or unexpected, or a link leads a byte elsewhere."""
    field.judge(case)


@of("overwriting")
def test_overwriting_leaves_what_is_not_ours(case: Case, field: Field) -> None:
    """Breaks if a file that this program did not write is deleted or replaced because its name is like ours."""
    field.judge(case)


@of("files of runs")
def test_a_spoiled_file_of_a_run_is_told(case: Case, field: Field) -> None:
    """Breaks if a pipe is waited for, a device is read for ever, or a cut or foreign file is a traceback."""
    field.judge(case)


@of("files from outside")
def test_a_spoiled_file_from_outside_is_told(case: Case, field: Field) -> None:
    """Breaks if a pipe, a device, a directory or damage in the place of a file hangs the verb or is a traceback."""
    field.judge(case)


@of("links")
def test_a_prepared_link_leads_nowhere(case: Case, field: Field) -> None:
    """Breaks if a link that somebody put into a run directory leads what a verb writes to a file of the user's."""
    field.judge(case)


@of("run.json")
def test_every_field_of_a_run_may_be_damaged(case: Case, field: Field) -> None:
    """Breaks if a value of a wrong type, missing, huge or negative in run.json is a traceback."""
    field.judge(case)


@of("result.json")
def test_every_field_of_a_result_may_be_damaged(case: Case, field: Field) -> None:
    """Breaks if a value of a wrong type, missing, huge or negative in result.json is a traceback."""
    field.judge(case)


@of("headers")
def test_a_header_allocates_nothing(case: Case, field: Field) -> None:
    """Breaks if a size that an encoder's header claims is allocated, or its values are a traceback."""
    field.judge(case)


@of("streams")
def test_a_stream_never_ends_a_verb(case: Case, field: Field) -> None:
    """Breaks if output that cannot be written, or not in its encoding, makes good work fail."""
    field.judge(case)
    full = case.stream == "full stdout"  # results that were to be printed are lost, and that is said
    assert field.tried[case.fault, case.verb] <= ({0, 74} if full else {0})


ADDRESSES = ("http://{0}/x.tar", "ftp://{0}/x.tar", "simplecache::http://{0}/x.tar", "s3://{0}/x", "hf:http://{0}/x")


@pytest.mark.parametrize("verb", ["report", "search", "dedupe", "outliers", "pick"])
@pytest.mark.parametrize("address", ADDRESSES, ids=lambda address: address.split("{")[0])
def test_a_stored_record_opens_nothing(verb: str, address: str, field: Field) -> None:
    """Breaks if the address of data in a run.json that somebody else wrote makes a verb connect."""
    ground = field.ground()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        listener.setblocking(False)
        stored = address.format(f"127.0.0.1:{listener.getsockname()[1]}")
        changed_json(ground.run / "run.json", lambda run: run["request"].update(data=stored))
        places = ground.good(verb)
        words = [word for word in command(verb, places) if word != str(places["images"])]
        end = attempt(field.zygote, ground, words)
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert not end.wrong, end.wrong


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_still_works_after_all_faults(verb: str, field: Field) -> None:
    """Breaks if a fault left something behind, in the shared files or a cache, that spoils the next good command."""
    ground = field.ground()
    end = attempt(field.zygote, ground, command(verb, ground.good(verb)))
    assert end == (0, "")


def test_the_page_says_what_happens(field: Field) -> None:
    """Breaks if a case ends with a code that results/guarantees-matrix.json does not name for it:
    `BYOL_CHAOS=60 python -m tests.chaos.matrix` writes the record and the page anew."""
    stored = json.loads(matrix.RECORD.read_text())["codes"]
    others = {
        place: codes - set(stored.get(place[0], {}).get(place[1], [])) for place, codes in sorted(field.tried.items())
    }
    assert not {place: codes for place, codes in others.items() if codes}


def test_the_matrix_is_rendered_from_its_record() -> None:
    """Breaks if the table of the page was typed, or its record was measured again without being rendered."""
    stored = json.loads(matrix.RECORD.read_text())
    page = matrix.PAGE.read_text(encoding="utf-8")
    assert matrix.rendered(stored["codes"]) in page
    assert matrix.with_matrix(page, stored["codes"]) == page
    assert matrix.with_figures(page, stored["figures"]) == page
    codes = {code for row in stored["codes"].values() for cell in row.values() for code in cell}
    assert codes <= set(ALLOWED)
    assert set(VERBS) == {verb for row in stored["codes"].values() for verb in row}
