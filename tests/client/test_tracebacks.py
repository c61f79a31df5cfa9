"""What a first program shows when it crashes: where it called, what happened, what to type, in a dozen lines."""

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import shmq
from shmq.testing import SharedBroker

LINES_MAX = 12

# A line of a program, and what the end of its traceback has to say.
CRASHES = [
    ('shmq.connect("shmq://missing")', "hint: start it: shmq serve --name missing"),
    ('shmq.connect("shmq:///nonexistent/x")', "hint: start it: shmq serve --name x"),
    ('shmq.connect("rocketmq://127.0.0.1:1", timeout=1).send("t", b"x")', "hint: is it running"),
    ('shmq.connect("localhost:9876")', "hint: did you mean rocketmq://localhost:9876?"),
    ('shmq.connect("tcp://[::1]:9876;b:9876")', "hint: did you mean rocketmq://[::1]:9876,b:9876?"),
    ('shmq.connect("orders")', "hint: did you mean shmq://orders?"),
    ('shmq.connect("/run/shmq/default")', "hint: did you mean shmq:///run/shmq/default?"),
    ("shmq.connect(5)", "hint: shmq://NAME"),
    ('shmq.connect(URL, timeout="5")', "hint: seconds"),
    ('mq().send("orders", "text")', "did you mean body=text.encode()?"),
    ('mq().send("orders", {"a": 1})', "did you mean body=json.dumps(value).encode()"),
    ('mq().send("or ders", b"x")', "hint: use only the characters"),
    ('mq().send("orders", b"x", tags="a")', "did you mean tag=?"),
    ('mq().send("orders", b"x", dealy=5)', "did you mean delay=?"),
    ('mq().send("orders", b"x", delay="5s")', "hint: seconds or a timedelta"),
    ('mq().send("orders", b"x", keys=5)', "did you mean key=?"),
    ('mq().send("RMQ_SYS_NOTHING", b"x")', "hint: see: shmq topic list -a"),
    ('mq().subscribe("orders")', 'hint: subscribe(…, group="billing")'),
    ('shmq.connect(nmae="x")', "did you mean name=?"),
    (
        'mq().subscribe("orders", group="g", tag="a")',
        "subscribe() got an unexpected keyword argument 'tag'; did you mean tags=?",
    ),
    ('mq().subscribe("orders", group="g", sql="a = 1")', "did you mean where=?"),
    ('mq().producer(grup="g")', "did you mean group=?"),
    ('mq().admin.create_topic("orders", queue=2)', "did you mean queues=?"),
    ('mq().subscribe("orders", group=5)', 'hint: pass the name as "my_group"'),
    ('mq().subscribe("orders", group="g", where="a =")', "the end stands where a value is expected"),
    ('mq().listener(5, group="g")', 'hint: pass the name as "my_topic"'),
    ('mq().listener("orders", group="g")(5)', "hint: decorate a function"),
    ('mq().admin.delete_topic("missing")', "hint: see: shmq topic list -a"),
    ('mq().admin.groups["missing"]', "hint: see: list(mq.admin.groups)"),
    ('mq().admin.create_topic("orders", kind="lifo")', "hint: one of normal, fifo"),
    ("mq().run()", "hint: decorate one"),
]


@pytest.mark.parametrize(("line", "cure"), CRASHES)
def test_a_crash_shows_the_cure_in_a_dozen_lines(
    line: str, cure: str, shmq_shared_broker: SharedBroker, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"import shmq\n\nURL = {shmq_shared_broker.url!r}\n\n\ndef mq():\n    global kept\n"
        "    kept = shmq.connect(URL)\n    return kept\n\n\n"
        f"def main():\n    {line}\n\n\nmain()\n"
    )
    done = subprocess.run([sys.executable, "-P", str(program)], capture_output=True, text=True, timeout=60, check=False)
    lines = done.stderr.rstrip().splitlines()
    assert done.returncode == 1 and cure in "\n".join(lines[-2:]), done.stderr
    assert len(lines) <= LINES_MAX, done.stderr
    assert "During handling" not in done.stderr and "direct cause" not in done.stderr


def test_a_hint_is_a_note_once_however_often_it_changes_and_travels() -> None:
    error = shmq.UsageError("no", hint="yes")
    assert error.__notes__ == ["hint: yes"]
    error.hint = "perhaps"
    error.add_note("seen by me")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.hint, again.__notes__) == ("no", "perhaps", ["hint: perhaps", "seen by me"])
    again.hint = ""
    assert again.__notes__ == ["seen by me"]
    assert not getattr(shmq.UsageError("no"), "__notes__", [])


def test_whole_tracebacks_are_there_for_who_asks(tmp_path: Path) -> None:
    command = [sys.executable, "-P", "-c", 'import shmq; shmq.connect("shmq://missing")']
    environment = {"SHMQ_TRACEBACK": "full", "SHMQ_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert "FileNotFoundError" in done.stderr and "control_link.py" in done.stderr
