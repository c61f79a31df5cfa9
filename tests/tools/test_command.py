"""Global options work wherever they stand, and every wrong line ends with 64 and a sentence."""

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from shmq.errors import BrokerNotRunning, UsageError
from shmq.tools import cli as root
from shmq.tools.cli import COMMANDS, cli, main
from shmq.tools.command import Call, Command, Content, Duration, Size, pass_call
from shmq.tools.terminal.output import Column
from tests.tables.rows import every_row


@click.command(cls=Command)
@pass_call
def probe(call: Call) -> None:
    call.terminal.document({"url": call.url, "timeout": call.timeout, "verbose": call.style.verbose})


@click.command(cls=Command)
@click.argument("how")
def failing(how: str) -> None:
    if how == "known":
        raise BrokerNotRunning("no broker is there", hint="shmq serve")
    if how == "interrupted":
        raise KeyboardInterrupt
    if how == "pipe":
        raise BrokenPipeError
    raise RuntimeError("surprise")


@pytest.fixture(autouse=True)
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"probe": probe, "failing": failing, "listing": listing}
    real = cli.get_command
    monkeypatch.setattr(cli, "get_command", lambda ctx, name: more.get(name) or real(ctx, name))


LINES = [
    ["--json", "-u", "shmq://a", "--timeout", "2s", "-v", "probe", "-v"],
    ["probe", "--json", "-u", "shmq://a", "--timeout", "2s", "-vv"],
    ["-u", "shmq://b", "--timeout", "9", "-v", "probe", "--url=shmq://a", "--timeout=2000ms", "--json", "-v"],
]


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_global_options_stand_before_or_after_the_command(line: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 0
    out = json.loads(capfd.readouterr().out)
    assert out == {"url": "shmq://a", "timeout": 2.0, "verbose": 2}


@pytest.mark.parametrize(
    "line",
    [
        ["nonsense"],
        ["topic", "nonsense"],
        ["probe", "--nonsense"],
        ["probe", "too", "many"],
        ["produce"],
        ["consume"],
        ["probe", "--timeout", "soon"],
        ["produce", "t", "body", "--file", __file__],
        ["produce", "t", "-P", "novalue"],
        ["produce", "t", "--delimiter", "x", "-0"],
    ],
    ids=" ".join,
)
def test_a_line_that_is_not_understood_ends_with_64(line: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(line) == 64
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("error: ") and "\n  do    " in err
    assert main([*line, "--json"]) == 64
    document = json.loads(capfd.readouterr().err)
    assert document["exit"] == 64 and document["error"] and document["hint"]


def test_a_misspelt_command_names_the_nearest(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["prodcue", "x"]) == 64
    assert "did you mean: shmq produce" in capfd.readouterr().err


def test_json_after_two_dashes_is_data_not_an_option(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["failing", "--", "known", "--json"]) == 64
    assert capfd.readouterr().err.startswith("error: ")


def test_a_known_error_is_one_sentence_and_its_status(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["failing", "known"]) == 69
    assert capfd.readouterr().err == "error: no broker is there\n  do    shmq serve\n"


@pytest.mark.parametrize("form", ["--json", "--jsonl"])
def test_a_known_error_in_json_is_one_object_on_stderr(form: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["failing", "known", form]) == 69
    out, err = capfd.readouterr()
    assert out == "" and err.count("\n") == 1
    document = json.loads(err)
    assert document["code"] == BrokerNotRunning.code
    assert (document["error"], document["hint"]) == ("no broker is there", "shmq serve")
    assert (document["type"], document["retryable"], document["exit"]) == ("BrokerNotRunning", True, 69)


def test_an_interrupted_command_ends_with_130(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["failing", "interrupted"]) == 130


def test_an_unexpected_exception_leaves_a_report(
    capfd: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["failing", "other"]) == 70
    err = capfd.readouterr().err
    assert "internal error: RuntimeError: surprise" in err and "Traceback" not in err
    path = err.split("please report it with ")[1].strip()
    with open(path) as report:
        assert "RuntimeError: surprise" in report.read()


def test_help_names_every_command_without_importing_one() -> None:
    result = CliRunner().invoke(cli, ["--help"])
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert f"  {name} " in result.output and entry.help.split(":")[0] in result.output


def test_the_root_and_every_noun_explain_themselves_when_named_alone() -> None:
    for line in ([], ["topic"], ["group"], ["offset"], ["completion"]):
        result = CliRunner().invoke(cli, line)
        assert result.exit_code == 0, line
        assert "Usage: shmq" in result.output or "Usage: " in result.output


@every_row("name", list(COMMANDS))
def test_every_command_of_the_table_exists_and_has_help(name: str) -> None:
    result = CliRunner().invoke(cli, [name, "--help"])
    assert result.exit_code == 0, result.output
    command = cli.get_command(click.Context(cli), name)
    assert command is not None and command.name == name
    for part in command.commands.values() if isinstance(command, click.Group) else [command]:
        assert part.get_short_help_str()
        assert {"json", "url", "timeout"} <= {parameter.name for parameter in part.params}


def _leaves(command: click.Command, context: click.Context) -> Iterator[click.Command]:
    if not isinstance(command, click.Group):
        yield command
        return
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from _leaves(found, context)


def _words_for(param: click.Parameter, is_wrong: bool) -> list[str]:
    kind = param.type
    word = "a=\udcff" if is_wrong else "1"
    if isinstance(kind, click.Path):
        word = __file__ if kind.file_okay else "/"
    elif isinstance(kind, click.Choice):
        word = kind.choices[0]
    if isinstance(param, click.Argument):
        return [word]
    return [param.opts[0], word] if is_wrong or param.required else []


def test_no_word_of_any_command_but_bodies_and_paths_has_bytes_that_are_not_utf8() -> None:
    wrong = []
    for command in _leaves(cli, click.Context(cli)):
        for param in command.params:
            if param.type is click.STRING:
                line = [word for other in command.params for word in _words_for(other, other is param)]
                try:
                    command.make_context(command.name, line)
                    wrong.append(f"{command.name} takes {line}")
                except (UsageError, click.UsageError) as error:
                    if "UTF-8" not in str(error):
                        wrong.append(f"{command.name} {line}: {error}")
    assert not wrong, "\n".join(wrong)


def test_bodies_are_the_bytes_that_were_typed() -> None:
    assert Content().convert("a\udcff", None, None) == b"a\xff"


def test_parameter_types_take_numbers_and_refuse_nonsense() -> None:
    assert Duration().convert(1, None, None) == 1.0
    assert Size().convert("64m", None, None) == 64 << 20
    with pytest.raises(click.BadParameter):
        Size().convert("much", None, None)


def test_the_form_of_errors_is_known_before_the_line_is_understood() -> None:
    assert root._form_asked_for(["a", "--jsonl", "--json"]) == "jsonl"
    assert root._form_asked_for(["a", "--", "--json"]) == "text"


def test_a_closed_reader_ends_a_command_quietly(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(root, "forget", lambda stream: None)
    assert main(["failing", "pipe"]) == 0
    assert capfd.readouterr().err == ""


def test_usage_errors_carry_the_help_of_the_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--nonsense"]) == 64
    assert "see shmq probe --help" in capfd.readouterr().err
    assert isinstance(root._usage_error(click.UsageError("x")), UsageError)


@click.command(cls=Command)
@pass_call
def listing(call: Call) -> None:
    rows = [{"name": "a, b", "on": True, "readers": ["x", "y"], "more": {"k": 1}}, {"name": "c", "on": False}]
    if call.terminal.structured:
        call.terminal.document({"rows": rows}, rows=rows)
        return
    call.terminal.table([Column("name"), Column("on", wide=True)], [[str(r["name"]), str(r["on"])] for r in rows])
    call.terminal.say("two rows")


def test_csv_names_its_columns_once_and_quotes_what_needs_it(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["listing", "-o", "csv"]) == 0
    out, _ = capfd.readouterr()
    assert out == 'name,on,readers,more\n"a, b",true,x y,"{""k"":1}"\nc,false,,\n'
    assert main(["--output=csv", "probe", "-u", "shmq://a"]) == 0
    assert capfd.readouterr().out.startswith("url,timeout,verbose\nshmq://a,,0\n")


@pytest.mark.parametrize(("form", "titles"), [("table", ["NAME"]), ("wide", ["NAME", "ON"])])
def test_some_columns_appear_only_in_wide_tables(
    form: str, titles: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["listing", "-o", form]) == 0
    out, err = capfd.readouterr()
    assert (out.splitlines()[0].split(), err) == (titles, "two rows\n")


def test_watch_runs_a_command_again_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("shmq.tools.command.time.sleep", pause)
    assert main(["probe", "--jsonl", "--watch", "250ms"]) == 130
    assert pauses == [0.25] * 3
    assert len(capfd.readouterr().out.splitlines()) == 3


def test_watching_without_a_pause_is_refused(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--watch", "0s"]) == 64
    assert "--watch 2s" in capfd.readouterr().err
