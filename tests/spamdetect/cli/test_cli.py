"""Every command as a newcomer runs it, and every error as one line."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from spamdetect import SpamClient
from spamdetect.cli import main
from spamdetect.engine import Engine, native
from spamdetect.files.journal import Journal, Origin, Verdict
from spamdetect.testing import RunningService
from tests.spamdetect.conftest import PATIENT
from tests.support.waiting import WAIT_S

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "SPAMDETECT" not in name}
    return {
        **kept,
        **PATIENT,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "COLUMNS": "80",
        "NO_COLOR": "1",
    }


@pytest.fixture
def run(
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    """Run a command in this process, with an environment and an input of its own."""

    def runner(
        *arguments: str, env: dict[str, str] | None = None, stdin: str | bytes = ""
    ) -> subprocess.CompletedProcess[str]:
        content = stdin.encode() if isinstance(stdin, str) else stdin
        with monkeypatch.context() as patched:
            for name in [name for name in os.environ if "SPAMDETECT" in name]:
                patched.delenv(name)
            for name, value in {**environment, **(env or {})}.items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
            capsys.readouterr()
            try:
                code = main.run(arguments)
            except SystemExit as exit_:
                code = int(exit_.code or 0)
            shown = capsys.readouterr()
        return subprocess.CompletedProcess(arguments, code, shown.out, shown.err)

    return runner


def test_every_screen_fits_80_columns_and_every_command_has_help(run: Run) -> None:
    first = run("--help").stdout
    commands = re.findall(r"^  ([a-z]+)  ", first.partition("Commands:")[2], re.MULTILINE)
    assert {"predict", "classify", "serve", "bot", "keys", "train", "evaluate"} <= set(commands)
    assert {"explain", "doctor"} <= set(commands)
    for arguments in [[], *([name] for name in commands), ["keys", "create"], ["keys", "revoke"]]:
        done = run(*arguments, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert all(len(line) <= 80 for line in done.stdout.splitlines()), done.stdout
    assert "spamdetect" in run("--version").stdout


def test_predict(run: Run, spam_text: str) -> None:
    done = run("predict", spam_text)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("SPAM  (spam ")
    assert "language en" in done.stdout
    piped = run("predict", "-", stdin=spam_text)
    assert piped.stdout == done.stdout
    answer = json.loads(run("predict", "--json", spam_text).stdout)
    assert answer["data"]["prediction"]["is_spam"] is True
    assert "TEXT_EMPTY" in run("predict", " ").stdout
    assert run("predict", "-", stdin="Gr\xfc\xdfe aus K\xf6ln".encode("latin-1")).returncode == 0


def test_predict_with_a_service(run: Run, service: RunningService, spam_text: str) -> None:
    key = {"SPAMDETECT_API_KEY": service.api_key}
    done = run("predict", "--base-url", service.base_url, spam_text, env=key)
    assert done.stdout == run("predict", spam_text).stdout
    refused = run("predict", "--base-url", service.base_url, "x")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("Error: No API key.")
    away = run("predict", "--base-url", "http://127.0.0.1:1", "x", env=key)
    assert away.returncode == 1
    assert "Is the service running?" in away.stderr
    assert len(away.stderr.splitlines()) == 1


def test_lists_and_feedback_at_a_service(run: Run, service: RunningService, ham_text: str) -> None:
    env = {"SPAMDETECT_API_KEY": service.api_key, "SPAMDETECT_BASE_URL": service.base_url}
    ask = ("predict", ham_text, "--base-url", service.base_url, "--reasons")
    assert "No entries" in run("lists", "show", env=env).stdout
    entry_id = run("lists", "add", "block", "phrase", "moved to [Thursday]", env=env).stdout.strip()
    try:
        assert "moved to [Thursday]" in run("lists", "show", env=env).stdout
        done = run(*ask, env=env)
        assert done.stdout.startswith("SPAM")
        assert f"list:block:phrase:{entry_id}" in done.stdout.replace("\n", "")
    finally:
        assert run("lists", "remove", entry_id, env=env).returncode == 0
    done = run("lists", "remove", entry_id, env=env)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert run(*ask, env=env).stdout.startswith("not spam")
    assert "No reports" in run("feedback", "show", env=env).stdout
    given = run("feedback", "give", "-", "--spam", "--id", "mine", env=env, stdin=ham_text)
    try:
        assert given.stdout == "mine\n"
        assert "mine" in run("feedback", "show", env=env).stdout
        assert run(*ask, env=env).stdout.startswith("SPAM")
    finally:
        assert run("feedback", "withdraw", "mine", env=env).returncode == 0
    assert run(*ask, env=env).stdout.startswith("not spam")


def test_explain(run: Run, spam_text: str) -> None:
    done = run("explain", spam_text, "--top", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^[+-]\d\.\d\d ", done.stdout, re.MULTILINE)) == 5
    assert all(len(line) <= 80 for line in done.stdout.splitlines())


def test_keys_are_created_listed_and_revoked(run: Run) -> None:
    assert "No keys" in run("keys", "list").stdout
    created = run("keys", "create", "--label", "my app", "--quota-per-day", "5")
    assert re.fullmatch(r"spam_\w{12}_[\w-]{43}\n", created.stdout)
    assert "shown this once" in created.stderr
    listed = run("keys", "list").stdout
    key_id = created.stdout.split("_")[1]
    assert key_id in listed
    assert "my app" in listed
    assert "5/day" in listed
    assert created.stdout.strip()[18:] not in listed
    assert run("keys", "revoke", created.stdout.strip()).stdout == f"Key {key_id} is revoked.\n"
    assert "No keys" in run("keys", "list").stdout
    assert "revoked" in run("keys", "list", "--all").stdout
    again = run("keys", "revoke", key_id)
    assert again.returncode == 1
    assert again.stderr.startswith("Error: There is no active key")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["predict"], 2, "Missing argument 'TEXT'"),
        (["nonsense"], 2, "No such command 'nonsense'"),
        (["keys", "list", "--database-url", "mysql://x"], 1, "must be sqlite:///path"),
        (["keys", "list", "--database-url", "sqlite:////proc/none/x"], 1, "Cannot open"),
        (["serve", "--port", "99999"], 1, "port must lie between 0 and 65535"),
        (["serve", "--host", "no.such.host.invalid", "--port", "0"], 1, "no address"),
        (["serve", "--model", "/nowhere", "--port", "0"], 1, "model cannot be loaded"),
        (["classify", "/nowhere"], 2, "does not exist"),
        (["bot"], 1, "No bot token"),
    ],
)
def test_an_error_is_a_line_a_person_can_act_on(
    run: Run, arguments: list[str], code: int, message: str
) -> None:
    done = run(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    if code == 1:
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("Error: ")


def test_doctor(run: Run, service: RunningService) -> None:
    done = run("doctor")
    assert done.returncode == 0, done.stdout
    assert "Everything that is set up works." in done.stdout
    says = "compiled" if native.compiled else "not compiled: "
    assert re.search(rf"Speed-ups +\w+ +{says}", done.stdout)
    off = run("doctor", env={"SPAMDETECT_SPEEDUPS": "0"})
    assert off.returncode == 0
    assert "switched off by SPAMDETECT_SPEEDUPS=0" in off.stdout
    good = {"SPAMDETECT_BASE_URL": service.base_url, "SPAMDETECT_API_KEY": service.api_key}
    assert "answers in" in run("doctor", env=good).stdout
    bad = {
        "SPAMDETECT_BASE_URL": "http://127.0.0.1:1",
        "SPAMDETECT_API_KEY": "key",
        "SPAMDETECT_REDIS_URL": "redis://:hunter2@127.0.0.1:1",
        "SPAMDETECT_DATABASE_URL": "postgresql://u:hunter2@127.0.0.1:1/x",
    }
    done = run("doctor", env=bad)
    assert done.returncode == 1
    assert "3 of 9 checks failed." in done.stdout
    assert "hunter2" not in done.stdout + done.stderr


def test_train_and_evaluate(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [
        {"text": f"win a free prize {n}, call now http://bit.ly/a", "label": "spam"}
        for n in range(40)
    ] + [{"text": f"see you at the station at {n} tomorrow", "label": "ham"} for n in range(40)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    models = [tmp_path / "one.model", tmp_path / "two.model"]
    for model, options in zip(models, ([], ["--jobs", "2"]), strict=True):
        done = run("train", str(data), "-o", str(model), *options)
        assert done.returncode == 0, done.stderr
        assert "trained in" in done.stdout
    assert models[0].read_bytes() == models[1].read_bytes()
    figures = json.loads(run("evaluate", str(data), "--model", str(models[0]), "--json").stdout)
    assert figures["texts"] == 80
    assert figures["auc"] > 0.95
    assert "80 texts, model" in run("evaluate", str(data)).stdout
    data.write_text('{"text": "a", "label": "x"}\n')
    for command in (["evaluate", str(data)], ["train", str(data), "-o", str(tmp_path / "x")]):
        wrong = run(*command)
        assert wrong.returncode == 1
        assert "line 1: label 'x' is neither spam nor ham" in wrong.stderr
    assert not (tmp_path / "x").exists()


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_classify_gives_the_verdicts_of_the_service(
    run: Run, service: RunningService, tmp_path: Path, spam_text: str, ham_text: str
) -> None:
    texts = [spam_text, ham_text, "", "日本語", "x" * 5000, *(f"{ham_text} {n}" for n in range(50))]
    source = tmp_path / "in.csv"
    with source.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["id", "text"])
        writer.writerows(enumerate(texts))
    done = run("classify", str(source))
    assert (done.returncode, done.stdout) == (0, "")
    assert f"{len(texts)} texts: " in done.stderr
    rows = _rows(tmp_path / "in.csv.verdicts.csv")
    with SpamClient(service.base_url, service.api_key) as spam:
        for row, item in zip(rows, spam.predict_many(texts), strict=True):
            result = item.unwrap()
            assert row["is_spam"] == str(result.is_spam).lower()
            assert float(row["spam_score"]) == result.prediction.spam_score
            assert row["language"] == result.language.language
            assert int(row["text_length"]) == result.text_length
            assert int(row["word_count"]) == result.word_count
            assert row["error_code"] == result.error_code
    assert sorted(file.name for file in tmp_path.glob("in*")) == ["in.csv", "in.csv.verdicts.csv"]


def test_classify_writes_every_output(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "hello"}\nbroken\n{"text": "win a prize now"}\n')
    expected: list[dict[str, Any]] = []
    for suffix in ("jsonl", "csv", "parquet"):
        output = tmp_path / f"out.{suffix}"
        if suffix == "parquet":
            pq = pytest.importorskip("pyarrow.parquet")
        done = run("classify", str(source), "-o", str(output), "--with-text")
        assert done.returncode == 0, done.stderr
        assert "1 records without text" in done.stderr
        if suffix == "jsonl":
            expected = [json.loads(line) for line in output.read_text().splitlines()]
            assert [row["text"] for row in expected] == ["hello", None, "win a prize now"]
            assert [row["error_code"] for row in expected] == ["", "INVALID_RECORD", ""]
        elif suffix == "csv":
            assert [row["text"] for row in _rows(output)] == ["hello", "", "win a prize now"]
        else:
            assert pq.read_table(output).to_pylist() == expected
    wrong = run("classify", str(source), "-o", str(tmp_path / "out.xml"))
    assert wrong.returncode == 1
    assert "must end in .csv, .jsonl or .parquet" in wrong.stderr


def test_a_left_journal_of_something_else_is_not_mixed_in(run: Run, tmp_path: Path) -> None:
    source = tmp_path / "in.txt"
    source.write_text("one\ntwo\n")
    part = tmp_path / "in.txt.verdicts.csv.part"
    part.write_text('{"input_name":"other"}\n{"index":0}\n')
    done = run("classify", str(source))
    assert done.returncode == 1
    assert "--restart" in done.stderr
    assert run("classify", str(source), "--restart").returncode == 0
    assert len(_rows(tmp_path / "in.txt.verdicts.csv")) == 2
    assert not part.exists()


def test_an_error_leaves_no_journal_behind(run: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.write_text("one,two\n1,2\n", encoding="utf-8")
    assert run("classify", str(texts), "--format", "csv").returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_a_run_without_a_single_text_fails(run: Run, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("[1]\n[2]\n", encoding="utf-8")
    found = run("classify", str(texts))
    assert (found.returncode, "holds a text" in found.stderr) == (1, True)
    assert run("classify", str(texts), "--format", "lines").returncode == 0


def test_bytes_that_are_no_text_are_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "texts").write_bytes(random.Random(1).randbytes(3000))
    for found in (
        run("classify", str(tmp_path / "texts")),
        run("predict", "-", stdin=random.Random(1).randbytes(3000)),
    ):
        assert found.returncode == 1
        assert "does not look like text" in found.stderr


@pytest.mark.parametrize("earlier", [2, 3])
def test_what_is_said_of_a_resumed_run_counts_its_earlier_verdicts(
    run: Run, tmp_path: Path, spam_text: str, earlier: int
) -> None:
    texts, output = tmp_path / "texts.txt", tmp_path / "out.csv"
    texts.write_text(f"hello there\n{spam_text}\nsee you\n", encoding="utf-8")
    engine = Engine.load()
    origin = Origin(
        str(texts.resolve()), texts.stat().st_size, texts.stat().st_mtime_ns, "lines", None,
        engine.model_version, engine.threshold, False,
    )  # fmt: skip
    with Journal(output, origin) as journal:
        for index in range(earlier):
            journal.add(Verdict(index, is_spam=index == 1))
    found = run("classify", str(texts), "-o", str(output))
    assert found.returncode == 0
    assert f"3 texts ({earlier} of them by earlier runs): 1 spam, 2 not spam" in found.stderr
    assert len(_rows(output)) == 3


@pytest.mark.fault
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_classify_survives_a_signal_and_resumes(
    run: Run, environment: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    source = tmp_path / "big.txt"
    lines = 100_000 if number == signal.SIGINT else 20_000
    source.write_text(
        "".join(f"line {n}: win a free prize or see you at lunch {n % 97}\n" for n in range(lines))
    )
    part = tmp_path / "big.txt.verdicts.csv.part"
    command = [sys.executable, "-m", "spamdetect", "classify", str(source), "--processes", "2"]
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + WAIT_S
        while not part.exists() or part.stat().st_size < 200_000:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        if number == signal.SIGKILL:
            process.kill()
        else:
            # To the whole group, as a terminal does with Ctrl-C.
            os.killpg(process.pid, number)
        _, err = process.communicate(timeout=WAIT_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if number == signal.SIGKILL:
        # Cut in the middle of a line, as a full disk or a power failure can leave it.
        with part.open("r+b") as stream:
            stream.truncate(part.stat().st_size - 7)
    else:
        assert process.returncode == 130
        assert "The same command again goes on." in err
        assert "Traceback" not in err
    kept = part.read_bytes().count(b"\n") - 1
    assert 0 < kept < lines
    done = run("classify", str(source), "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert f"Going on behind the first {kept:,} texts." in done.stderr
    assert f"{lines:,} texts ({kept:,} of them by earlier runs)" in done.stderr
    rows = _rows(tmp_path / "big.txt.verdicts.csv")
    assert [int(row["index"]) for row in rows] == list(range(lines))
    with SpamClient(local=True) as spam:
        for index in (0, kept - 1, kept, kept + 1, lines - 1):
            text = f"line {index}: win a free prize or see you at lunch {index % 97}"
            assert float(rows[index]["spam_score"]) == spam.predict(text).prediction.spam_score


def test_progress_is_shown_on_a_terminal(environment: dict[str, str], tmp_path: Path) -> None:
    pty = pytest.importorskip("pty")
    source = tmp_path / "in.txt"
    source.write_text("".join(f"line {n} with a few words to classify\n" for n in range(12_000)))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(
            sys.executable,
            [sys.executable, "-m", "spamdetect", "classify", str(source), "--processes", "1"],
            {**environment, "TERM": "xterm"},
        )
    shown = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert b"Classifying" in shown
    assert b"%" in shown
    assert b"12,000 texts: " in shown


def test_a_closed_pipe_is_no_error(environment: dict[str, str]) -> None:
    done = subprocess.run(
        f"{sys.executable} -m spamdetect predict --json hello | true",
        shell=True,
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )
    assert "Traceback" not in done.stderr


def test_three_services_on_one_fresh_store_print_one_first_key(
    environment: dict[str, str],
) -> None:
    command = [sys.executable, "-m", "spamdetect", "serve", "--port", "0"]
    services = [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**environment, "PYTHONUNBUFFERED": "1"},
        )
        for _ in range(3)
    ]
    shown = []
    try:
        for service in services:
            assert service.stdout is not None
            first = service.stdout.readline()
            assert "listens on" in first, first + service.stdout.read()
        for service in services:
            service.send_signal(signal.SIGTERM)
            assert service.stdout is not None
            shown.append(service.stdout.read())
    finally:
        for service in services:
            service.kill()
            service.communicate()
    assert sum("Your first API key" in text for text in shown) == 1
    for text in shown:
        assert "SPAMDETECT_BASE_URL" in text
        assert "SPAMDETECT_API_KEY" in text


def test_serve_takes_a_signal_and_exits_cleanly(environment: dict[str, str]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        process = subprocess.Popen(
            [sys.executable, "-m", "spamdetect", "serve", "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert re.match(r"spamdetect listens on http://127\.0\.0\.1:\d+", line), line
            process.send_signal(number)
            out, err = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
        assert process.returncode == 0
        assert out.endswith("Stopped.\n")
        assert err == ""
