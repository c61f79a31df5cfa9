"""After a fork the child opens anew on first use, and the parent notices nothing. Spawn works."""

import multiprocessing
import subprocess
import sys
import textwrap

import pytest

from shmq.testing import SharedBroker

PRELUDE = """
import os, sys, threading, time
import shmq

url, topic, group = sys.argv[1:]

def in_child(body):
    "Run body in a forked child and fail when it fails."
    pid = os.fork()
    if not pid:
        try:
            body()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""


def run(program: str, broker: SharedBroker) -> None:
    """Run a program in a process of its own: forking a test runner would fork all its threads' locks."""
    subprocess.run(
        [
            sys.executable,
            "-P",
            "-X",
            "faulthandler",
            "-c",
            PRELUDE + textwrap.dedent(program),
            broker.url,
            broker.named("orders"),
            broker.named("billing"),
        ],
        check=True,
        timeout=60,
    )


def test_the_child_sends_with_a_client_id_of_its_own(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        with shmq.connect(url) as mq:
            producer = mq.producer()
            before = mq.client_id
            mq.send(topic, b"parent", queue_id=0)

            def child():
                assert mq.send(topic, b"child", queue_id=0).offset == 1
                assert producer.send(topic, b"child producer", queue_id=0).offset == 2
                assert producer.send_nowait(topic, b"child nowait", queue_id=0).result(60).offset == 3
                assert mq.client_id != before
                mq.close()

            in_child(child)
            assert mq.client_id == before
            assert mq.send(topic, b"parent again", queue_id=0).offset == 4
            assert type(mq.send).__name__ == "builtin_function_or_method"
        """,
        shmq_shared_broker,
    )


def test_the_childs_hot_methods_are_the_cores_own_after_their_first_use(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        mq = shmq.connect(url)

        def child():
            mq.send(topic, b"x")
            assert type(mq.send).__name__ == "builtin_function_or_method"

        in_child(child)
        mq.close()
        """,
        shmq_shared_broker,
    )


def test_leases_stay_with_the_parent(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        with shmq.connect(url) as mq:
            for number in range(3):
                mq.send(topic, b"%d" % number, queue_id=0)
            subscription = mq.subscribe(topic, group=group)
            messages = subscription.receive(wait=60)
            assert len(messages) == 3

            def child():
                for message in messages:
                    message.ack()          # the parent's: nothing happens
                    message.nack()
                assert messages[0].body == b"0"

            in_child(child)
            assert mq.admin.groups[group].lag.total == 3
            for message in messages:
                message.ack()
            assert mq.admin.groups[group].lag.total == 0
            mq.send(topic, b"3", queue_id=0)
            assert [message.body for message in subscription.receive(wait=60)] == [b"3"]
        """,
        shmq_shared_broker,
    )


def test_a_child_that_subscribes_becomes_a_second_member(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        with shmq.connect(url) as mq:
            subscription = mq.subscribe(topic, group=group)
            assert len(subscription.queues) == 8
            read_end, write_end = os.pipe()
            go_on, finish = os.pipe()

            def child():
                while not subscription.queues:
                    subscription.receive(wait=0.05)
                os.write(write_end, bytes(subscription.queues))
                os.read(go_on, 1)
                mq.close()

            thread = threading.Thread(target=in_child, args=(child,))
            thread.start()
            queues = list(os.read(read_end, 100))
            deadline = time.monotonic() + 50
            while len(subscription.queues) != 4 or len(mq.admin.groups[group].members) != 2:
                assert time.monotonic() < deadline, (subscription.queues, queues)
                time.sleep(0.005)  # not a wait: a program of its own, with its deadline
            os.write(finish, b"x")
            thread.join(60)
            while len(subscription.queues) != 8:
                assert time.monotonic() < deadline
                time.sleep(0.005)  # not a wait: a program of its own, with its deadline
        """,
        shmq_shared_broker,
    )


def test_a_running_iteration_goes_on_in_the_child_with_messages_of_its_own(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        mq = shmq.connect(url)
        mq.send(topic, b"first")
        subscription = mq.subscribe(topic, model="broadcasting", start="begin")
        is_child = False
        seen = []
        for message in subscription:
            seen.append(message.body)
            if len(seen) == 1:
                pid = os.fork()
                is_child = not pid
                if is_child:
                    continue
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                mq.send(topic, b"second")
                continue
            break
        if is_child:
            os._exit(0 if seen == [b"first", b"first"] else 1)
        assert seen == [b"first", b"second"], seen
        mq.close()
        """,
        shmq_shared_broker,
    )


def test_a_fork_while_other_threads_send_and_receive_does_not_hang_the_child(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        mq = shmq.connect(url)
        subscription = mq.subscribe(topic, group=group)
        stop = threading.Event()

        def produce():
            while not stop.is_set():
                mq.send(topic, b"x")

        def consume():
            for message in subscription:
                message.ack()

        threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
        for thread in threads:
            thread.start()

        def child():
            mq.send(topic, b"child")
            with mq.pull_consumer(topic, start="end") as consumer:
                consumer.poll()
            mq.close(1)

        for _ in range(10):
            in_child(child)
        stop.set()
        mq.close()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        """,
        shmq_shared_broker,
    )


def test_a_pull_consumer_goes_on_at_its_positions(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        with shmq.connect(url) as mq:
            for number in range(4):
                mq.send(topic, b"%d" % number, queue_id=0)
            consumer = mq.pull_consumer(topic)
            assert len(consumer.poll(2, wait=60)) == 2

            def child():
                assert [message.body for message in consumer.poll(10, wait=60)] == [b"2", b"3"]

            in_child(child)
            assert [message.body for message in consumer.poll(10, wait=60)] == [b"2", b"3"]
        """,
        shmq_shared_broker,
    )


def test_the_death_of_the_parent_is_seen_although_a_child_lives_on(shmq_shared_broker: SharedBroker) -> None:
    run(
        """
        observer_read, observer_write = os.pipe()
        end_read, end_write = os.pipe()
        pid = os.fork()
        if not pid:
            mq = shmq.connect(url)
            subscription = mq.subscribe(topic, group=group)
            os.write(observer_write, b"x")
            if not os.fork():      # a child that never uses the connection, and holds nothing of it
                os.close(end_write)
                os.read(end_read, 1)
                os._exit(0)
            os._exit(0)            # as a crash: nothing is closed
        os.read(observer_read, 1)
        os.waitpid(pid, 0)
        with shmq.connect(url) as mq:
            deadline = time.monotonic() + 50
            while group in mq.admin.groups and mq.admin.groups[group].members:
                assert time.monotonic() < deadline
                time.sleep(0.005)  # not a wait: a program of its own, with its deadline
        """,
        shmq_shared_broker,
    )


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_connection_may_be_handed_to_a_spawned_process(shmq_shared_broker: SharedBroker, method: str) -> None:
    topic = shmq_shared_broker.named("orders")
    program = textwrap.dedent(
        """
        import multiprocessing, sys
        import shmq

        def spawned(mq, topic):
            assert mq.send(topic, b"spawned", queue_id=0).offset == 1
            mq.close()

        if __name__ == "__main__":
            url, topic, method = sys.argv[1:]
            with shmq.connect(url) as mq:
                mq.send(topic, b"parent", queue_id=0)
                process = multiprocessing.get_context(method).Process(target=spawned, args=(mq, topic))
                process.start()
                process.join(50)
                assert process.exitcode == 0
        """
    )
    assert method in multiprocessing.get_all_start_methods()
    path = shmq_shared_broker.broker.directory / f"{method}.py"
    path.write_text(program)
    subprocess.run([sys.executable, "-P", str(path), shmq_shared_broker.url, topic, method], check=True, timeout=60)
