"""Requests of all sorts while the desk is killed again and again: none lost, none served twice, each with a receipt."""

import pytest

pytest.importorskip("dbos", reason="the extra `serve` is not installed")

from tests.postgresql import new_database
from tests.serve.storm import Storm


def test_a_few_kills_lose_nothing_and_serve_nothing_twice(tmp_path):
    Storm(tmp_path, requests=40, kills=8).run()


def test_a_few_kills_of_four_workers_on_postgresql(tmp_path, postgresql):
    Storm(tmp_path, requests=40, kills=8, database=new_database(postgresql), workers=4).run()


@pytest.mark.slow
def test_two_hundred_kills(tmp_path):
    print(Storm(tmp_path, requests=1000, kills=200, seed=1).run())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_two_hundred_kills_on_postgresql(tmp_path, postgresql, workers):
    print(Storm(tmp_path, requests=1000, kills=200, database=new_database(postgresql), workers=workers, seed=2).run())
