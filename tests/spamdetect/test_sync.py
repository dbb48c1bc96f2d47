"""The blocking client: the async client's twin, and good manners towards its process."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from spamdetect import (
    AsyncSpamClient,
    SpamAuthError,
    SpamClient,
    SpamRequestError,
)
from spamdetect.testing import RunningService


def _surface(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member)
        for name, member in vars(kind).items()
        if callable(member) and (not name.startswith("_") or name == "__init__")
    }


def test_the_twins_have_the_same_methods_and_arguments() -> None:
    blocking, asynchronous = _surface(SpamClient), _surface(AsyncSpamClient)
    asynchronous["close"] = asynchronous.pop("aclose")
    assert blocking.keys() == asynchronous.keys()
    for name, signature in blocking.items():
        theirs = asynchronous[name].parameters
        assert list(signature.parameters) == list(theirs), name
        for parameter in signature.parameters.values():
            other = theirs[parameter.name]
            assert (parameter.kind, parameter.default) == (other.kind, other.default), name
            if parameter.name != "texts":
                assert parameter.annotation == other.annotation, name


def test_every_method_works(service: RunningService, spam_text: str) -> None:
    with SpamClient(service.base_url, service.api_key) as spam:
        assert spam.predict(spam_text).is_spam
        assert spam.preprocess(spam_text).word_count > 5
        spam.withdraw_feedback(spam.send_feedback(spam_text, is_spam=True))
        texts: list[Any] = ["a", None, *(f"text {n}" for n in range(100))]
        items = list(spam.predict_many(texts, concurrency=7))
        assert [item.index for item in items] == list(range(102))
        assert isinstance(items[1].error, SpamRequestError)
        assert items[5].unwrap().input_text == "text 3"


@pytest.mark.parametrize("local", [False, True])
def test_a_closed_client_says_so_and_starts_nothing(service: RunningService, local: bool) -> None:
    spam = SpamClient(service.base_url, service.api_key, local=local)
    assert spam.predict("hello").text_length == 5
    spam.close()
    spam.close()
    threads = threading.active_count()
    calls: list[Any] = [
        lambda: spam.predict("hello"),
        lambda: spam.preprocess("hello"),
        lambda: spam.predict_batch(["hello"]),
        lambda: list(spam.predict_many(["hello"])),
        lambda: spam.send_feedback("hello", is_spam=True),
        spam.lists,
        spam.__enter__,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="client has been closed"):
            call()
    assert threading.active_count() == threads


def test_threads_share_a_client(service: RunningService) -> None:
    lengths: list[int] = []
    with SpamClient(service.base_url, service.api_key) as spam:

        def work(number: int) -> None:
            lengths.append(spam.predict("x" * number).text_length)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(40)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(lengths) == list(range(40))


def test_the_service_errors_are_raised(service: RunningService) -> None:
    with (
        SpamClient(service.base_url, "wrong") as spam,
        pytest.raises(SpamAuthError) as caught,
    ):
        spam.predict("hello")
    assert caught.value.error_code == "INVALID_API_KEY"


@pytest.mark.asyncio
async def test_it_works_where_a_loop_runs(service: RunningService) -> None:
    with SpamClient(service.base_url, service.api_key) as spam:
        assert spam.predict("hello").text_length == 5


def test_one_text_is_not_many(service: RunningService) -> None:
    for spam in (SpamClient(service.base_url, service.api_key), SpamClient(local=True)):
        with spam, pytest.raises(SpamRequestError, match="not one str"):
            list(spam.predict_many("abc"))


def test_local_mode_starts_no_thread(spam_text: str) -> None:
    before = threading.active_count()
    with SpamClient(local=True) as spam:
        assert spam.predict(spam_text).is_spam
        texts: list[Any] = [spam_text, None]
        assert [item.error is None for item in spam.predict_many(texts)] == [True, False]
        assert threading.active_count() == before


def _run(script: str, service: RunningService, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "SPAMDETECT_BASE_URL": service.base_url,
        "SPAMDETECT_API_KEY": service.api_key,
    }
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
        **options,
    )


def test_exit_without_close_ends_quietly(service: RunningService) -> None:
    done = _run(
        """
        from spamdetect import SpamClient
        spam = SpamClient()
        print(spam.predict("hello").text_length)
        """,
        service,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5\n", "")


def test_a_forked_child_starts_its_own_thread(service: RunningService) -> None:
    done = _run(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # fork with threads is the point
        from spamdetect import SpamClient
        spam = SpamClient()
        spam.predict("hello")
        child = os.fork()
        if child == 0:
            print("child", spam.predict("four").text_length, flush=True)
            os._exit(0)
        print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        print("parent", spam.predict("hello").text_length)
        """,
        service,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["child 4", "exit 0", "parent 5"]


def test_a_fork_under_the_held_lock_does_not_hang(service: RunningService) -> None:
    done = _run(
        """
        import os, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from spamdetect import SpamClient
        spam = SpamClient()
        with spam._lock:
            child = os.fork()
            if child == 0:
                print(spam.predict("four").text_length, flush=True)
                os._exit(0)
        print("exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        """,
        service,
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["4", "exit 0"]


def test_ctrl_c_interrupts_a_waiting_call() -> None:
    script = """
    import socket, sys
    from spamdetect import SpamClient
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        spam = SpamClient(url, "key", timeout=50)
        import threading
        def tell():
            silent.accept()
            print("waiting", flush=True)
        threading.Thread(target=tell, daemon=True).start()
        try:
            spam.predict("hello")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (out, err, process.returncode) == ("interrupted\n", "", 0)
