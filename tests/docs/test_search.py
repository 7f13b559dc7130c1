"""What newcomers type into the site's search is answered among the first three hits."""

import re

import pytest

from tests.docs.blocks import ROOT
from tests.docs.searching import BROWSER, search

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine: the site was not searched")

FAQ = (ROOT / "docs" / "faq.md").read_text(encoding="utf-8")
QUESTIONS = re.findall(r"^## (.*)$", FAQ, re.M)

WORDS = {
    "LoRA": ("faq/#does-it-work-with-lora-adapters", "networks/"),
    "GDPR": ("data_protection/", "faq/#does-this-make-me-comply-with-the-gdpr"),
    "augmentation": ("faq/#what-about-data-augmentation",),
    "callback": ("faq/#is-there-a-callback-or-recorder-for-my-training", "record_a_training/#with-other-trainers"),
    "recorder": ("faq/#is-there-a-callback-or-recorder-for-my-training", "record_a_training/"),
    "lightning": ("faq/#does-it-work-with-hugging-face-and-lightning", "record_a_training/#with-other-trainers"),
    "how long": ("faq/#how-long-does-it-take",),
    "how much time does a request take": ("faq/#how-long-does-it-take",),
    "verdict meaning": ("faq/#what-does-the-verdict-mean", "reading_the_report/#the-word-at-the-top"),
    "inconclusive": ("faq/#what-does-the-verdict-mean", "reading_the_report/#the-word-at-the-top"),
    "forget whole class": ("faq/#can-i-forget-a-whole-class", "gallery/#forget-a-class"),
    "no training data": ("faq/#what-if-the-training-data-are-gone",),
    "I lost the recipe": ("faq/#what-if-i-have-no-recipe-or-initial-weights",),
    "what is deleted": ("faq/#what-is-deleted-destroyed-or-purged-and-when",),
    "purge": ("faq/#what-is-deleted-destroyed-or-purged-and-when",),
    "exit codes": ("faq/#what-do-the-exit-codes-say", "reading_the_report/#all-exit-codes"),
    "GPU memory": ("faq/#how-much-gpu-memory-does-it-need",),
    "out of memory": ("faq/#how-much-gpu-memory-does-it-need",),
    "erasure article 17": ("data_protection/#which-articles-it-touches",),
    "template letter to person": ("data_protection/#a-template-answer-to-the-person",),
    "OpenUnlearning": ("comparison/",),
    "supported networks": ("support/#networks-trainings-audits", "support/"),
}
"""A few words, as typed, and where the answer is: one of these must be found."""


@pytest.fixture(scope="module")
def hits(site, tmp_path_factory):
    return search(site, [*QUESTIONS, *WORDS], tmp_path_factory.mktemp("search"))


def first_three(found: list[list[str]]) -> list[str]:
    """The first three pages, each with the three places on it that a reader sees without unfolding the rest."""
    return [place for page in found[:3] for place in page[:3]]


def test_there_are_enough_questions():
    assert len(QUESTIONS) >= 10


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_as_it_stands_finds_its_answer(hits, question):
    anchor = re.sub(r"[^\w]+", "-", question.lower()).strip("-")
    assert f"faq/#{anchor}" in first_three(hits[question])


@pytest.mark.parametrize("typed", WORDS)
def test_a_few_words_find_the_answer(hits, typed):
    assert set(WORDS[typed]) & set(first_three(hits[typed])), first_three(hits[typed])


def test_words_that_are_nowhere_find_nothing(site, tmp_path):
    assert search(site, ["xyzzyplugh"], tmp_path) == {"xyzzyplugh": []}
