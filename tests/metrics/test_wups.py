"""WUPS under both frozen rules, and WordNet from every source."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from kvcomp_eval.metrics import wordnet
from kvcomp_eval.metrics.wordnet import find_wordnet, load_wordnet
from kvcomp_eval.metrics.wups import Wups, wups_by_group


@pytest.fixture(scope="module")
def place():
    try:
        return find_wordnet()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def scorers(place):
    return {rule: Wups(rule, place) for rule in ("legacy", "modern")}


@pytest.mark.parametrize("rule", ["legacy", "modern"])
def test_golden_values(scorers, rule):
    """Of lmms-eval's own task on WordNet 3.0."""
    texts = ("the dog runs towards the boy", "run to the man", "CW")
    assert scorers[rule].score(*texts) == pytest.approx(0.4444, abs=5e-5)
    assert scorers[rule].score(*texts, threshold=0.9) == pytest.approx(0.00444, abs=5e-6)


def test_rules_differ_where_a_word_is_no_noun(scorers):
    """An adjective and a noun have no common ancestor in the official stack, and an artificial one since."""
    assert scorers["legacy"].score("happy", "dog", "CH") == 0
    assert 0 < scorers["modern"].score("happy", "dog", "CH") < 0.3
    assert scorers["legacy"].score("happy dog", "dog", "CH") == 1
    assert scorers["modern"].score("happy dog", "dog", "CH") < 0.3
    # The first word's synset is a verb: an artificial root under both.
    assert scorers["legacy"].score("walk", "walk", "CH") == scorers["modern"].score("walk", "walk", "CH") == 1


def test_modern_rule_is_that_of_the_installed_nltk(scorers, place):
    reader = load_wordnet(place)
    for first, second in [("dog", "cat"), ("eat", "dog"), ("happy", "dog"), ("quickly", "move"), ("smile", "red")]:
        stock = reader.synsets(first)[0].wup_similarity(reader.synsets(second)[0]) or 0
        assert scorers["modern"]._similarity(first, second) == stock


def test_words_are_lemmas_without_stop_words(scorers):
    assert scorers["modern"].words("The dogs were running to it") == ["dog", "run"]
    assert scorers["modern"].words("") == []


@pytest.mark.parametrize(
    ("prediction", "reference", "kind", "additional", "expected"),
    [
        ("two", "2", "DC", None, 0),
        ("two", "two", "DC", None, 1),
        ("the kitchen", "kitchen", "DB", None, 1),
        ("two", "2", "DC", "two", 1),
        ("cat", "dog", "DO", None, 0.857143),
        ("cat", "dog", "DO", "cats", 1),
        ("qzx", "dog", "DO", None, 0),
        ("", "dog", "CW", None, 0),
    ],
)
def test_scores(scorers, prediction, reference, kind, additional, expected):
    assert scorers["modern"].score(prediction, reference, kind, additional) == pytest.approx(expected, abs=1e-6)


def test_threads_get_the_same_scores(place):
    """nltk's reader seeks in shared files; lmms-eval scores in four threads."""
    pairs = [("eat an apple", "eats fruit"), ("ride horse", "riding a bike"), ("black cat", "dog"), ("sit", "lie down")]
    alone = [Wups("modern", place).score(*pair, "CW") for pair in pairs]
    shared = Wups("modern", place)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: shared.score(*pair, "CW"), pairs * 20))
    assert together == alone * 20


def test_groups():
    means = wups_by_group([1.0, 0.5, 0.0, 0.0], ["CW", "CH", "TP", "DC"])
    assert means == {"WUPS": 37.5, "WUPS_C": 75.0, "WUPS_T": 0.0, "WUPS_D": 0.0}


def test_unknown_rule_is_refused():
    with pytest.raises(ValueError, match="Unknown WUPS rule 'old'; choose from legacy, modern"):
        Wups("old")


def test_missing_wordnet_names_places_and_remedies(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=rf"Looked for data.noun in: {tmp_path}\..*KVCOMP_WORDNET_ROOT"):
        Wups(wordnet=tmp_path)
    monkeypatch.setenv("KVCOMP_WORDNET_ROOT", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f"in: {tmp_path}\\."):
        find_wordnet()
    monkeypatch.delenv("KVCOMP_WORDNET_ROOT")
    monkeypatch.setattr(wordnet, "_candidates", lambda: iter([tmp_path / "a", tmp_path / "b.zip"]))
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/a, {tmp_path}/b.zip"):
        find_wordnet()


@pytest.fixture(params=["debian", "nltk archive", "carriage returns"])
def other_source(request, place, tmp_path):
    """WordNet as another source would have it, made from the one at hand."""
    if place.suffix == ".zip":
        pytest.skip("made from a folder")
    folder = tmp_path / "wordnet"
    folder.mkdir()
    needed = ["cntlist.rev", "index.sense"]
    needed += [f"{part}.{kind}" for kind in ("noun", "verb", "adj", "adv") for part in ("index", "data")]
    needed += [f"{kind}.exc" for kind in ("noun", "verb", "adj", "adv")]
    end = b"\r\n" if request.param == "carriage returns" else b"\n"
    for name in needed:
        content = (place / name).read_bytes().replace(b"\r", b"")
        (folder / name).write_bytes(content.replace(b"\n", end))
    if request.param != "nltk archive":
        return folder
    return type(folder)(shutil.make_archive(str(folder), "zip", tmp_path, "wordnet"))


def test_every_source_gives_the_same(other_source, scorers):
    """None of these has ``lexnames``, as Debian's package."""
    assert find_wordnet(other_source) == other_source
    score = Wups("modern", other_source).score("the cats eat", "a dog ate", "CW")
    assert score == scorers["modern"].score("the cats eat", "a dog ate", "CW")
    assert 0 < score < 1
    assert load_wordnet(other_source).synset("dog.n.01").lexname() == "noun.animal"
