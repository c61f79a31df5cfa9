"""A conflict names the topic, the sides and how long it has lasted; agreement is none."""

from shmq.tools.administration.subscription_conflict import Member, conflict_of, conflict_of_status


def test_members_with_other_tags_of_one_topic_are_in_conflict() -> None:
    members = [Member("a", "shm", {"t": "red"}), Member("b", "tcp", {"t": "blue"}), Member("c", "tcp", {"t": "blue"})]
    found = conflict_of("g", members, seconds=61.2, refused=2)
    assert found is not None and found.topics == {"t": {"red": ["a"], "blue": ["b", "c"]}}
    assert 't: "blue" (2) / "red" (1)' in found.text and "for 61 s" in found.text and "2 members were" in found.text
    assert found.document == {
        "seconds": 61.2,
        "refused": 2,
        "topics": [
            {
                "topic": "t",
                "wanted": [{"subscription": "blue", "clients": ["b", "c"]}, {"subscription": "red", "clients": ["a"]}],
            }
        ],
    }


def test_local_members_may_read_different_topics() -> None:
    assert conflict_of("g", [Member("a", "shm", {"t": "*"}), Member("b", "shm", {"u": "*"})]) is None


def test_beside_a_tcp_member_all_have_to_read_the_same_topics_but_for_their_retries() -> None:
    members = [Member("a", "shm", {"t": "*"}), Member("b", "tcp", {"t": "*", "u": "*", "%RETRY%g": "*"})]
    found = conflict_of("g", members)
    assert found is not None and found.topics == {"u": {"–": ["a"], "*": ["b"]}}


def test_a_status_tells_of_every_group_in_conflict() -> None:
    def member(tags: str) -> dict[str, object]:
        return {"transport": "tcp", "subscription": {"t": tags}}

    at_odds = {"members": {"a": member("x"), "b": member("y")}, "differsSinceMs": 1500, "conflicts": 1}
    agreed = {"members": {"a": member("x"), "b": member("x")}, "differsSinceMs": None, "conflicts": 0}
    assert conflict_of_status("good", agreed) is None
    found = conflict_of_status("odd", at_odds)
    assert found is not None and (found.group, found.seconds, found.refused) == ("odd", 1.5, 1)
