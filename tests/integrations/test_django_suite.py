"""How Django's own cache tests are fetched, and when not having them is a failure."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tools import django_suite


@pytest.fixture
def release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> django_suite.Release:
    monkeypatch.setattr(django_suite, "KEPT", tmp_path / "kept")
    return django_suite.Release("1.0", (3, 11), 1)


@pytest.mark.parametrize("ci", [False, True])
def test_without_a_network_the_suite_is_skipped_but_fails_in_ci(
    release: django_suite.Release, monkeypatch: pytest.MonkeyPatch, ci: bool
) -> None:
    def no_network(*_: object, **__: object) -> None:
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setenv("CI", "true") if ci else monkeypatch.delenv("CI", raising=False)
    outcome = django_suite.run(release)
    assert outcome.good is not ci
    assert "no network" in outcome.text


@pytest.mark.parametrize("sound", [False, True])
def test_an_archive_of_another_digest_is_refused(
    release: django_suite.Release, monkeypatch: pytest.MonkeyPatch, sound: bool
) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as members:
        for name in ("django-1.0/tests/cache/tests.py", "django-1.0/tests/cache/../../out.py", "django-1.0/setup.py"):
            members.addfile(tarfile.TarInfo(name), io.BytesIO())
    digest = hashlib.sha256(archive.getvalue() if sound else b"").hexdigest()
    file = {"packagetype": "sdist", "url": "../../packages/django-1.0.tar.gz", "digests": {"sha256": digest}}
    pages = {
        django_suite.INDEX: json.dumps({"releases": {"1.0": [file]}}).encode(),
        "https://pypi.org/packages/django-1.0.tar.gz": archive.getvalue(),
    }
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(pages[url]))
    if sound:
        tests = django_suite.fetch_tests(release)
        assert [path.name for path in django_suite.KEPT.rglob("*.py")] == ["tests.py"]
        assert (tests / "cache" / "tests.py").is_file()
    else:
        with pytest.raises(RuntimeError, match="SHA-256"):
            django_suite.fetch_tests(release)
        assert not list(django_suite.KEPT.rglob("*.py"))


def test_a_python_that_is_too_old_is_no_failure(release: django_suite.Release, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    outcome = django_suite.run(release._replace(python=(4, 0)))
    assert outcome.good
    assert "needs Python 4.0" in outcome.text
