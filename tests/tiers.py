"""What kind a test is, found rather than remembered: by what it uses, by where it stands, by what it does.

A test that starts a process and is not marked fails: `make test` would slow down unseen.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import pytest

Function = TypeVar("Function", bound=Callable[..., Any])
KINDS = {"process", "browser", "docs"}
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
_started: list[str] = []


def _heed(event: str, arguments: tuple[Any, ...]) -> None:
    """Note what the interpreter says it starts; such a hook stays until the process ends."""
    if event in STARTS:
        _started.append(f"{event} {str(arguments[:2])[:200]}")


_start = BaseProcess.start


def _start_and_note(process: BaseProcess) -> None:
    """Note what multiprocessing starts, of which the interpreter says nothing."""
    _started.append(f"multiprocessing {process.name}")
    _start(process)


sys.addaudithook(_heed)
BaseProcess.start = _start_and_note  # type: ignore[method-assign]


def makes(kind: str) -> Callable[[Function], Function]:
    """Say of a fixture, below `@pytest.fixture`, that every test which uses it is of a kind."""

    def decorate(function: Function) -> Function:
        vars(function)["kind_of_tests"] = kind
        return function

    return decorate


def quick(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Let `make test` run some of the cases of a test that it leaves to `make test-full` otherwise."""
    return _marked(pytest.mark.quick, cases, chosen)


def full(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Leave some of the cases of a test to `make test-full`."""
    return _marked(pytest.mark.full, cases, chosen)


def few(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Let `make test` run these cases of a test alone, and leave all others to `make test-full`."""
    found = list(cases)
    assert chosen
    assert all(case in found for case in chosen), [case for case in chosen if case not in found]
    return full(found, *(case for case in found if case not in chosen))


def slow(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Leave some of the cases of a test to `make test-all`."""
    return _marked(pytest.mark.slow, cases, chosen)


def _marked(mark: pytest.MarkDecorator, cases: Iterable[Any], chosen: tuple[Any, ...]) -> list[Any]:
    found = list(cases)
    assert all(case in found for case in chosen), [case for case in chosen if case not in found]
    marked = [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark) for case in found]
    return [one if case in chosen else case for case, one in zip(found, marked, strict=True)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use such fixtures, directly or through others."""
    for item in items:
        assert isinstance(item, pytest.Function)
        for definitions in item._fixtureinfo.name2fixturedefs.values():
            kind = getattr(definitions[-1].func, "kind_of_tests", None)
            if kind is not None:
                item.add_marker(kind)
    items.sort(key=_uses_the_pool)


def _uses_the_pool(item: pytest.Item) -> bool:
    """Tell who comes last: ranks that rest cost as much as a test, so they start when nothing else is left to run."""
    return isinstance(item, pytest.Function) and "pool" in item.fixturenames


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while tests are read: they stay, and to look through all of them takes a fifth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Forget what reading the tests has started, to see what this machine can do.

    And leave what is there now to no collection of garbage: six thousand tests are half a second each time.
    """
    _started.clear()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_process_in_secret(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that starts a process, itself or through its fixtures, and is not marked."""
    yield
    started = list(_started)
    _started.clear()
    if started and not KINDS & {mark.name for mark in request.node.iter_markers()}:
        pytest.fail(f"starts a process, so mark it `process` (see CONTRIBUTING.md): {started[:3]}")
